"""The trial: would Triton's own dynamic batcher do? `takt benchmark triton-batcher`.

Example plants on real embedded Tritons whose GPUs are emulated, open loop, N and N-1 GPUs, by the
procedure of Triton's user guide ("Batchers", Recommended Configuration Process): the default
`dynamic_batching {}` first, then the largest batch and the queue delay raised step by step while
the latency budget (here: no part after its deadline) holds; then a grid of both with priorities.
One Triton per GPU; a client in front of them sends each part where the least work is outstanding.
Every setting gets its largest load without a miss; beside it stands what the model of Triton in
the scenarios' README says of the very same arrivals.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from appliance.triton.fetch import embedded_server
from appliance.triton.libpython import FetchError
from appliance.triton.repository import RepositoryError
from appliance.triton.server import ServerError
from hil_sim.trial_plants import PLANTS, TrialPlant, arrivals
from hil_sim.trial_pool import Loaded, TrialError, TrialPool
from hil_sim.trial_search import STEP, Cell, climb
from hil_sim.triton_model import Front, Setting, largest_load

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
OVERHEAD_MAX = 0.10
TRIES = 2
DISTURBED_MAX = 3
CALM_S = 2.0
BATCHES_MIN = 20
CAPS = (4, 8, 16)
DELAYS_MS = (5.0, 10.0, 20.0, 40.0)
GRID = tuple(
    Setting(cap, delay_ms, with_priorities)
    for with_priorities in (False, True)
    for cap, delay_ms in ((8, 5.0), (8, 10.0), (4, 10.0), (8, 20.0), (4, 0.0))
)
FRONT: Front = "least-work"
OTHER_FRONTS: tuple[Front, ...] = ("round-robin", "shortest")
"""With one model, the shortest queue is the least work."""
ABOVE = 0.7
"""Priorities and queue limits are searched down to this share of the best load so far."""


@dataclass(frozen=True, slots=True)
class Scope:
    """How much to measure: seconds for each plant, the plant's own time a run lasts, seeds."""

    plant_s: float
    horizon_ms: float
    seed: int = 1


FULL = Scope(plant_s=2_400, horizon_ms=3_000)
QUICK = Scope(plant_s=55, horizon_ms=1_500)


@dataclass(slots=True)
class PlantTrial:
    """What was measured of one plant."""

    plant: TrialPlant
    scope: Scope
    say: Callable[[str], None]
    cells: list[Cell] = field(default_factory=list)
    not_reached: list[str] = field(default_factory=list)
    disturbed: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def has_time(self) -> bool:
        """Whether another setting may begin."""
        return time.monotonic() - self.began_s < self.scope.plant_s

    def best(self, gpus: int, step: str = "") -> Cell | None:
        """The valid cell with the largest load."""
        among = [
            one
            for one in self.cells
            if one.gpus == gpus and one.is_valid and (not step or one.step == step)
        ]
        return max(among, key=lambda one: one.load, default=None)

    def measure(
        self, step: str, setting: Setting, front: Front = FRONT, above: float = 0.0
    ) -> list[Cell]:
        """This setting's largest load on N and N-1 GPUs; one start of the servers for both.

        above: only loads above this share of the best one so far are tried.
        """
        if not self.has_time():
            self.not_reached.append(f"{step}: {setting}, {front}")
            return []
        with (
            tempfile.TemporaryDirectory(prefix="takt-trial-") as folder,
            TrialPool(self.plant, setting, Path(folder)) as pool,
        ):
            measured = [
                self._cell(pool, step, setting, gpus, front, above)
                for gpus in (self.plant.gpus, self.plant.gpus - 1)
            ]
        self.cells += measured
        return measured

    def _cell(
        self,
        pool: TrialPool,
        step: str,
        setting: Setting,
        gpus: int,
        front: Front,
        above: float,
    ) -> Cell:
        told = (self.plant, gpus, setting, self.scope.horizon_ms, [self.scope.seed])
        cell = Cell(self.plant.name, step, str(setting), gpus, front)
        cell.modelled = round(largest_load(*told, front), 3)
        cell.modelled_central = round(largest_load(*told, "central"), 3)
        best = self.best(gpus)
        floor = best.load * above if best else 0.0
        start = cell.modelled * self._correction(gpus)
        climb(
            start=best.load * STEP if best and above == 1.0 else max(start, floor),
            floor=floor,
            ceiling=self.plant.bound(gpus) * STEP,
            holds=lambda load: self._holds(pool, cell, load),
            cell=cell,
        )
        self.say(
            f"{self.plant.name} {gpus} GPUs  {step:<10} {setting!s:<34} {front:<11} "
            f"load {cell.load:.2f} (fails at {cell.fails_at:.2f}, by {cell.late_ms_at_fail:.0f} ms;"
            f" modelled {cell.modelled:.2f}) "
            f"host {cell.overhead:.1%}{'' if cell.is_valid else '  INVALID'}"
        )
        return cell

    def _correction(self, gpus: int) -> float:
        """Measured against modelled so far: only where to start looking."""
        ratios = [
            one.load / one.modelled
            for one in self.cells
            if one.gpus == gpus and one.load and one.modelled
        ]
        return ratios[-1] if ratios else 0.93

    def _holds(self, pool: TrialPool, cell: Cell, load: float) -> bool:
        """No miss in a run; a miss is tried once more, because this host is shared.

        A run beside which the host itself took too much counts for nothing and is made again.
        """
        parts = arrivals(self.plant, load, self.scope.horizon_ms, self.scope.seed)
        tries, disturbed = 0, 0
        while tries < TRIES:
            run = pool.load(parts, cell.gpus, cell.front)
            cell.runs += 1
            cell.parts += run.sent
            share = run.overhead.share if run.batches >= BATCHES_MIN else 0.0
            if share > OVERHEAD_MAX:
                disturbed += 1
                self.disturbed += 1
                if disturbed <= DISTURBED_MAX:
                    time.sleep(CALM_S)
                    continue
                cell.is_valid = False
            tries += 1
            cell.overhead = max(cell.overhead, round(share, 4))
            if not run.missed:
                self._keep(cell, run)
                return True
            cell.missed_at_fail = run.missed
            cell.late_ms_at_fail = round(run.latest_ns / 1e6, 1)
        return False

    @staticmethod
    def _keep(cell: Cell, run: Loaded) -> None:
        cell.mean_batch = round(run.sent / run.batches, 2)
        cell.busy = round(run.busy, 3)


