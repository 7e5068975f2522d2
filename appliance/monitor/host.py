"""Pressure on this host and who makes it: /proc, read once a period, never waited for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from appliance.monitor.readings import HostReading

PRESSURE = {"cpu": ("some", "cpu"), "memory": ("full", "memory"), "io": ("some", "io")}


def stall_us(text: str, which: str) -> int:
    """The total stall time in microseconds of the line `which` ("some", "full"); 0 if absent."""
    for line in text.splitlines():
        words = line.split()
        if words and words[0] == which:
            return int(words[-1].removeprefix("total="))
    return 0


def steal_and_all(text: str) -> tuple[int, int]:
    """(steal, all) in clock ticks from the first line of /proc/stat."""
    ticks = [int(word) for word in text.splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


class HostWatch:
    """Looks at the host; every share is of the time between two looks.

    is_ours: whether a command line belongs to this plant, so that the plant is never its own
    culprit.
    """

    def __init__(self, is_ours: Callable[[str], bool], proc: Path = Path("/proc")) -> None:
        self._is_ours = is_ours
        self._proc = proc
        self._before: dict[str, int] = {}
        self._before_ns = time.monotonic_ns()
        self._ticks = (0, 0)
        self._used: dict[tuple[int, float], dict[str, float]] = {}
        self.look()

    def look(self, names_culprits: bool = False) -> HostReading:
        """The shares since the look before.

        names_culprits: also who uses most, from the second such look in a row on. It reads every
        process of the host, so it is asked for only while something is pressed.
        """
        now_ns = time.monotonic_ns()
        passed_us = max(1, (now_ns - self._before_ns) // 1000)
        shares = {}
        for what, (which, name) in PRESSURE.items():
            total = 0
            with contextlib.suppress(OSError):  # a kernel without pressure-stall information
                total = stall_us((self._proc / "pressure" / name).read_text(), which)
            before = self._before.get(what, total)
            self._before[what] = total
            shares[what] = min(1000, 1000 * max(0, total - before) // passed_us)
        steal, ticks = steal_and_all((self._proc / "stat").read_text())
        stolen = 1000 * max(0, steal - self._ticks[0]) // max(1, ticks - self._ticks[1])
        self._ticks, self._before_ns = (steal, ticks), now_ns
        return HostReading(
            now_ns,
            shares["cpu"],
            shares["memory"],
            shares["io"],
            stolen,
            self._culprits(passed_us / 1e6) if names_culprits else self._no_culprits(),
        )

    def _no_culprits(self) -> dict[str, str]:
        self._used = {}
        return {}

    def _culprits(self, passed_s: float) -> dict[str, str]:
        """Who used most since the look before, by resource; processes of this plant left out."""
        used: dict[tuple[int, float], dict[str, float]] = {}
        best: dict[str, tuple[float, str]] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError), process.oneshot():
                key = (process.pid, process.create_time())
                times = process.cpu_times()
                now = {"cpu": times.user + times.system, "memory": float(process.memory_info().rss)}
                with contextlib.suppress(psutil.Error, OSError):
                    counters = process.io_counters()
                    now["io"] = float(counters.read_bytes + counters.write_bytes)
                used[key] = now
                before = self._used.get(key, now)
                told = {
                    "cpu": (now["cpu"] - before["cpu"]) / passed_s * 100,
                    "memory": now["memory"] / 2**20,
                    "io": (now.get("io", 0.0) - before.get("io", 0.0)) / passed_s / 2**20,
                }
                for what, amount in told.items():
                    if amount > best.get(what, (1.0, ""))[0] and not self._is_ours(
                        " ".join(process.cmdline())
                    ):
                        best[what] = (amount, f"{process.name()} (process {process.pid})")
        self._used = used
        units = {"cpu": "{:.0f} % of a core", "memory": "{:.0f} MiB", "io": "{:.1f} MiB/s"}
        return {
            what: f"{who}, {units[what].format(amount)}" for what, (amount, who) in best.items()
        }
