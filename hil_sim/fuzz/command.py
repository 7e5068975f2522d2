"""`takt sim fuzz`: many seeds of the whole plant in virtual time; a failing one is made small."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from hil_sim.fuzz.case import Case, case_of
from hil_sim.fuzz.exhaustive import cases as step_cases
from hil_sim.fuzz.minimise import minimised
from hil_sim.fuzz.run import Result, play

STORY_LINES = 40
MISTAKES_SHOWN = 3
FAILURES_MAX = 20
"""With so many failing cases there is no point in looking for more."""


def command_of(case: Case) -> str:
    """What repeats a case of a seed."""
    return f"takt sim fuzz --from {case.seed} --seeds 1"


def explain(result: Result, console: Console, kept: Path | None) -> None:
    """A failing case, made small, for a person."""
    case = result.case
    name = command_of(case) if case == case_of(case.seed) else f"takt sim fuzz --case {kept}"
    console.print(f"[red]FAILED[/] {name}", highlight=False)
    for mistake in result.mistakes[:MISTAKES_SHOWN]:
        console.print(f"  {mistake}", highlight=False, markup=False)
    small = minimised(case, lambda smaller: not play(smaller).is_good)
    told = play(small)
    console.print(
        f"  made small: {small.lines} lines, {small.gpus} GPUs, {small.load_ms} ms of load; faults:"
    )
    for fault in small.faults:
        console.print(f"    {fault}", highlight=False, markup=False)
    if kept is not None and small != case:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(small.as_json() + "\n")
        console.print(f"  again: takt sim fuzz --case {kept}", highlight=False)
        console.print("  to keep it as a test: move that file to tests/fuzz_seeds/")
    console.print("  the end of its story:")
    for line in told.story[-STORY_LINES:]:
        console.print(f"    {line}", highlight=False, markup=False)


def run_cases(
    cases: Sequence[Case] | Iterator[Case], total: int, console: Console,
    on_result: Callable[[Result], None],
) -> bool:  # fmt: skip
    """Run all of them, with a progress bar; False where it stopped after FAILURES_MAX."""
    failed = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("seeds", total=total)
        for case in cases:
            result = play(case)
            on_result(result)
            failed += not result.is_good
            progress.update(task, advance=1, description=f"seeds ({failed} failed)")
            if failed >= FAILURES_MAX:
                return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt sim fuzz",
        description="A small plant with random faults under a virtual clock, once for each seed: "
        "the promise is checked at every step, and that all is whole again after the faults.",
        epilog="example: takt sim fuzz --seeds 2000 --from 10000     exit: 0 all held, 1 a seed "
        "failed, 2 wrong use",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=100, metavar="N", help="how many seeds (default: 100)")
    add("--from", dest="first", type=int, default=0, metavar="S", help="the first seed")
    add("--steps", action="store_true", help="instead: kill at every step of the protocols, once")
    add("--case", type=Path, metavar="FILE", help="instead: one case from a file that was kept")
    add("--story", action="store_true", help="print each run's story")
    add("--keep", type=Path, default=Path("fuzz-failures"), metavar="DIR",
        help="where failing cases go, made small (default: fuzz-failures)")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write what was found as JSON")
    return parser


def _cases(told: argparse.Namespace) -> tuple[list[Case] | Iterator[Case], int]:
    """What to run, and how many. Raises OSError and ValueError for a file that is no case."""
    if told.case is not None:
        return [Case.from_json(told.case.read_text())], 1
    if told.steps:
        listed = step_cases()
        return listed, len(listed)
    return (case_of(told.first + k) for k in range(told.seeds)), told.seeds


def main(argv: Sequence[str] | None = None) -> int:
    """`takt sim fuzz`."""
    told = _parser().parse_args(argv)
    console = Console()
    if told.seeds < 1 or told.first < 0:
        print("takt sim fuzz: --seeds must be at least 1, --from at least 0", file=sys.stderr)
        return 2
    try:
        cases, total = _cases(told)
    except (OSError, ValueError) as error:
        print(f"takt sim fuzz: {told.case}: {error}", file=sys.stderr)
        return 2
    failures: list[Result] = []
    counts: Counter[str] = Counter()
    slowest_ns = 0
    began = time.monotonic()

    def on_result(result: Result) -> None:
        nonlocal slowest_ns
        counts.update(result.counts)
        counts["cases"] += 1
        counts["faults"] += len(result.case.faults)
        slowest_ns = max(slowest_ns, result.whole_again_ns)
        if told.story:
            print("\n".join(result.story))
        if not result.is_good:
            failures.append(result)

    run_cases(cases, total, console, on_result)
    took_s = time.monotonic() - began
    for number, result in enumerate(failures):
        kept = told.keep / f"seed-{result.case.seed}-{number}.json"
        explain(result, console, told.case if told.case is not None else kept)
    verdicts = sum(counts[by] for by in ("pool", "fallback", "failsafe"))
    console.print(
        f"{counts['cases']} runs, {counts['faults']} faults, {verdicts} verdicts "
        f"({counts['pool']} pool, {counts['fallback']} fallback, {counts['failsafe']} fail-safe), "
        f"{counts['in_doubt']} parts in doubt at a line's death; whole again after at most "
        f"{slowest_ns / 1e9:.1f} s; {len(failures)} failed; {took_s:.1f} s",
        highlight=False,
    )
    if told.json:
        told.json.write_text(json.dumps(_as_json(failures, counts, slowest_ns), indent=1) + "\n")
        console.print(f"written: {told.json}", highlight=False)
    return 1 if failures else 0


def _as_json(failures: list[Result], counts: Counter[str], slowest_ns: int) -> dict[str, Any]:
    return {
        "counts": dict(sorted(counts.items())),
        "whole_again_max_ns": slowest_ns,
        "failures": [
            {
                "repeat": command_of(result.case),
                "case": dataclasses.asdict(result.case),
                "mistakes": result.mistakes,
            }
            for result in failures
        ],
    }
