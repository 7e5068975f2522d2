"""What one run is made from: a small plant and its faults, all from one seed; as JSON and back."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from random import Random
from typing import Any

from hil_sim.fuzz.steps import STEPS

CASE_VERSION = 1
POLICIES = ("takt", "takt", "takt", "takt", "eager", "window", "slack")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: from `at_ms` after the load began, for `for_ms` (0: at once and over).

    target: the line's or the GPU's number. detail: a kind's own choice (a step, a lie, a link).
    """

    kind: str
    at_ms: int
    for_ms: int = 0
    target: int = 0
    detail: str = ""

    def __str__(self) -> str:
        length = f" for {self.for_ms} ms" if self.for_ms else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.kind} {self.target}{detail} at {self.at_ms} ms{length}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run. readmit_ms: how long a GPU is proved after a loss (the shipped 5 s in some runs)."""

    seed: int
    lines: int
    gpus: int
    load_ms: int
    policy: str = "takt"
    tick_ns: int = 0
    readmit_ms: int = 1000
    cycle_ms: int = 40
    deadline_ms: int = 110
    journal_rows_max: int = 20_000
    faults: tuple[Fault, ...] = ()

    def as_json(self) -> str:
        """For a file that is kept."""
        return json.dumps({"version": CASE_VERSION, **dataclasses.asdict(self)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Case:
        """Raises ValueError for what is no case."""
        try:
            told = json.loads(text)
            if told.pop("version") != CASE_VERSION:
                raise ValueError(f"not version {CASE_VERSION}")
            told["faults"] = tuple(Fault(**fault) for fault in told["faults"])
            case = Case(**told)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a case: {error}") from None
        unknown = {fault.kind for fault in case.faults} - set(KINDS)
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")
        return case


LIES = ("swapped", "unwritten", "stale", "half", "nan", "nonce")
LINKS = ("frames", "verdicts", "batcher", "journal")

KINDS: dict[str, tuple[str, int, int]] = {
    # kind: what its target counts, shortest and longest length in ms
    "kill-line": ("line", 0, 0),
    "kill-line-twice": ("line", 0, 0),
    "stop-line": ("line", 0, 0),
    "kill-batcher": ("", 0, 0),
    "kill-journal": ("", 0, 0),
    "kill-step": ("line", 0, 0),
    "stop-batcher": ("", 20, 500),
    "stop-journal": ("", 20, 900),
    "gpu-lost": ("gpu", 50, 700),
    "gpu-hung": ("gpu", 50, 900),
    "gpu-slow": ("gpu", 50, 600),
    "gpu-lies": ("gpu", 30, 400),
    "link-dropped": ("line", 0, 0),
    "link-cut": ("line", 100, 1500),
    "link-slow": ("line", 50, 500),
    "journal-full": ("", 50, 900),
    "journal-disk-error": ("", 50, 500),
    "journal-slow": ("", 50, 500),
    "event-journal-full": ("", 50, 500),
    "camera-dead": ("line", 100, 800),
    "camera-burst": ("line", 0, 0),
    "camera-twice": ("line", 50, 500),
    "camera-corrupt": ("line", 30, 300),
    "camera-restart": ("line", 0, 0),
    "camera-clock": ("line", 0, 0),
    "decode-slow": ("line", 50, 400),
    "actuator-silent": ("line", 100, 900),
    "actuator-asks": ("line", 0, 0),
    "fallback-fails": ("line", 30, 400),
    "fallback-slow": ("line", 50, 600),
    "fallback-wrong": ("line", 30, 400),
    "wall-step": ("", 0, 0),
    "shm-full": ("", 50, 400),
}


def _detail(kind: str, random: Random) -> str:
    match kind:
        case "gpu-lies":
            return random.choice(LIES)
        case "gpu-slow":
            return str(random.choice((2, 4, 8)))
        case "link-dropped" | "link-slow":
            return random.choice(LINKS)
        case "link-cut":
            return random.choice(LINKS[:2])
        case "camera-burst":
            return str(random.randrange(3, 12))
        case "camera-clock":
            return str(random.choice((-600_000, -900, -40, 40, 900, 37_000)))
        case "wall-step":
            return str(random.choice((-3_600_000, -1, 1, 500, 3_600_000)))
        case "kill-step":
            step = random.choice(sorted(STEPS))
            return f"{step} {random.choice(('before', 'after'))} {random.randrange(1, 6)}"
    return ""


def case_of(seed: int) -> Case:
    """The plant and the faults of a seed: a random subset of kinds is enabled, each for itself."""
    random = Random(f"case {seed}")
    lines, gpus = random.choice((1, 1, 2, 2, 3)), random.choice((1, 2, 2))
    load_ms = random.randrange(400, 1000)
    enabled = [kind for kind in KINDS if random.random() < 0.2] or [random.choice(list(KINDS))]
    faults = []
    for _ in range(random.randrange(1, 6)):
        kind = random.choice(enabled)
        counts, shortest, longest = KINDS[kind]
        of = {"line": lines, "gpu": gpus, "": 1}[counts]
        at_ms = random.randrange(0, load_ms)
        for_ms = random.randrange(shortest, longest + 1) if longest else 0
        faults.append(Fault(kind, at_ms, for_ms, random.randrange(of), _detail(kind, random)))
    cycle_ms = random.choice((25, 40, 60))
    return Case(
        seed=seed,
        lines=lines,
        gpus=gpus,
        load_ms=load_ms,
        policy=random.choice(POLICIES),
        tick_ns=random.choice((0, 1000)),
        readmit_ms=5000 if seed % 16 == 0 else 500,
        cycle_ms=cycle_ms,
        deadline_ms=random.choice((70, 110, 200)),
        journal_rows_max=random.choice((20_000, 20_000, 8)),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_ms)),
    )


def size_of(case: Case) -> dict[str, Any]:
    """What a minimiser makes smaller, for a person."""
    return {"faults": len(case.faults), "lines": case.lines, "gpus": case.gpus,
            "load_ms": case.load_ms}  # fmt: skip
