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
from hil_sim.scenario_random import as_toml, random_scenarios

LOSS_RUNS = 200
AS_GOOD = 0.99
"""A rule is as good as another from this share of its largest load on: bisection's own step."""


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


def worst_of(rows: list[dict[str, Any]], policy: str = "takt") -> dict[str, Any] | None:
    """Where a rule stands worst against the best other one, and how often it is as good.

    Rows in which no other rule carries anything say nothing and are left out.
    """
    found = []
    for row in rows:
        others = {name: load for name, load in row["largest_load"].items() if name != policy}
        best = max(others, key=others.__getitem__, default=None)
        if best is None or policy not in row["largest_load"] or not others[best]:
            continue
        ratio = round(row["largest_load"][policy] / others[best], 4)
        found.append({"name": row["name"], "gpus": row["gpus"], "ratio": ratio, "best": best})
    if not found:
        return None
    worst = min(found, key=lambda one: float(one["ratio"]))
    as_good = sum(one["ratio"] >= AS_GOOD for one in found)
    return {"policy": policy, **worst, "rows": len(found), "rows_as_good": as_good}


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
        epilog="example: takt sim policies ../shared/scenarios --policies takt,eager; "
        "20 drawn at random: takt sim policies --random 20 --seed 1",
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="DIR|FILE")
    drawn = parser.add_argument_group("drawn at random, beside or instead of files")
    drawn.add_argument("--random", type=int, default=0, metavar="N", help="so many scenarios")
    drawn.add_argument("--seed", type=int, default=1, metavar="S", help="of the first (default 1)")
    drawn.add_argument("--save", type=Path, metavar="DIR", help="write them there as files, too")
    drawn.add_argument("--print", action="store_true", help="only print them, as their files")
    parser.add_argument("--gpus", type=int, action="append", help="instead of the files' counts")
    parser.add_argument("--policies", default=",".join(POLICIES), help="of: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="at most 8 s and 2 seeds (default)")
    size.add_argument(
        "--full", action="store_true", help="horizon and seeds of the files; resumable with --json"
    )
    parser.add_argument("--lose-gpu", action="store_true", help="instead: lose a GPU, many times")
    parser.add_argument("--runs", type=int, default=LOSS_RUNS, help="losses a scenario (200)")
    return parser


def _scenarios(options: argparse.Namespace) -> list[Scenario]:
    """Those of the files, then those drawn, printed and saved as told. Raises ScenarioError."""
    if options.random < 0 or not (options.paths or options.random):
        raise ScenarioError("give files or folders of scenarios, or --random N with N above 0")
    if options.random == 0 and (options.save or options.print):
        raise ScenarioError("--save and --print are of what --random N draws")
    drawn = random_scenarios(options.random, options.seed)
    if options.print:
        print("\n".join(as_toml(one) for one in drawn), end="")
    try:
        for one in drawn if options.save else ():
            options.save.mkdir(parents=True, exist_ok=True)
            (options.save / f"{one.name}.toml").write_text(as_toml(one), encoding="utf-8")
    except OSError as error:
        raise ScenarioError(f"{options.save}: {error.strerror}") from None
    return [*(load_scenarios(options.paths) if options.paths else []), *drawn]


def _worst_line(worst: dict[str, Any]) -> str:
    text = (
        f"{worst['policy']}: at worst {worst['ratio']:.2f} of the best other rule's largest load, "
        f"on {worst['name']} with {worst['gpus']} GPUs ({worst['best']}); as good (within 1 %) or "
        f"better in {worst['rows_as_good']} of {worst['rows']} rows"
    )
    word, _, seed = worst["name"].partition("-")
    if word == "random" and seed.lstrip("-").isdigit():
        text += f"; its file: takt sim policies --random 1 --seed {seed} --print"
    return text


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
        scenarios = _scenarios(options)
    except ScenarioError as error:
        print(f"takt sim policies: {error}", file=sys.stderr)
        return 2
    if options.print:
        return 0
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
        worst = worst_of(rows)
        if worst is not None:
            told["worst"] = worst
            console.print(_worst_line(worst), highlight=False, soft_wrap=True)
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")
        console.print(f"written: {options.json}")
    return 0
