"""`takt sim policies`: every batching rule over scenario files, and what a lost GPU does."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from deadline_batcher.policies import POLICIES
from hil_sim.policy_load import (
    FULL,
    LOSS_SHARE,
    OVERLOAD,
    QUICK,
    Cell,
    Effort,
    LossResult,
    arrival_limited_bound,
    lose_gpus,
    loss_load,
    measure,
)
from hil_sim.scenario import Scenario, ScenarioError, load_scenarios

LOSS_RUNS = 200


class CellStore:
    """Cells already measured, one JSON line each, so that a full run may be taken up again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                told = json.loads(line)
                self._known[told["key"]] = told["cell"]

    def find(self, key: str) -> Cell | None:
        """A cell measured before, of the same scenario and effort."""
        return Cell(**self._known[key]) if key in self._known else None

    def keep(self, key: str, cell: Cell) -> None:
        """Write it down at once."""
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "cell": cell.as_json()}) + "\n")


def run_cells(
    scenarios: list[Scenario],
    gpus: list[int],
    policies: list[str],
    effort: Effort,
    store: CellStore,
    console: Console,
) -> list[Cell]:
    """Every cell, in the order of the files."""
    jobs = [
        (scenario, count, policy)
        for scenario in scenarios
        for count in (gpus or scenario.gpus)
        for policy in policies
    ]
    cells = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("policies", total=len(jobs))
        for scenario, count, policy in jobs:
            progress.update(task, description=f"{scenario.name} {count} {policy}")
            key = f"{scenario.model_dump_json()}/{count}/{policy}/{effort}"
            cell = store.find(key)
            if cell is None:
                cell = measure(scenario, count, policy, effort)
                store.keep(key, cell)
            cells.append(cell)
            progress.advance(task)
    return cells


def as_rows(cells: list[Cell], bounds: dict[tuple[str, int], float]) -> list[dict[str, Any]]:
    """The JSON's scenarios: one for each file and number of GPUs."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for cell in cells:
        place = (cell.scenario, cell.gpus)
        row = rows.setdefault(
            place,
            {
                "name": cell.scenario,
                "gpus": cell.gpus,
                "bound": round(cell.bound, 4),
                "bound_arrival_limited": round(bounds[place], 4),
                "largest_load": {},
                "overload": {},
                "overload_of_bound": {},
                "overload_by_model": {},
                "triton_setting": "",
            },
        )
        row["largest_load"][cell.policy] = round(cell.largest_load, 4)
        row["overload"][cell.policy] = round(cell.overload, 4)
        row["overload_of_bound"][cell.policy] = round(OVERLOAD * cell.overload, 4)
        row["overload_by_model"][cell.policy] = cell.overload_by_model
        row["triton_setting"] = row["triton_setting"] or cell.setting
    return list(rows.values())


def print_tables(rows: list[dict[str, Any]], cells: list[Cell], console: Console) -> None:
    """Largest loads as in the scenarios' README, shares of the bound, overload."""
    policies = list(rows[0]["largest_load"])
    loads = Table("scenario", "gpus", "bound", "B2", *policies, title="largest load")
    for row in rows:
        best = max(row["largest_load"].values())
        shown = [
            f"[b]{load:.2f}[/b]" if load >= 0.995 * best else f"{load:.2f}"
            for load in row["largest_load"].values()
        ]
        bounds = (f"{row['bound']:.2f}", f"{row['bound_arrival_limited']:.2f}")
        loads.add_row(row["name"], str(row["gpus"]), *bounds, *shown)

    def mean(field: str, policy: str, divide: bool) -> float:
        values: list[float] = [
            row[field][policy] / (row["bound"] if divide else 1.0) for row in rows
        ]
        return sum(values) / max(1, len(values))

    loads.add_section()
    shares = [f"{mean('largest_load', policy, True):.3f}" for policy in policies]
    loads.add_row("mean share of the bound", "", "", "", *shares)
    speeds = []
    for policy in policies:
        of_policy = [cell for cell in cells if cell.policy == policy]
        cpu_s = sum(cell.cpu_s for cell in of_policy)
        events = sum(cell.events for cell in of_policy)
        speeds.append(f"{events / cpu_s / 1000:.0f}k" if cpu_s else "-")
    loads.add_row("decisions a second", "", "", "", *speeds)
    console.print(loads)
    title = f"GPU work answered in time at {OVERLOAD} x the bound, of what the bound allows"
    overload = Table("scenario", "gpus", *policies, "takt: parts on time, by model", title=title)
    for row in rows:
        shown = [f"{share:.2f}" for share in row["overload_of_bound"].values()]
        by_model = row["overload_by_model"].get("takt", {})
        told = " ".join(f"{name} {share:.2f}" for name, share in by_model.items())
        overload.add_row(row["name"], str(row["gpus"]), *shown, told)
    overload.add_section()
    overload.add_row("mean", "", *(f"{mean('overload_of_bound', p, False):.3f}" for p in policies))
    console.print(overload)


