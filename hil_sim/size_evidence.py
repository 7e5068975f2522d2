"""Evidence for a size: the shipped scheduler in virtual time over adverse phases, searched.

Every batch lasts its worst case. The search starts from all lines in phase, categories in phase,
long before tight, and random phases; then it climbs: lines are moved so that a part of theirs comes
shortly before the part that came closest to its due, pictures late before that instant and early
from it on, or a few lines are moved at random; what is worse is kept. Seeded: the same plant gives
the same answer. A search that finds nothing proves nothing; batching breaks sustainability (an
earlier, missing or shorter part may delay others).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from deadline_batcher.messages import RunBatch
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.sizing.load import Load
from hil_sim.policy_run import PolicyRun
from hil_sim.scenario import Arrival

PARTS_LEAST = 5
"""Parts of every line in one run, at least."""
DEADLINES_LEAST = 8
"""A run lasts at least so many of the longest deadline."""
LATENESS = ("latest", "earliest", "random", "bunched")
"""How late pictures are within their transport times; bunched: latest up to an instant, earliest
from it on, which brings most parts together."""
AIMED = 0.7
"""Share of the climb's steps that aim at the worst part."""
GRACE_NS = 20_000_000
WAITING_MAX = 4096


@dataclass(frozen=True, slots=True)
class Setting:
    """What runs: the rule, its caps and windows. result_ns: from a batch's end to its line."""

    policy: PolicySpec
    caps: tuple[int, ...]
    windows_ns: tuple[int, ...]
    result_ns: int

    def plan(self, load: Load, gpus: int) -> Plan:
        """The scheduler's plan for this load."""
        categories = tuple(
            Category(category.name, category.wcet_ns[:cap], window_ns)
            for category, cap, window_ns in zip(
                load.categories, self.caps, self.windows_ns, strict=True
            )
        )
        lines = tuple(
            LineTiming(one.category, one.cycle_ns, one.relative_ns + self.result_ns)
            for one in load.streams
        )
        return Plan(
            categories,
            gpus=gpus,
            result_ns=self.result_ns,
            timer_ns=load.timer_ns,
            grace_ns=GRACE_NS,
            waiting_max=WAITING_MAX,
            policy=self.policy,
            lines=lines,
        )


@dataclass(frozen=True, slots=True)
class Phases:
    """When each line's first part is captured, and how late pictures come. One run's input."""

    starts_ns: tuple[int, ...]
    lateness: str
    seed: int
    turn_ns: int = 0


@dataclass(slots=True)
class Sight:
    """What one run showed. used_ns: per line, every answered part's wait and execution."""

    phases: Phases
    parts: list[int]
    pool: list[int]  # answered by pool_due
    margins_ns: list[int]  # least (needed - used) per line
    used_ns: list[list[int]] = field(repr=False)
    worst_line: int = 0
    worst_at_ns: int = 0  # the latest instant at which its worst part could have been ready

    @property
    def missed(self) -> int:
        """Parts that the pool did not answer by their pool_due."""
        return sum(self.parts) - sum(self.pool)

    @property
    def badness(self) -> tuple[int, int]:
        """Larger is worse: parts missed, then how close it was."""
        return self.missed, -min(self.margins_ns)

    @property
    def binding(self) -> int:
        """The line that came closest, or missed the largest share."""
        shares = [(kept - sent, margin) for sent, kept, margin in self._rows()]
        return min(range(len(shares)), key=lambda number: shares[number])

    def _rows(self) -> list[tuple[int, int, int]]:
        return list(zip(self.parts, self.pool, self.margins_ns, strict=True))


class _Watched(PolicyRun):
    """A run that also keeps every batch's end."""

    def __init__(self, plan: Plan, arrivals: Sequence[Arrival]) -> None:
        super().__init__(plan, arrivals)
        self.ends_ns: dict[int, int] = {}

    def _answered(self, batch: RunBatch, now_ns: int) -> None:
        super()._answered(batch, now_ns)
        for member in batch.parts:
            self.ends_ns[member.key.part] = now_ns


