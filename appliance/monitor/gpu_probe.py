"""Asks the driver about every GPU, in a process of its own that may hang without harm.

NVML calls block for ever in the kernel when a GPU is ill (gpud#117). So this process owes nobody
anything: `GpuProbe` starts it, reads its lines without waiting, and when it falls silent kills it
and, if even that does not end it, leaves it and starts another, a few times at most.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from appliance.monitor.kernel_log import bus_id
from appliance.monitor.readings import GpuReading

DRIVER = Path("/proc/driver/nvidia/version")
ABANDONED_MAX = 3
_LINE_BYTES_MAX = 1 << 20
_IDLE_REASONS = 0x1 | 0x2  # idle, and clocks that an application chose
_REASONS = {
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
}


def throttle_names(mask: int) -> tuple[str, ...]:
    """Names of the reasons in NVML's mask for which clocks are held down; idleness is none."""
    rest = mask & ~_IDLE_REASONS
    known = tuple(name for bit, name in _REASONS.items() if rest & bit)
    unknown = rest & ~sum(_REASONS)
    return (*known, *((f"reason {unknown:#x}",) if unknown else ()))


def read_gpus(nvml: object, is_ours: str) -> list[dict[str, object]]:
    """One reading of every GPU, and its bus. Where the driver has no answer the figure is 0.

    is_ours: text in the command line of this plant's servers.
    """
    from typing import Any

    api: Any = nvml

    def asked(name: str, *told: object) -> Any:
        try:
            return getattr(api, name)(*told)
        except api.NVMLError:
            return None

    found = []
    for gpu in range(api.nvmlDeviceGetCount()):
        device = api.nvmlDeviceGetHandleByIndex(gpu)
        memory = asked("nvmlDeviceGetMemoryInfo", device)
        processes = asked("nvmlDeviceGetComputeRunningProcesses", device) or []
        errors = [
            asked("nvmlDeviceGetTotalEccErrors", device, kind, api.NVML_VOLATILE_ECC)
            for kind in (
                api.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            )
        ]
        pci = asked("nvmlDeviceGetPciInfo", device)
        reading = GpuReading(
            time.monotonic_ns(),
            gpu,
            str(asked("nvmlDeviceGetUUID", device) or ""),
            str(asked("nvmlDeviceGetName", device) or ""),
            asked("nvmlDeviceGetTemperature", device, api.NVML_TEMPERATURE_GPU) or 0,
            asked("nvmlDeviceGetClockInfo", device, api.NVML_CLOCK_SM) or 0,
            asked("nvmlDeviceGetMaxClockInfo", device, api.NVML_CLOCK_SM) or 0,
            throttle_names(asked("nvmlDeviceGetCurrentClocksThrottleReasons", device) or 0),
            memory.used // 2**20 if memory else 0,
            memory.total // 2**20 if memory else 0,
            errors[0] or 0,
            errors[1] or 0,
            tuple(_others([one.pid for one in processes], is_ours)),
        )
        found.append({**reading.as_json(), "bus": bus_id(str(pci.busId)) if pci else ""})
    return found


def _others(pids: list[int], is_ours: str) -> list[str]:
    named = []
    for pid in pids:
        command = ""
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        if is_ours not in command:
            name = command.split()[0].rpartition("/")[2] if command.strip() else "a process"
            named.append(f"{name} (process {pid})")
    return named


def main() -> int:
    """`python -m appliance.monitor.gpu_probe PERIOD_S OURS`: one JSON line a period, for ever."""
    import pynvml

    period_s, is_ours = float(sys.argv[1]), sys.argv[2]
    pynvml.nvmlInit()
    while True:
        print(json.dumps(read_gpus(pynvml, is_ours)), flush=True)
        time.sleep(period_s)


class GpuProbe:
    """The parent's side: never waits for the child, whatever it does.

    `program` is for tests; the default is this module.
    """

    def __init__(
        self, period_s: float, silent_after_s: float, is_ours: str,
        program: list[str] | None = None,
    ) -> None:  # fmt: skip
        module = [sys.executable, "-m", "appliance.monitor.gpu_probe"]
        self._command = program or [*module, str(period_s), is_ours]
        self._silent_after_s = silent_after_s
        self._child: subprocess.Popen[bytes] | None = None
        self._left: list[subprocess.Popen[bytes]] = []
        self._read = b""
        self._heard_s = 0.0
        self.buses: dict[str, int] = {}
        self.trouble = ""

    def look(self) -> list[GpuReading]:
        """What the child has said since the last call; starts it anew where it is gone or dumb."""
        now_s = time.monotonic()
        self._left = [one for one in self._left if one.poll() is None]
        if self._child is not None and self._child.poll() is not None:
            self.trouble = f"the probe ended with {self._child.returncode}"
            self._child = None
        if self._child is not None and now_s - self._heard_s > self._silent_after_s:
            self.trouble = "the probe said nothing and was killed"
            self._abandon()
        if self._child is None and len(self._left) < ABANDONED_MAX:
            self._start(now_s)
        return self._take(now_s)

    @property
    def abandoned(self) -> int:
        """Killed probes that the kernel does not let die: they hang in a driver call."""
        return len(self._left)

    def close(self) -> None:
        """End the child; does not wait for one that cannot die."""
        self._abandon()

    def _start(self, now_s: float) -> None:
        if now_s - self._heard_s < self._silent_after_s and self._heard_s:
            return  # one start a period of silence, not a storm of them
        self._read, self._heard_s = b"", now_s
        with contextlib.suppress(OSError):
            self._child = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
            assert self._child.stdout is not None
            os.set_blocking(self._child.stdout.fileno(), False)

    def _abandon(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGKILL)
        if child.stdout is not None:
            child.stdout.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(0.05)
        if child.poll() is None:
            self._left.append(child)

    def _take(self, now_s: float) -> list[GpuReading]:
        if self._child is None or self._child.stdout is None:
            return []
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._child.stdout.fileno(), 1 << 16):
                self._read += chunk
        *lines, self._read = self._read[-_LINE_BYTES_MAX:].split(b"\n")
        readings: list[GpuReading] = []
        for line in lines:
            try:
                told = json.loads(line)
                for one in told:
                    self.buses[str(one.pop("bus"))] = int(one["gpu"])
                    readings.append(GpuReading.from_json(one))
            except (ValueError, TypeError, KeyError, AttributeError):
                self.trouble = f"the probe said {line[:80]!r}"
                continue
            self._heard_s, self.trouble = now_s, ""
        return readings


if __name__ == "__main__":
    sys.exit(main())
