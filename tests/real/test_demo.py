"""`takt demo` as a person runs it: a whole small plant, a kill, its figures, and its end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.auth
from plant_rig import free_base_port
from plant_wire import Actuator, Camera, Client, encoded, picture, until

from appliance.plant import Plant
from appliance.plant_errors import load_plant
from appliance.processes import naming

pytestmark = pytest.mark.real

LINES, GPUS, SECONDS, RATE = 3, 2, 6, 8
STAGES = ("transport", "decode", "queue", "window", "gather", "model", "post", "output")
TAKT = [sys.executable, "-m", "appliance.cli"]


@dataclass
class Run:
    """What one demo left and said."""

    folder: Path
    code: int
    out: str
    figures: dict[str, Any]


def started(temporary: Path, *words: str) -> subprocess.Popen[str]:
    """A `takt` command whose temporary files lie in a folder of their own."""
    return subprocess.Popen(
        [*TAKT, *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"},
    )


def demo_words(seconds: int) -> list[str]:
    numbers = ("--lines", LINES, "--gpus", GPUS, "--seconds", seconds, "--rate", RATE)
    more = ("--deadline-ms", 400, "--base-port", free_base_port(LINES, GPUS), "--no-ui")
    return [str(word) for word in ("demo", *numbers, *more)]


def traces(folder: Path, plant: Plant) -> list[str]:
    """Processes, shared memory and sockets that a plant has left."""
    left = [f"process {pid}" for pid in naming(str(folder))]
    left += [f"process {pid}" for pid in naming(f"takt-{plant.tag}-")]
    left += [str(path) for path in Path("/dev/shm").glob(f"takt-{plant.tag}-*")]
    return left + [str(path) for path in folder.rglob("*") if path.is_socket()]


def parts_in(journal: Path) -> int:
    """How many parts a journal has, from none on."""
    with contextlib.suppress(sqlite3.Error):
        where = f"file:{journal / 'journal.sqlite'}?mode=ro"
        with contextlib.closing(sqlite3.connect(where, uri=True)) as base:
            return int(base.execute("select count(*) from parts").fetchone()[0])
    return 0


def visible(folder: Path) -> list[str]:
    """What lies in a folder, but for `.ses`, which ONNX Runtime leaves where it runs."""
    return [path.name for path in folder.iterdir() if path.name != ".ses"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The first run on a machine measures profiles and keeps them in the user's cache."""
    folder = tmp_path_factory.mktemp("demo")
    told, kept, temporary = folder / "told.json", folder / "kept", folder / "tmp"
    temporary.mkdir()
    words = ["--kill-triton", "1", "--at", "3", "--json", str(told), "--keep", str(kept)]
    process = started(temporary, *demo_words(SECONDS), *words)
    try:
        out, _ = process.communicate(timeout=180)
    finally:
        process.kill()
    assert visible(temporary) == []
    assert told.exists(), out
    return Run(kept, process.returncode, out, json.loads(told.read_text()))


def test_a_triton_is_killed_and_the_promise_holds(run: Run) -> None:
    figures = run.figures
    assert run.code == 0, run.out
    assert "triton-1 killed (SIGKILL" in run.out
    assert (figures["missed"], figures["lost"], figures["duplicate"]) == (0, 0, 0)
    sent = LINES * SECONDS * RATE
    assert 0.9 * sent <= figures["parts"]["accepted"] <= figures["parts"]["owed"] <= sent
    assert figures["answered_by"]["pool"] > 0.5 * sent


def test_the_json_has_every_figure_that_was_asked_for(run: Run) -> None:
    figures = run.figures
    assert set(figures["parts"]) == {
        "accepted", "owed", "verdicts", "pass", "fail", "uninspected",
    }  # fmt: skip
    assert set(figures["answered_by"]) == {"pool", "fallback", "failsafe"}
    assert sum(figures["answered_by"].values()) == figures["parts"]["owed"]
    batches = figures["batches"]
    assert batches["count"] == sum(batches["by_size"].values()) > 0
    for name, extreme in (("latency_ms", "max"), ("margin_ms", "min")):
        assert set(figures[name]) == {"p50", "p95", "p99", extreme, "n"}
        assert figures[name]["n"] > 0
    assert figures["margin_ms"]["min"] >= 0
    assert tuple(figures["stages_ms"]) == STAGES
    for stage in STAGES:
        assert {"p50", "p95", "p99", "max"} <= set(figures["stages_ms"][stage])
    assert figures["labelled"]["n"] > 0
    assert 0.5 < figures["labelled"]["accuracy"] <= 1


