"""Which batch the load needs, and how long its parts may wait for it: from the plan alone.

Small batches answer soon, but each pays the fixed part of its time. Near the largest load only
large ones keep up, and a GPU that idles a moment for a larger batch is paid back by every part in
it. Rates, deadlines and execution times say how large is enough: the least growth of the batches,
counted in shares of their deadlines, with which the load fits the GPUs that are READY. Integers
only, worked out once for every number of GPUs.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from deadline_batcher.plan import Plan

LOADED_PERCENT = 95
"""Of the GPUs' time that the planned batches may fill; some batches come out smaller."""
MILLION = 1_000_000
RATE_UNIT_NS = 10**15
"""Rates are whole parts in this time, so that slow lines are not rounded to nothing."""


class Enough(NamedTuple):
    """The batch of a category that the load needs.

    Fewer than `size` parts wait for more until `before_due_ns` before the `pool_due` of the first.
    """

    size: int
    before_due_ns: int


class _Point(NamedTuple):
    """A batch size: least answering time in millionths of D, work in millionths of a GPU."""

    share: int
    work: int
    size: int


class Pace:
    """`Enough` of every category, for every number of GPUs that may be READY."""

    def __init__(self, plan: Plan, usable: list[tuple[int, ...]]) -> None:
        self._plan = plan
        self._usable = usable
        count = len(plan.categories)
        self._rates = [0] * count
        for line in plan.lines:
            self._rates[line.category] += RATE_UNIT_NS // line.cycle_ns
        self._deadlines_ns = [plan.deadline_ns(number) for number in range(count)]
        self._left_ns = [ns - plan.result_ns - plan.timer_ns for ns in self._deadlines_ns]
        self._by_ready = [self._for(ready) for ready in range(1, plan.gpus + 1)]

    def for_gpus(self, ready: int) -> list[Enough]:
        """By category, with so many GPUs READY (at least one)."""
        return self._by_ready[ready - 1]

    def _for(self, ready: int) -> list[Enough]:
        sizes = self._sizes(ready)
        longest_ns = [self._wcet_ns(number, size) for number, size in enumerate(sizes)]
        active = [number for number, rate in enumerate(self._rates) if rate]
        total_ns = sum(longest_ns[number] for number in active)
        found = []
        for number, size in enumerate(sizes):
            wait_ns = 0
            if size > 1:
                others = (longest_ns[other] for other in active if other != number)
                # Every GPU may have just begun the longest of them, or all of them are to run.
                blocked_ns = max(max(others, default=0), (total_ns - longest_ns[number]) // ready)
                fill_ns = (size - 1) * RATE_UNIT_NS // self._rates[number]
                left_ns = self._left_ns[number] - longest_ns[number] - blocked_ns
                wait_ns = max(0, min(fill_ns, left_ns))
            found.append(Enough(size, self._deadlines_ns[number] - wait_ns))
        return found

    def _sizes(self, ready: int) -> list[int]:
        """Grow the batch that saves most work for its share of a deadline, until the load fits."""
        sizes, work, steps = [1] * len(self._rates), 0, []
        for number, rate in enumerate(self._rates):
            if not rate:
                continue
            hull = self._hull(number, ready)
            work += hull[0].work
            for before, after in pairwise(hull):
                saved = before.work - after.work
                gain = saved * MILLION // max(1, after.share - before.share)
                steps.append((-gain, number, saved, after.size))
        for _, number, saved, size in sorted(steps):
            if work * 100 <= LOADED_PERCENT * ready * MILLION:
                break
            work -= saved
            sizes[number] = size
        return sizes

    def _hull(self, number: int, ready: int) -> list[_Point]:
        """Sizes worth growing to, in order: along them each step saves less for its share."""
        rate, hull = self._rates[number], list[_Point]()
        for size in range(1, len(self._plan.categories[number].wcet_ns) + 1):
            if self._usable[number][size] != size:
                continue
            wcet_ns = self._wcet_ns(number, size)
            # A batch gathers, or waits for its turn on one of the GPUs, whichever is longer.
            gather_ns = max((size - 1) * RATE_UNIT_NS // rate, wcet_ns // ready)
            share = (gather_ns + wcet_ns) * MILLION // max(1, self._left_ns[number])
            if hull and share > MILLION:
                break
            point = _Point(share, rate * wcet_ns // size // (RATE_UNIT_NS // MILLION), size)
            if hull and point.work >= hull[-1].work:
                continue
            while len(hull) > 1 and _is_below(hull[-2], hull[-1], point):
                hull.pop()
            hull.append(point)
        return hull

    def _wcet_ns(self, number: int, size: int) -> int:
        return self._plan.categories[number].wcet_ns[size - 1]


def _is_below(first: _Point, middle: _Point, last: _Point) -> bool:
    """Whether going on to `last` saves as much for its share as going to `middle` did."""
    return (middle.work - last.work) * (middle.share - first.share) >= (
        first.work - middle.work
    ) * (last.share - middle.share)
