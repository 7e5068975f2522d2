"""Takt's rule: before a batch starts, look at whom it would block. The whole is docs/batching.md.

In short: the category whose largest fitting batch must start first goes first; the last free GPU
takes no batch after which what waits elsewhere, or could arrive now, finds no GPU in time; where
the next part of a line is due soon, or the next GPU comes soon enough, a batch that would be
dear for its size waits; fewer parts than the load needs in one batch wait for more; once a part
has been lost, full batches count more than their heads. For a GPU that may be lost: a batch with
slack for a second run waits where the loss of another GPU would leave the rest without one in time;
parts that came back run where that costs no other.
Needs: execution times, cycle times and deadlines of the lines (without cycle times it predicts
nothing and still keeps its guarantee, which never rests on a prediction).
"""

from __future__ import annotations

from bisect import bisect_right, insort

from deadline_batcher.board import Board, Part
from deadline_batcher.plan import Plan, frontier
from deadline_batcher.policies.coming import Coming
from deadline_batcher.policies.lost import Reserve, less_one, without_returned
from deadline_batcher.policies.pace import Pace
from deadline_batcher.policies.policy import Choice, Hold
from deadline_batcher.policies.saturation import Saturation

NEVER_NS = 1 << 62
WASTE = 1.05
"""A batch is dear when a part in it takes this much more GPU time than in the batch to be had."""
DEAR_AGAIN = 2.0
"""The same for a batch with parts that came back: they are skipped rather than run so dearly."""
Need = tuple[int, int, int, int]
"""(need, category, waiting, due): `need` is the instant by which it needs a GPU at last."""