def horizon_of(load: Load, parts_wanted: int) -> int:
    """Long enough for the wanted number of parts, for every line to have some, and for a load
    that is a little too much to show."""
    rate = sum(1 / one.cycle_ns for one in load.streams)
    longest_ns = max(one.cycle_ns for one in load.streams)
    slowest_ns = max(one.relative_ns for one in load.streams)
    return max(int(parts_wanted / rate), PARTS_LEAST * longest_ns, DEADLINES_LEAST * slowest_ns)


def adverse_arrivals(
    load: Load, setting: Setting, phases: Phases, horizon_ns: int
) -> list[Arrival]:
    """Every part of a run, in order: ready and due."""
    rng = random.Random(phases.seed)
    found = []
    for number, one in enumerate(load.streams):
        at_ns = phases.starts_ns[number] % one.cycle_ns
        due_ns = one.jitter_ns + one.relative_ns + setting.result_ns
        while at_ns < horizon_ns:
            late_ns = one.jitter_ns
            if phases.lateness == "earliest":
                late_ns = 0
            elif phases.lateness == "random":
                late_ns = rng.randint(0, one.jitter_ns)
            elif phases.lateness == "bunched" and at_ns >= phases.turn_ns:
                late_ns = 0
            found.append(Arrival(at_ns + late_ns, number, one.category, at_ns + due_ns))
            at_ns += one.cycle_ns
    return sorted(found)


def look(
    load: Load,
    setting: Setting,
    gpus: int,
    phases: Phases,
    parts_wanted: int,
    misses_max: int | None = None,
) -> Sight:
    """One run. Stopped early, past `misses_max`, it counts what it never saw as missed."""
    arrivals = adverse_arrivals(load, setting, phases, horizon_of(load, parts_wanted))
    run = _Watched(setting.plan(load, gpus), arrivals)
    outcome = run.play(misses_max)
    lines = len(load.streams)
    sight = Sight(phases, [0] * lines, [0] * lines, [1 << 60] * lines, [[] for _ in range(lines)])
    for arrival in arrivals:
        sight.parts[arrival.line] += 1
    for part in outcome.on_time:
        sight.pool[arrivals[part].line] += 1
    least_ns = 1 << 62
    for part, end_ns in run.ends_ns.items():
        arrival = arrivals[part]
        one = load.streams[arrival.line]
        # The most that this part could have used, had it come at its latest.
        latest_ns = arrival.due_ns - one.relative_ns - setting.result_ns
        used_ns = end_ns - latest_ns
        sight.used_ns[arrival.line].append(used_ns)
        margin_ns = one.needed_ns - used_ns
        if margin_ns < least_ns:
            least_ns, sight.worst_line, sight.worst_at_ns = margin_ns, arrival.line, latest_ns
        sight.margins_ns[arrival.line] = min(sight.margins_ns[arrival.line], margin_ns)
    missed = min(run.outcome.refused, default=None)  # the first, before others suffer from it
    if missed is not None:
        arrival = arrivals[missed]
        one = load.streams[arrival.line]
        sight.worst_line = arrival.line
        sight.worst_at_ns = arrival.due_ns - one.relative_ns - setting.result_ns
    for number in range(lines):
        if sight.pool[number] < sight.parts[number]:
            sight.margins_ns[number] = min(sight.margins_ns[number], -1)
    return sight


