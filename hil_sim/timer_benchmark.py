"""`takt benchmark timer`: how late lines and batcher serve their timers, in a whole demo.

Every unit writes every ten seconds how late its timer was served; here are the largest of those
figures, with the loops in the ordinary class and in the real-time class, and beside two programs
that keep the cores busy.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PRIORITY = 10
_TOLD = re.compile(r"n (\d+) p99 ([\d.]+) ms p99\.9 ([\d.]+) ms max ([\d.]+) ms")


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """So many programs that only compute, in the ordinary class."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def lateness(journal: Path) -> dict[str, Any]:
    """From a journal's `timer.lateness` events: n, and the worst p99, p99.9 and largest, in ms."""
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as base:
        rows = base.execute("select unit, detail from events where kind = 'timer.lateness'")
        found = [(unit, _TOLD.search(detail)) for unit, detail in rows]
    told = [(unit, [float(word) for word in one.groups()]) for unit, one in found if one]
    result: dict[str, Any] = {}
    for kind in ("line", "batcher"):
        own = [figures for unit, figures in told if unit.startswith(kind)]
        if own:
            result[kind] = {
                "n": round(sum(figures[0] for figures in own)),
                "p99_ms": max(figures[1] for figures in own),
                "p999_ms": max(figures[2] for figures in own),
                "max_ms": max(figures[3] for figures in own),
            }
    return result


def report(seconds: float) -> dict[str, Any]:
    """Four demos; prints and returns the figures of each. Raises OSError."""
    results: dict[str, Any] = {}
    for priority in (0, PRIORITY):
        for busy in (0, os.cpu_count() or 1):
            name = f"{'real-time' if priority else 'ordinary'} class, {busy} hogs"
            with tempfile.TemporaryDirectory(prefix="takt-timer-") as scratch, hogs(busy):
                folder = Path(scratch) / "plant"
                command = [
                    sys.executable, "-m", "appliance.cli", "demo", "--no-ui",
                    "--seconds", str(seconds), "--rate", "5", "--keep", str(folder),
                    "--realtime-priority", str(priority),
                ]  # fmt: skip
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                found = lateness(folder / "journal" / "journal.sqlite")
            results[name] = {**found, "promise_held": done.returncode == 0}
            for kind, one in found.items():
                print(
                    f"{name:28} {kind:8} n {one['n']:7d}  worst p99 {one['p99_ms']:.2f}  "
                    f"p99.9 {one['p999_ms']:.2f}  largest {one['max_ms']:.2f} ms",
                    flush=True,
                )
    return results
