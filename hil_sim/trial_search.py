"""The search for the largest load of one setting, and what is kept of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hil_sim.triton_model import Front

STEP, CLOSE = 1.05, 1.06
LOAD_MIN = 0.05


@dataclass(slots=True)
class Cell:
    """One setting on one number of GPUs."""

    plant: str
    step: str
    setting: str
    gpus: int
    front: Front
    load: float = 0.0
    """The largest that held; 0 where none did."""
    fails_at: float = 0.0
    modelled: float = 0.0
    modelled_central: float = 0.0
    parts: int = 0
    runs: int = 0
    missed_at_fail: int = 0
    late_ms_at_fail: float = 0.0
    """How long after its deadline the latest answer came, in real time."""
    mean_batch: float = 0.0
    busy: float = 0.0
    overhead: float = 0.0
    is_valid: bool = True


def climb(
    start: float, floor: float, ceiling: float, holds: Callable[[float], bool], cell: Cell
) -> None:
    """The largest load that holds, to 6 %: up from `start` by steps, or down by growing ones.

    No load at or below `floor` is tried: another setting has reached it already.
    """
    load = min(max(start, LOAD_MIN), ceiling)
    down = STEP * STEP
    while not holds(load):
        cell.fails_at = round(load, 3)
        load /= down
        down *= STEP
        if load <= max(floor, LOAD_MIN):
            return
    cell.load = round(load, 3)
    if not cell.fails_at:
        while (load := load * STEP) <= ceiling:
            if not holds(load):
                cell.fails_at = round(load, 3)
                return
            cell.load = round(load, 3)
    while cell.fails_at > cell.load * CLOSE:
        middle = math.sqrt(cell.load * cell.fails_at)
        if holds(middle):
            cell.load = round(middle, 3)
        else:
            cell.fails_at = round(middle, 3)
