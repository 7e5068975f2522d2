"""A lost GPU costs no part but those of its batch: seeded losses on two mixes of models.

The mixes are hard ones: long batches of one model beside tight parts of another, at 85 % of what
one GPU less carries. The mutants take one of `takt`'s two rules away; each must be found.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deadline_batcher.policies.lost import Reserve
from deadline_batcher.policies.takt import Takt
from hil_sim.policy_load import LossResult, lose_gpus
from hil_sim.scenario import Scenario, ScenarioLine, ScenarioModel

STEP = (26.3, 49.8, 49.95, *(50.1 + 0.78 * extra for extra in range(29)))
SUPERADDITIVE = (6.28, 14.5, *(17.5 + 2.6 * extra for extra in range(14)))
NO_GAIN = tuple(21.7 + 19.3 * extra for extra in range(8))
DETECTOR = tuple(18.0 + 6.0 * extra for extra in range(16))
CLASSIFIER = tuple(3.8 + 0.8 * extra for extra in range(32))
SEGMENTER = tuple(29.0 + 9.0 * extra for extra in range(8))


def mix(*models: tuple[tuple[float, ...], int, float, float, float]) -> Scenario:
    """(times, lines, cycle in ms, deadline in ms, jitter) of each model, four GPUs."""
    lines = []
    for number, (_, count, cycle_ms, deadline_ms, jitter) in enumerate(models):
        for _ in range(count):
            lines.append(
                ScenarioLine(
                    id=f"line{len(lines)}",
                    model=f"model{number}",
                    cycle_time_ms=cycle_ms,
                    deadline_ms=deadline_ms,
                    jitter=jitter,
                )
            )
    named = tuple(
        ScenarioModel(name=f"model{number}", wcet_ms=times)
        for number, (times, *_) in enumerate(models)
    )
    return Scenario(name="mix", gpus=(4, 3), model=named, line=tuple(lines))


ODD = mix((STEP, 6, 60, 150, 0.1), (SUPERADDITIVE, 4, 25, 60, 0.1), (NO_GAIN, 2, 200, 300, 0.1))
THREE = mix(
    (DETECTOR, 4, 60, 120, 0.05), (CLASSIFIER, 4, 20, 40, 0.05), (SEGMENTER, 4, 200, 300, 0.1)
)
MIXES = {"odd": (ODD, 2.33, 1), "three": (THREE, 2.68, 41)}  # load, first seed
RUNS = 20


def lost(name: str) -> LossResult:
    scenario, load, first = MIXES[name]
    return lose_gpus(scenario, load, RUNS, "takt", lambda: None, first)


@pytest.mark.parametrize("name", MIXES)
def test_no_part_but_those_of_the_lost_batch_is_missed(name: str) -> None:
    result = lost(name)
    assert result.with_batch > 10
    assert result.others_missed == 0
    assert result.rerun > 4 * result.to_fallback > 0


MUTANTS: dict[str, tuple[str, type, str, Callable[..., object]]] = {
    "a returned part goes first": ("odd", Takt, "_choose_with_returned", Takt._choose),
    "nothing is kept": ("three", Reserve, "is_kept", lambda *_: False),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_rule_taken_away_is_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, owner, attribute, planted = MUTANTS[mutant]
    monkeypatch.setattr(owner, attribute, planted)
    assert lost(name).others_missed > 0
