"""Work-conserving earliest deadline first: never idle while a part waits.

Rule: a free GPU takes the category whose head is due first, with the largest batch that still
answers the head in time. Source: the usual baseline (batching.md 5.3 "central EDF eager").
Needs: execution times only.
"""

from __future__ import annotations

from deadline_batcher.board import Board
from deadline_batcher.policies.policy import Choice, Hold, Rule


class Eager(Rule):
    """See the module."""

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The head due first decides."""
        queues = board.queues
        number = min(board.occupied, key=lambda n: (queues[n].head.pool_due_at_ns, n))
        queue = queues[number]
        left_ns = queue.head.pool_due_at_ns - self._plan.result_ns - now_ns
        size = min(board.cap_for(number, left_ns), len(queue))
        return Choice(board.free[0], number, size)
