"""Symphony's deferred batching: start a batch as late as its head allows.

Rule: of each category the candidate is the largest prefix that fits its head, b parts; it may
start from frontrun = due - l(b + 1) on, the instant from which a larger batch would be too late,
and must by due - l(b). A free GPU, the lowest numbered, takes among the candidates that may start
the one that must start first. Source: Chen et al., arXiv 2308.07470v2. Needs: execution times.
"""

from __future__ import annotations

from deadline_batcher.board import Board
from deadline_batcher.policies.policy import Choice, Hold, Rule


class Deferred(Rule):
    """See the module."""

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """Among the batches that may start, the one that must start first."""
        best: tuple[int, int, int] | None = None
        until_ns: int | None = None
        for number in board.occupied:
            queue, wcet_ns = board.queues[number], board.wcet[number]
            due_ns = queue.head.pool_due_at_ns - self._plan.result_ns
            size = min(board.cap_for(number, due_ns - now_ns), len(queue))
            if size == len(queue) < len(wcet_ns):
                frontrun_ns = due_ns - self._plan.timer_ns - wcet_ns[size]
                if frontrun_ns > now_ns:
                    until_ns = min(until_ns or frontrun_ns, frontrun_ns)
                    continue
            found = (due_ns - wcet_ns[size - 1], number, size)
            best = found if best is None else min(best, found)
        if best is None:
            return Hold(until_ns)
        first = board.wcet
        alike = [gpu for gpu in board.free if board.wcet_on[gpu] is first]
        return Choice(min(alike), best[1], best[2])
