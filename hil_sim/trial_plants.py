"""Example plants for the trial of Triton's own batcher, and what arrives in them.

`mixed-deadline` and `three-models` are the scenarios of the same names. `stretch` slows everything
of a plant down alike (GPU times, cycles, deadlines), so that two shared cores imitate it honestly:
what holds at a load holds at that load whatever the stretch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class TrialModel:
    """A model: `fixed_ms + part_ms` × batch size up to `batch_max`."""

    name: str
    fixed_ms: float
    part_ms: float
    batch_max: int

    def wcet_ns(self, stretch: float) -> tuple[int, ...]:
        """Times of the batch sizes from 1 up."""
        return tuple(
            round((self.fixed_ms + self.part_ms * size) * stretch * NS_PER_MS)
            for size in range(1, self.batch_max + 1)
        )


@dataclass(frozen=True, slots=True)
class TrialLines:
    """Lines of one kind. urgency: 1 is the tightest deadline of the plant."""

    model: str
    count: int
    cycle_ms: float
    deadline_ms: float
    jitter: float
    urgency: int


@dataclass(frozen=True, slots=True)
class TrialPlant:
    """An example plant."""

    name: str
    models: tuple[TrialModel, ...]
    lines: tuple[TrialLines, ...]
    gpus: int
    stretch: float

    def bound(self, gpus: int) -> float:
        """The load that no rule exceeds in the long run (the scenarios' README)."""
        work = 0.0
        for lines in self.lines:
            model = next(one for one in self.models if one.name == lines.model)
            times_ms = [ns / NS_PER_MS for ns in model.wcet_ns(1.0)]
            least_ms = min(
                time_ms / size
                for size, time_ms in enumerate(times_ms, start=1)
                if time_ms <= lines.deadline_ms
            )
            work += lines.count * least_ms / lines.cycle_ms
        return gpus / work


MIXED_DEADLINE = TrialPlant(
    "mixed-deadline",
    (TrialModel("detector", 12.0, 6.0, 16),),
    (
        TrialLines("detector", 4, 40, 60, 0.05, 1),
        TrialLines("detector", 8, 120, 400, 0.05, 2),
    ),
    gpus=4,
    stretch=3.0,
)
THREE_MODELS = TrialPlant(
    "three-models",
    (
        TrialModel("detector", 12.0, 6.0, 16),
        TrialModel("classifier", 3.0, 0.8, 32),
        TrialModel("segmenter", 20.0, 9.0, 8),
    ),
    (
        TrialLines("detector", 4, 60, 120, 0.05, 2),
        TrialLines("classifier", 4, 20, 40, 0.05, 1),
        TrialLines("segmenter", 4, 200, 300, 0.1, 3),
    ),
    gpus=4,
    stretch=5.0,
)
PLANTS = {one.name: one for one in (MIXED_DEADLINE, THREE_MODELS)}


class Part(NamedTuple):
    """One part: due at `arrives_at_ns + deadline_ns`, from the start of the run."""

    arrives_at_ns: int
    deadline_ns: int
    model: str
    urgency: int


def arrivals(plant: TrialPlant, load: float, horizon_ms: float, seed: int) -> Sequence[Part]:
    """What arrives in `horizon_ms` of the plant's own time, stretched: periodic with jitter."""
    chance = random.Random(seed)
    parts = []
    for lines in plant.lines:
        cycle_ms = lines.cycle_ms / load
        for _ in range(lines.count):
            at_ms = chance.random() * cycle_ms
            while at_ms < horizon_ms:
                moment_ms = at_ms + chance.random() * lines.jitter * cycle_ms
                parts.append(
                    Part(
                        round(moment_ms * plant.stretch * NS_PER_MS),
                        round(lines.deadline_ms * plant.stretch * NS_PER_MS),
                        lines.model,
                        lines.urgency,
                    )
                )
                at_ms += cycle_ms
    return sorted(parts)
