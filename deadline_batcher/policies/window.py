"""DeepRT's window, made to slide: a batch gathers for half the shortest deadline of its category.

Rule: a category's batch closes when it is full, when its longest-waiting part has waited the
window (D/2), or when its head could not bear one more part (see deadline_batcher/window.py);
batches that are closed start in the order of their closing. Source: Yang et al., SEC 2021; the
window here begins with its first part instead of a fixed grid, and the second condition lets a
head with little slack go. Needs: execution times, the shortest relative deadline.
"""

from __future__ import annotations

import heapq

from deadline_batcher.board import Board, Part
from deadline_batcher.plan import Plan
from deadline_batcher.policies.policy import Choice, Hold, Rule
from deadline_batcher.window import close_at_ns


class Window(Rule):
    """See the module."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._ages: list[list[tuple[int, int, Part]]] = [[] for _ in plan.categories]

    def waits(self, part: Part) -> None:
        """Remember who has waited longest."""
        heapq.heappush(self._ages[part.category], (part.ready_at_ns, part.order, part))

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The batch that closed first, if one has."""
        close_at, number = min((self._close_at_ns(board, n), n) for n in board.occupied)
        if close_at > now_ns:
            return Hold(close_at)
        queue = board.queues[number]
        left_ns = queue.head.pool_due_at_ns - self._plan.result_ns - now_ns
        size = min(board.cap_for(number, left_ns), len(queue))
        return Choice(board.free[0], number, size)

    def _close_at_ns(self, board: Board, number: int) -> int:
        queue, wcet_ns = board.queues[number], board.wcet[number]
        if len(queue) >= len(wcet_ns):
            return 0
        ages = self._ages[number]
        while not ages[0][2].is_waiting:
            heapq.heappop(ages)
        reserve_ns = self._plan.result_ns + self._plan.timer_ns
        due_ns = queue.head.pool_due_at_ns
        window_ns = self._plan.categories[number].window_ns
        return close_at_ns(wcet_ns, window_ns, ages[0][0], due_ns, len(queue), reserve_ns)