def first_phases(load: Load, count: int, seed: int) -> list[Phases]:
    """Where the search starts: in phase, long before tight, categories in phase, then random."""
    rng = random.Random(seed)
    streams = load.streams
    longest_ns = max(category.wcet_ns[-1] for category in load.categories)
    tightest = min(range(len(streams)), key=lambda number: streams[number].needed_ns)
    tight = streams[tightest].category
    offsets = [rng.randrange(longest_ns + 1) for _ in load.categories]
    found = [
        Phases((0,) * len(streams), "latest", seed),
        Phases(tuple(1_000 * (one.category == tight) for one in streams), "latest", seed),
        Phases(tuple(offsets[one.category] for one in streams), "earliest", seed),
        Phases((0,) * len(streams), "random", seed),
    ]
    while len(found) < count:
        starts = tuple(rng.randrange(one.cycle_ns) for one in streams)
        found.append(Phases(starts, LATENESS[len(found) % 3], rng.randrange(1 << 30)))
    return found[:count]


def aimed(load: Load, sight: Sight, rng: random.Random) -> Phases:
    """A neighbour: some lines' parts come shortly before the worst part, which then waits longer.

    How long before: within the longest batch, within the worst line's need, or at once.
    """
    starts, phases = list(sight.phases.starts_ns), sight.phases
    longest_ns = max(category.wcet_ns[-1] for category in load.categories)
    spans_ns = (longest_ns, max(1, load.streams[sight.worst_line].needed_ns), 1_000_000)
    span_ns = rng.choice(spans_ns)
    others = [number for number in range(len(starts)) if number != sight.worst_line]
    if not others:
        return _moved(load, phases, rng)
    lateness, turn_ns = phases.lateness, phases.turn_ns
    if rng.random() < 0.3:
        lateness, turn_ns = "bunched", sight.worst_at_ns - rng.randrange(span_ns + 1)
    count = min(len(others), rng.choice((1, 2, max(1, len(others) // 3), len(others))))
    for number in rng.sample(others, count):
        one = load.streams[number]
        starts[number] = (sight.worst_at_ns - one.jitter_ns - rng.randrange(span_ns + 1)) % (
            one.cycle_ns
        )
    return Phases(tuple(starts), lateness, rng.randrange(1 << 30), turn_ns)


def _moved(load: Load, phases: Phases, rng: random.Random) -> Phases:
    """A neighbour: a few lines move, by a little or onto another line's phase."""
    starts = list(phases.starts_ns)
    for _ in range(rng.choice((1, 1, 2, 4, max(1, len(starts) // 8)))):
        number = rng.randrange(len(starts))
        cycle_ns = load.streams[number].cycle_ns
        kind = rng.randrange(3)
        if kind == 0:
            starts[number] = rng.randrange(cycle_ns)
        elif kind == 1:
            starts[number] += rng.randint(-cycle_ns // 16, cycle_ns // 16)
        else:
            starts[number] = starts[rng.randrange(len(starts))] + rng.randrange(2_000_000)
        starts[number] %= cycle_ns
    lateness = rng.choice(LATENESS) if rng.random() < 0.2 else phases.lateness
    return Phases(tuple(starts), lateness, rng.randrange(1 << 30), phases.turn_ns)


@dataclass(frozen=True, slots=True)
class Effort:
    """How far to search: runs to start from, steps to climb, parts in a run."""

    starts: int
    steps: int
    parts: int


def search(
    load: Load, setting: Setting, gpus: int, effort: Effort, seed: int, on_run: Callable[[], None]
) -> list[Sight]:
    """Runs from the worst found to the best; climbs from the worst, then from the second worst."""
    sights = []
    for phases in first_phases(load, effort.starts, seed):
        sights.append(look(load, setting, gpus, phases, effort.parts))
        on_run()
    rng = random.Random(seed + 1)
    for step in range(effort.steps):
        sights.sort(key=lambda sight: sight.badness, reverse=True)
        place = 0 if step % 3 else min(1, len(sights) - 1)
        worst = sights[place]
        is_aimed = rng.random() < AIMED
        phases = aimed(load, worst, rng) if is_aimed else _moved(load, worst.phases, rng)
        tried = look(load, setting, gpus, phases, effort.parts)
        if tried.badness > sights[place].badness:
            sights[place] = tried
        on_run()
    return sorted(sights, key=lambda sight: sight.badness, reverse=True)
