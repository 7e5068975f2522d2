"""Which lines are on the pool, with the GPUs that are READY and the load that is offered. Pure.

Lines keep the pool in the order of their criticality (1 longest; among equals the one named first
in the plant). How many of that row are carried is the larger of

- what the sufficient tests of the running rule admit (`sizing.admission`), and
- what fits the pool's capacity: the row is carried as far as its *share*, the GPUs that it needs at
  least by the fluid bound, does not exceed what so many GPUs have been seen to carry.

Capacity is evidence and no proof: no sufficient test covers the rule `takt`, and those that cover
others shed far more than need be. It comes from `takt size` (the largest share that its adverse
phases let so many GPUs carry) or, without that, from the plant file's own word that its lines fit
`gpus - gpus_lost_tolerated`, in proportion to the GPUs left. Parts that it lets through wrongly are
answered by their line's fallback in time; a line to which that happens often leaves by itself.

Load is what lines are *offered*, those that are off the pool included, never what the pool is
given: to take a line off lowers nothing that is counted here, so that it can neither hide an
overload nor bring the line back. A line counts at its cycle time in the plant file, or faster where
it was measured faster, at the fastest of the last `peak_hold_ns`.

Shedding is at once, the highest number first, no line more than need be. The way back is slow: a
line returns when headroom has been held for `return_after_ns`, the others behind it one at a time,
in reverse order. That is not waited for until the pool has carried all lines once after a start.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

from deadline_batcher.sizing.admission import admit
from deadline_batcher.sizing.bounds import least_cost
from deadline_batcher.sizing.load import Load

SHARE_ONE = 1_000_000
"""One GPU, in the unit of shares and capacities."""
SAMPLES_MAX = 256
"""Readings of one line's count that its rate is measured from, at most."""
START_NS = 10_000_000_000
"""A pool that has never carried all lines may take so long before its shortness is an alarm."""

# --- events ---------------------------------------------------------------------------------


class GpusSeen(NamedTuple):
    """So many GPUs are READY, and so many in doubt: they may be back after one golden."""

    ready: int
    doubtful: int


class LoadSeen(NamedTuple):
    """A line (by its place in the plan) has had so many parts since its start."""

    line: int
    parts: int


class TimeReached(NamedTuple):
    """Nothing happened, but `wakeup_at_ns` has come."""


ShedEvent = GpusSeen | LoadSeen | TimeReached

# --- commands -------------------------------------------------------------------------------


class ShedLine(NamedTuple):
    """Take the line off the pool. reason: gpus, load or hopeless (`link.SHED_REASONS`)."""

    line: int
    reason: str


class UnshedLine(NamedTuple):
    """The line may use the pool again."""

    line: int


class TellRate(NamedTuple):
    """A line runs faster than the plant file says (or no longer: cycle_ns 0)."""

    line: int
    cycle_ns: int


class TellCapacity(NamedTuple):
    """Not all lines are carried, or (is_short False) all are again. Offered load alone decides."""

    is_short: bool
    gpus: int
    carried: int
    share: int


ShedCommand = ShedLine | UnshedLine | TellRate | TellCapacity


@dataclass(frozen=True, slots=True)
class ShedPlan:
    """What shedding is told. Lengths of time in nanoseconds.

    load: streams in the plan's order of lines. tests: the sufficient tests of what runs.
    capacity: per number of GPUs from 0 to all, the share that they carry, in 1 / SHARE_ONE GPU;
    capacity_from: how that is known, for a person.
    rate_window_ns: over which rates are measured. rate_margin_permille: so much faster than the
    plant file is no other rate. suspect_ns: how long a GPU in doubt still counts.
    """

    load: Load
    tests: tuple[str, ...]
    capacity: tuple[int, ...]
    rate_window_ns: int
    rate_margin_permille: int
    peak_hold_ns: int
    suspect_ns: int
    return_after_ns: int
    return_step_ns: int
    capacity_from: str = "the plant file's word, in proportion"

    def __post_init__(self) -> None:
        if not self.capacity or self.capacity[0] or list(self.capacity) != sorted(self.capacity):
            raise ValueError("capacities begin with 0 for no GPU and do not fall")
        if min(self.rate_window_ns, self.peak_hold_ns) <= 0:
            raise ValueError("rates are measured over a time above 0")

    @property
    def row(self) -> tuple[int, ...]:
        """Lines in the order in which they keep the pool."""
        streams = self.load.streams
        return tuple(sorted(range(len(streams)), key=lambda n: (streams[n].criticality, n)))


