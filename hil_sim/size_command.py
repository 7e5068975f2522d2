"""`takt size`: whether a plant fits its pool with N, N-1 and N-2 GPUs, and how that is known."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from deadline_batcher.policies import POLICIES
from deadline_batcher.sizing.load import Load
from hil_sim.size_evidence import Effort, look
from hil_sim.size_fallback import cores_faults
from hil_sim.size_helps import Help, what_helps
from hil_sim.size_judge import (
    Asked,
    Judgement,
    TritonAnswer,
    asked_of,
    judge,
    triton,
    worst_phases,
)
from hil_sim.size_memory import memory_faults
from hil_sim.size_plant import (
    budgets_of,
    load_of,
    load_profiles,
    refusals,
)
from hil_sim.size_plot import Curve, write_plot
from hil_sim.size_report import Answer, as_json, show

COUNTS = 3
"""N, N-1 and N-2 at least; as far down as the plant file tolerates."""
PARTS_SMALL, PARTS_LARGE = 500, 2000
LINES_SMALL = 24
PLOT_POINTS = 9
PARTS_OF_ALL = 1.5
"""How many runs a GPU count takes in all, per run of its search; for the progress bar only."""


def effort_for(lines: int) -> Effort:
    """Runs and parts that keep 12 lines under 10 s and 200 under 60 s on one slow core."""
    if lines <= LINES_SMALL:
        return Effort(starts=8, steps=28, parts=PARTS_SMALL)
    return Effort(starts=6, steps=16, parts=PARTS_LARGE)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt size",
        description="Whether a plant fits its pool with N, N-1 and N-2 GPUs, by its own "
        "objectives; what binds, and how that is known. Exit 0 fits, 1 does not, 2 wrong use.",
        epilog="example: takt size plant.toml --json size.json --plot size.svg",
    )
    parser.add_argument("plant", type=Path, help="the plant file")
    parser.add_argument(
        "--policy", default="takt", choices=[name for name in POLICIES if name != "triton"],
        help="the batching rule that runs (default takt)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the search (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for a machine")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="load against margin, svg or png")
    return parser


def size_plant(plant: Plant, policy: str, seed: int, on_run: Callable[[], None]) -> Answer:
    """Everything `takt size` finds out. Nothing is run that a refusal makes idle."""
    started = time.monotonic()
    profiles, refused = load_profiles(plant)
    if refused:
        empty = Asked(Load((), ()), policy, (), (), (), (), 0, Effort(0, 0, 0), on_run)
        return Answer(plant, empty, [], [], [], [], {}, refused, [], time.monotonic() - started)
    budgets = budgets_of(plant, profiles)
    load = load_of(plant, profiles, budgets)
    refused, notes = cores_faults(plant, profiles)
    too_much, more = memory_faults(plant, {name: pair.pool for name, pair in profiles.items()})
    refused, notes = [*refusals(plant, load, budgets), *refused, *too_much], [*notes, *more]
    asked = asked_of(plant, load, policy, effort_for(len(budgets)), on_run)
    origins = {name: pair.pool.origin for name, pair in profiles.items()}
    judged: list[Judgement] = []
    answers: list[TritonAnswer] = []
    helps: list[Help] = []
    if not refused:
        count = len(plant.pool.endpoints)
        lost = plant.plant.gpus_lost_tolerated
        least = max(0, count - max(COUNTS, lost + 1))
        judged = [judge(asked, gpus, seed) for gpus in range(count, least, -1)]
        told = [one for one in judged if one.gpus in (count, count - lost)]
        answers = [triton(asked, one) for one in told if one.sights]
        helps = what_helps(asked, told[-1], judged, seed)
    seconds = time.monotonic() - started
    return Answer(plant, asked, budgets, judged, answers, helps, origins, refused, notes, seconds)


def curves_of(answer: Answer) -> list[Curve]:
    """The least margin over the worst phases found, from a tenth of the load to what fits."""
    asked, found = answer.asked, []
    for one in answer.judged:
        top = max(1.2, one.factor * 1.1)
        points: list[tuple[float, float]] = []
        misses_from: float | None = None
        for step in range(1, PLOT_POINTS + 1):
            factor = top * step / PLOT_POINTS
            load = asked.load.at(round(factor * 1024), 1024)
            setting = asked.setting(one.caps)
            sights = [
                look(load, setting, one.gpus, phases, asked.effort.parts)
                for phases in worst_phases(one.sights)
            ]
            if not sights:
                break
            if any(sight.missed for sight in sights):
                misses_from = factor
                break
            points.append((factor, min(min(sight.margins_ns) for sight in sights) / 1e6))
        if not one.sights:
            misses_from = one.fluid
        found.append(Curve(one.gpus, tuple(points), misses_from))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 the plant fits, 1 it does not, 2 wrong use."""
    options = _parser().parse_args(argv)
    if options.plot is not None and options.plot.suffix not in (".svg", ".png"):
        print(f"{options.plot}: a plot is .svg or .png", file=sys.stderr)
        return 2
    try:
        plant = load_plant(options.plant)
    except PlantError as error:
        print(error, file=sys.stderr)
        return 2
    effort = effort_for(len(plant.line))
    runs = COUNTS * PARTS_OF_ALL * (effort.starts + effort.steps)
    columns = (TextColumn("sizing"), BarColumn(), TextColumn("{task.completed:.0f} runs"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("size", total=runs)
        answer = size_plant(plant, options.policy, options.seed, lambda: progress.advance(task))
        curves = curves_of(answer) if options.plot is not None else []
    show(answer, Console(soft_wrap=False))
    try:
        if options.json is not None:
            options.json.write_text(json.dumps(as_json(answer), indent=2) + "\n")
        if options.plot is not None and curves:
            write_plot(options.plot, f"{plant.plant.name}: load and margin", curves)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0 if answer.fits else 1


if __name__ == "__main__":
    sys.exit(main())
