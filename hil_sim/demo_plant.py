"""The demo's plant: a folder with plant file, keys and everything `takt run` needs."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lines.keys import make_client_key, make_plant_keys

PROJECT = Path(__file__).resolve().parent.parent
MODEL = "tile-defects"
VERDICTS_OFFSET = 100
ENDPOINTS_OFFSET = 200
SOCKET_PATH_MAX = 90
"""A unix socket's path may have 107 bytes; the longest name in `run/` takes the rest."""


class DemoError(Exception):
    """The demo cannot run as told; the text says what to change."""


@dataclass(frozen=True, slots=True)
class DemoPlant:
    """What the demo was asked for. rate: parts per second of each line."""

    lines: int
    rate: float
    base_port: int
    gpus: int
    deadline_ms: float
    batch_max: int
    emulate: Path | None
    realtime_priority: int = 0


def line_ids(lines: int) -> list[str]:
    """line01, line02, …"""
    return [f"line{number:02d}" for number in range(1, lines + 1)]


def plant_text(demo: DemoPlant, runtime: str) -> str:
    """The plant file."""
    endpoints = [
        f'"grpc://127.0.0.1:{demo.base_port + ENDPOINTS_OFFSET + gpu}"' for gpu in range(demo.gpus)
    ]
    emulate = f'emulate = "profiles/{demo.emulate.name}"\n' if demo.emulate else ""
    head = f"""\
# Made by takt demo. Another camera or actuator can join by docs/protocol.md alone.
[plant]
name = "demo"
gpus_lost_tolerated = {min(1, demo.gpus - 1)}

[pool]
endpoints = [{", ".join(endpoints)}]
embedded = true
{emulate}
[paths]
runtime = "{runtime}"

[host]
realtime_priority = {demo.realtime_priority}

[margins]                       # two shared cores: timers and transport were seen 20 ms late
timer_ms = 10
output_ms = 5
start_ms = 5
result_ms = 5

[fallback]
concurrent_max = 2

[[model]]
name = "{MODEL}"
pool = "models/{MODEL}.onnx"
fallback = "models/{MODEL}-int8.onnx"
profile = "profiles/{MODEL}.json"
batch_max = {demo.batch_max}
"""
    lines = [
        f"""
[[line]]
id = "{line_id}"
model = "{MODEL}"
camera = "camera-{line_id}"
frames = "tcp://127.0.0.1:{demo.base_port + number}"
verdicts = "tcp://127.0.0.1:{demo.base_port + VERDICTS_OFFSET + number}"
cycle_time_ms = {1000 / demo.rate:g}
deadline_ms = {demo.deadline_ms:g}
actuation_ms = 10
criticality = {number}
slo_p99_ms = {min(demo.deadline_ms, 130.0):g}
transport_min_ms = 0.5
transport_max_ms = 30
"""
        for number, line_id in enumerate(line_ids(demo.lines), start=1)
    ]
    return head + "".join(lines)


def make_demo_plant(folder: Path, demo: DemoPlant, short_folder: Path) -> Path:
    """Make the plant in an empty folder; returns its plant file.

    short_folder: where sockets go when `folder`'s path is too long for them. Raises DemoError.
    """
    models = PROJECT / "models"
    if not (models / f"{MODEL}.onnx").is_file():
        raise DemoError(f"{models}/{MODEL}.onnx is missing; the demo runs from a checkout")
    runtime = "run" if len(os.fsencode(folder / "run")) <= SOCKET_PATH_MAX else str(short_folder)
    for name in ("models", "profiles", "logs", "journal"):
        (folder / name).mkdir(parents=True)
    for name in (f"{MODEL}.onnx", f"{MODEL}-int8.onnx"):
        shutil.copy(models / name, folder / "models" / name)
    if demo.emulate is not None:
        shutil.copy(demo.emulate, folder / "profiles" / demo.emulate.name)
    (folder / runtime).mkdir(mode=0o700, exist_ok=True)
    keys, secrets = folder / "keys", folder / "secrets"
    make_plant_keys(keys)
    for line_id in line_ids(demo.lines):
        make_client_key("cameras", f"camera-{line_id}", keys, secrets)
        # An actuator's key is its line's name: the gate belongs to the line.
        make_client_key("actuators", line_id, keys, secrets)
    plant_file = folder / "plant.toml"
    plant_file.write_text(plant_text(demo, runtime))
    return plant_file
