"""Largest load, overload and loss of a GPU: what `takt sim policies` measures, one cell a call.

Definitions are those of shared/scenarios/README.md. A part that the scheduler refuses counts as a
miss of the pool; in a plant its line's fallback takes it.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from deadline_batcher.plan import PolicySpec
from hil_sim.policy_run import Loss, Outcome, PolicyRun
from hil_sim.scenario import Scenario, arrivals_of, ms_to_ns

POISSON_MISSES = 0.001
STEP = 0.01
OVERLOAD = 1.5
LOSS_SHARE = 0.85
LOSS_HORIZON_S = 1.5
TRITON_CAPS = (16, 8, 32, 4, 2)
TRITON_DELAYS_MS = (5, 0, 10, 20, 40)
B2_HORIZON_S = 3.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is simulated at most; None takes what the scenario's file says."""

    horizon_s: float | None = None
    seeds: tuple[int, ...] | None = None

    def horizon_of(self, scenario: Scenario) -> float:
        """Seconds of arrivals."""
        return min(self.horizon_s or scenario.horizon_s, scenario.horizon_s)

    def seeds_of(self, scenario: Scenario) -> tuple[int, ...]:
        """Seeds of the arrivals."""
        return self.seeds or scenario.seeds


QUICK = Effort(8.0, (1, 2))
FULL = Effort()


@dataclass(slots=True)
class Cell:
    """One policy on one scenario with one number of GPUs."""

    scenario: str
    gpus: int
    policy: str
    bound: float
    largest_load: float = 0.0
    setting: str = ""
    overload: float = 0.0  # share of the offered GPU work that the pool answered in time
    overload_by_model: dict[str, float] = field(default_factory=dict)  # share of parts
    events: int = 0
    cpu_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Bench:
    """A scenario with a number of GPUs and an effort: answers whether a load is carried."""

    scenario: Scenario
    gpus: int
    effort: Effort

    def holds(self, load: float, policy: PolicySpec, cell: Cell) -> bool:
        """Whether no seed misses more than the definition allows; stops at the first miss."""
        scenario = self.scenario
        plan = scenario.plan(self.gpus, load, policy)
        for seed in self.effort.seeds_of(scenario):
            arrivals = arrivals_of(scenario, load, seed, self.effort.horizon_of(scenario))
            is_poisson = scenario.arrivals == "poisson"
            allowed = int(POISSON_MISSES * len(arrivals)) if is_poisson else 0
            began_s = time.process_time()
            outcome = PolicyRun(plan, arrivals).play(allowed)
            cell.cpu_s += time.process_time() - began_s
            cell.events += outcome.events
            if outcome.missed > allowed:
                return False
        return True

    def largest(
        self, policy: PolicySpec, cell: Cell, low: float = 0.0, high: float | None = None
    ) -> float:
        """The largest load by bisection, given that `low` is carried; 0 if none above 1 %.

        `high`: where to begin, instead of the bound.
        """
        high = self.scenario.bound(self.gpus) if high is None else high
        if self.holds(high, policy, cell):
            return high
        floor = STEP * high
        probe = max(0.92 * high, (low + high) / 2)
        while high - low > STEP * high and high > floor:
            if self.holds(probe, policy, cell):
                low = probe
            else:
                high = probe
            probe = (low + high) / 2
        return low


def measure(scenario: Scenario, gpus: int, policy: str, effort: Effort) -> Cell:
    """Largest load, and what is still answered at 1.5 times the bound."""
    bench = Bench(scenario, gpus, effort)
    cell = Cell(scenario.name, gpus, policy, scenario.bound(gpus))
    spec = PolicySpec(policy)
    if policy == "triton":
        spec = _tune_triton(bench, cell)
        cell.setting = f"cap {spec.batch_cap}, delay {spec.delay_ns / 1e6:g} ms"
    else:
        cell.largest_load = bench.largest(spec, cell)
    _overload(bench, spec, cell)
    return cell


def _tune_triton(bench: Bench, cell: Cell) -> PolicySpec:
    """The best of the grid: a point is bisected only if it carries more than the best so far."""
    best = PolicySpec("triton", TRITON_CAPS[0], ms_to_ns(TRITON_DELAYS_MS[0]))
    cell.largest_load = bench.largest(best, cell)
    for cap in TRITON_CAPS:
        for delay_ms in TRITON_DELAYS_MS:
            spec = PolicySpec("triton", cap, ms_to_ns(delay_ms))
            more = max(cell.largest_load * (1 + STEP), STEP)
            if spec == best or more > cell.bound or not bench.holds(more, spec, cell):
                continue
            best, cell.largest_load = spec, bench.largest(spec, cell, more)
    return best


def _overload(bench: Bench, policy: PolicySpec, cell: Cell) -> None:
    scenario, load = bench.scenario, OVERLOAD * cell.bound
    seed = bench.effort.seeds_of(scenario)[0]
    arrivals = arrivals_of(scenario, load, seed, min(8.0, bench.effort.horizon_of(scenario)))
    outcome = PolicyRun(scenario.plan(bench.gpus, load, policy), arrivals).play()
    cost = [scenario.cheapest_ns(line) for line in scenario.line]
    offered = [0] * len(scenario.model)
    answered = [0] * len(scenario.model)
    for arrival in arrivals:
        offered[arrival.category] += 1
    for part in outcome.on_time:
        answered[arrivals[part].category] += 1
    all_ns = sum(cost[arrival.line] for arrival in arrivals)
    cell.overload = sum(cost[arrivals[part].line] for part in outcome.on_time) / all_ns
    for model, had, done in zip(scenario.model, offered, answered, strict=True):
        cell.overload_by_model[model.name] = round(done / had, 4) if had else 1.0


