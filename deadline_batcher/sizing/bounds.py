"""What no rule can exceed, and what a profile's shape says.

`batching.md` section 5.2 of the study has the bounds by these names:

- fluid (B0): a part of a line costs at least min over b with l(b) <= D of l(b) / b.
- staggered (B1): N GPUs started in turn let a part wait l(b) / N, so (1 + 1/N) l(b) <= D
  (Symphony, arXiv 2308.07470). No bound for arbitrary arrivals; the target for smooth ones.
- arrival-limited (B2): a part can only be in a batch with parts that come soon enough, so its
  least cost is over the sizes that some group around it reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from deadline_batcher.sizing.load import Load

STEP_FACTOR = 4
"""An increment this many times the median one is a step."""
GAIN_LEAST = Fraction(5, 4)
"""Batching that gives less than this over batch 1 gains nothing worth waiting for."""


# --- the shape of a profile -----------------------------------------------------------------


class Shape(NamedTuple):
    """What is odd about a profile. Sizes count from 1."""

    superadditive: tuple[int, ...]  # take longer than two smaller batches together
    steps: tuple[int, ...]  # much longer than the size before
    best: int  # the size with the most parts per time
    gain: float  # how many times batch 1's rate that is
    has_no_gain: bool


def split_ns(wcet_ns: Sequence[int]) -> list[int]:
    """The least time for each number of parts in batches of any sizes, one after the other."""
    least = [0]
    for parts in range(1, len(wcet_ns) + 1):
        least.append(min(wcet_ns[size - 1] + least[parts - size] for size in range(1, parts + 1)))
    return least[1:]


@lru_cache(maxsize=256)
def frontier(wcet_ns: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that no two smaller batches beat: the only ones worth running."""
    least = [0, *split_ns(wcet_ns)]
    return tuple(
        size
        for size in range(1, len(wcet_ns) + 1)
        if all(wcet_ns[size - 1] <= least[a] + least[size - a] for a in range(1, size))
    )


def shape(wcet_ns: tuple[int, ...]) -> Shape:
    """Steps, super-additive sizes and the gain of a profile."""
    efficient = set(frontier(wcet_ns))
    sizes = range(1, len(wcet_ns) + 1)
    best = min(sizes, key=lambda size: (Fraction(wcet_ns[size - 1], size), size))
    gain = Fraction(wcet_ns[0] * best, wcet_ns[best - 1])
    rises = sorted(b - a for a, b in pairwise(wcet_ns))
    median_ns = rises[len(rises) // 2] if rises else 0
    steps = tuple(
        size
        for size, (a, b) in enumerate(pairwise(wcet_ns), start=2)
        if b - a > max(STEP_FACTOR * median_ns, wcet_ns[0] // 4)
    )
    off = tuple(size for size in sizes if size not in efficient)
    return Shape(off, steps, best, float(gain), gain < GAIN_LEAST)


# --- bounds on any rule ---------------------------------------------------------------------


def least_cost(wcet_ns: Sequence[int], relative_ns: int, sizes_max: int) -> Fraction | None:
    """The least GPU time of one part in batches up to `sizes_max` that fit; None if none does."""
    fits = [
        Fraction(wcet_ns[size - 1], size)
        for size in range(1, min(sizes_max, len(wcet_ns)) + 1)
        if wcet_ns[size - 1] <= relative_ns
    ]
    return min(fits, default=None)


def fluid_share(load: Load) -> float:
    """GPUs that the load needs at least, by the fluid bound; infinite where a line never fits."""
    return _share(load, None)


def fluid_load(load: Load, gpus: int) -> float:
    """The largest factor on all rates that gpus could carry, by the fluid bound."""
    share = fluid_share(load)
    return 0.0 if share == float("inf") else gpus / share


def reach(load: Load, category: int, relative_ns: int) -> int:
    """The largest batch that parts of a category can form in time, in the best phase.

    A batch of b needs b parts ready within D - l(b) of each other: at most
    floor((D - l(b) + jitter) / cycle) + 1 of each line are.
    """
    wcet_ns = load.categories[category].wcet_ns
    lines = [one for one in load.streams if one.category == category]
    for size in range(len(wcet_ns), 0, -1):
        room_ns = relative_ns - wcet_ns[size - 1]
        if room_ns >= 0 and size <= sum(
            (room_ns + one.jitter_ns) // one.cycle_ns + 1 for one in lines
        ):
            return size
    return 0


def arrival_limited_share(load: Load) -> float:
    """GPUs that the load needs at least, when batches are limited by what has arrived."""
    return _share(load, {})


def _share(load: Load, reached: dict[tuple[int, int], int] | None) -> float:
    total = 0.0
    for one in load.streams:
        category = load.categories[one.category]
        largest = category.cap
        if reached is not None:
            key = (one.category, one.relative_ns)
            if key not in reached:
                reached[key] = reach(load, *key)
            largest = reached[key]
        cost = least_cost(category.wcet_ns, one.relative_ns, largest)
        if cost is None:
            return float("inf")
        total += float(cost) / one.cycle_ns
    return total


def arrival_limited_load(load: Load, gpus: int, grid: int = 64) -> float:
    """The largest factor on all rates at which the arrival-limited bound still allows gpus.

    Larger batches become possible as rates rise, so the bound is tried downward from the fluid.
    """
    top = fluid_load(load, gpus)
    scale = 1 << 20
    for step in range(grid, 0, -1):
        factor = max(1, int(top * scale * step / grid))
        if arrival_limited_share(load.at(factor, scale)) <= gpus:
            return factor / scale
    return 0.0


def staggered_size(wcet_ns: Sequence[int], relative_ns: int, gpus: int) -> int:
    """The largest b with (1 + 1/gpus) l(b) <= D; 0 where not even one fits."""
    sizes = range(len(wcet_ns), 0, -1)
    return next((b for b in sizes if (gpus + 1) * wcet_ns[b - 1] <= gpus * relative_ns), 0)


def staggered_load(load: Load, gpus: int) -> float:
    """The factor on all rates that staggered batches would carry if arrivals were smooth."""
    share = 0.0
    for one in load.streams:
        wcet_ns = load.categories[one.category].wcet_ns
        size = staggered_size(wcet_ns, one.relative_ns, gpus)
        if not size:
            return 0.0
        cost = least_cost(wcet_ns, wcet_ns[size - 1], size)
        share += float(cost or 0) / one.cycle_ns
    return gpus / share if share else 0.0


def arrival_limited_use(
    arrivals: Sequence[tuple[int, int]], wcet_ns: Sequence[int]
) -> Fraction | None:
    """GPU time that these parts of one category need at least (B2); None if one cannot be done.

    arrivals: (ready_ns, due_ns), sorted, both rising (one relative deadline, or agreeable ones).
    """
    count = len(arrivals)
    largest = [0] * count
    for size in range(1, len(wcet_ns) + 1):
        for first in range(count - size + 1):
            last = first + size - 1
            if arrivals[last][0] + wcet_ns[size - 1] <= arrivals[first][1]:
                for index in range(first, last + 1):
                    largest[index] = size
    costs = [min(Fraction(wcet_ns[b - 1], b) for b in range(1, n + 1)) for n in largest if n]
    return sum(costs, Fraction(0)) if len(costs) == count else None
