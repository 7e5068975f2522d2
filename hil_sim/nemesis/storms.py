"""Neighbours, strangers and floods: what the host and its network do to a plant."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import zmq

from appliance.plant import Plant
from hil_sim.plant_client import Link
from lines.keys import load_public
from lines.wire import VERSION

TRAINING: Final = """
import os, threading
import numpy as np
def train():
    rng = np.random.default_rng(0)
    weights, pictures = rng.random((1024, 1024)), rng.random((1024, 1024))
    while True:
        weights -= 1e-9 * (weights @ pictures)
for _ in range(2 * (os.cpu_count() or 1)):
    threading.Thread(target=train).start()
"""
"""Matrix products on twice as many threads as there are cores, each of them with BLAS's own."""

LOADER: Final = """
import os, sys
path = os.path.join(sys.argv[1], f"nemesis-load-{os.getpid()}")
handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
os.unlink(path)
block = os.urandom(1 << 20)
while True:
    for place in range(16):
        os.pwrite(handle, block, place << 20)
    os.fsync(handle)
"""
"""16 MiB written and synced again and again on the journal's disk; the file has no name."""

FLOOD_LINE: Final = b"Corrupt JPEG data: premature end of data segment\n" * 1000
TRIES: Final = 5
PER_TICK: Final = 10
TICK_S: Final = 0.02


def wrong_keys(plant: Plant, line_id: str, lasts_s: float, pause: Callable[[float], None]) -> int:
    """Connect with fresh keys that nobody allowed, and say hello; how many tried."""
    line = plant.line_named(line_id)
    server = load_public(plant.path(plant.paths.keys) / "server.key")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        for endpoint in (line.frames, line.verdicts):
            for _ in range(TRIES):
                socket = context.socket(zmq.DEALER)
                socket.set(zmq.LINGER, 0)
                socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
                socket.curve_serverkey = server
                socket.connect(endpoint)
                hello = {"type": "hello", "line": line_id, "session": str(uuid.uuid4())}
                with contextlib.suppress(zmq.Again):
                    socket.send_multipart([VERSION, json.dumps(hello).encode()], zmq.NOBLOCK)
        pause(lasts_s)
    finally:
        context.destroy(0)
    return 2 * TRIES


@contextlib.contextmanager
def other_key(plant: Plant, camera: str) -> Iterator[None]:
    """Another public key under the camera's name, as a rotation that nobody told the camera of."""
    path = plant.path(plant.paths.keys) / "cameras" / f"{camera}.key"
    former = path.read_text()
    old = load_public(path).decode()
    fresh = zmq.curve_keypair()[0].decode()
    _replace(path, former.replace(old, fresh))
    try:
        yield
    finally:
        _replace(path, former)


def _replace(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)


def flood(pid: int, lasts_s: float, pause: Callable[[float], None]) -> int:
    """Write to a process's standard error from outside, as fast as it is taken; the bytes."""
    handle = os.open(f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    written, end_s = 0, time.monotonic() + lasts_s
    try:
        while time.monotonic() < end_s:
            try:
                written += os.write(handle, FLOOD_LINE)
            except BlockingIOError:
                pause(0.002)
    finally:
        os.close(handle)
    return written


def bad_frames(
    plant: Plant,
    line_id: str,
    chance: random.Random,
    lasts_s: float,
    pause: Callable[[float], None],
) -> int:
    """Messages that are no messages, from the camera's own key, 500 a second; how many left."""
    line = plant.line_named(line_id)
    camera = line.camera or line.id
    server = plant.path(plant.paths.keys) / "server.key"
    secret = plant.path("secrets") / "cameras" / f"{camera}.key_secret"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    sent, end_s = 0, time.monotonic() + lasts_s
    link = Link(context, line.frames, server, secret)
    try:
        while time.monotonic() < end_s:
            for _ in range(PER_TICK):
                sent += link.send(_garbage(line_id, camera, chance))
            while link.receive() is not None:
                pass
            pause(TICK_S)
    finally:
        link.close()
        context.destroy(0)
    return sent


def _garbage(line_id: str, camera: str, chance: random.Random) -> list[bytes]:
    frame = {
        "type": "frame", "line": line_id, "camera": camera, "session": str(uuid.uuid4()),
        "seq": chance.randrange(1 << 31), "part_id": "", "captured_ns": 0, "clock": "utc",
        "encoding": "jpeg", "pixel_format": "Mono8", "width": 640, "height": 480, "crc32c": 0,
    }  # fmt: skip
    header = json.dumps(frame).encode()
    noise = chance.randbytes(chance.randrange(1, 4096))
    return chance.choice(
        [
            [noise],
            [VERSION, noise],
            [VERSION, header[: chance.randrange(len(header))], noise],
            [VERSION, header, noise],
            [b"T9", header, noise],
            [VERSION, header.replace(b'"seq"', b'"Seq"'), noise],
            [VERSION, header, noise, noise, noise],
        ]
    )
