"""`takt benchmark soak`: does anything grow? Memory, descriptors, threads, shared memory by unit.

A whole demo runs for a long time; every few seconds the processes of its plant are counted from
/proc. What is printed is the slope of each figure over time (Theil and Sen: the median of the
slopes between all pairs of looks, which a single jump does not move) and its first and last
values.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from appliance.plant import plant_tag
from deadline_batcher.shm import SHM_FOLDER

LOOK_EVERY_S = 5.0
SETTLING_SHARE = 0.2
"""Of the run, at its beginning, left out: caches and arenas fill."""
PAIRS_POINTS_MAX = 400
MIB = 1024 * 1024
SERVERS = "Triton servers and stubs"


class Look(NamedTuple):
    """One unit at one instant. `shm` is the plant's, in the row of the unit "plant"."""

    at_s: float
    rss_bytes: int
    descriptors: int
    threads: int
    shm_bytes: int


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Theil and Sen's slope of (x, y), y for each x; 0 for fewer than two points."""
    step = max(1, len(points) // PAIRS_POINTS_MAX)
    kept = list(points)[::step]
    found = [
        (b[1] - a[1]) / (b[0] - a[0])
        for number, a in enumerate(kept)
        for b in kept[number + 1 :]
        if b[0] > a[0]
    ]
    return statistics.median(found) if found else 0.0


def unit_of(command: Sequence[str], folder: str) -> str:
    """The unit that a process of the plant in `folder` is; "" for a process of nobody here."""
    if not any(folder in word for word in command):
        return ""
    words = list(command)
    if "appliance.cli" not in words:
        return "camera and other clients"
    name = words[words.index("appliance.cli") + 1]
    return "lines" if name == "line" else name


def look(folder: str, tag: str, began_s: float) -> dict[str, Look]:
    """Every unit now; the lines are added up, and so are servers with their stubs."""
    at_s = time.monotonic() - began_s
    sums: dict[str, list[int]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError), process.oneshot():
            command = process.cmdline()
            is_server = any(f"takt-{tag}-triton" in word for word in command)
            unit = SERVERS if is_server else unit_of(command, folder)
            if unit:
                one = sums.setdefault(unit, [0, 0, 0])
                figures = (
                    process.memory_info().rss,
                    process.num_fds(),
                    process.num_threads(),
                )
                one[:] = [before + now for before, now in zip(one, figures, strict=True)]
    shm = 0
    for path in SHM_FOLDER.glob(f"takt-{tag}-*"):
        with contextlib.suppress(OSError):
            shm += path.stat().st_blocks * 512
    found = {unit: Look(at_s, one[0], one[1], one[2], 0) for unit, one in sums.items()}
    rss, descriptors, threads = (sum(one[k] for one in sums.values()) for k in range(3))
    found["plant"] = Look(at_s, rss, descriptors, threads, shm)
    return found


def growth(looks: Sequence[dict[str, Look]]) -> dict[str, dict[str, Any]]:
    """Slope an hour, first and last of each figure of each unit, settling left out."""
    kept = looks[round(SETTLING_SHARE * len(looks)) :]
    found: dict[str, dict[str, Any]] = {}
    for unit in kept[-1] if kept else ():
        rows = [one[unit] for one in kept if unit in one]
        told: dict[str, Any] = {"n": len(rows)}
        for figure in Look._fields[1:]:
            points = [(row.at_s, float(getattr(row, figure))) for row in rows]
            told[figure] = {
                "per_hour": round(3600 * slope(points), 3),
                "first": int(points[0][1]),
                "last": int(points[-1][1]),
            }
        found[unit] = told
    return found


def report(seconds: float, rate: float) -> dict[str, Any]:
    """Run the demo for `seconds`, each line with `rate` parts a second; print what grew.

    Raises OSError or ValueError.
    """
    with tempfile.TemporaryDirectory(prefix="takt-soak-") as scratch:
        folder, file = Path(scratch) / "plant", Path(scratch) / "demo.json"
        words = ("demo", "--no-ui", "--rate", str(rate), "--keep", str(folder), "--json", str(file))
        command = [sys.executable, "-m", "appliance.cli", *words, "--seconds", str(seconds)]
        tag, began_s = plant_tag(folder, "demo"), time.monotonic()
        looks: list[dict[str, Look]] = []
        with (Path(scratch) / "said").open("wb") as said:
            demo = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT)
            try:
                while demo.poll() is None:
                    time.sleep(LOOK_EVERY_S)
                    seen = look(str(folder), tag, began_s)
                    if "lines" in seen and SERVERS in seen:
                        looks.append(seen)
            finally:
                demo.terminate()
                demo.wait()
        if not file.is_file():
            raise OSError((Path(scratch) / "said").read_text(errors="replace"))
        figures = json.loads(file.read_text())
        journal_bytes = sum(path.stat().st_size for path in (folder / "journal").glob("*"))
    found = growth(looks[:-1])  # the last look may see the plant's end
    _print(found, figures, journal_bytes)
    return {
        "seconds": seconds,
        "rate": rate,
        "growth": found,
        "parts": figures["parts"]["owed"],
        "missed": figures["missed"],
        "held": figures["held"],
        "journal_bytes": journal_bytes,
    }


def _print(found: dict[str, dict[str, Any]], figures: dict[str, Any], journal_bytes: int) -> None:
    print(f"{'unit':28} {'MiB':>16} {'MiB/h':>8} {'fds':>11} {'fds/h':>7} "
          f"{'threads':>9} {'shm MiB':>15} {'MiB/h':>7}")  # fmt: skip
    for unit, told in found.items():
        rss, fds, threads, shm = (told[name] for name in Look._fields[1:])
        print(
            f"{unit:28} {rss['first'] / MIB:7.1f} → {rss['last'] / MIB:6.1f} "
            f"{rss['per_hour'] / MIB:8.2f} {fds['first']:4d} → {fds['last']:4d} "
            f"{fds['per_hour']:7.1f} {threads['first']:3d} → {threads['last']:3d} "
            f"{shm['first'] / MIB:6.1f} → {shm['last'] / MIB:6.1f} {shm['per_hour'] / MIB:7.2f}"
        )
    owed = figures["parts"]["owed"]
    print(f"{owed} parts, {figures['missed']} missed; journal {journal_bytes / MIB:.0f} MiB, "
          f"{journal_bytes / max(1, owed):.0f} bytes a part")  # fmt: skip