# --- the arrival-limited bound ------------------------------------------------------------------


def arrival_limited_bound(scenario: Scenario, gpus: int) -> float:
    """B2 of batching.md 5.2, in the long run: the load at which the parts' least costs fill N.

    A part's least cost is the least l(b) / b over the sizes b of which some batch holding it could
    run: at some instant, b parts have come and are not due before l(b) more. No rule, clairvoyant
    or not, does better; blocking between batches is left out, so that it is not always reached.
    """
    low, high = 0.0, scenario.bound(gpus)
    while high - low > STEP / 2 * high:
        load = (low + high) / 2
        work_ns = _least_work_ns(scenario, load)
        if work_ns <= gpus * B2_HORIZON_S * 1e9:
            low = load
        else:
            high = load
    return (low + high) / 2


def _least_work_ns(scenario: Scenario, load: float) -> float:
    arrivals = arrivals_of(scenario, load, 1, B2_HORIZON_S)
    total_ns = 0.0
    for number, model in enumerate(scenario.model):
        due_ns = sorted({a.due_ns - a.at_ns for a in arrivals if a.category == number})
        by_due = {d: [a.at_ns for a in arrivals if a.category == number
                      and a.due_ns - a.at_ns == d] for d in due_ns}  # fmt: skip
        least = {d: [float("inf")] * len(at) for d, at in by_due.items()}
        starts = sorted(at_ns for at in by_due.values() for at_ns in at)
        cheapest = float("inf")
        for size, ms in enumerate(model.wcet_ms, 1):
            wcet_ns = ms_to_ns(ms)
            if wcet_ns / size >= cheapest:
                continue
            cheapest = wcet_ns / size
            _mark(by_due, least, starts, size, wcet_ns)
        total_ns += sum(sum(costs) for costs in least.values())
    return total_ns


def _mark(
    by_due: dict[int, list[int]],
    least: dict[int, list[float]],
    starts: list[int],
    size: int,
    wcet_ns: int,
) -> None:
    """Lower the least cost of every part that a batch of `size` could hold."""
    reached = dict.fromkeys(by_due, 0)
    for start_ns in starts:
        spans = {}
        for due_ns, at in by_due.items():
            first = bisect_left(at, start_ns + wcet_ns - due_ns)
            spans[due_ns] = (first, max(first, bisect_right(at, start_ns)))
        if sum(end - first for first, end in spans.values()) < size:
            continue
        for due_ns, (first, end) in spans.items():
            costs = least[due_ns]
            for part in range(max(first, reached[due_ns]), end):
                costs[part] = min(costs[part], wcet_ns / size)
            reached[due_ns] = max(reached[due_ns], end)


# --- a lost GPU -----------------------------------------------------------------------------------


@dataclass(slots=True)
class LossResult:
    """What many losses did, all together."""

    scenario: str
    load: float
    runs: int = 0
    parts: int = 0
    with_batch: int = 0  # runs in which a batch was lost
    caught: int = 0  # parts of lost batches
    rerun: int = 0  # of these, answered in time by another GPU
    to_fallback: int = 0  # of these, refused, so that the line's fallback takes them
    others_missed: int = 0  # parts of no lost batch that the pool did not answer in time
    missed_anyway: int = 0  # of these, in runs in which N or N - 1 GPUs miss without any loss


def loss_load(scenario: Scenario, policy: str, runs: int, effort: Effort) -> float:
    """85 % of the largest load of N - 1 GPUs, which they also carry in every phase judged here.

    A load found with a few seeds may miss in other phases; what is missed there after a loss
    would not be the loss's doing.
    """
    fewer, spec = max(scenario.gpus) - 1, PolicySpec(policy)
    cell = Cell(scenario.name, fewer, policy, scenario.bound(fewer))
    first = Bench(scenario, fewer, effort).largest(spec, cell)
    phases = Effort(LOSS_HORIZON_S, tuple(range(1, runs + 1)))
    return LOSS_SHARE * Bench(scenario, fewer, phases).largest(spec, cell, high=first)


def lose_gpus(
    scenario: Scenario,
    load: float,
    runs: int,
    policy: str,
    tick: Callable[[], None],
    first: int = 1,
) -> LossResult:
    """Lose one of N GPUs at a random instant, `runs` times, each with other arrivals.

    `first`: the seed of the first run.
    """
    gpus = max(scenario.gpus)
    result = LossResult(scenario.name, load)
    plan = scenario.plan(gpus, load, PolicySpec(policy))
    whole = [scenario.plan(count, load, PolicySpec(policy)) for count in (gpus, gpus - 1)]
    for seed in range(first, first + runs):
        chance = random.Random(f"loss/{seed}")
        loss = Loss(chance.randrange(gpus), round(chance.uniform(0.3, 0.8) * 1e9))
        arrivals = arrivals_of(scenario, load, seed, LOSS_HORIZON_S)
        outcome: Outcome = PolicyRun(plan, arrivals, loss).play()
        missed = set(outcome.refused) | set(outcome.late)
        result.runs += 1
        result.parts += len(arrivals)
        result.with_batch += bool(outcome.caught)
        result.caught += len(outcome.caught)
        result.to_fallback += len(outcome.caught & missed)
        result.rerun += len(outcome.caught - missed)
        others = len(missed - outcome.caught)
        result.others_missed += others
        if others and any(PolicyRun(one, arrivals).play(0).missed for one in whole):
            result.missed_anyway += others
        tick()
    return result
