"""Scenarios for comparing batching rules: a TOML file, its plan at a load, its seeded arrivals.

The form is that of shared/scenarios/README.md. `load` divides every cycle time; times become
integer nanoseconds here.
"""

from __future__ import annotations

import random
import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.window import deeprt_window_ns

GRACE_NS = 20_000_000
WAITING_MAX = 1_000_000  # a queue that fills is a miss soon enough; no limit is to be measured
_STRICT = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ScenarioError(Exception):
    """A scenario that cannot be used; the text says which file and what is wrong."""


class ScenarioModel(BaseModel):
    """A model: worst-case execution time in ms for batch sizes 1, 2, and so on."""

    model_config = _STRICT

    name: str
    wcet_ms: tuple[float, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _times_are_worst_cases(self) -> ScenarioModel:
        for size, (before, after) in enumerate(pairwise((0.0, *self.wcet_ms)), start=1):
            if after <= 0:
                raise ValueError(f"model {self.name}: wcet_ms of size {size} is {after:g}, not > 0")
            if after < before:
                raise ValueError(
                    f"model {self.name}: wcet_ms falls by {before - after:g} ms from size "
                    f"{size - 1} to {size}: a worst case cannot"
                )
        return self


class ScenarioLine(BaseModel):
    """A line: cycle time, deadline from arrival, jitter as a share of the cycle."""

    model_config = _STRICT

    id: str
    model: str
    cycle_time_ms: float = Field(gt=0)
    deadline_ms: float = Field(gt=0)
    jitter: float = Field(default=0.0, ge=0)


class Scenario(BaseModel):
    """One file."""

    model_config = _STRICT

    name: str
    gpus: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(min_length=1)
    phase: Literal["random", "aligned"] = "random"
    arrivals: Literal["periodic", "poisson"] = "periodic"
    horizon_s: float = Field(default=60.0, gt=0)
    seeds: tuple[int, ...] = Field(default=(1, 2, 3, 4, 5), min_length=1)
    model: tuple[ScenarioModel, ...] = Field(min_length=1)
    line: tuple[ScenarioLine, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_agree(self) -> Scenario:
        names = [model.name for model in self.model]
        if len(set(names)) < len(names):
            raise ValueError("two models have one name")
        ids = [line.id for line in self.line]
        twice = next((one for one in ids if ids.count(one) > 1), None)
        if twice is not None:
            raise ValueError(f"two lines are called {twice}")
        for line in self.line:
            if line.model not in names:
                raise ValueError(f"line {line.id}: no model {line.model!r}")
            wcet_ms = self.model[names.index(line.model)].wcet_ms
            if wcet_ms[0] > line.deadline_ms:
                raise ValueError(
                    f"line {line.id}: deadline_ms {line.deadline_ms:g} is "
                    f"{wcet_ms[0] - line.deadline_ms:g} ms shorter than the smallest batch of "
                    f"{line.model} ({wcet_ms[0]:g} ms)"
                )
        return self

    def category_of(self, line: ScenarioLine) -> int:
        """The place of a line's model in the file."""
        return [model.name for model in self.model].index(line.model)

    def cheapest_ns(self, line: ScenarioLine) -> float:
        """GPU time of one part in the best batch that its deadline allows."""
        wcet_ms = self.model[self.category_of(line)].wcet_ms
        fitting = [ms / size for size, ms in enumerate(wcet_ms, 1) if ms <= line.deadline_ms]
        return min(fitting) * 1e6

    def bound(self, gpus: int) -> float:
        """The load that no rule can exceed in the long run (shared/scenarios/README.md)."""
        return gpus / sum(self.cheapest_ns(one) / (one.cycle_time_ms * 1e6) for one in self.line)

    def plan(self, gpus: int, load: float, policy: PolicySpec) -> Plan:
        """What the scheduler is told at this load."""
        numbers = [self.category_of(line) for line in self.line]
        categories = []
        for number, model in enumerate(self.model):
            due_ns = [
                ms_to_ns(line.deadline_ms)
                for line, other in zip(self.line, numbers, strict=True)
                if other == number
            ]
            wcet_ns = tuple(ms_to_ns(ms) for ms in model.wcet_ms)
            categories.append(Category(model.name, wcet_ns, deeprt_window_ns(due_ns or [0])))
        lines = tuple(
            LineTiming(number, round(line.cycle_time_ms * 1e6 / load), ms_to_ns(line.deadline_ms))
            for line, number in zip(self.line, numbers, strict=True)
        )
        return Plan(tuple(categories), gpus, 0, 0, GRACE_NS, WAITING_MAX, policy, lines)


class Arrival(NamedTuple):
    """One part: when, of which line, of which category, due when."""

    at_ns: int
    line: int
    category: int
    due_ns: int


def ms_to_ns(value_ms: float) -> int:
    """Milliseconds of a file, as the core's integers."""
    return round(value_ms * 1e6)


def arrivals_of(scenario: Scenario, load: float, seed: int, horizon_s: float) -> list[Arrival]:
    """All parts before the horizon, in order; every line has its own random numbers.

    The same seed draws the same numbers at every load, so that a load is compared with itself
    stretched, not with other chances.
    """
    found: list[Arrival] = []
    horizon_ns = horizon_s * 1e9
    for number, line in enumerate(scenario.line):
        chance = random.Random(f"{seed}/{number}")
        cycle_ns = line.cycle_time_ms * 1e6 / load
        category, due_ns = scenario.category_of(line), ms_to_ns(line.deadline_ms)
        if scenario.arrivals == "poisson":
            at = chance.expovariate(1.0) * cycle_ns
            while at < horizon_ns:
                found.append(Arrival(int(at), number, category, int(at) + due_ns))
                at += chance.expovariate(1.0) * cycle_ns
            continue
        phase = chance.random() if scenario.phase == "random" else 0.0
        for k in range(int(horizon_ns / cycle_ns) + 1):
            at = (phase + k + chance.random() * line.jitter) * cycle_ns
            if at < horizon_ns:
                found.append(Arrival(int(at), number, category, int(at) + due_ns))
    found.sort()
    return found


def load_scenario(path: Path) -> Scenario:
    """Read one file. Raises ScenarioError."""
    try:
        return Scenario.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ScenarioError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise ScenarioError(f"{path}: {error}") from None
    except ValidationError as error:
        wrong = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'file'}: "
            f"{item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        )
        raise ScenarioError(f"{path}: {wrong}") from None


def load_scenarios(paths: list[Path]) -> list[Scenario]:
    """Every file given, and every *.toml of every folder given. Raises ScenarioError."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("*.toml")) if path.is_dir() else [path]
    if not files:
        raise ScenarioError(f"{', '.join(map(str, paths))}: no scenario files (*.toml)")
    return [load_scenario(file) for file in files]
