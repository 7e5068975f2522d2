"""What `takt` does once a part has been lost: protect the batch, not its head.

Below saturation every part can be answered and the head decides. Above it, heads are late anyway,
and batches small enough to save them waste the pool (batching.md section 7). So for one longest
deadline after each loss: every category's batch is the largest b of which b waiting parts can all
be answered by a batch of b; heads in front of it wait on, and go to their fallback when late.
Where a category has several deadlines, not the largest batch but the one worth most for its time:
its loose parts can wait until a whole batch of them is there, its tight ones cannot.
Among categories whose batch is nearly as cheap as can be, the one with the least share of its
work answered goes first, so that none starves.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from deadline_batcher.board import Board, Entry, Part
from deadline_batcher.plan import Plan
from deadline_batcher.policies.policy import Choice, Hold

DEAR = 1.2
"""A batch is dear when a part in it takes this much more GPU time than in the best batch."""
EARLY = 2
"""A batch that is not full is early when its first part has the time of so many longest batches."""
FORGET_NS = 1_000_000_000
"""How often the account of work arrived and answered is halved."""


def _due(entry: Entry) -> int:
    return entry[0]


class Saturation:
    """The account of losses and shares, and the choice made by it."""

    def __init__(self, plan: Plan, usable: list[tuple[int, ...]]) -> None:
        self._result_ns = plan.result_ns
        self._wcet = [category.wcet_ns for category in plan.categories]
        self._usable = usable
        count = len(plan.categories)
        deadlines_ns = [plan.deadline_ns(number) for number in range(count)]
        longest = [line.deadline_ns for line in plan.lines]
        self._lasts_ns = max(longest or deadlines_ns)
        self._best = [
            min(
                (ns / size for size, ns in enumerate(wcet_ns, 1) if ns <= due_ns),
                default=wcet_ns[0],
            )
            for wcet_ns, due_ns in zip(self._wcet, deadlines_ns, strict=True)
        ]
        told = [set[int]() for _ in range(count)]
        for line in plan.lines:
            told[line.category].add(line.deadline_ns)
        self._is_mixed = [len(deadlines) > 1 for deadlines in told]
        self._least = [_least_ns(wcet_ns) for wcet_ns in self._wcet]
        self._arrived = [1.0] * count
        self._answered = [0.0] * count
        self._forget_at_ns = 0
        self._until_ns = -1

    def is_on(self, now_ns: int) -> bool:
        """Whether a part was lost less than one longest deadline ago."""
        return now_ns < self._until_ns

    def missed(self, now_ns: int) -> None:
        """A part was lost now."""
        self._until_ns = now_ns + self._lasts_ns

    def arrived(self, part: Part) -> None:
        """Count the part's work."""
        self._arrived[part.category] += 1.0

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """The category with the least share answered, among those with a cheap batch."""
        self._wcet = board.wcet
        if now_ns >= self._forget_at_ns:
            self._forget_at_ns = now_ns + FORGET_NS
            self._arrived = [1.0 + count / 2 for count in self._arrived]
            self._answered = [count / 2 for count in self._answered]
        best: tuple[bool, float, int, int, int] | None = None
        for number in board.occupied:
            size, first = self._window(board.queues[number].entries, number, now_ns)
            is_dear = self._wcet[number][size - 1] > DEAR * size * self._best[number]
            share = self._answered[number] / self._arrived[number]
            found = (is_dear, share, number, size, first)
            best = found if best is None else min(best, found)
        if best is None:
            return Hold()
        _, _, number, size, first = best
        self._answered[number] += size
        return Choice(board.free[0], number, size, first)

    def _window(self, entries: list[Entry], number: int, now_ns: int) -> tuple[int, int]:
        """The largest batch all of whose parts it can answer, and where it begins."""
        wcet_ns, usable = self._wcet[number], self._usable[number]
        ready_ns, waiting = now_ns + self._result_ns, len(entries)

        def first_for(size: int) -> int:
            return bisect_left(entries, ready_ns + wcet_ns[size - 1], key=_due)

        low, high = 1, min(waiting, len(wcet_ns))  # the head is not late: a batch of one fits
        while low < high:
            middle = (low + high + 1) // 2
            if waiting - first_for(middle) >= middle:
                low = middle
            else:
                high = middle - 1
        size = usable[low]
        if self._is_mixed[number]:
            return self._worthiest(entries, number, size, ready_ns)
        return size, first_for(size)

    def _worthiest(
        self, entries: list[Entry], number: int, largest: int, ready_ns: int
    ) -> tuple[int, int]:
        """Of a category with several deadlines, the batch worth most for its time.

        A part is worth the GPU time that it takes in the best batch its deadline allows. A batch
        that could still fill up later is taken only where every other could too.
        """
        wcet_ns, usable, least_ns = self._wcet[number], self._usable[number], self._least[number]
        sums_ns = [0]
        last = bisect_left(entries, ready_ns + wcet_ns[largest - 1], key=_due) + largest
        for due_ns, _, part in entries[:last]:
            fits = bisect_right(wcet_ns, due_ns - self._result_ns - part.ready_at_ns)
            sums_ns.append(sums_ns[-1] + least_ns[fits])
        best: tuple[bool, int, int] | None = None  # is early, size, first
        best_worth_ns = 0
        size = largest
        while size:
            took_ns = wcet_ns[size - 1]
            first = bisect_left(entries, ready_ns + took_ns, key=_due)
            worth_ns = sums_ns[first + size] - sums_ns[first]
            spare_ns = entries[first][0] - ready_ns
            is_early = size < len(wcet_ns) and spare_ns > EARLY * wcet_ns[-1]
            if (
                best is None
                or is_early < best[0]
                or (
                    is_early == best[0]
                    and worth_ns * wcet_ns[best[1] - 1] > best_worth_ns * took_ns
                )
            ):
                best, best_worth_ns = (is_early, size, first), worth_ns
            size = usable[size - 1]
        assert best is not None
        return best[1], best[2]


def _least_ns(wcet_ns: tuple[int, ...]) -> list[int]:
    """GPU time of a part in the best batch, by how many sizes its deadline allows."""
    least_ns = [wcet_ns[0]]
    for size, took_ns in enumerate(wcet_ns, 1):
        least_ns.append(min(least_ns[-1], took_ns // size))
    return least_ns
