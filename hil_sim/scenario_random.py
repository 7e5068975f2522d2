"""Scenarios drawn at random, so that no rule is tuned to the few that are written down.

A seed is a scenario: the same in every process and on every machine. Only plausible plants are
drawn: every line's deadline leaves room for a picture alone (and for one of another line before it,
where one GPU less leaves one), and the fluid bound leaves something to spare above the plant's own
load. What is drawn is rounded to what its TOML says.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from typing import Final

from hil_sim.scenario import Scenario, ScenarioLine, ScenarioModel

MODELS_MAX: Final = 12
LINES: Final = (4, 40)
GPUS: Final = (2, 6)
ALONE_MS: Final = (2.0, 60.0)
CAPS: Final = (4, 8, 12, 16, 24, 32)
ROOM: Final = (4.0, 15.0)
"""Deadline over the time of a picture alone, as in the scenarios that are written down."""
TIGHT: Final = 0.25
"""Share of scenarios whose lines have less."""
TIGHT_ROOM: Final = (1.4, 5.0)
CYCLES: Final = (0.3, 1.5)
"""Cycle time over deadline, before all are scaled to the plant's load."""
BOUND: Final = (1.3, 5.0)
"""The fluid bound with all GPUs: how many times its own load the plant could carry."""
JITTERS: Final = (0.0, 0.05, 0.1, 0.3, 0.5)
ALIGNED, POISSON = 0.25, 0.2
PARTS: Final = 4000
"""Of one run at the bound, about."""
HORIZON_S: Final = (1.5, 8.0)
CYCLES_LEAST: Final = 20
"""Of the slowest line in one run at the bound, where the longest horizon allows it."""


def random_scenarios(count: int, seed: int) -> list[Scenario]:
    """Those of seeds `seed`, `seed` + 1, and so on."""
    return [random_scenario(seed + number) for number in range(count)]


def random_scenario(seed: int) -> Scenario:
    """The scenario of a seed."""
    chance = random.Random(f"scenario/{seed}")
    gpus = chance.randint(*GPUS)
    line_count = chance.randint(*LINES)
    models = tuple(
        ScenarioModel(name=f"model{number:02d}", wcet_ms=_profile(chance))
        for number in range(1, chance.randint(1, min(MODELS_MAX, line_count)) + 1)
    )
    scenario = Scenario(
        name=f"random-{seed}",
        gpus=(gpus, gpus - 1),
        phase="aligned" if chance.random() < ALIGNED else "random",
        arrivals="poisson" if chance.random() < POISSON else "periodic",
        model=models,
        line=_lines(chance, models, line_count, gpus),
    )
    return _scaled(scenario, chance.uniform(*BOUND))


def _lines(
    chance: random.Random, models: tuple[ScenarioModel, ...], count: int, gpus: int
) -> tuple[ScenarioLine, ...]:
    """Every model has a line; the rest fall as they may. Lines of a model are mostly alike."""
    chosen = [*range(len(models)), *(chance.randrange(len(models)) for _ in models)]
    chosen = (chosen + [chance.randrange(len(models)) for _ in range(count)])[:count]
    # On the one GPU that is left nothing else can keep a picture from waiting for another's run.
    before_ms = max(one.wcet_ms[0] for one in models) if gpus == GPUS[0] else 0.0
    least_ms = [max(10.0, 1.05 * (before_ms + one.wcet_ms[0])) for one in models]
    room = TIGHT_ROOM if chance.random() < TIGHT else ROOM
    deadline_ms = [
        max(least, one.wcet_ms[0] * _spread(chance, *room))
        for least, one in zip(least_ms, models, strict=True)
    ]
    cycle_ms = [one_ms * _spread(chance, *CYCLES) for one_ms in deadline_ms]
    jitter, are_alike = chance.choice(JITTERS), chance.random() < 0.6
    lines = []
    for number, model in enumerate(sorted(chosen), start=1):
        stretch = 1.0 if are_alike else _spread(chance, 1.0, 3.0)
        pace = 1.0 if are_alike else _spread(chance, 0.5, 2.0)
        lines.append(
            ScenarioLine(
                id=f"line{number:02d}",
                model=models[model].name,
                cycle_time_ms=round(cycle_ms[model] * pace, 3),
                deadline_ms=round(deadline_ms[model] * stretch, 1),
                jitter=jitter,
            )
        )
    return tuple(lines)