def proportional(load: Load, gpus: int, lost_tolerated: int) -> tuple[int, ...]:
    """Capacities by the plant file's word that all its lines fit the GPUs that may be left."""
    whole = sum(share_of(load, line) or 0 for line in range(len(load.streams)))
    left = gpus - lost_tolerated
    return tuple(-(-whole * count // left) for count in range(gpus + 1))


def share_of(load: Load, line: int, cycle_ns: int = 0) -> int | None:
    """The least share of a line, at its own or at another cycle; None: late on an idle GPU."""
    cost = _cost_of(load, line)
    return None if cost is None else _share(cost, cycle_ns or load.streams[line].cycle_ns)


def _cost_of(load: Load, line: int) -> Fraction | None:
    """The least GPU time of one part of a line, in ns."""
    one = load.streams[line]
    wcet_ns = load.categories[one.category].wcet_ns
    return least_cost(wcet_ns, one.needed_ns, len(wcet_ns))


def _share(cost: Fraction, cycle_ns: int) -> int:
    return -(-cost.numerator * SHARE_ONE // (cycle_ns * cost.denominator))


@dataclass(slots=True)
class _Meter:
    """One line's rate. A window that holds n parts holds n - 1 whole cycles at least."""

    samples: deque[tuple[int, int]] = field(default_factory=deque)
    peaks: deque[tuple[int, int]] = field(default_factory=deque)  # (at, cycle), cycles rising

    def read(self, parts: int, now_ns: int, plan: ShedPlan) -> None:
        """Take a reading of the line's count."""
        samples, peaks = self.samples, self.peaks
        if samples and parts < samples[-1][1]:
            samples.clear()  # the line has started anew
        samples.append((now_ns, parts))
        while len(samples) > SAMPLES_MAX or samples[0][0] < now_ns - plan.rate_window_ns:
            samples.popleft()
        span_ns = now_ns - samples[0][0]
        cycles = parts - samples[0][1] - 1
        if 2 * span_ns < plan.rate_window_ns or cycles < 1:
            return
        cycle_ns = span_ns // cycles
        while peaks and peaks[-1][1] >= cycle_ns:
            peaks.pop()
        peaks.append((now_ns, cycle_ns))

    def cycle_ns(self, planned_ns: int, now_ns: int, plan: ShedPlan) -> int:
        """The shortest measured cycle that still counts, if it is shorter than the planned; 0."""
        while self.peaks and self.peaks[0][0] <= now_ns - plan.peak_hold_ns:
            self.peaks.popleft()
        if not self.peaks:
            return 0
        cycle_ns = self.peaks[0][1]
        return cycle_ns if cycle_ns * (1000 + plan.rate_margin_permille) < planned_ns * 1000 else 0


class Shedding:
    """Feeds on GPUs and loads; orders which lines leave the pool and which return."""

    def __init__(self, plan: ShedPlan) -> None:
        self.plan = plan
        streams = plan.load.streams
        costs = {line: _cost_of(plan.load, line) for line in plan.row}
        self._costs = {line: cost for line, cost in costs.items() if cost is not None}
        self._row = tuple(self._costs)
        self._hopeless = tuple(line for line in plan.row if line not in self._costs)
        self._carried = 0  # of the row; nothing is said before the first GPU was seen
        self._reasons = ["start" for _ in streams]
        self._meters = [_Meter() for _ in streams]
        self._offered: dict[int, int] = {}  # cycles of the lines that are faster than the plan
        self._gpus: int | None = None
        self._ready = 0
        self._doubted_at_ns: int | None = None
        self._fits = 0
        self._headroom_at_ns: int | None = None  # when the next line may return
        self._was_full = False
        self._is_short = self._is_short_told = False
        self._short_at_ns: int | None = None  # when to say so

    # --- the interface ----------------------------------------------------------------------

    def handle(self, event: ShedEvent, now_ns: int) -> tuple[ShedCommand, ...]:
        """Take one event at `now_ns`; return what to do about it, in order."""
        commands: list[ShedCommand] = []
        gpus_before = self._gpus
        is_new_load = False
        match event:
            case GpusSeen():
                self._gpus_seen(event, now_ns)
            case LoadSeen():
                self._meters[event.line].read(event.parts, now_ns, self.plan)
                is_new_load = self._measure(event.line, now_ns, commands)
            case TimeReached():
                for line in list(self._offered):
                    is_new_load |= self._measure(line, now_ns, commands)
        if self._doubted_at_ns is not None and now_ns >= self._doubted_at_ns + self.plan.suspect_ns:
            self._gpus, self._doubted_at_ns = self._ready, None
        if self._gpus is None:
            return tuple(commands)
        if gpus_before is None:
            commands += self._hopeless_lines()
        if is_new_load or self._gpus != gpus_before:
            self._fits = self._fitting(self._gpus, self._offered)
        self._decide(self._gpus, now_ns, commands)
        return tuple(commands)

    def wakeup_at_ns(self) -> int | None:
        """When to send `TimeReached` if nothing else happens first."""
        wakeups = [self._headroom_at_ns, self._short_at_ns]
        if self._doubted_at_ns is not None:
            wakeups.append(self._doubted_at_ns + self.plan.suspect_ns)
        wakeups += [
            self._meters[line].peaks[0][0] + self.plan.peak_hold_ns for line in self._offered
        ]
        return min((at_ns for at_ns in wakeups if at_ns is not None), default=None)

    @property
    def shed(self) -> tuple[int, ...]:
        """Lines that are off the pool, in the order in which they would return."""
        return (*self._row[self._carried :], *self._hopeless)

    @property
    def carried_count(self) -> int:
        """Lines that are on the pool."""
        return self._carried

    @property
    def gpus(self) -> int:
        """GPUs that are counted on."""
        return self._gpus or 0

    def reason(self, line: int) -> str:
        """Why the line is off the pool (`start`: it has not been on it yet); empty if it is not."""
        return self._reasons[line]

    # --- what is there ----------------------------------------------------------------------

    def _gpus_seen(self, event: GpusSeen, now_ns: int) -> None:
        """A lost GPU is gone at once; one in doubt a little later; one more counts at once."""
        self._ready = event.ready
        if self._gpus is None and not event.ready:
            return
        hoped = event.ready + event.doubtful
        if self._gpus is None or event.ready >= self._gpus:
            self._gpus, self._doubted_at_ns = event.ready, None
            return
        self._gpus = min(self._gpus, hoped)
        if event.ready == self._gpus:
            self._doubted_at_ns = None
        elif self._doubted_at_ns is None:
            self._doubted_at_ns = now_ns

    def _measure(self, line: int, now_ns: int, commands: list[ShedCommand]) -> bool:
        """Whether the line's offered load is another than before."""
        planned_ns = self.plan.load.streams[line].cycle_ns
        cycle_ns = self._meters[line].cycle_ns(planned_ns, now_ns, self.plan)
        before_ns = self._offered.pop(line, 0)
        if cycle_ns:
            self._offered[line] = cycle_ns
        if bool(cycle_ns) != bool(before_ns):
            commands.append(TellRate(line, cycle_ns))
        return cycle_ns != before_ns

    def _hopeless_lines(self) -> list[ShedCommand]:
        for line in self._hopeless:
            self._reasons[line] = "hopeless"
        return [ShedLine(line, "hopeless") for line in self._hopeless]

    # --- how many lines fit -----------------------------------------------------------------

    def _share_of(self, line: int, offered: Mapping[int, int]) -> int:
        """What a line of the row needs at least, in 1 / SHARE_ONE GPU, at its offered load."""
        cycle_ns = offered.get(line, self.plan.load.streams[line].cycle_ns)
        return _share(self._costs[line], cycle_ns)

    def _fitting(self, gpus: int, offered: Mapping[int, int]) -> int:
        """How many of the row so many GPUs carry; offered: cycles that are not the plan's."""
        plan = self.plan
        left = plan.capacity[gpus]
        seen = 0
        for line in self._row:
            left -= self._share_of(line, offered)
            if left < 0:
                break
            seen += 1
        if seen == len(self._row) or not plan.tests:
            return seen
        load = plan.load
        for line, cycle_ns in offered.items():
            load = load.with_cycle(load.streams[line].name, cycle_ns)
        return max(seen, len(admit(load, gpus, plan.tests).carried))

    # --- deciding ---------------------------------------------------------------------------

    def _decide(self, gpus: int, now_ns: int, commands: list[ShedCommand]) -> None:
        plan, fits = self.plan, self._fits
        if fits < self._carried:
            planned = self._fitting(gpus, {})
            for place in range(self._carried - 1, fits - 1, -1):
                line = self._row[place]
                self._reasons[line] = "gpus" if place >= planned else "load"
                commands.append(ShedLine(line, self._reasons[line]))
            self._carried = fits
        if fits == self._carried:
            self._headroom_at_ns = None
        elif self._headroom_at_ns is None:
            self._headroom_at_ns = now_ns + (plan.return_after_ns if self._was_full else 0)
        while self._headroom_at_ns is not None and now_ns >= self._headroom_at_ns:
            line = self._row[self._carried]
            self._reasons[line] = ""
            commands.append(UnshedLine(line))
            self._carried += 1
            is_more = self._carried < fits
            step_ns = plan.return_step_ns if self._was_full else 0
            self._headroom_at_ns = now_ns + step_ns if is_more else None
        self._was_full |= self._carried == len(self._row)
        self._alarm(fits < len(self._row), now_ns)
        is_told = self._short_at_ns is not None and now_ns >= self._short_at_ns
        if is_told or (self._is_short_told and not self._is_short):
            self._short_at_ns, self._is_short_told = None, self._is_short
            share = sum(self._share_of(line, self._offered) for line in self._row)
            commands.append(TellCapacity(self._is_short, gpus, fits, share))

    def _alarm(self, is_short: bool, now_ns: int) -> None:
        """A pool that starts is short of GPUs for a while, and that is no alarm."""
        if is_short and not self._is_short:
            self._short_at_ns = now_ns + (0 if self._was_full else START_NS)
        elif not is_short:
            self._short_at_ns = None
        self._is_short = is_short