def procedure(trial: PlantTrial, *, is_quick: bool) -> None:
    """NVIDIA's procedure, then the grid; what there was no time for is listed."""
    default_cap = max(one.batch_max for one in trial.plant.models)
    trial.measure("default", Setting(default_cap, 0.0))
    caps = [cap for cap in CAPS if cap < default_cap][-1 if is_quick else 0 :]
    _raised(trial, "batch size", (Setting(cap, 0.0) for cap in caps))
    best = _best_setting(trial, default_cap)
    trial.measure("priorities", replace(best, with_priorities=True), above=ABOVE)
    if not is_quick:
        trial.measure("queue limit", replace(best, with_queue_limit=True), above=ABOVE)
    delays_ms = DELAYS_MS[1:2] if is_quick else DELAYS_MS
    _raised(trial, "delay", (Setting(best.cap, delay_ms) for delay_ms in delays_ms))
    best = _best_setting(trial, default_cap)
    if not is_quick:
        for front in OTHER_FRONTS[: 2 if len(trial.plant.models) > 1 else 1]:
            trial.measure("front", best, front)
        for setting in GRID:
            if not any(cell.setting == str(setting) for cell in trial.cells):
                trial.measure("grid", setting, above=1.0)


def _best_setting(trial: PlantTrial, default_cap: int) -> Setting:
    """The setting with the largest sum of loads over the GPU counts."""
    sums: dict[str, float] = {}
    for cell in trial.cells:
        if cell.is_valid:
            share = cell.load / trial.plant.bound(cell.gpus)
            sums[cell.setting] = sums.get(cell.setting, 0.0) + share
    first = Setting(default_cap, 0.0)
    name = max(sums, key=lambda one: sums[one], default=str(first))
    return next((one for one in _settings(default_cap) if str(one) == name), first)


def _settings(default_cap: int) -> Iterator[Setting]:
    for cap in (default_cap, *CAPS):
        for delay_ms in (0.0, *DELAYS_MS):
            for flags in itertools.product((False, True), repeat=2):
                yield Setting(cap, delay_ms, *flags)


def _raised(trial: PlantTrial, step: str, settings: Iterable[Setting]) -> None:
    """Raise one thing step by step until the largest load has fallen twice."""
    best, fallen = (
        sum(one.load / trial.plant.bound(one.gpus) for one in trial.cells if one.step == "default"),
        0,
    )
    for setting in settings:
        cells = trial.measure(step, setting)
        load = sum(one.load / trial.plant.bound(one.gpus) for one in cells)
        best, fallen = (load, 0) if load > best else (best, fallen + 1)
        if fallen == 2:
            return


