"""Work-conserving earliest deadline first: never idle while a part waits.

Rule: a free GPU takes the category whose head is due first, with the largest batch that still
answers the head in time. Source: the usual baseline (batching.md 5.3 "central EDF eager").
Needs: execution times only.
"""

from __future__ import annotations

from deadline_batcher.board import Board, Part
from deadline_batcher.plan import Plan
from deadline_batcher.policies.policy import Choice, Hold


class Eager:
    """See the module."""

    is_by_due = True
    may_end_late = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def waits(self, part: Part) -> None:
        """Nothing to remember."""

    def missed(self, part: Part, now_ns: int) -> None:
        """Nothing to learn from it."""

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The head due first decides."""
        queues = board.queues
        number = min(board.occupied, key=lambda n: (queues[n].head.pool_due_at_ns, n))
        queue = queues[number]
        left_ns = queue.head.pool_due_at_ns - self._plan.result_ns - now_ns
        size = min(self._plan.categories[number].cap_for(left_ns), len(queue))
        return Choice(board.free[0], number, size)
