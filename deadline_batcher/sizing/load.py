"""What recurs on a pool: categories, streams of parts, and tasks, the form the tests work on.

A *stream* is one line's parts: captured at least `cycle_ns` apart, ready at most `jitter_ns`
apart from that, to be answered within `relative_ns` of becoming ready. Nothing is said of phases.
A *task* is any recurring work; the tests know only tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

STEPS_MAX = 64
"""Steps of a fixed-point iteration; stopping early gives a larger, still safe bound."""
SCALE_BITS = 40
"""Shares of a GPU are counted in 2^-40, rounded up."""


@dataclass(frozen=True, slots=True)
class SizedCategory:
    """wcet_ns[b - 1] is the worst case of a batch of b; its length is the batch cap.

    window_ns: how long a part may be held for others before it must be ready to run.
    """

    name: str
    wcet_ns: tuple[int, ...]
    window_ns: int = 0

    def __post_init__(self) -> None:
        if not self.wcet_ns or min(self.wcet_ns) <= 0 or self.window_ns < 0:
            raise ValueError(f"category {self.name}: times must be positive")
        if any(a > b for a, b in zip(self.wcet_ns, self.wcet_ns[1:], strict=False)):
            raise ValueError(f"category {self.name}: wcet_ns falls with the batch size")

    @property
    def cap(self) -> int:
        """The largest batch."""
        return len(self.wcet_ns)

    def capped(self, cap: int) -> SizedCategory:
        """The same with a smaller cap."""
        return replace(self, wcet_ns=self.wcet_ns[:cap])


@dataclass(frozen=True, slots=True)
class Stream:
    """One line. relative_ns orders parts (pool_due); needed_ns <= relative_ns is what must hold.

    Both run from the part being ready, however late it was, to the end of its execution.
    """

    name: str
    category: int
    cycle_ns: int
    relative_ns: int
    needed_ns: int
    jitter_ns: int = 0
    criticality: int = 1

    def __post_init__(self) -> None:
        if self.cycle_ns <= 0 or self.jitter_ns < 0 or self.needed_ns > self.relative_ns:
            raise ValueError(f"stream {self.name}: times do not fit each other")


@dataclass(frozen=True, slots=True)
class Load:
    """What the pool is asked to carry.

    timer_ns: how late a window may close. golden_ns: the longest golden, which may run on any
    idle GPU and is in the way like a batch.
    """

    categories: tuple[SizedCategory, ...]
    streams: tuple[Stream, ...]
    timer_ns: int = 0
    golden_ns: int = 0

    def at(self, numerator: int, denominator: int) -> Load:
        """The same at numerator/denominator of the rate; cycle times rounded down."""
        faster = tuple(
            replace(stream, cycle_ns=max(1, stream.cycle_ns * denominator // numerator))
            for stream in self.streams
        )
        return replace(self, streams=faster)

    def with_cycle(self, name: str, cycle_ns: int) -> Load:
        """The same with one line's cycle time as measured."""
        changed = tuple(
            replace(stream, cycle_ns=cycle_ns) if stream.name == name else stream
            for stream in self.streams
        )
        return replace(self, streams=changed)

    def capped(self, caps: Sequence[int]) -> Load:
        """The same with these batch caps."""
        pairs = zip(self.categories, caps, strict=True)
        return replace(self, categories=tuple(category.capped(cap) for category, cap in pairs))

    def windowed(self, windows_ns: Sequence[int]) -> Load:
        """The same with these windows."""
        pairs = zip(self.categories, windows_ns, strict=True)
        held = tuple(replace(category, window_ns=window_ns) for category, window_ns in pairs)
        return replace(self, categories=held)


@dataclass(frozen=True, slots=True)
class Task:
    """Work that recurs.

    period_ns, jitter_ns: releases in any interval [t, t + x) are at most ceil((x + jitter) /
    period). cost_ns: GPU time of one release in all. piece_ns: its longest run that cannot be
    interrupted; the last piece must have started `piece_ns` before the end. own_ns: the least
    that is not yet done while a piece of it still waits.
    """

    name: str
    period_ns: int
    jitter_ns: int
    relative_ns: int
    needed_ns: int
    cost_ns: int
    piece_ns: int
    own_ns: int


def ceil_div(numerator: int, denominator: int) -> int:
    """Rounded up."""
    return -(-numerator // denominator)


def releases_in(length_ns: int, period_ns: int, jitter_ns: int) -> int:
    """The most releases in a half-open interval of this length, in any phase."""
    return max(0, ceil_div(length_ns + jitter_ns, period_ns))


def share_scaled(tasks: Sequence[Task]) -> int:
    """GPUs kept busy in the long run, in 2^-SCALE_BITS, rounded up."""
    return sum(ceil_div(task.cost_ns << SCALE_BITS, task.period_ns) for task in tasks)


def settle_ns(bound_ns: Callable[[int], int], start_ns: int) -> int:
    """The least x found with bound(y) <= y for every y in [x, start].

    bound must not fall and must satisfy bound(start) <= start. If bound(z) = g <= z then for y in
    [g, z]: bound(y) <= bound(z) = g <= y, so x may jump from z to g (descending iteration towards
    the greatest fixed point, as in QPA: Zhang and Burns, IEEE Trans. Computers 2009).
    """
    settled_ns = start_ns
    for _ in range(STEPS_MAX):
        if settled_ns <= 0:
            return 0
        lower_ns = bound_ns(settled_ns - 1)
        if lower_ns > settled_ns - 1:
            break
        settled_ns = lower_ns
    return settled_ns


def parts_at_once(load: Load, category: int) -> int:
    """The most parts of a category that may be on the pool at one instant.

    A part leaves by its pool_due, at most relative + jitter after it could have been ready.
    """
    return sum(
        releases_in(one.relative_ns + one.jitter_ns, one.cycle_ns, one.jitter_ns)
        for one in load.streams
        if one.category == category
    )


def running_ns(load: Load, gpus: int) -> tuple[int, ...]:
    """Upper bounds of the gpus + 1 longest batches that can run at one instant, longest first.

    Of P parts on the pool, the j-th largest running batch has at most P // j: all before it are
    no smaller. Goldens run like batches.
    """
    found = [load.golden_ns] * (gpus + 1)
    for number, category in enumerate(load.categories):
        parts = parts_at_once(load, number)
        for rank in range(1, min(parts, gpus + 1) + 1):
            found.append(category.wcet_ns[min(category.cap, parts // rank) - 1])
    return tuple(sorted(found, reverse=True)[: gpus + 1])