def summary(trial: PlantTrial) -> dict[str, Any]:
    """The figures of one plant: default, best, and the model's."""
    rows = []
    for gpus in (trial.plant.gpus, trial.plant.gpus - 1):
        bound = trial.plant.bound(gpus)
        default, best = trial.best(gpus, "default"), trial.best(gpus)
        same = [one for one in trial.cells if one.gpus == gpus and one.load and one.modelled]
        ratios = sorted(one.load / one.modelled for one in same)
        rows.append(
            {
                "gpus": gpus,
                "bound": round(bound, 3),
                "default": default.load if default else None,
                "best": best.load if best else None,
                "best_setting": f"{best.setting}, {best.front}" if best else None,
                "share_of_bound": round(best.load / bound, 3) if best else None,
                "bound_over_best": round(bound / best.load, 2) if best and best.load else None,
                "modelled_best_central": max(
                    (one.modelled_central for one in trial.cells if one.gpus == gpus), default=None
                ),
                "measured_over_modelled": round(ratios[len(ratios) // 2], 3) if ratios else None,
            }
        )
    return {
        "plant": trial.plant.name,
        "stretch": trial.plant.stretch,
        "horizon_ms": trial.scope.horizon_ms,
        "seed": trial.scope.seed,
        "runs": sum(one.runs for one in trial.cells),
        "parts": sum(one.parts for one in trial.cells),
        "runs_made_again": trial.disturbed,
        "overhead_max": max((one.overhead for one in trial.cells if one.is_valid), default=0.0),
        "valid": all(
            trial.best(gpus) and trial.best(gpus, "default")
            for gpus in (trial.plant.gpus, trial.plant.gpus - 1)
        ),
        "cells_invalid": sum(not one.is_valid for one in trial.cells),
        "largest_load": rows,
        "cells": [asdict(one) for one in trial.cells],
        "not_reached": trial.not_reached,
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Triton's own batcher on example plants: default, steps, grid; N and N-1 (--quick: 4 min)."""
    from hil_sim.benchmark import machine

    is_quick = bool(getattr(options, "quick", False))
    names = getattr(options, "plants", None) or list(PLANTS)
    embedded_server()
    found = []
    for name in names:
        trial = PlantTrial(PLANTS[name], QUICK if is_quick else FULL, _say)
        procedure(trial, is_quick=is_quick)
        found.append({**summary(trial), "machine": machine()})
        _print_summary(found[-1])
    return {"quick": is_quick, "valid": all(one["valid"] for one in found), "plants": found}


def _say(text: str) -> None:
    print(text, flush=True)


def _print_summary(one: dict[str, Any]) -> None:
    for row in one["largest_load"]:
        print(
            f"{one['plant']} {row['gpus']} GPUs: bound {row['bound']:.2f}, default "
            f"{row['default']}, best {row['best']} ({row['best_setting']}); bound / best "
            f"{row['bound_over_best']}; measured / modelled {row['measured_over_modelled']}"
        )
    print(
        f"n = {one['runs']} runs, {one['parts']} parts; host's own overhead at most "
        f"{one['overhead_max']:.1%} of the emulated time"
        f"; {one['cells_invalid']} cells INVALID by it and left out"
        + ("" if one["valid"] else f": INVALID, more than {OVERHEAD_MAX:.0%} where it matters")
    )
    if one["not_reached"]:
        print(f"no time for: {'; '.join(one['not_reached'])}")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 measured, 1 INVALID or no figures, 2 wrong use."""
    from hil_sim.benchmark import machine

    parser = argparse.ArgumentParser(
        prog="takt benchmark triton-batcher",
        description="Triton's own dynamic batcher on example plants: real servers, emulated GPUs.",
        epilog="example: takt benchmark triton-batcher --quick",
    )
    parser.add_argument("--quick", action="store_true", help="at most 4 minutes, fewer settings")
    parser.add_argument("--plants", nargs="+", choices=list(PLANTS), metavar="NAME")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR")
    options = parser.parse_args(argv)
    here = machine()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
    try:
        found = run(options)
    except (TrialError, ServerError, RepositoryError, FetchError) as error:
        print(f"takt benchmark triton-batcher: {error}", file=sys.stderr)
        return 1
    name = "triton-batcher-quick.json" if options.quick else "triton-batcher.json"
    _keep(options.results / name, here, found)
    return 0 if found["valid"] else 1


def _keep(file: Path, here: dict[str, Any], found: dict[str, Any]) -> None:
    """Write the results; plants measured at another time (`--plants`) stay, with their machine."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        earlier = json.loads(file.read_text())["result"]["plants"]
        fresh = {one["plant"] for one in found["plants"]}
        found["plants"] += [one for one in earlier if one["plant"] not in fresh]
        found["valid"] = all(one["valid"] for one in found["plants"])
    file.parent.mkdir(parents=True, exist_ok=True)
    told = {"benchmark": "triton-batcher", "machine": here, "result": found}
    file.write_text(json.dumps(told, indent=2) + "\n")
    print(f"written: {file}")


if __name__ == "__main__":
    sys.exit(main())
