"""A plant that a sufficient test passes never fails in simulation, over random plants.

The plain pool of `size_reference` obeys a test's premises and nothing more: any order, any batch
up to the cap, sporadic arrivals, goldens begun at the worst moment. Loads are raised until the
test just still passes, so that a test that is too generous is found. The planted bugs at the end
are the ones that this was seen to find.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deadline_batcher.plan import PolicySpec
from deadline_batcher.sizing import deeprt, global_np, load, partitioned
from deadline_batcher.sizing.admission import admit
from deadline_batcher.sizing.load import Load, Task
from hil_sim.size_certify import CERTIFIERS
from hil_sim.size_evidence import Setting, first_phases, look
from hil_sim.size_reference import RULES, Pool, arrivals_of, random_load

Holds = Callable[[Load, int], bool]
STEPS = 16
SEEDS = st.integers(0, 2**32)
BOUNDED = settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


def raised(plant: Load, gpus: int, holds: Holds) -> Load | None:
    """The same at the largest rate, in 16ths, at which the test still passes."""
    if not holds(plant, gpus):
        return None
    factor = STEPS
    while factor < 12 * STEPS and holds(plant.at(factor + 2, STEPS), gpus):
        factor += 2
    return plant.at(factor, STEPS)


def least_margin_ns(plant: Load, gpus: int, mode: str, seed: int, rule: str = "") -> int:
    """Over a few sporadic arrival patterns."""
    horizon_ns = min(
        12 * max(one.cycle_ns for one in plant.streams),
        300 * min(one.cycle_ns for one in plant.streams),
    )
    worst_ns = 1 << 62
    for run in range(4):
        rng = random.Random(seed + run)
        pool = Pool(plant, gpus, mode, rule or rng.choice(RULES), rng)
        worst_ns = min(worst_ns, pool.least_margin_ns(arrivals_of(plant, horizon_ns, rng)))
    return worst_ns


def wc_holds(plant: Load, gpus: int) -> bool:
    return global_np.certify_work_conserving(plant, gpus).holds


def one_holds(plant: Load, gpus: int) -> bool:
    return global_np.certify_batch_one(plant, gpus).holds


def alone(plant: Load) -> Load:
    return plant.capped([1] * len(plant.categories))


def drawn(seed: int) -> tuple[Load, int]:
    rng = random.Random(seed)
    return random_load(rng), rng.randint(1, 4)


@BOUNDED
@given(SEEDS)
def test_work_conserving_with_batches_of_any_size_in_any_order(seed: int) -> None:
    plant, gpus = drawn(seed)
    passed = raised(plant, gpus, wc_holds)
    if passed is not None:
        assert least_margin_ns(passed, gpus, "work-conserving", seed) >= 0


@BOUNDED
@given(SEEDS)
def test_earliest_deadline_first_at_batch_one(seed: int) -> None:
    plant, gpus = drawn(seed)
    passed = raised(plant, gpus, one_holds)
    if passed is not None:
        assert least_margin_ns(alone(passed), gpus, "batch-one", seed) >= 0


@BOUNDED
@given(SEEDS)
def test_lines_bound_to_a_gpu_each(seed: int) -> None:
    plant, gpus = drawn(seed)
    for names in partitioned.certify_partitioned(plant, gpus) or []:
        mine = replace(plant, streams=tuple(s for s in plant.streams if s.name in names))
        if names:
            assert least_margin_ns(alone(mine), 1, "batch-one", seed) >= 0


@BOUNDED
@given(SEEDS)
def test_windows_that_close_by_time(seed: int) -> None:
    plant, gpus = drawn(seed)
    found = deeprt.find_windows(plant, gpus, deeprt.certify_windows)
    if found is not None:
        held = plant.capped(found.caps).windowed(found.windows_ns)
        rule = "earliest" if found.result.test == "earliest-deadline" else ""
        assert least_margin_ns(held, gpus, "windows", seed, rule) >= 0


@settings(BOUNDED, max_examples=10)
@given(SEEDS)
def test_the_shipped_rules_under_their_certificates(seed: int) -> None:
    plant, gpus = drawn(seed)
    for name, certify in CERTIFIERS.items():
        passed = raised(plant, gpus, lambda one, n, test=certify: test(one, n) is not None)  # type: ignore[misc]
        if passed is None:
            continue
        proof = certify(passed, gpus)
        assert proof is not None
        setting = Setting(PolicySpec(proof.policy), proof.caps, proof.windows_ns, 0)
        for phases in first_phases(passed, 5, seed):
            sight = look(passed, setting, gpus, phases, 80)
            assert min(sight.margins_ns) >= 0, name
            assert sight.missed == 0, name


@BOUNDED
@given(SEEDS)
def test_admission_gets_no_worse_with_a_line_less_or_a_gpu_more(seed: int) -> None:
    plant, gpus = drawn(seed)
    rng = random.Random(seed)
    streams = tuple(replace(one, criticality=rng.randint(1, 4)) for one in plant.streams)
    windows = [category.wcet_ns[-1] * rng.randint(0, 2) for category in plant.categories]
    plant = replace(plant, streams=streams).windowed(windows)
    before = set(admit(plant, gpus).carried)
    assert before <= set(admit(plant, gpus + 1).carried)
    gone = rng.choice(streams).name
    fewer = replace(plant, streams=tuple(one for one in streams if one.name != gone))
    if fewer.streams:
        assert before - {gone} <= set(admit(fewer, gpus).carried)


@BOUNDED
@given(SEEDS)
def test_what_admission_carries_holds_in_simulation(seed: int) -> None:
    plant, gpus = drawn(seed)
    found = admit(plant, gpus, ("work-conserving", "batch-one"))
    assert set(found.carried) | set(found.shed) == {one.name for one in plant.streams}
    if found.carried:
        kept = tuple(one for one in plant.streams if one.name in found.carried)
        mode = found.proof
        mine = replace(plant, streams=kept)
        mine = alone(mine) if mode == "batch-one" else mine
        assert least_margin_ns(mine, gpus, mode, seed) >= 0


# --- planted bugs ---------------------------------------------------------------------------


def _fails_somewhere(holds: Holds, mode: str, examples: int = 1500) -> bool:
    for seed in range(examples):
        plant, gpus = drawn(seed)
        passed = raised(plant, gpus, holds)
        if passed is None:
            continue
        shown = alone(passed) if mode == "batch-one" else passed
        if least_margin_ns(shown, gpus, mode, seed) < 0:
            return True
    return False


def test_bug_found_no_carry_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_np, "running_ns", lambda plant, gpus: (0,) * (gpus + 1))
    assert _fails_somewhere(one_holds, "batch-one")


def test_bug_found_golden_on_the_idle_gpu_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = global_np.work_conserving
    monkeypatch.setattr(
        global_np, "work_conserving", lambda tasks, running, gpus, _: real(tasks, running, gpus)
    )
    assert _fails_somewhere(wc_holds, "work-conserving")


def test_bug_found_jitter_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    real = global_np.batched_tasks
    # Two lines, a part of 3 every 10, up to 8 late: two at 8, two at 10, the last waits until 17.
    line = load.Stream("a", 0, cycle_ns=10, relative_ns=7, needed_ns=7, jitter_ns=8)
    plant = Load((load.SizedCategory("m", (3,)),), (line, replace(line, name="b")))
    assert not wc_holds(plant, 1)
    monkeypatch.setattr(
        global_np, "batched_tasks", lambda one: [replace(task, jitter_ns=0) for task in real(one)]
    )
    assert wc_holds(plant, 1)
    assert min(least_margin_ns(plant, 1, "work-conserving", seed) for seed in range(200)) < 0


def test_bug_found_releases_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(global_np, "ceil_div", lambda a, b: a // b)
    assert _fails_somewhere(wc_holds, "work-conserving")


def test_bug_found_cost_of_a_part_taken_from_the_largest_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = global_np.batched_tasks

    def amortised(plant: Load) -> list[Task]:
        costs = [load.ceil_div(one.wcet_ns[-1], one.cap) for one in plant.categories]
        return [
            replace(task, cost_ns=costs[one.category], own_ns=costs[one.category])
            for task, one in zip(real(plant), plant.streams, strict=True)
        ]

    monkeypatch.setattr(global_np, "batched_tasks", amortised)
    assert _fails_somewhere(wc_holds, "work-conserving")


def test_bug_found_blocking_on_one_gpu_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def unblocked(tasks: list[Task], golden_ns: int = 0) -> bool:
        return all(
            partitioned._demand_ns(tasks, task.relative_ns) <= task.needed_ns for task in tasks
        )

    monkeypatch.setattr(partitioned, "holds_on_one", unblocked)
    found = False
    for seed in range(300):
        plant, gpus = drawn(seed)
        for names in partitioned.certify_partitioned(plant, gpus) or []:
            mine = replace(plant, streams=tuple(s for s in plant.streams if s.name in names))
            if names and least_margin_ns(alone(mine), 1, "batch-one", seed) < 0:
                found = True
    assert found
