"""`takt profile fallback --cold` and `takt profile pool --cold`: cold starts, stage by stage.

The fallback's cold start is what a line would pay that kept no warm session. The pool's is how long
a restart of one Triton leaves the plant at N-1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from appliance.cold_pool import PoolColdError, pool_cold_starts
from appliance.plant import ModelSection, Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.supervisor import SupervisorError
from appliance.triton.fetch import embedded_server
from appliance.triton.libpython import FetchError
from deadline_batcher.profile import ProfileError, load_profile

RUNS = 20
POOL_RUNS = 5
LIMIT_S = 120.0
FALLBACK_STAGES = {
    "process": "main_at_ns",
    "import": "imported_at_ns",
    "model read": "read_at_ns",
    "session": "session_at_ns",
    "first run": "first_run_at_ns",
}


class ColdError(Exception):
    """A cold start did not come to its end; the text says why."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of n starts; lengths of time in ns."""

    name: str
    median_ns: int
    max_ns: int
    n: int


def as_stages(starts: Sequence[dict[str, int]]) -> list[Stage]:
    """Median and largest of each stage, in the order of the first start, and of their sum."""
    columns = {name: [one[name] for one in starts] for name in starts[0]}
    columns["all"] = [sum(one.values()) for one in starts]
    return [
        Stage(name, round(statistics.median(values)), max(values), len(values))
        for name, values in columns.items()
    ]


def _forget_cached(path: Path) -> None:
    """Ask the kernel to drop a file's pages, so that it is read from the disk again."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def fallback_cold_start(path: Path, threads: int) -> tuple[dict[str, int], int]:
    """One start's stages in ns, and its longest warm run after it. Raises ColdError."""
    _forget_cached(path)
    command = [sys.executable, "-m", "fallback.cold_stages", str(path), str(threads)]
    began_ns = time.monotonic_ns()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise ColdError(f"{path}: not started within {LIMIT_S:g} s") from None
    if done.returncode:
        raise ColdError(f"{path}: {done.stderr.strip().splitlines()[-1:]}")
    stamps: dict[str, int] = json.loads(done.stdout)
    found, before_ns = {}, began_ns
    for stage, stamp in FALLBACK_STAGES.items():
        found[stage] = stamps[stamp] - before_ns
        before_ns = stamps[stamp]
    return found, stamps["warm_run_max_ns"]


def _table(stages: Sequence[Stage], unit_ns: float, unit: str) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("stage", f"median {unit}", f"largest {unit}", "n"):
        table.add_column(name, justify="left" if name == "stage" else "right", no_wrap=True)
    for one in stages:
        if one.name == "all":
            table.add_section()
        figures = (one.median_ns / unit_ns, one.max_ns / unit_ns)
        table.add_row(one.name, *(f"{value:.1f}" for value in figures), str(one.n))
    return table


def _told(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    return [
        {"stage": one.name, "median_ns": one.median_ns, "max_ns": one.max_ns, "n": one.n}
        for one in stages
    ]


def _fallback(plant: Plant, model: ModelSection, runs: int, console: Console) -> dict[str, Any]:
    path = plant.path(model.fallback)
    starts, warm_ns = [], 0
    for _ in track(range(runs), f"cold starts of {model.name}", console=console, transient=True):
        found, warm = fallback_cold_start(path, plant.fallback.threads)
        starts.append(found)
        warm_ns = max(warm_ns, warm)
    stages = as_stages(starts)
    console.print(f"{model.name}: a fallback session from nothing", highlight=False)
    console.print(_table(stages, 1e6, "ms"))
    try:
        wcet_ns = load_profile(plant.path(model.fallback_profile_file)).wcet_ns[1]
    except (ProfileError, OSError):
        wcet_ns = 0
    text = f"largest warm run here {warm_ns / 1e6:.1f} ms"
    if wcet_ns:
        text += f", worst case in the profile {wcet_ns / 1e6:.1f} ms"
    console.print(f"  {text}: kept warm, the take-over costs the last line only\n", highlight=False)
    return {"model": model.name, "stages": _told(stages), "warm_run_max_ns": warm_ns}


def _pool(plant: Plant, plant_file: Path, runs: int, console: Console) -> dict[str, Any]:
    with console.status("starting the pool") as status:
        starts = pool_cold_starts(plant, plant_file, runs, status.update)
    stages = as_stages(starts)
    console.print("one Triton from its death to READY", highlight=False)
    console.print(_table(stages, 1e9, "s"))
    console.print(
        f"  a restart leaves the plant at N-1 for up to {stages[-1].max_ns / 1e9:.1f} s\n",
        highlight=False,
    )
    return {"endpoint": plant.pool.endpoints[0], "stages": _told(stages)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt profile",
        description="Cold starts by stage: of a line's fallback session (process, import, model "
        "read, session, first run), or of one embedded Triton from its death to READY. The "
        "plant must not be running.",
        epilog="example: takt profile pool --cold --plant plant.toml",
    )
    parser.add_argument("engine", choices=("fallback", "pool"))
    parser.add_argument("--cold", action="store_true", required=True, help="measure cold starts")
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    parser.add_argument("--runs", type=int, help=f"starts ({RUNS}; of the pool {POOL_RUNS})")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit 0 measured, 1 not, 2 wrong use."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.runs is not None and options.runs < 1:
        parser.error("--runs must be at least 1")
    console = Console()
    try:
        plant = load_plant(options.plant)
        if options.engine == "fallback":
            runs = options.runs or RUNS
            told = [_fallback(plant, model, runs, console) for model in plant.model]
        else:
            embedded_server()
            told = [_pool(plant, options.plant, options.runs or POOL_RUNS, console)]
    except PlantError as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    except (ColdError, PoolColdError, SupervisorError, FetchError) as error:
        print(f"takt profile {options.engine}: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps({"engine": options.engine, "cold": told}, indent=2))
    return 0
