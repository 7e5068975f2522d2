"""One look at the host, and one at each GPU. Plain numbers, each look with its instant."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class HostReading:
    """Shares in permille of the time since the look before.

    cpu_some: some task waited for a core; memory_full: all waited for memory; io_some: some
    waited for a disk (Linux pressure-stall information). steal: the hypervisor ran somebody else.
    culprits: by resource ("cpu", "memory", "io"), who uses most of it and is not of this plant.
    """

    at_ns: int
    cpu_some: int
    memory_full: int
    io_some: int
    steal: int
    culprits: dict[str, str]


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver says of one GPU.

    throttle: names of the reasons for which clocks are held down now, those of idleness left out.
    ecc_uncorrected: since the driver was loaded. others: processes on it that are no server of
    this plant.
    """

    at_ns: int
    gpu: int
    uuid: str
    name: str
    temperature_c: int
    sm_clock_mhz: int
    sm_clock_max_mhz: int
    throttle: tuple[str, ...]
    memory_used_mib: int
    memory_total_mib: int
    ecc_corrected: int
    ecc_uncorrected: int
    others: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, told: dict[str, Any]) -> GpuReading:
        """The reading in `told`. Raises TypeError or KeyError for anything else."""
        return cls(**{**told, "throttle": tuple(told["throttle"]), "others": tuple(told["others"])})
