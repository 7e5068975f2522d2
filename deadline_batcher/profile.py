"""Execution profiles: how long a batch takes at worst, and how that is known.

A profile belongs to one model file on one engine. It refuses to load without provenance, and is
refused when it does not match what runs. `wcet_ns[b]` is the worst-case execution time of a batch
of `b`; the scheduler and the emulating Triton use nothing else.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from deadline_batcher.profile_shape import efficient_sizes

Origin = Literal["measured", "emulated", "published"]


class ProfileError(Exception):
    """A profile that cannot be used; the text says why and what to do."""


class SizeStatistics(BaseModel):
    """Timed runs of one batch size. Times in nanoseconds, warm-up left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    samples: int = Field(ge=1)
    p50_ns: int = Field(gt=0)
    p95_ns: int = Field(gt=0)
    p99_ns: int = Field(gt=0)
    p999_ns: int = Field(gt=0)
    max_ns: int = Field(gt=0)
    extreme_ns: int | None = None
    """Advice only: what one run in a million would take, were the maxima Gumbel's."""


Measured = dict[int, SizeStatistics]


class Provenance(BaseModel):
    """Where the numbers come from. A profile matches when the compared fields are equal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_sha256: str
    device: str
    cores: int
    gpu: str = ""
    driver: str = ""
    clocks: str = ""
    server: str = ""
    runtime: str = ""
    threads: int = 1
    endpoints: int = 1
    sessions_busy: int = 0
    concurrent_max: int = 0
    """Fallback runs at once on the host while it was measured; 0 not known."""
    scheduling: str = ""
    """Scheduling class and priority of the measurement, its servers and sessions; "" not known."""
    measured_on: str = ""
    takt_version: str = ""

    def mismatch(self, other: Provenance) -> list[str]:
        """What differs between two, apart from when and by which release it was measured."""
        said_only = {"measured_on", "takt_version"}
        mine, theirs = self.model_dump(), other.model_dump()
        return [
            f"{name}: profile has {mine[name]!r}, this machine has {theirs[name]!r}"
            for name in mine
            if name not in said_only and mine[name] != theirs[name]
        ]


class Profile(BaseModel):
    """Worst-case execution times of one model on one engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    engine: Literal["pool", "fallback"]
    origin: Origin
    margin: float = Field(ge=1.0, le=10.0, allow_inf_nan=False)
    rule: str
    wcet_ns: dict[int, int]
    used: list[int] = Field(default_factory=list)
    """Sizes on the efficient frontier; any other is split into two smaller ones, not used."""
    measured: Measured = Field(default_factory=dict)
    """Of the condition whose figure counts; `conditions` holds all: condition → endpoint → size."""
    conditions: dict[str, dict[str, Measured]] = Field(default_factory=dict)
    speed_up: dict[int, float] = Field(default_factory=dict)
    """Endpoints busy together → parts a second, as a multiple of one endpoint's."""
    gpu_memory_mib: dict[int, int] = Field(default_factory=dict)
    """Batch size → GPU memory in use while it ran; empty where there was no GPU to ask."""
    gpu_memory_total_mib: int = Field(default=0, ge=0)
    """The GPU's memory; 0 not known."""
    gpu_memory_idle_mib: int = Field(default=0, ge=0)
    """In use with all of `gpu_memory_loaded` loaded, before this model's first batch."""
    gpu_memory_loaded: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    source: str = ""
    """Where published figures come from."""
    provenance: Provenance

    @model_validator(mode="after")
    def _sizes_are_usable(self) -> Profile:
        sizes = sorted(self.wcet_ns)
        missing = sorted(set(range(1, max(sizes, default=1) + 1)) - set(sizes))
        if missing or sizes[0] != 1:
            raise ValueError(
                "wcet_ns must hold every batch size from 1 upward without a gap; "
                f"missing: {', '.join(map(str, missing)) or 'none, but there is a size below 1'}"
            )
        if min(self.wcet_ns.values()) <= 0:
            raise ValueError("wcet_ns must be positive")
        for size, following in pairwise(sizes):
            fall_ns = self.wcet_ns[size] - self.wcet_ns[following]
            if fall_ns > 0:
                raise ValueError(
                    f"wcet_ns falls from size {size} to {following} by {fall_ns / 1e6:g} ms: "
                    "a worst case cannot"
                )
        strange = sorted(set(self.used) - set(sizes))
        if strange or (self.used and 1 not in self.used):
            raise ValueError(f"used must hold size 1 and only profiled sizes, not {strange}")
        if self.origin == "published" and self.conditions:
            raise ValueError("a published profile holds no measurements of ours")
        return self

    @property
    def used_sizes(self) -> tuple[int, ...]:
        """The sizes worth running: those marked, or the efficient frontier of the worst cases."""
        return tuple(sorted(self.used)) or efficient_sizes(self.wcet_ns)

    @property
    def batch_max(self) -> int:
        """The largest profiled batch size."""
        return max(self.wcet_ns)

    def save(self, path: Path) -> None:
        """Write atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.model_dump_json(indent=2) + "\n")
        partial.replace(path)


def _said(item: ErrorDetails) -> str:
    return item["msg"].removeprefix("Value error, ")


def load_profile(path: Path) -> Profile:
    """Read a profile. Raises ProfileError with the file, what is wrong and the way out."""
    try:
        return Profile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ProfileError(f"{path}: no such profile; make it with: takt profile") from None
    except ValidationError as error:
        wrong = "; ".join(
            ": ".join(filter(None, (".".join(map(str, item["loc"])), _said(item))))
            for item in error.errors()
        )
        raise ProfileError(f"{path}: {wrong}; measure again with: takt profile") from None


def monotone(wcet_ns: dict[int, int]) -> dict[int, int]:
    """The same worst cases, none below that of a smaller batch: a larger one is never sooner."""
    kept: dict[int, int] = {}
    floor_ns = 0
    for size in sorted(wcet_ns):
        floor_ns = max(floor_ns, wcet_ns[size])
        kept[size] = floor_ns
    return kept
