"""When the next part of each line is due: one cycle after its last.

A prediction, never a promise: a line may stop, be slow, or be fed by hand. Nothing but waiting
for a better batch rests on it. A line costs O(log lines) for each part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from deadline_batcher.board import Part
from deadline_batcher.plan import Plan


class Coming:
    """Predicted arrivals by category, in order; at most one for each line."""

    def __init__(self, plan: Plan) -> None:
        self._cycles_ns = [line.cycle_ns for line in plan.lines]
        self._next: list[tuple[int, int] | None] = [None] * len(plan.lines)
        self._ahead: list[list[tuple[int, int]]] = [[] for _ in plan.categories]

    def arrived(self, part: Part) -> None:
        """A line has had a part; its next is due a cycle later."""
        line = part.key.line
        if line >= len(self._next):
            return
        ahead, before = self._ahead[part.category], self._next[line]
        if before is not None:
            del ahead[bisect_left(ahead, before)]
        expected = (part.ready_at_ns + self._cycles_ns[line], line)
        self._next[line] = expected
        insort(ahead, expected)

    def between(self, category: int, from_ns: int, to_ns: int) -> int:
        """How many lines are due after `from_ns` and by `to_ns`."""
        ahead = self._ahead[category]
        return bisect_left(ahead, (to_ns + 1,)) - bisect_left(ahead, (from_ns + 1,))

    def after(self, category: int, now_ns: int, count: int) -> list[int]:
        """The next `count` predicted instants after now."""
        ahead = self._ahead[category]
        first = bisect_right(ahead, (now_ns + 1,))
        return [at_ns for at_ns, _ in ahead[first : first + count]]
