"""Whether a plant fits on so many GPUs, by its own objectives, and how that is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from appliance.planning import due_budget_ns
from appliance.plant import Plant, ms_to_ns
from deadline_batcher.plan import PolicySpec
from deadline_batcher.sizing.bounds import (
    arrival_limited_load,
    fluid_load,
    frontier,
    staggered_load,
)
from deadline_batcher.sizing.load import Load
from hil_sim.size_certify import (
    FACTOR_MAX,
    Certificate,
    certificates,
    certified_factor,
    largest_caps,
)
from hil_sim.size_evidence import Effort, Phases, Setting, Sight, first_phases, look, search

FACTOR_STEPS = 64
FRESH = 3
"""Random phases that a largest load must hold beside the worst of the search."""
TRITON_CAPS = (2, 4, 8, 16, 32)
TRITON_DELAYS_MS = (0, 1, 2, 5, 10, 20, 40)
WORST_KEPT = 3
"""Of a search, the runs that are looked at again under other loads and settings."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is sized: the plant's objectives beside the load."""

    load: Load
    policy: str
    pool_shares: tuple[float, ...]
    slo_ns: tuple[int | None, ...]
    fixed_ns: tuple[int, ...]  # from exposure to verdict beside wait and execution
    due_ns: tuple[int, ...]  # from exposure to verdict when the fallback answers at its latest
    result_ns: int
    effort: Effort
    on_run: Callable[[], None]

    def fits(self, sight: Sight) -> bool:
        """Whether one run kept every line's objectives."""
        return not any(self.faults(sight))

    def faults(self, sight: Sight) -> list[str]:
        """Each line's broken objective, in words."""
        found = []
        for number, one in enumerate(self.load.streams):
            parts, pool = sight.parts[number], sight.pool[number]
            wanted = self.pool_shares[number]
            if pool < wanted * parts:
                found.append(f"{one.name}: {pool / parts:.3f} by the pool, {wanted:g} wanted")
            slo_ns = self.slo_ns[number]
            p99_ns = self.p99_ns(sight, number)
            if slo_ns is not None and p99_ns > slo_ns:
                over_ms = (p99_ns - slo_ns) / 1e6
                found.append(f"{one.name}: p99 {p99_ns / 1e6:.1f} ms, {over_ms:.1f} ms too long")
        return found

    def p99_ns(self, sight: Sight, number: int) -> int:
        """Exposure to verdict, nearest rank; parts that the pool missed count at their due."""
        used = sorted(sight.used_ns[number])
        parts = sight.parts[number]
        rank = max(0, -(-99 * parts // 100) - 1)
        is_answered = rank < len(used)
        return used[rank] + self.fixed_ns[number] if is_answered else self.due_ns[number]

    def setting(
        self,
        caps: Sequence[int],
        policy: PolicySpec | None = None,
        windows_ns: Sequence[int] | None = None,
    ) -> Setting:
        """The rule with these caps, and DeepRT's half deadlines as windows if none are given."""
        if windows_ns is not None:
            spec = policy or PolicySpec(self.policy)
            return Setting(spec, tuple(caps), tuple(windows_ns), self.result_ns)
        windows = []
        for number in range(len(self.load.categories)):
            needed = [one.needed_ns for one in self.load.streams if one.category == number]
            windows.append(min(needed, default=0) // 2)
        spec = policy or PolicySpec(self.policy)
        return Setting(spec, tuple(caps), tuple(windows), self.result_ns)


@dataclass(slots=True)
class Judgement:
    """What is known of one GPU count. factor: the largest load that held, 1 is the plant's."""

    gpus: int
    fits: bool
    how: str
    fluid: float
    arrival_limited: float
    staggered: float
    caps: tuple[int, ...]
    windows_ns: tuple[int, ...]
    factor: float
    certified: list[tuple[Certificate, float]]
    sights: list[Sight] = field(default_factory=list, repr=False)
    faults: list[str] = field(default_factory=list)
    runs: int = 0

    @property
    def worst(self) -> Sight | None:
        """The worst run that was found."""
        return self.sights[0] if self.sights else None


def asked_of(
    plant: Plant, load: Load, policy: str, effort: Effort, on_run: Callable[[], None]
) -> Asked:
    """The question a plant file asks."""
    fixed = [line.transport_max_ms + plant.margins.result_ms + plant.margins.output_ms
             for line in plant.line]  # fmt: skip
    slo = [None if line.slo_p99_ms is None else ms_to_ns(line.slo_p99_ms) for line in plant.line]
    return Asked(
        load,
        policy,
        tuple(line.slo_pool_share for line in plant.line),
        tuple(slo),
        tuple(ms_to_ns(ms) for ms in fixed),
        tuple(
            due_budget_ns(plant, line) + ms_to_ns(plant.margins.output_ms) for line in plant.line
        ),
        ms_to_ns(plant.margins.result_ms),
        effort,
        on_run,
    )


def judge(asked: Asked, gpus: int, seed: int = 1) -> Judgement:
    """Bounds, proofs, then the search."""
    load = asked.load
    proofs = certificates(load, gpus)
    certified = [(one, certified_factor(load, gpus, one.test)) for one in proofs]
    fluid = fluid_load(load, gpus)
    caps = largest_caps(load)
    found = Judgement(
        gpus,
        fits=False,
        how="bound",
        fluid=fluid,
        arrival_limited=arrival_limited_load(load, gpus),
        staggered=staggered_load(load, gpus),
        caps=caps,
        windows_ns=_windows(load, caps),
        factor=min(1.0, fluid),
        certified=certified,
    )
    if fluid < 1:
        short = f"{(1 / fluid - 1) * 100:.0f} %" if fluid else "all"
        found.faults = [f"no rule can: the fluid bound is {fluid:.2f} of this load, {short} short"]
        return found
    proof = next((one for one in proofs if one.policy == asked.policy), None)
    if proof is not None:  # simulated all the same: a miss would be a bug of the proof
        setting = asked.setting(proof.caps, windows_ns=proof.windows_ns)
        caps = proof.caps
        sights = search(load, setting, gpus, asked.effort, seed, asked.on_run)
        found.windows_ns = proof.windows_ns
    else:
        caps, sights = _search(asked, gpus, seed)
        found.windows_ns = _windows(load, caps)
    found.caps, found.sights, found.runs = caps, sights, len(sights)
    found.faults = asked.faults(sights[0])
    found.fits = not found.faults
    found.how = "evidence" if proof is None else "certified"
    found.factor = largest_factor(asked, gpus, caps, worst_phases(sights), found.fits)
    if not found.factor:
        found.faults.append(
            "no slower rate helps in these phases: too many parts come at once, not too often"
        )
    return found


def _search(asked: Asked, gpus: int, seed: int) -> tuple[tuple[int, ...], list[Sight]]:
    """The largest caps that hold, halved as often as helps; the first ones where none do."""
    load, effort = asked.load, asked.effort
    tried: list[tuple[tuple[int, ...], list[Sight]]] = []
    for halvings in range(4):
        caps = halved(load, largest_caps(load), halvings)
        if tried and caps == tried[-1][0]:
            break
        steps = effort if not halvings else replace(effort, steps=effort.steps // 2)
        sights = search(load, asked.setting(caps), gpus, steps, seed, asked.on_run)
        tried.append((caps, sights))
        if asked.fits(sights[0]):
            return caps, sights
    return min(tried, key=lambda one: one[1][0].badness)


def halved(load: Load, caps: Sequence[int], halvings: int) -> tuple[int, ...]:
    """Caps halved, each on the next smaller size worth running."""
    found = []
    for category, cap in zip(load.categories, caps, strict=True):
        wanted = max(1, cap >> halvings)
        found.append(max(size for size in frontier(category.wcet_ns) if size <= wanted))
    return tuple(found)


def _windows(load: Load, caps: Sequence[int]) -> tuple[int, ...]:
    """How long a part may be held so that a batch of the cap still ends in time."""
    found = []
    for number, category in enumerate(load.categories):
        needed = [one.needed_ns for one in load.streams if one.category == number]
        left_ns = min(needed, default=0) - category.wcet_ns[caps[number] - 1] - load.timer_ns
        found.append(max(0, left_ns))
    return tuple(found)


def worst_phases(sights: Sequence[Sight]) -> list[Phases]:
    """The phases to look at again."""
    return [sight.phases for sight in sights[:WORST_KEPT]]


def largest_factor(
    asked: Asked, gpus: int, caps: Sequence[int], phases: Sequence[Phases], holds_at_one: bool
) -> float:
    """The largest factor on all rates at which those phases hold, by bisection."""
    setting = asked.setting(caps)
    top = min(fluid_load(asked.load, gpus), FACTOR_MAX)
    low, high = 0, int(top * FACTOR_STEPS) + 1
    if holds_at_one:
        low = FACTOR_STEPS
    else:
        high = min(high, FACTOR_STEPS)
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        faster = asked.load.at(middle, FACTOR_STEPS)
        if all(holds(asked, faster, setting, gpus, one) for one in phases):
            low = middle
        else:
            high = middle
    low = min(low, int(arrival_limited_load(asked.load, gpus) * FACTOR_STEPS))
    return _confirmed(asked, gpus, setting, low) / FACTOR_STEPS


def _confirmed(asked: Asked, gpus: int, setting: Setting, steps: int) -> int:
    """Lowered until phases that were not seen before hold too; never below the plant's load."""
    while steps > FACTOR_STEPS:
        faster = asked.load.at(steps, FACTOR_STEPS)
        fresh = first_phases(faster, asked.effort.starts, steps)[-FRESH:]
        if all(holds(asked, faster, setting, gpus, phases) for phases in fresh):
            break
        steps -= max(1, steps // 50)
    return steps


def holds(asked: Asked, load: Load, setting: Setting, gpus: int, phases: Phases) -> bool:
    """Whether one run keeps every objective."""
    asked.on_run()
    parts = asked.effort.parts
    spared = sum(1 - share for share in asked.pool_shares) / len(asked.pool_shares)
    allowed = int(2 * parts * spared) + len(asked.pool_shares)
    sight = look(load, setting, gpus, phases, parts, misses_max=allowed)
    return asked.fits(sight)


@dataclass(frozen=True, slots=True)
class TritonAnswer:
    """Whether Triton's own batcher holds too, and with which settings."""

    gpus: int
    holds: bool
    batch_cap: int
    delay_ms: int
    missed_share: float


def triton(asked: Asked, judged: Judgement) -> TritonAnswer:
    """Its grid of batch size and queue delay, on the worst phases found for ours."""
    best = TritonAnswer(judged.gpus, False, 0, 0, 1.0)
    largest = max(category.cap for category in asked.load.categories)
    sizes = [size for size in TRITON_CAPS if size <= largest] or [1]
    for delay_ms in TRITON_DELAYS_MS:
        for cap in sizes:
            spec = PolicySpec("triton", cap, ms_to_ns(delay_ms))
            full = [category.cap for category in asked.load.categories]
            setting = asked.setting(full, spec)
            missed, holds = 0.0, True
            for phases in worst_phases(judged.sights):
                asked.on_run()
                sight = look(asked.load, setting, judged.gpus, phases, asked.effort.parts,
                             misses_max=asked.effort.parts // 20)  # fmt: skip
                missed = max(missed, sight.missed / sum(sight.parts))
                holds = asked.fits(sight)
                if not holds:
                    break
            if holds:
                return TritonAnswer(judged.gpus, True, cap, delay_ms, missed)
            if missed < best.missed_share or not best.batch_cap:
                best = TritonAnswer(judged.gpus, False, cap, delay_ms, missed)
    return best
