"""Cameras, actuators and the examples of docs/ against a line made of two sockets."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from hil_sim.picture_pool import procedural
from lines import wire
from lines.keys import load_secret, make_client_key, make_plant_keys

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
PLANT = """
[plant]
name = "test"
[pool]
endpoints = ["grpc://127.0.0.1:8001"]
[[model]]
name = "m"
pool = "m.onnx"
fallback = "m8.onnx"
profile = "p.json"
[[line]]
id = "line01"
model = "m"
frames = "tcp://127.0.0.1:{frames}"
verdicts = "tcp://127.0.0.1:{verdicts}"
cycle_time_ms = 50
deadline_ms = 150
"""


class BareLine:
    """Both sockets of a line; answers by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("m.onnx", "m8.onnx", "p.json"):
            (folder / name).write_text("{}")
        make_plant_keys(folder / "keys")
        for role in ("cameras", "actuators"):
            make_client_key(role, "line01", folder / "keys", folder / "secrets")
        self.context = zmq.Context()
        self.frames, frames_port = self._router()
        self.verdicts, verdicts_port = self._router()
        self.endpoints = (f"tcp://127.0.0.1:{frames_port}", f"tcp://127.0.0.1:{verdicts_port}")
        text = PLANT.format(frames=frames_port, verdicts=verdicts_port)
        (folder / "plant.toml").write_text(text)
        self.headers: list[Any] = []

    def _router(self) -> tuple[zmq.Socket[bytes], int]:
        router = self.context.socket(zmq.ROUTER)
        router.linger = 0
        router.curve_server = True
        _, router.curve_secretkey = load_secret(self.folder / "keys" / "server.key_secret")
        return router, router.bind_to_random_port("tcp://127.0.0.1")

    def serve_camera(self, until_eos_s: float, credit: int, answer: bool = True) -> None:
        end = time.monotonic() + until_eos_s
        while time.monotonic() < end:
            if not self.frames.poll(50):
                continue
            who, *frames = self.frames.recv_multipart()
            message = wire.parse_camera(frames)
            self.headers.append(message)
            if isinstance(message, wire.Hello):
                self.frames.send_multipart([who, *wire.ready("line01", credit, 150.0)])
            elif isinstance(message, wire.Frame) and answer:
                self.frames.send_multipart([who, *wire.ack(message.session, message.seq)])
            elif isinstance(message, wire.Eos):
                return

    def of(self, kind: type) -> list[Any]:
        return [message for message in self.headers if isinstance(message, kind)]

    def log(self, name: str) -> list[dict[str, Any]]:
        text = (self.folder / "logs" / name).read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def line(tmp_path: Path) -> Iterator[BareLine]:
    bare = BareLine(tmp_path)
    yield bare
    bare.context.destroy(0)


