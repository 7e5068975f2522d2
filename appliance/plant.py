"""The plant file as frozen models: what every process is told about the plant.

Times in the file carry their unit in the name (`_ms`); everything inside is integer nanoseconds
from the `_ns` properties on. Unknown keys are refused. Paths are relative to the plant file.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from deadline_batcher.link import MONITOR

NS_PER_MS = 1_000_000

Milliseconds = Annotated[float, Field(gt=0, le=600_000, allow_inf_nan=False)]
MillisecondsOrZero = Annotated[float, Field(ge=0, le=600_000, allow_inf_nan=False)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,31}$")]


def _endpoint_of(scheme: str) -> AfterValidator:
    def check(text: str) -> str:
        parts = urlsplit(text)
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme != scheme or not parts.hostname or not port or parts.path not in ("", "/"):
            raise ValueError(f"must look like {scheme}://HOST:PORT with a port from 1 to 65535")
        return text

    return AfterValidator(check)


TcpEndpoint = Annotated[str, _endpoint_of("tcp")]
GrpcEndpoint = Annotated[str, _endpoint_of("grpc")]


def ms_to_ns(milliseconds: float) -> int:
    """Whole nanoseconds of a time in milliseconds."""
    return round(milliseconds * NS_PER_MS)


def plant_tag(folder: Path, name: str) -> str:
    """Eight hex digits that tell a plant's shared memory from another's on the same host."""
    where = os.fsencode(folder.absolute()) + b"\0" + name.encode()
    return hashlib.sha256(where).hexdigest()[:8]


class Section(BaseModel):
    """One table of the plant file."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, str_max_length=4096
    )


class PlantSection(Section):
    """`[plant]`: the name and the objectives of the whole plant."""

    name: Name
    gpus_lost_tolerated: int = Field(default=1, ge=0, le=64)
    inhibit_outputs: bool = False


class PoolSection(Section):
    """`[pool]`: one endpoint per GPU.

    server_version: the Triton that the servers must be; `2.51` takes any 2.51.x.
    """

    endpoints: list[GrpcEndpoint] = Field(min_length=1, max_length=64)
    embedded: bool = False
    emulate: str | None = None
    gpu_memory_mib: int | None = Field(default=None, ge=1, le=10_000_000)
    gpu_memory_headroom: float = Field(default=0.1, ge=0, lt=1, allow_inf_nan=False)
    restart_backoff_min_ms: Milliseconds = 500
    restart_backoff_max_ms: Milliseconds = 10_000
    server_version: Annotated[str, Field(pattern=r"^\d+(\.\d+){1,2}$")] = "2.51"
    rescore_permille: int = Field(default=5, ge=0, le=1000)
    rescore_band: float = Field(default=0.01, gt=0, le=1, allow_inf_nan=False)


class PathsSection(Section):
    """`[paths]`: where things live, relative to the plant file."""

    keys: str = "keys"
    runtime: str = "run"
    journal: str = "journal"
    logs: str = "logs"
    triton: str = "triton"


class MarginsSection(Section):
    """`[margins]`: the named parts of every reserve; none is a guess about a sum."""

    timer_ms: MillisecondsOrZero = 5
    output_ms: MillisecondsOrZero = 5
    start_ms: MillisecondsOrZero = 5
    result_ms: MillisecondsOrZero = 5


class FallbackSection(Section):
    """`[fallback]`: the warm sessions of all lines on this host."""

    threads: int = Field(default=1, ge=1, le=64)
    concurrent_max: int = Field(default=2, ge=1, le=256)
    warm_every_ms: Milliseconds = 1000


class RouteSection(Section):
    """`[route]`: when a line leaves the pool, and how it comes back.

    latency_share, trial_latency_share: of the line's slo_p99_ms (without one, of the time until
    its verdict must have left). hedge_share, late_share: left out, they follow from slo_pool_share.
    capacity: the table of `takt capacity`; without one, the plant file's own word.
    shed_, rate_, suspect_: what the batcher is told for shedding (deadline_batcher/shedding.py).
    """

    window_ms: Milliseconds = 10_000
    window_parts_min: int = Field(default=10, ge=1, le=1000)
    latency_percentile: int = Field(default=90, ge=1, le=100)
    latency_share: float = Field(default=0.95, gt=0, le=1)
    hedge_share: float | None = Field(default=None, ge=0, le=1)
    late_share: float | None = Field(default=None, ge=0, le=1)
    batcher_silent_ms: Milliseconds = 1000
    return_after_ms: Milliseconds = 2000
    return_after_max_ms: Milliseconds = 60_000
    steady_ms: Milliseconds = 60_000
    trial_frames: int = Field(default=5, ge=1, le=1000)
    trial_differ_max: int = Field(default=1, ge=0, le=1000)
    trial_latency_share: float = Field(default=0.85, gt=0, le=1)
    trial_band_pool: float = Field(default=0.005, ge=0, le=1)
    trial_band_fallback: float = Field(default=0.05, ge=0, le=1)
    capacity: str | None = None
    shed_return_after_ms: Milliseconds = 2000
    shed_return_step_ms: MillisecondsOrZero = 250
    rate_window_ms: Milliseconds = 10_000
    rate_margin_share: float = Field(default=0.05, ge=0, le=1)
    rate_peak_hold_ms: Milliseconds = 60_000
    suspect_ms: MillisecondsOrZero = 500

    @model_validator(mode="after")
    def _holds_fit(self) -> RouteSection:
        if self.return_after_ms > self.return_after_max_ms:
            raise ValueError(
                f"return_after_ms {self.return_after_ms:g} is more than "
                f"return_after_max_ms {self.return_after_max_ms:g}"
            )
        if self.trial_latency_share > self.latency_share:
            raise ValueError(
                f"trial_latency_share {self.trial_latency_share:g} is more than latency_share "
                f"{self.latency_share:g}: a line would return only to leave again"
            )
        return self