def run_losses(
    scenarios: list[Scenario], policy: str, runs: int, effort: Effort, console: Console
) -> list[LossResult]:
    """For each scenario: find the largest load of N - 1 over the same phases as the losses, then
    lose a GPU of N at 85 % of it."""
    results = []
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("losses", total=len(scenarios) * runs)
        for scenario in scenarios:
            progress.update(task, description=scenario.name)
            load = loss_load(scenario, policy, runs, effort)
            results.append(lose_gpus(scenario, load, runs, policy, lambda: progress.advance(task)))
    table = Table(
        "scenario", "load", "runs", "with a batch lost", "parts caught", "run again in time",
        "to the fallback", "other parts missed", "of these without a loss", "parts",
        title=f"one GPU lost at {LOSS_SHARE:.0%} of the largest load that N - 1 carry in all "
        f"{runs} phases, {policy}",
    )  # fmt: skip
    for one in results:
        table.add_row(
            one.scenario,
            f"{one.load:.2f}",
            *(str(value) for value in (one.runs, one.with_batch, one.caught, one.rerun)),
            *(str(value) for value in (one.to_fallback, one.others_missed)),
            *(str(value) for value in (one.missed_anyway, one.parts)),
        )
    console.print(table)
    return results


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt sim policies",
        description="Run batching rules over scenario files in virtual time, on the scheduler "
        "that ships, and find the largest load each carries.",
        epilog="example: takt sim policies ../shared/scenarios --policies takt,eager",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR|FILE")
    parser.add_argument("--gpus", type=int, action="append", help="instead of the files' counts")
    parser.add_argument("--policies", default=",".join(POLICIES), help="of: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="8 s and 2 seeds (the default)")
    size.add_argument(
        "--full", action="store_true", help="horizon and seeds of the files; resumable with --json"
    )
    parser.add_argument("--lose-gpu", action="store_true", help="instead: lose a GPU, many times")
    parser.add_argument("--runs", type=int, default=LOSS_RUNS, help="losses a scenario (200)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Exit 0 measured, 2 wrong use."""
    options = _parser().parse_args(argv)
    console = Console(width=None if sys.stdout.isatty() else 200)
    policies = [name for name in options.policies.split(",") if name]
    unknown = [name for name in policies if name not in POLICIES]
    if unknown or not policies or any(count < 1 for count in options.gpus or []):
        wrong = f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}" if unknown else (
            "--policies needs a name and --gpus a number above 0"
        )  # fmt: skip
        print(f"takt sim policies: {wrong}", file=sys.stderr)
        return 2
    try:
        scenarios = load_scenarios(options.paths)
    except ScenarioError as error:
        print(f"takt sim policies: {error}", file=sys.stderr)
        return 2
    effort = FULL if options.full else QUICK
    told: dict[str, Any]
    if options.lose_gpu:
        losses = run_losses(scenarios, policies[0], options.runs, QUICK, console)
        told = {"losses": [{name: getattr(one, name) for name in one.__slots__} for one in losses]}
    else:
        partial = (
            options.json.with_suffix(".cells.jsonl") if options.json and options.full else None
        )
        store = CellStore(partial)
        cells = run_cells(scenarios, options.gpus or [], policies, effort, store, console)
        places = {(cell.scenario, cell.gpus): 0.0 for cell in cells}
        for scenario in scenarios:
            for name, gpus in places:
                if name == scenario.name:
                    places[name, gpus] = arrival_limited_bound(scenario, gpus)
        rows = as_rows(cells, places)
        print_tables(rows, cells, console)
        told = {"effort": "full" if options.full else "quick", "scenarios": rows}
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")
        console.print(f"written: {options.json}")
    return 0


SUBCOMMANDS = {"policies": main}


def sim_main(argv: Sequence[str] | None = None) -> int:
    """`takt sim SUBCOMMAND`."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in SUBCOMMANDS:
        return SUBCOMMANDS[words[0]](words[1:])
    print("usage: takt sim policies DIR|FILE... [OPTIONS]     takt sim policies --help")
    return 0 if words and words[0] in ("-h", "--help") else 2
