"""`takt profile`: measure a plant's worst-case execution times, with progress, and show them."""

from __future__ import annotations

import argparse
import dataclasses
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

from appliance import cold_start
from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.processes import answers
from appliance.profile_provenance import TIME_SHARING, mismatches, profile_files
from appliance.profile_runs import ProfilerError
from appliance.profile_statistics import SHARE, confidence_of
from appliance.profiler import FULL, SHORT, Effort, measure, samples_file
from appliance.supervisor import Supervisor, SupervisorError
from appliance.triton.fetch import embedded_server
from appliance.triton.libpython import FetchError
from appliance.units import plant_units
from deadline_batcher.profile import Profile, ProfileError, load_profile

POOL_LIMIT_S = 60.0
WIDTH = 120


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

        def say(text: str) -> None:
            console.print(text, highlight=False, soft_wrap=True)

        measure(plant, effort, on_progress, say)


COLUMNS = ("model", "engine", "origin", "batch", "n", "p50", "p99", "max", "worst")


def profile_table(plant: Plant) -> Table:
    """What was measured, in milliseconds, with its origin; `split`: a size that is not used."""
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for name in (*COLUMNS, ""):
        left = name in (*COLUMNS[:3], "")
        table.add_column(name, justify="left" if left else "right", no_wrap=True)
    for profile in _profiles(plant):
        used = profile.used_sizes
        for size, one in profile.measured.items():
            times = (one.p50_ns, one.p99_ns, one.max_ns, profile.wcet_ns[size])
            table.add_row(
                profile.model,
                profile.engine,
                profile.origin,
                str(size),
                str(one.samples),
                *(f"{time_ns / 1e6:.2f}" for time_ns in times),
                "" if size in used else "split",
            )
    return table


def _profiles(plant: Plant) -> list[Profile]:
    files = [path for model in plant.model for path in profile_files(plant, model).values()]
    return [load_profile(path) for path in files]


def profile_lines(profile: Profile) -> list[str]:
    """What a profile's table does not say: how sure, how endpoints add up, what is odd."""
    told = [f"{profile.model} on the {profile.engine} ({profile.origin}): {profile.rule}"]
    scheduling = profile.provenance.scheduling
    if scheduling not in ("", TIME_SHARING):
        told.append(
            f"  measured under {scheduling}: it holds only where servers and lines run so, too"
        )
    least = min(
        (
            one.samples
            for by_endpoint in profile.conditions.values()
            for by_size in by_endpoint.values()
            for size, one in by_size.items()
            if size in profile.used_sizes and len(by_size) > 1
        ),
        default=min((one.samples for one in profile.measured.values()), default=0),
    )
    if least:
        told.append(
            f"  n at least {least} for each size, endpoint and condition: the largest seen is "
            f"above the {SHARE:.1%} quantile with {confidence_of(least):.1%} confidence; "
            f"margin {profile.margin:g}"
        )
    for condition, by_endpoint in profile.conditions.items():
        largest = ", ".join(
            f"{endpoint} {max(one.max_ns for one in sizes.values()) / 1e6:.2f}"
            for endpoint, sizes in by_endpoint.items()
        )
        told.append(f"  {condition}, largest seen in ms ({profile.origin}): {largest}")
    for count, factor in profile.speed_up.items():
        if count > 1:
            told.append(f"  {count} endpoints at once do {factor:g} times the work of one")
    advice = max((one.extreme_ns or 0 for one in profile.measured.values()), default=0)
    if advice:
        told.append(
            f"  advice only: by a Gumbel fit one run in a million takes {advice / 1e6:.2f} ms"
        )
    for size, mib in profile.gpu_memory_mib.items():
        before = f", {profile.gpu_memory_idle_mib} before" if profile.gpu_memory_idle_mib else ""
        of = f" of {profile.gpu_memory_total_mib}" if profile.gpu_memory_total_mib else ""
        told.append(f"  GPU memory in use at size {size}: {mib}{of} MiB{before}")
    return [*told, *(f"  {note}" for note in profile.notes)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt profile",
        description="Measure worst-case execution times: every batch size on every endpoint, "
        "alone and beside all other endpoints, all lines' decoders and fallback sessions. Ctrl-C "
        "keeps what is measured; the next run goes on. The plant must not be running.",
        epilog="example: takt profile --plant plant.toml     cold starts: takt profile "
        "{fallback,pool} --cold --help",
    )
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    parser.add_argument(
        "--runs",
        type=int,
        default=FULL.runs,
        help=f"timed runs of each size, endpoint and condition ({FULL.runs})",
    )
    parser.add_argument(
        "--all-sizes", action="store_true", help="also sizes that are split, not used, in full"
    )
    parser.add_argument(
        "--afresh", action="store_true", help="drop the kept runs of a measurement cut short"
    )
    parser.add_argument("--short", action="store_true", help="a minute's measurement, for a bench")
    parser.add_argument("--check", action="store_true", help="only say whether profiles fit")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the profiles there too")
    return parser


def _kept(plant: Plant) -> str:
    kept = [str(path) for model in plant.model if (path := samples_file(plant, model)).is_file()]
    if not kept:
        return "nothing was measured yet"
    return f"what is measured is kept in {', '.join(kept)}: the same command goes on with it"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 measured (or fits), 1 not, 2 wrong use, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in ("fallback", "pool"):
        return cold_start.main(words)
    parser = _parser()
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    # Into a file, nothing is cut: the table has figures of many digits.
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    stopping = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    try:
        plant = load_plant(options.plant)
        if options.check:
            found = [text for model in plant.model for text in mismatches(plant, model)]
            print("\n".join(found) or "the profiles fit this machine and these models")
            return 1 if found else 0
        effort = SHORT
        if not options.short:
            effort = dataclasses.replace(
                FULL, runs=options.runs, all_sizes=options.all_sizes, afresh=options.afresh
            )
        profile_plant(plant, options.plant, effort, console, stopping)
        console.print(profile_table(plant))
        for profile in _profiles(plant):
            console.print("\n".join(profile_lines(profile)), highlight=False, soft_wrap=True)
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
        print("takt profile: stopped; " + _kept(plant), file=sys.stderr)
        return 130
    return 0