class HostSection(Section):
    """`[host]`: cores kept for lines and batcher, and the real-time class of their loops.

    realtime_priority: of SCHED_FIFO, 0 for the ordinary class. cores: empty for any.
    """

    realtime_priority: int = Field(default=0, ge=0, le=90)
    cores: list[Annotated[int, Field(ge=0, le=4095)]] = Field(default=[], max_length=1024)


Percent = Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]


class MonitorSection(Section):
    """`[monitor]`: from when on what else happens on this host is trouble.

    Shares are of the time between two looks; a sign counts once it was there for `raise_after_ms`
    and is over once it was gone for `clear_after_ms`.
    """

    period_ms: Milliseconds = 1000
    cpu_some_percent: Percent = 80
    memory_full_percent: Percent = 5
    io_some_percent: Percent = 40
    steal_percent: Percent = 5
    gpu_temperature_c: int = Field(default=85, ge=1, le=150)
    gpu_memory_percent: Percent = 95
    raise_after_ms: MillisecondsOrZero = 3000
    clear_after_ms: MillisecondsOrZero = 10_000
    silent_after_ms: Milliseconds = 3000


class LimitsSection(Section):
    """`[limits]`: every queue and buffer has one, by name."""

    picture_bytes_max: int = Field(default=16 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    picture_pixels_max: int = Field(default=32_000_000, ge=1024, le=256_000_000)
    slots_per_line: int = Field(default=16, ge=2, le=1024)
    log_bytes_max: int = Field(default=8 * 1024 * 1024, ge=64 * 1024)
    log_files_max: int = Field(default=3, ge=1, le=100)
    journal_backlog_s: float = Field(default=60, gt=0, le=3600)


class ModelSection(Section):
    """`[[model]]`: one model, its fallback and its profile."""

    name: Name
    pool: str
    fallback: str
    profile: str
    fallback_profile: str | None = None
    batch_max: int = Field(default=16, ge=1, le=128)

    @property
    def fallback_profile_file(self) -> str:
        """`fallback_profile`, or the pool's with `-fallback` before its suffix."""
        if self.fallback_profile is not None:
            return self.fallback_profile
        pool = Path(self.profile)
        return str(pool.with_name(f"{pool.stem}-fallback{pool.suffix}"))


class LineSection(Section):
    """`[[line]]`: one camera line and its gate."""

    id: Name
    model: Name
    camera: Name | None = None
    frames: TcpEndpoint
    verdicts: TcpEndpoint
    cycle_time_ms: Milliseconds
    deadline_ms: Milliseconds
    actuation_ms: MillisecondsOrZero = 0
    criticality: int = Field(default=1, ge=1, le=1000)
    slo_p99_ms: Milliseconds | None = None
    slo_pool_share: float = Field(default=0.99, ge=0, le=1)
    fail_safe: Literal["reject", "divert", "stop"] = "reject"
    takeover: Literal["guaranteed", "best-effort"] = "guaranteed"
    transport_min_ms: MillisecondsOrZero = 0
    transport_max_ms: Milliseconds = 20

    @model_validator(mode="after")
    def _is_no_other(self) -> LineSection:
        if self.id == MONITOR:
            raise ValueError(f"{MONITOR} is the monitor's own name; call the line otherwise")
        return self

    @model_validator(mode="after")
    def _times_fit(self) -> LineSection:
        if self.transport_min_ms > self.transport_max_ms:
            raise ValueError(
                f"transport_min_ms {self.transport_min_ms:g} is more than "
                f"transport_max_ms {self.transport_max_ms:g}"
            )
        if self.actuation_ms + self.transport_max_ms >= self.deadline_ms:
            raise ValueError(
                f"deadline_ms {self.deadline_ms:g} leaves nothing after actuation_ms "
                f"{self.actuation_ms:g} and transport_max_ms {self.transport_max_ms:g}"
            )
        if self.slo_p99_ms is not None and self.slo_p99_ms > self.deadline_ms:
            raise ValueError(
                f"slo_p99_ms {self.slo_p99_ms:g} is more than deadline_ms {self.deadline_ms:g}"
            )
        return self


class Plant(Section):
    """The whole plant file. `folder` is where its relative paths start."""

    plant: PlantSection
    pool: PoolSection
    paths: PathsSection = PathsSection()
    margins: MarginsSection = MarginsSection()
    fallback: FallbackSection = FallbackSection()
    route: RouteSection = RouteSection()
    limits: LimitsSection = LimitsSection()
    monitor: MonitorSection = MonitorSection()
    host: HostSection = HostSection()
    model: list[ModelSection] = Field(min_length=1, max_length=64)
    line: list[LineSection] = Field(min_length=1, max_length=500)
    folder: Path = Field(default=Path(), exclude=True)

    def path(self, text: str) -> Path:
        """An absolute path for a path of the plant file."""
        return (self.folder / text).absolute()

    @property
    def tag(self) -> str:
        """Eight hex digits that tell this plant's shared memory from another's on the same host."""
        return plant_tag(self.folder, self.plant.name)

    def line_named(self, line_id: str) -> LineSection:
        """The line with this id. Raises KeyError."""
        for line in self.line:
            if line.id == line_id:
                return line
        raise KeyError(line_id)

    def model_named(self, name: str) -> ModelSection:
        """The model with this name. Raises KeyError."""
        for model in self.model:
            if model.name == name:
                return model
        raise KeyError(name)