def test_the_tritons_were_real(run: Run) -> None:
    tritons = run.figures["triton"]
    plant = load_plant(run.folder / "plant.toml")
    assert [one["url"] for one in tritons] == plant.pool.endpoints
    assert {one["version"] for one in tritons} == {"2.51.0"}
    assert sum(one["inference_count"] for one in tritons) >= run.figures["answered_by"]["pool"] / 2


def test_the_kept_folder_is_what_the_design_says_and_nothing_runs(run: Run) -> None:
    names = {path.name for path in run.folder.iterdir()}
    assert {"plant.toml", "keys", "secrets", "run", "journal", "logs", "triton"} <= names
    logs = {path.name for path in (run.folder / "logs").iterdir()}
    for number in range(1, LINES + 1):
        assert {f"camera-line{number:02}.jsonl", f"actuator-line{number:02}.jsonl"} <= logs
        assert f"line-line{number:02}.log" in logs
    secrets = list(run.folder.rglob("*.key_secret"))
    assert len(secrets) == 1 + 2 * LINES
    assert {oct(path.stat().st_mode & 0o777) for path in secrets} == {"0o600"}
    assert traces(run.folder, load_plant(run.folder / "plant.toml")) == []


def test_the_kept_journal_is_judged_alike_again(run: Run) -> None:
    checked = subprocess.run(
        [*TAKT, "check-journal", "--plant", str(run.folder), "--json", "-"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr
    events = run.folder / "journal" / "batcher-events.jsonl"
    replayed = subprocess.run(
        [*TAKT, "replay", str(events)], capture_output=True, text=True, timeout=60, check=False
    )
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@contextlib.contextmanager
def outsiders(folder: Path, plant: Plant, line: str) -> Iterator[tuple[Camera, Actuator]]:
    """A camera and an actuator that know the protocol, the endpoints and their own keys."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    server, _ = zmq.auth.load_certificate(folder / "keys" / "server.key")

    def client(endpoint: str, role: str, name: str) -> Client:
        path = folder / "secrets" / role / f"{name}.key_secret"
        public, secret = zmq.auth.load_certificate(path)
        assert secret is not None
        return Client(context, endpoint, server, (public, secret))

    found = plant.line_named(line)
    gate = Actuator(client(found.verdicts, "actuators", line), line, line)
    try:
        name = f"camera-{line}"
        yield Camera(client(found.frames, "cameras", name), line, name), gate
    finally:
        gate.close()
        context.destroy(0)


def test_others_join_the_kept_plant_by_the_protocol_alone(run: Run, tmp_path: Path) -> None:
    plant = load_plant(run.folder / "plant.toml")
    log = tmp_path / "run.log"
    with log.open("w") as told:
        process = subprocess.Popen(
            [*TAKT, "run", "--plant", str(run.folder / "plant.toml")], stdout=told, stderr=told
        )
    try:
        jpeg = encoded("jpeg", picture(2))
        with outsiders(run.folder, plant, "line02") as (camera, gate):
            assert gate.answers[0]["type"] == "ready"
            assert camera.hello()["type"] == "ready"

            def is_by_pool() -> bool:
                header = camera.header(jpeg)
                camera.send(header, jpeg)
                assert camera.answer()["type"] == "ack"
                verdict = gate.one(header["part_id"])
                assert verdict["verdict"] in ("PASS", "FAIL")
                assert verdict["margin_ns"] >= 0
                assert verdict["received_at_ns"] <= verdict["deadline_ns"]
                return bool(verdict["answered_by"] == "pool")

            until(is_by_pool, 30, "an answer by the pool")
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0, log.read_text()
    finally:
        process.kill()
    ledgers = [name for name in traces(run.folder, plant) if "-ledger-" in name]
    assert traces(run.folder, plant) == ledgers, "ledgers stay until somebody purges the plant"
    for ledger in ledgers:
        Path(ledger).unlink()


def test_ctrl_c_in_the_middle_ends_everything_within_two_seconds(tmp_path: Path) -> None:
    process = started(tmp_path, *demo_words(60))
    assert process.stdout is not None
    try:
        (plant_file,) = until(lambda: [*tmp_path.glob("takt-demo-*/plant/plant.toml")], 20)
        until(lambda: parts_in(plant_file.parent / "journal") > 20, 60, "parts are journalled")
        plant = load_plant(plant_file)
        assert len(naming(str(plant_file.parent))) >= LINES + GPUS + 2
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        code = process.wait(20)
        took_s = time.monotonic() - began
        assert traces(tmp_path, plant) == []
        assert visible(tmp_path) == []
        assert code == 130
        assert took_s < 2.0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
