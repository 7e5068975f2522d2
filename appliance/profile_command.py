"""`takt profile`: measure a plant's worst-case execution times, with progress, and show them."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.processes import answers
from appliance.profiler import (
    FULL,
    LARGEST_RULE,
    MARGIN,
    SHORT,
    Effort,
    ProfilerError,
    measure,
    mismatches,
    profile_files,
)
from appliance.supervisor import Supervisor, SupervisorError
from appliance.triton.fetch import embedded_server
from appliance.triton.libpython import FetchError
from appliance.units import plant_units
from deadline_batcher.profile import ProfileError, load_profile

POOL_LIMIT_S = 60.0


class Stopped(Exception):  # noqa: N818 - not an error: somebody asked
    """Ctrl-C or SIGTERM."""


def profile_plant(
    plant: Plant, plant_file: Path, effort: Effort, console: Console, stopping: threading.Event
) -> None:
    """Measure every model, starting the embedded pool for it where none answers.

    Raises ProfilerError, SupervisorError, FetchError or Stopped.
    """
    supervisor = None
    if plant.pool.embedded and not any(map(answers, plant.pool.endpoints)):
        embedded_server()
        tritons = [unit for unit in plant_units(plant, plant_file) if "triton" in unit.name]
        supervisor = Supervisor(plant, plant_file, units=tritons)
        supervisor.start()
    try:
        end_s = time.monotonic() + POOL_LIMIT_S
        while not all(map(answers, plant.pool.endpoints)):
            if stopping.wait(0.1):
                raise Stopped
            if time.monotonic() > end_s:
                away = [url for url in plant.pool.endpoints if not answers(url)]
                raise ProfilerError(f"no answer from {', '.join(away)}; see the tritons' logs")
        _measure(plant, effort, console, stopping)
    finally:
        if supervisor is not None:
            supervisor.stop()


def _measure(plant: Plant, effort: Effort, console: Console, stopping: threading.Event) -> None:
    with Progress(
        TextColumn("{task.description:<34}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("warming up")
        said = ""

        def on_progress(what: str, done: int, total: int) -> None:
            nonlocal said
            if stopping.is_set():
                raise Stopped
            progress.update(task, description=what, completed=done, total=total)
            stage = what.partition(",")[0]
            if not console.is_terminal and stage != said:
                said = stage
                console.print(f"measuring {stage}", highlight=False)

        measure(plant, effort, on_progress)


def profile_table(plant: Plant) -> Table:
    """What was measured, in milliseconds."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("model", "engine", "batch", "n", "p50", "p95", "p99", "max", "worst case"):
        table.add_column(name, justify="left" if name in ("model", "engine") else "right")
    for model in plant.model:
        for path in profile_files(plant, model).values():
            profile = load_profile(path)
            for size, one in profile.measured.items():
                times = (one.p50_ns, one.p95_ns, one.p99_ns, one.max_ns, profile.wcet_ns[size])
                table.add_row(
                    profile.model,
                    profile.engine,
                    str(size),
                    str(one.samples),
                    *(f"{time_ns / 1e6:.2f}" for time_ns in times),
                )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt profile",
        description="Measure worst-case execution times: every batch size on every endpoint, "
        "beside all lines' fallback sessions, which run in phase. The plant must not be running.",
        epilog="example: takt profile --plant plant.toml --runs 1000",
    )
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    parser.add_argument(
        "--runs", type=int, default=FULL.runs, help="timed runs of each size (1000)"
    )
    parser.add_argument("--short", action="store_true", help="a minute's measurement, for a bench")
    parser.add_argument("--check", action="store_true", help="only say whether profiles fit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profiles there too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 measured (or fits), 1 not, 2 wrong use, 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    console, stopping = Console(), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        plant = load_plant(options.plant)
        if options.check:
            found = [text for model in plant.model for text in mismatches(plant, model)]
            print("\n".join(found) or "the profiles fit this machine and these models")
            return 1 if found else 0
        effort = (
            SHORT if options.short else Effort(options.runs, options.runs, MARGIN, LARGEST_RULE)
        )
        profile_plant(plant, options.plant, effort, console, stopping)
        console.print(profile_table(plant))
        if options.json:
            files = [path for m in plant.model for path in profile_files(plant, m).values()]
            options.json.write_text(json.dumps([json.loads(path.read_text()) for path in files]))
    except PlantError as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    except (ProfilerError, SupervisorError, FetchError, ProfileError) as error:
        print(f"takt profile: {error}", file=sys.stderr)
        return 1
    except Stopped:
        return 130
    return 0