class Takt:
    """See the module."""

    is_by_due = True
    may_end_late = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._result_ns = plan.result_ns
        self._wcet = [category.wcet_ns for category in plan.categories]
        self._usable = [frontier(category.wcet_ns, category.used) for category in plan.categories]
        self._rates = [plan.rate_hz(number) / 1e9 for number in range(len(plan.categories))]
        # Latest start of a lone part that arrives now, from now.
        self._lone_ns = [
            plan.deadline_ns(number) - plan.result_ns - category.wcet_ns[0]
            for number, category in enumerate(plan.categories)
        ]
        self._reserve = Reserve(plan)
        self._coming = Coming(plan)
        self._saturation = Saturation(plan, self._usable)
        self._pace = Pace(plan, self._usable)

    def waits(self, part: Part) -> None:
        """Learn when each line's next part is due, and how much work arrives."""
        if not part.runs:
            self._coming.arrived(part)
            self._saturation.arrived(part)

    def missed(self, part: Part, now_ns: int) -> None:
        """A part was lost: for one longest deadline, the batch is protected, not its head.

        A part that a lost GPU had says nothing about the load.
        """
        if not part.runs:
            self._saturation.missed(now_ns)

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """Parts that came back first, where nobody needs the GPU more; else the rule itself."""
        self._wcet = board.wcet
        if self._saturation.is_on(now_ns):
            return self._saturation.choose(board, now_ns)
        if board.returned:
            return self._choose_with_returned(board, now_ns)
        return self._choose(board, now_ns)

    def _choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """Ranks the categories by latest start; runs the first that blocks nobody."""
        is_last = len(board.free) == 1
        held_ns: dict[int, int] = {}
        until_ns = NEVER_NS
        enough = self._pace.for_gpus(len(board.ready))
        for start_ns, number, full in self._ranked(board, now_ns):
            size = full
            entries = board.queues[number].entries
            if len(entries) < enough[number].size:
                ripe_ns = entries[0][0] - enough[number].before_due_ns
                if ripe_ns > now_ns:
                    until_ns = min(until_ns, ripe_ns)
                    continue
            if is_last:
                size = self._fitting(board, number, full, now_ns, held_ns)
                if not size:
                    if start_ns > now_ns:
                        until_ns = min(until_ns, start_ns)
                        continue
                    # Its last moment has come: a part that waits counts more than one to come.
                    size = full
                elif (size < full and self._is_cut_wasteful(board, number, size, full)) or (
                    self._can_grow(board, number, size, now_ns, held_ns)
                ):
                    continue
            later_ns = self._worth_waiting(board, number, size, now_ns)
            if later_ns is not None:
                return Hold(min(later_ns, until_ns))
            ample_ns = start_ns - self._wcet[number][size - 1]
            if ample_ns > now_ns and self._reserve.is_kept(board):
                end_ns = now_ns + self._wcet[number][size - 1]
                needs = self._needs(board, number, now_ns, held_ns)
                if needs and not self._leaves_room(less_one(board), end_ns, needs, now_ns):
                    until_ns = min(until_ns, ample_ns)
                    continue
            return Choice(board.free[0], number, size)
        return Hold(None if until_ns == NEVER_NS else until_ns)

    def _ranked(self, board: Board, now_ns: int) -> list[tuple[int, int, int]]:
        """(latest start, category, size) of every category's largest batch that its head allows."""
        ranked = []
        for number in board.occupied:
            entries, wcet_ns = board.queues[number].entries, self._wcet[number]
            due_ns = entries[0][0] - self._result_ns
            fits = bisect_right(wcet_ns, due_ns - now_ns)
            size = self._usable[number][min(fits, len(entries))]
            ranked.append((due_ns - wcet_ns[size - 1], number, size))
        ranked.sort()
        return ranked

    # --- the last free GPU ------------------------------------------------------------------

    def _fitting(
        self, board: Board, number: int, full: int, now_ns: int, held_ns: dict[int, int]
    ) -> int:
        """The largest size up to `full` that blocks no other category; 0 if none."""
        needs = self._needs(board, number, now_ns, held_ns)
        if not needs:
            return full
        wcet_ns, usable = self._wcet[number], self._usable[number]
        if self._leaves_room(board.ends_ns, now_ns + wcet_ns[full - 1], needs, now_ns):
            return full
        low, high = 0, full - 1  # sizes below `low` are known to fit, above `high` not to
        while low < high:
            middle = (low + high + 1) // 2
            end_ns = now_ns + wcet_ns[usable[middle] - 1]
            if self._leaves_room(board.ends_ns, end_ns, needs, now_ns):
                low = middle
            else:
                high = middle - 1
        return usable[low]

    def _needs(self, board: Board, number: int, now_ns: int, held_ns: dict[int, int]) -> list[Need]:
        """When each of the other categories needs a GPU at last, earliest first; -1: when all do.

        Half of what waits must fit before the head's due: the other half has later dues. Where
        nothing waits, a part may arrive this instant.
        """
        needs = []
        for other, lone_ns in enumerate(self._lone_ns):
            if other == number:
                continue
            wcet_ns, waiting = self._wcet[other], len(board.queues[other].entries)
            if waiting:
                due_ns = board.queues[other].entries[0][0] - self._result_ns
                half = min((waiting + 1) // 2, len(wcet_ns))
                need_ns = min(due_ns - wcet_ns[half - 1], held_ns.get(other, NEVER_NS))
            else:
                need_ns = now_ns + lone_ns
                due_ns = need_ns + wcet_ns[0]
            needs.append((need_ns, other, waiting, due_ns))
        needs.sort()
        return needs

    def _leaves_room(
        self,
        ends_ns: list[int],
        end_ns: int,
        needs: list[Need],
        now_ns: int,
        is_strict: bool = False,
    ) -> bool:
        """Whether each still finds a GPU in time: one busy to `end_ns`, the others to `ends_ns`.

        is_strict: also where parts come meanwhile: half of what waits by then fits into one batch.
        """
        ends = ends_ns.copy()
        insort(ends, end_ns)
        for need_ns, other, waiting, due_ns in needs:
            free_ns = ends[0]
            if free_ns > need_ns:
                return False
            wcet_ns = self._wcet[other]
            by_then = waiting + int(self._rates[other] * max(0, free_ns - now_ns)) + 1
            if not waiting:
                # Parts come until then: half of them are what one batch must carry.
                half = min((by_then + 1) // 2, len(wcet_ns))
                if free_ns + wcet_ns[half - 1] > due_ns:
                    return False
            if len(needs) == 1 and not is_strict:
                return True
            fits = max(1, bisect_right(wcet_ns, due_ns - free_ns))
            if is_strict:
                late_ns = max(0, self._lone_ns[other])  # lines that should have had a part by now
                coming = self._coming.between(other, now_ns - late_ns, free_ns)
                by_then = max(by_then, waiting + coming)
                if 2 * fits < min(by_then, len(wcet_ns)):
                    return False
            ends[0] = free_ns + wcet_ns[min(by_then, fits) - 1]
            if len(ends) > 1 and ends[0] > ends[1]:
                ends.sort()
        return True

    def _is_cut_wasteful(self, board: Board, number: int, size: int, full: int) -> bool:
        """Whether to leave the GPU free: cut to fit is dear, and the next GPU comes in time."""
        if not board.ends_ns:
            return False
        wcet_ns = self._wcet[number]
        if wcet_ns[size - 1] * full <= WASTE * wcet_ns[full - 1] * size:
            return False
        due_ns = board.queues[number].entries[0][0] - self._result_ns
        return board.ends_ns[0] <= due_ns - wcet_ns[max(1, full // 2) - 1]

    def _can_grow(
        self, board: Board, number: int, size: int, now_ns: int, held_ns: dict[int, int]
    ) -> bool:
        """Whether the next GPU comes in time for a batch that is cheaper for each part."""
        if not board.ends_ns:
            return False
        next_ns, wcet_ns, entries = (
            board.ends_ns[0],
            self._wcet[number],
            board.queues[number].entries,
        )
        total = min(len(entries) + self._coming.between(number, now_ns, next_ns), len(wcet_ns))
        total = self._usable[number][total]
        if total <= size or wcet_ns[size - 1] * total <= WASTE * wcet_ns[total - 1] * size:
            return False
        latest_ns = entries[0][0] - self._result_ns - wcet_ns[total - 1]
        if next_ns > latest_ns:
            return False
        held_ns[number] = latest_ns
        return True

    # --- parts that came back ---------------------------------------------------------------

    def _choose_with_returned(self, board: Board, now_ns: int) -> Choice | Hold:
        """Some wait that a lost GPU had: they may fall to their fallback, the others may not."""
        fresh, fronts = without_returned(board)
        for number, front in enumerate(fronts):
            if front:
                first, size = self._again(board, fresh, number, front, now_ns)
                if size:
                    return Choice(board.free[0], number, size, first)
        choice = self._choose(fresh, now_ns)
        if isinstance(choice, Hold):
            return choice
        return choice._replace(first=fronts[choice.category])

    def _again(
        self, board: Board, fresh: Board, number: int, front: int, now_ns: int
    ) -> tuple[int, int]:
        """(first, size) of a batch that begins with a returned part; size 0 where it would cost.

        The earliest of the `front` returned parts whose batch is not dear begins it: one with
        little time left would make the batch small.
        """
        entries = board.queues[number].entries
        wcet_ns, usable = self._wcet[number], self._usable[number]
        batches = []
        for first in range(front):
            fits = bisect_right(wcet_ns, entries[first][0] - self._result_ns - now_ns)
            size = usable[min(fits, len(entries) - first)]
            batches.append((wcet_ns[size - 1] / size, first, size))
        limit = DEAR_AGAIN * min(batches)[0]
        _, first, full = next(one for one in batches if one[0] <= limit)
        ends_ns = [now_ns] * (len(board.free) - 1) + board.ends_ns
        rest, kept = fresh.queues[number], fresh.queues[number].entries
        low, high, middle = 0, full, full  # sizes up to `low` cost nobody, above `high` they do
        while low < high:
            size = usable[middle]
            rest.entries = entries[max(front, first + size) :]
            needs = self._needs(fresh, -1, now_ns, {})
            if self._leaves_room(ends_ns, now_ns + wcet_ns[size - 1], needs, now_ns, True):
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        rest.entries = kept
        return first, usable[low]

    # --- parts to come ----------------------------------------------------------------------

    def _worth_waiting(self, board: Board, number: int, size: int, now_ns: int) -> int | None:
        """Until when to wait for parts to come, if the GPU then gets more done for its time."""
        entries, wcet_ns = board.queues[number].entries, self._wcet[number]
        waiting = len(entries)
        room = len(wcet_ns) - waiting
        if room <= 0:
            return None
        usable = self._usable[number]
        due_ns = entries[0][0] - self._result_ns - self._plan.timer_ns
        best_ns, best_size, until_ns = wcet_ns[size - 1], size, None
        for total, at_ns in enumerate(self._coming.after(number, now_ns, room), waiting + 1):
            if at_ns + wcet_ns[total - 1] > due_ns:
                break
            took_ns = at_ns - now_ns + wcet_ns[total - 1]
            if usable[total] == total and took_ns * best_size < best_ns * total:
                best_ns, best_size, until_ns = took_ns, total, at_ns
        return until_ns
