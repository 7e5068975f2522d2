"""The units of a plant: the processes `takt run` starts, and the ports they listen on."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from appliance.plant import Plant
from appliance.processes import Port

VERDICT_PATH_BACKOFF_S = 0.2
LINE_NICE = -5
TRITON_NICE = 5
RESCORE_NICE = 19


@dataclass(frozen=True, slots=True)
class Unit:
    """One child process: how it is started, how soon again, and when in a stop it is ended.

    nice: what owes a verdict goes before what computes one, and that before what writes it down.
    """

    name: str
    command: list[str]
    backoff_min_s: float = VERDICT_PATH_BACKOFF_S
    backoff_max_s: float = VERDICT_PATH_BACKOFF_S
    stage: int = 0
    nice: int = 0


def plant_units(plant: Plant, plant_file: Path) -> list[Unit]:
    """The units of a plant, in the order they are started."""

    def command(*words: str) -> list[str]:
        told = ["--plant", str(plant_file.absolute())]
        return [sys.executable, "-m", "appliance.cli", *words, *told]

    units = []
    if plant.pool.embedded:
        units = [
            Unit(
                f"triton-{slot}",
                command("triton", str(slot)),
                plant.pool.restart_backoff_min_ms / 1e3,
                plant.pool.restart_backoff_max_ms / 1e3,
                stage=1,
                nice=TRITON_NICE,
            )
            for slot in range(len(plant.pool.endpoints))
        ]
    units.append(Unit("journal", command("journal"), stage=2, nice=TRITON_NICE))
    units.append(Unit("monitor", command("monitor"), 1.0, 10.0, stage=0, nice=TRITON_NICE))
    if plant.pool.rescore_permille:
        units.append(Unit("rescore", command("rescore"), 1.0, 30.0, nice=RESCORE_NICE))
    units.append(Unit("batcher", command("batcher"), stage=1, nice=LINE_NICE))
    units += [
        Unit(f"line-{line.id}", command("line", line.id), nice=LINE_NICE) for line in plant.line
    ]
    return units


def plant_ports(plant: Plant) -> list[Port]:
    """Every port this host's units listen on."""
    wanted = [
        (f"line {line.id} {end}", url)
        for line in plant.line
        for end, url in (("frames", line.frames), ("verdicts", line.verdicts))
    ]
    if plant.pool.embedded:
        wanted += [(f"triton-{slot}", url) for slot, url in enumerate(plant.pool.endpoints)]
    split = [(what, urlsplit(url)) for what, url in wanted]
    return [Port(what, parts.hostname or "", parts.port or 0) for what, parts in split]
