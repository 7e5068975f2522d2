"""`takt capacity`: how many lines each number of GPUs carries, by the evidence of `takt size`.

For every number of GPUs the longest row of lines, in the order in which they keep the pool, that
the shipped rule was seen to carry over adverse phases, and the factor on their rates up to which
it did. Their share of a GPU times that factor is the capacity that the batcher sheds by.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from appliance.capacity import CapacityRow, CapacityTable, asked_sha256
from appliance.planning import ModelProfiles, PlanningError, make_plan, profiles_of
from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.shed_planning import offered_load
from deadline_batcher.shedding import SHARE_ONE, share_of
from deadline_batcher.sizing.load import Load
from hil_sim.size_command import effort_for
from hil_sim.size_judge import Judgement, asked_of, judge
from hil_sim.size_plant import budgets_of, load_of

DEFAULT_FILE = "profiles/capacity.json"


def row_of(load: Load) -> list[int]:
    """The lines that a pool can serve at all, in the order in which they keep it."""
    streams = load.streams
    ranked = sorted(range(len(streams)), key=lambda line: (streams[line].criticality, line))
    return [line for line in ranked if share_of(load, line) is not None]


def table_of(
    plant: Plant,
    profiles: dict[str, ModelProfiles],
    seed: int = 1,
    on_run: Callable[[], None] = lambda: None,
    on_row: Callable[[CapacityRow], None] = lambda row: None,
) -> CapacityTable:
    """Search every number of GPUs. Raises PlanningError for a plant that has no plan."""
    plan = make_plan(plant, profiles)
    load = offered_load(plant, plan, profiles)
    row = row_of(load)
    shares = [share_of(load, line) or 0 for line in row]
    capacity, rows = [0] * (plan.gpus + 1), []
    most = len(row)
    for gpus in range(plan.gpus, 0, -1):
        most, judged = _longest(plant, profiles, row, most, gpus, plan.policy.name, seed, on_run)
        factor = judged.factor if judged else 0.0
        how = judged.how if judged else "none"
        runs = judged.runs if judged else 0
        capacity[gpus] = int(sum(shares[:most]) * factor)
        rows.append(CapacityRow(gpus=gpus, lines=most, factor=factor, how=how, runs=runs))
        on_row(rows[-1])
    for gpus in range(1, plan.gpus + 1):  # what fewer GPUs were seen to carry, more carry too
        capacity[gpus] = max(capacity[gpus], capacity[gpus - 1])
    return CapacityTable(
        policy=plan.policy.name,
        asked_sha256=asked_sha256(load, plan.policy.name),
        capacity=capacity,
        rows=rows,
    )


def _longest(
    plant: Plant,
    profiles: dict[str, ModelProfiles],
    row: Sequence[int],
    most: int,
    gpus: int,
    policy: str,
    seed: int,
    on_run: Callable[[], None],
) -> tuple[int, Judgement | None]:
    """How many lines of the row fit, by bisection, and the judgement of those."""

    def fits(count: int) -> Judgement | None:
        lines = [plant.line[line] for line in sorted(row[:count])]
        part = plant.model_copy(update={"line": lines})
        budgets = budgets_of(part, profiles)
        load = load_of(part, profiles, budgets)
        asked = asked_of(part, load, policy, effort_for(count), on_run)
        judged = judge(asked, gpus, seed)
        return judged if judged.fits else None

    found = fits(most) if most else None
    if found is not None or not most:
        return most, found
    low, high, best = 0, most, None
    while high - low > 1:
        middle = (low + high) // 2
        judged = fits(middle)
        if judged is not None:
            low, best = middle, judged
        else:
            high = middle
    return low, best


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt capacity",
        description="Which lines each number of GPUs carries: the table that shedding goes by. "
        "Name it in the plant file: [route] capacity. Exit 0 written, 1 no table, 2 wrong use.",
        epilog=f"example: takt capacity plant.toml --out {DEFAULT_FILE}",
    )
    parser.add_argument("plant", type=Path, help="the plant file")
    parser.add_argument("--out", type=Path, metavar="FILE",
                        help=f"default: {DEFAULT_FILE} beside the plant file")  # fmt: skip
    parser.add_argument("--seed", type=int, default=1, help="of the search (default 1)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 written, 1 no table, 2 wrong use."""
    options = _parser().parse_args(argv)
    try:
        plant = load_plant(options.plant)
    except PlantError as error:
        print(error, file=sys.stderr)
        return 2
    file = options.out or plant.path(DEFAULT_FILE)
    lines = len(plant.line)

    def told(row: CapacityRow) -> None:
        print(
            f"{row.gpus} GPUs carry {row.lines} of {lines} lines"
            + (f" up to {row.factor:.2f} times their rates ({row.how})" if row.lines else "")
        )

    columns = (TextColumn("searching"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("capacity", total=None)
        try:
            table = table_of(
                plant, profiles_of(plant), options.seed, lambda: progress.advance(task), told
            )
        except PlanningError as error:
            print(f"takt capacity: {error}", file=sys.stderr)
            return 1
    try:
        table.save(file)
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    shares = ", ".join(f"{share / SHARE_ONE:.2f}" for share in table.capacity[1:])
    print(f"capacities in GPUs of the fluid bound: {shares}; written: {file}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
