"""Takt's rule: look at what a batch would block before starting it. See docs/batching.md."""

from __future__ import annotations

from deadline_batcher.board import Board, Part
from deadline_batcher.plan import Plan, frontier
from deadline_batcher.policies.policy import Choice, Hold

_NEVER_NS = 1 << 62


class Takt:
    """See the module."""

    is_by_due = True
    may_end_late = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._wcet = [category.wcet_ns for category in plan.categories]
        self._usable = [frontier(category.wcet_ns) for category in plan.categories]
        self._deadlines = [plan.deadline_ns(number) for number in range(len(plan.categories))]
        self._last_ns: list[int] = [-_NEVER_NS] * len(plan.lines)
        self._lines: list[list[int]] = [[] for _ in plan.categories]
        for line, timing in enumerate(plan.lines):
            self._lines[timing.category].append(line)

    def waits(self, part: Part) -> None:
        """Remember when each line last had a part: its next is due a cycle later."""
        if not part.runs and part.key.line < len(self._last_ns):
            self._last_ns[part.key.line] = part.ready_at_ns

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """See docs/batching.md."""
        result_ns = self._plan.result_ns
        ranked = []
        for number in board.occupied:
            queue, category = board.queues[number], self._plan.categories[number]
            due_ns = queue.head.pool_due_at_ns - result_ns
            size = self._usable[number][min(category.cap_for(due_ns - now_ns), len(queue))]
            ranked.append((due_ns - category.wcet_ns[size - 1], number, size))
        if len(ranked) > 1:
            ranked.sort()
        until_ns = _NEVER_NS
        for start_ns, number, full in ranked:
            size = full
            if len(board.free) == 1:
                size = self._cut(board, number, full, now_ns)
            if not size and start_ns <= now_ns:
                size = full  # the last moment of a part that waits counts more than one to come
            if not size:
                until_ns = min(until_ns, start_ns)
                continue
            later_ns = self._worth_waiting(board, number, size, now_ns)
            if later_ns is not None:
                return Hold(later_ns)
            return Choice(board.free[0], number, size)
        return Hold(until_ns)

    def _cut(self, board: Board, number: int, full: int, now_ns: int) -> int:
        wcet_ns, result_ns = self._wcet[number], self._plan.result_ns
        next_ns = board.ends_ns[0] if board.ends_ns else _NEVER_NS
        need_ns = _NEVER_NS
        for other, deadline_ns in enumerate(self._deadlines):
            if other == number:
                continue
            latest_ns = now_ns + deadline_ns
            if other in board.occupied:
                latest_ns = min(latest_ns, board.queues[other].head.pool_due_at_ns)
            latest_ns -= self._wcet[other][0] + result_ns
            need_ns = min(need_ns, latest_ns)
        if next_ns <= need_ns or now_ns + wcet_ns[full - 1] <= need_ns:
            return full
        fits = self._plan.categories[number].cap_for(need_ns - now_ns)
        size = self._usable[number][min(fits, full)]
        if not size:
            return 0
        half = max(1, full // 2)
        due_ns = board.queues[number].head.pool_due_at_ns - result_ns
        if wcet_ns[size - 1] * full * 20 > wcet_ns[full - 1] * size * 21 and (
            next_ns <= due_ns - wcet_ns[half - 1]
        ):
            return 0
        return size

    def _worth_waiting(self, board: Board, number: int, size: int, now_ns: int) -> int | None:
        queue, wcet_ns = board.queues[number], self._wcet[number]
        waiting = len(queue)
        room = len(wcet_ns) - waiting
        if room <= 0:
            return None
        coming = []
        for line in self._lines[number]:
            cycle_ns = self._plan.lines[line].cycle_ns
            at_ns = self._last_ns[line] + cycle_ns
            if at_ns >= now_ns:
                coming.append(at_ns)
        coming.sort()
        due_ns = queue.head.pool_due_at_ns - self._plan.result_ns
        best_ns, best_size, until_ns = wcet_ns[size - 1], size, None
        for more, at_ns in enumerate(coming[:room], start=1):
            total = waiting + more
            took_ns = at_ns - now_ns + wcet_ns[total - 1]
            if now_ns + took_ns > due_ns:
                break
            if self._usable[number][total] == total and took_ns * best_size < best_ns * total:
                best_ns, best_size, until_ns = took_ns, total, at_ns
        return until_ns
