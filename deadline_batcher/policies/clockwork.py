"""Clockwork's strategies: one for every batch size, least latest start first, heads dropped.

Rule: for every category and every size b in 1, 2, 4, 8, 16 there is a strategy over the parts
that can still be answered by a batch of b; its priority is its first part's due - l(b). A free
GPU takes the strategy of least priority and runs the category's largest size b* >= b for which b*
such parts wait; parts in front of them are dropped. Source: Gujarati et al., OSDI 2020 and its
code. Left out: the 10 ms look-ahead and 5 ms buffer (`result_ns` is ours), and the 25 ms limit on
execution times, which would forbid most of our batches. Needs: execution times.
"""

from __future__ import annotations

from bisect import bisect_left

from deadline_batcher.board import Board
from deadline_batcher.policies.policy import Choice, Hold, Rule

SIZES = (1, 2, 4, 8, 16)


class Clockwork(Rule):
    """See the module."""

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The strategy whose largest filled size must start first."""
        best: tuple[int, int, int, int] | None = None
        for number in board.occupied:
            entries, wcet_ns = board.queues[number].entries, board.wcet[number]
            filled: tuple[int, int] | None = None
            priority_ns: int | None = None
            for size in SIZES:
                if size > len(wcet_ns):
                    break
                ends_ns = now_ns + wcet_ns[size - 1] + self._plan.result_ns
                first = bisect_left(entries, ends_ns, key=lambda entry: entry[0])
                if len(entries) - first < size:
                    continue
                filled = (size, first)
                starts_ns = entries[first][0] - wcet_ns[size - 1]
                priority_ns = starts_ns if priority_ns is None else min(priority_ns, starts_ns)
            if filled is None or priority_ns is None:
                continue
            found = (priority_ns, number, *filled)
            best = found if best is None else min(best, found)
        if best is None:
            return Hold()
        return Choice(board.free[0], best[1], best[2], best[3], is_dropping=True)
