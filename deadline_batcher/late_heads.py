"""When the first part of each queue becomes late: not even a batch of one would end in time."""

from __future__ import annotations

import heapq

from deadline_batcher.board import Board, Part


class LateHeads:
    """Keeps `heap` of (instant, category); entries that no longer hold stay until they come up,
    so that its first is never after the first that still holds.

    lone_ns: by category, the worst case of a batch of one on the best GPU there is.
    """

    def __init__(self, board: Board, result_ns: int) -> None:
        self.lone_ns = [wcet_ns[0] for wcet_ns in board.wcet]
        self._board = board
        self._result_ns = result_ns
        self.heap: list[tuple[int, int]] = []

    def head_changed(self, category: int) -> None:
        """Another part is first in this queue, or none."""
        queue = self._board.queues[category]
        if queue.entries:
            heapq.heappush(self.heap, (self.late_at_ns(queue.head), category))
        else:
            self._board.occupied.pop(category, None)

    def late_at_ns(self, part: Part) -> int:
        """The first instant at which this part is late."""
        return part.pool_due_at_ns - self._result_ns - self.lone_ns[part.category] + 1

    def next_at_ns(self) -> int | None:
        """When the first head of all queues becomes late."""
        late = self.heap
        while late:
            at_ns, category = late[0]
            queue = self._board.queues[category]
            if queue.entries and self.late_at_ns(queue.head) == at_ns:
                return at_ns
            heapq.heappop(late)
        return None

    def head_if_late(self, now_ns: int) -> Part | None:
        """The head that became late first, if one has."""
        at_ns = self.next_at_ns()
        if at_ns is None or at_ns > now_ns:
            return None
        return self._board.queues[self.heap[0][1]].head

    def best_changed(self, lone_ns: list[int]) -> None:
        """The best GPU there is became slower or faster."""
        self.lone_ns = lone_ns
        occupied = self._board.occupied
        self.heap = [(self.late_at_ns(self._board.queues[n].head), n) for n in occupied]
        heapq.heapify(self.heap)
