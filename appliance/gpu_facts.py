"""What the driver says of a GPU, by `nvidia-smi`; nothing at all where there is none."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

_FIELDS = ("name", "driver_version", "clocks.max.sm", "clocks.applications.graphics",
           "memory.used", "memory.total")  # fmt: skip
_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU. clocks: the highest, and the one that applications were set to."""

    name: str
    driver: str
    clocks: str
    used_mib: int
    total_mib: int


def gpu_facts(number: int) -> GpuFacts | None:
    """Facts of GPU `number`; None where there is no such GPU or nobody to ask."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, f"--id={number}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=_LIMIT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parsed(done.stdout) if done.returncode == 0 else None


def parsed(line: str) -> GpuFacts | None:
    """One line of nvidia-smi's answer; None where it is not one."""
    words = [word.strip() for word in line.strip().split(",")]
    if len(words) != len(_FIELDS):
        return None
    name, driver, highest, applied, used, total = words
    clocks = f"max {highest} MHz, applications {applied} MHz"
    try:
        return GpuFacts(name, driver, clocks, int(used), int(total))
    except ValueError:
        return None