def start(*arguments: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def camera(line: BareLine, *options: str) -> subprocess.Popen[str]:
    return start("-m", "hil_sim.cameras", "--plant", "plant.toml", *options, folder=line.folder)


def test_camera_keeps_its_schedule_and_logs_every_frame(line: BareLine) -> None:
    process = camera(line, "--rate", "20", "--seconds", "1")
    line.serve_camera(20, credit=8)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["sent"] == 20

    frames = line.of(wire.Frame)
    assert [frame.seq for frame in frames] == list(range(20))
    assert len({frame.part_id for frame in frames}) == 20
    assert len(line.of(wire.Eos)) == 1
    log = line.log("camera-line01.jsonl")
    sent = [entry for entry in log if entry["event"] == "frame"]
    assert {b["scheduled_at_ns"] - a["scheduled_at_ns"] for a, b in itertools.pairwise(sent)} == {
        50_000_000
    }
    assert {entry["truth"] for entry in sent} == {"free", "defect"}
    assert sum(entry["event"] == "ack" for entry in log) == 20


def test_without_credit_frames_are_dropped_and_seq_goes_on(line: BareLine) -> None:
    process = camera(line, "--rate", "20", "--seconds", "1")
    line.serve_camera(20, credit=3, answer=False)
    out, _ = process.communicate(timeout=10)
    assert [frame.seq for frame in line.of(wire.Frame)] == [0, 1, 2]
    assert line.of(wire.Heartbeat)[-1].seq == 19
    figures = json.loads(out)
    assert (figures["sent"], figures["dropped"]) == (3, 17)


def test_camera_ends_with_eos_on_sigterm(line: BareLine) -> None:
    process = camera(line, "--rate", "20", "--seconds", "60")
    line.serve_camera(4, credit=8)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert process.returncode == 0
    assert time.monotonic() - asked < 0.5
    line.serve_camera(1, credit=8)
    assert len(line.of(wire.Eos)) == 1


def verdict(seq: int, session: str = "s", resent: bool = False) -> list[bytes]:
    return wire.verdict(
        line="line01", part_id=f"p{seq}", seq=seq, session=session, verdict="PASS", reason="",
        action="pass", score=0.25, labels=[], answered_by="pool", model="m@0123456789ab",
        captured_ns=1, deadline_ns=2, sent_ns=1, margin_ns=1, simulated=False, resent=resent,
    )  # fmt: skip


def test_actuator_acknowledges_beats_and_acts_once(line: BareLine) -> None:
    process = start("-m", "hil_sim.actuators", "--plant", "plant.toml", folder=line.folder)
    acks, beats = [], []
    end = time.monotonic() + 10
    while time.monotonic() < end and len(beats) < 8:
        if not line.verdicts.poll(1000):
            continue
        who, *frames = line.verdicts.recv_multipart()
        message = wire.parse_actuator(frames)
        if isinstance(message, wire.ActuatorHello):
            line.verdicts.send_multipart([who, *wire.ready("line01")])
            line.verdicts.send_multipart([who, *wire.heartbeat(True)])
            for seq, resent in ((0, False), (1, False), (1, True)):
                line.verdicts.send_multipart([who, *verdict(seq, resent=resent)])
        elif isinstance(message, wire.Ack):
            acks.append(message.seq)
        elif isinstance(message, wire.ActuatorHeartbeat):
            beats.append(message.beat)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=5)
    assert acks == [0, 1, 1]
    assert all(a != b for a, b in itertools.pairwise(beats))
    log = line.log("actuator-line01.jsonl")
    seen = [(e["seq"], e["acted"]) for e in log if e["event"] == "verdict"]
    assert seen == [(0, True), (1, True), (1, False)]
    assert [e["event"] for e in log].count("beat_lost") == 1


def test_example_sender(line: BareLine) -> None:
    (line.folder / "one.jpg").write_bytes(next(procedural(1, 64, 64)).payload)
    example = str(ROOT / "docs" / "examples" / "send_picture.py")
    process = start(example, line.endpoints[0], "line01", "line01", "one.jpg", folder=line.folder)
    line.serve_camera(10, credit=1)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (0, "")
    assert [json.loads(text)["type"] for text in out.splitlines()] == ["ready", "ack"]


def test_example_receiver(line: BareLine) -> None:
    example = str(ROOT / "docs" / "examples" / "receive_verdicts.py")
    process = start(example, line.endpoints[1], "line01", "line01", folder=line.folder)
    acked = False
    end = time.monotonic() + 10
    while time.monotonic() < end and not acked:
        if not line.verdicts.poll(1000):
            continue
        who, *frames = line.verdicts.recv_multipart()
        message = wire.parse_actuator(frames)
        if isinstance(message, wire.ActuatorHello):
            line.verdicts.send_multipart([who, *verdict(7)])
        acked = isinstance(message, wire.Ack) and message.seq == 7
    assert acked
    assert process.stdout is not None
    assert process.stdout.readline() == "p7 PASS pass\n"
    process.terminate()
    process.communicate(timeout=5)


@pytest.mark.parametrize("name", ["send_picture.py", "receive_verdicts.py"])
def test_examples_stay_under_forty_lines(name: str) -> None:
    assert len((ROOT / "docs" / "examples" / name).read_text().splitlines()) < 40
