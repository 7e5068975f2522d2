"""More GPUs never lower the largest load that the default rule carries without a miss.

Seeded, on small plants of every kind that the scenarios have: one model, tight and loose lines,
three models, in phase, bursty, odd profiles. A planted bug shows that the test can fail.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from deadline_batcher.plan import PolicySpec
from deadline_batcher.pool import Pool
from hil_sim.policy_load import Bench, Cell, Effort
from hil_sim.scenario import Scenario, ScenarioLine, ScenarioModel

EFFORT = Effort(2.0, (1, 2, 3))
LONG = ScenarioModel(name="long", wcet_ms=(18, 24, 30, 36, 42, 48))
SHORT = ScenarioModel(name="short", wcet_ms=(3.8, 4.6, 5.4, 6.2))
SLOW = ScenarioModel(name="slow", wcet_ms=(29, 38, 47))
VGG = ScenarioModel(name="vgg", wcet_ms=(6.3, 14.5, 16, 18))  # super-additive at 2
STEP = ScenarioModel(name="step", wcet_ms=(10, 11, 25, 26))
FLAT = ScenarioModel(name="flat", wcet_ms=(12, 24, 36))  # no gain


def lines(model: ScenarioModel, count: int, cycle_ms: float, deadline_ms: float,
          jitter: float = 0.05) -> list[ScenarioLine]:  # fmt: skip
    return [
        ScenarioLine(
            id=f"{model.name}{number}-{deadline_ms:g}",
            model=model.name,
            cycle_time_ms=cycle_ms,
            deadline_ms=deadline_ms,
            jitter=jitter,
        )
        for number in range(count)
    ]


def plant(name: str, of: list[ScenarioLine], *models: ScenarioModel, **more: str) -> Scenario:
    kind = {"gpus": (1,), "model": models, "line": of, **more}
    return Scenario.model_validate({"name": name, **kind})


PLANTS = {
    scenario.name: scenario
    for scenario in (
        plant("uniform", lines(LONG, 6, 60, 120), LONG),
        plant("in-phase", lines(LONG, 6, 60, 120, 0), LONG, phase="aligned"),
        plant("bursty", lines(LONG, 6, 60, 150), LONG, arrivals="poisson"),
        plant("mixed-deadline", lines(LONG, 3, 60, 60) + lines(LONG, 3, 60, 240), LONG),
        plant(
            "three-models",
            lines(LONG, 2, 60, 120) + lines(SHORT, 2, 20, 40) + lines(SLOW, 2, 200, 300),
            LONG, SHORT, SLOW,
        ),
        plant(
            "odd-profiles",
            lines(VGG, 2, 40, 60) + lines(STEP, 2, 50, 100) + lines(FLAT, 2, 80, 150),
            VGG, STEP, FLAT,
        ),
    )
}  # fmt: skip


def largest_loads(scenario: Scenario) -> list[float]:
    return [
        Bench(scenario, gpus, EFFORT).largest(
            PolicySpec("takt"), Cell(scenario.name, gpus, "takt", 0.0)
        )
        for gpus in (1, 2, 3, 4)
    ]


@pytest.mark.parametrize("name", PLANTS)
def test_more_gpus_never_lower_the_largest_load(name: str) -> None:
    loads = largest_loads(PLANTS[name])
    assert loads[0] > 0
    assert all(fewer < more for fewer, more in pairwise(loads)), loads


def test_a_pool_that_forgets_the_third_gpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = Pool.changed

    def planted(pool: Pool) -> None:
        changed(pool)
        if len(pool.gpus) > 2:
            pool._board.free = [number for number in pool._board.free if number == 0]

    monkeypatch.setattr(Pool, "changed", planted)
    loads = largest_loads(PLANTS["three-models"])
    assert loads[2] < loads[1]