def _scaled(scenario: Scenario, bound: float) -> Scenario:
    """The same with cycle times at which the fluid bound is as wanted, and a horizon to suit."""
    factor = bound / scenario.bound(scenario.gpus[0])
    lines = tuple(
        one.model_copy(update={"cycle_time_ms": round(max(0.1, one.cycle_time_ms * factor), 3)})
        for one in scenario.line
    )
    rate = bound * sum(1000 / one.cycle_time_ms for one in lines)
    slowest_s = max(one.cycle_time_ms for one in lines) / 1000 / bound
    wanted_s = max(PARTS / rate, CYCLES_LEAST * slowest_s)
    horizon_s = round(min(HORIZON_S[1], max(HORIZON_S[0], wanted_s)), 2)
    changed = scenario.model_copy(update={"line": lines, "horizon_s": horizon_s})
    return Scenario.model_validate(changed.model_dump())


def _spread(chance: random.Random, low: float, high: float) -> float:
    """Between two bounds, every factor alike."""
    return math.exp(chance.uniform(math.log(low), math.log(high)))


# --- profiles -----------------------------------------------------------------------------------


def _profile(chance: random.Random) -> tuple[float, ...]:
    """Worst cases in ms of one of the shapes that were seen (`batching.md` 4.6)."""
    alone_ms, cap = _spread(chance, *ALONE_MS), chance.choice(CAPS)
    shape = chance.choices(tuple(SHAPES), weights=(5, 2, 1, 2))[0]
    rises = SHAPES[shape](chance, cap)
    found, at_ms = [], alone_ms
    for rise in (0.0, *rises):
        at_ms += alone_ms * rise
        found.append(round(at_ms, 2))
    return tuple(found)


def _affine(chance: random.Random, cap: int) -> list[float]:
    slope = _spread(chance, 0.1, 0.6)
    return [slope] * (cap - 1)


def _stepped(chance: random.Random, cap: int) -> list[float]:
    """Nearly flat between steps: the hardware works in tiles."""
    width, step, flat = chance.choice((2, 4, 8)), chance.uniform(0.5, 1.5), chance.uniform(0.0, 0.1)
    offset = chance.randrange(width)
    return [step if size % width == offset else flat for size in range(2, cap + 1)]


def _no_gain(chance: random.Random, cap: int) -> list[float]:
    slope = chance.uniform(0.9, 1.0)
    return [slope] * (cap - 1)


def _superadditive(chance: random.Random, cap: int) -> list[float]:
    """Two take longer than one by one; only large batches pay."""
    slope = chance.uniform(0.25, 0.7)
    return [chance.uniform(1.05, 1.5), *[slope] * (cap - 2)]


SHAPES: Final[dict[str, Callable[[random.Random, int], list[float]]]] = {
    "affine": _affine,
    "stepped": _stepped,
    "no-gain": _no_gain,
    "superadditive": _superadditive,
}
"""What every further part adds, in times of a part alone."""


# --- the file -----------------------------------------------------------------------------------


def as_toml(scenario: Scenario) -> str:
    """The scenario's file; `load_scenario` reads the same back."""
    rows = [
        f"name = {_quoted(scenario.name)}",
        f"gpus = {list(scenario.gpus)}",
        f"phase = {_quoted(scenario.phase)}",
        f"arrivals = {_quoted(scenario.arrivals)}",
        f"horizon_s = {scenario.horizon_s!r}",
        f"seeds = {list(scenario.seeds)}",
    ]
    for model in scenario.model:
        rows += ["", "[[model]]", f"name = {_quoted(model.name)}"]
        rows.append(f"wcet_ms = {list(model.wcet_ms)}")
    for line in scenario.line:
        rows += ["", "[[line]]", f"id = {_quoted(line.id)}", f"model = {_quoted(line.model)}"]
        rows.append(f"cycle_time_ms = {line.cycle_time_ms!r}")
        rows += [f"deadline_ms = {line.deadline_ms!r}", f"jitter = {line.jitter!r}"]
    return "\n".join(rows) + "\n"


def _quoted(text: str) -> str:
    """A TOML basic string: JSON's, but for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
