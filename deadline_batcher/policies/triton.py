"""Triton's dynamic batcher, as the scenarios' README models it: size or oldest wait.

Rule: first come first served per category; a batch is ready when `batch_cap` parts wait or the
oldest has waited `delay_ns`; the category whose ready batch has the oldest part goes first; one
queue over all GPUs. Deadlines are not looked at: a batch may end late, which is the published
rule; that parts which are late already are refused is kind to it (a queue policy with REJECT).
Source: triton-inference-server/core, dynamic_batch_scheduler.cc. Needs: nothing but its two
settings, which `takt sim policies` searches over a grid.
"""

from __future__ import annotations

from deadline_batcher.board import Board
from deadline_batcher.plan import Plan
from deadline_batcher.policies.policy import Choice, Hold, Rule


class Triton(Rule):
    """See the module."""

    is_by_due = False
    may_end_late = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._delay_ns = plan.policy.delay_ns
        self._caps = [
            min(plan.policy.batch_cap or category.batch_max, category.batch_max)
            for category in plan.categories
        ]

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The ready batch with the oldest part."""
        best: tuple[int, int, int] | None = None
        until_ns: int | None = None
        for number in board.occupied:
            queue, cap = board.queues[number], self._caps[number]
            oldest_ns = queue.entries[0][0]
            if len(queue) < cap and oldest_ns + self._delay_ns > now_ns:
                until_ns = min(until_ns or oldest_ns + self._delay_ns, oldest_ns + self._delay_ns)
                continue
            found = (oldest_ns, number, min(cap, len(queue)))
            best = found if best is None else min(best, found)
        if best is None:
            return Hold(until_ns)
        return Choice(board.free[0], best[1], best[2])
