"""The journal as a process: kill −9 under load, a disk that refuses, garbage, a clean stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import zmq

from hil_sim.evidence import Evidence, EvidenceError, read_evidence
from lines.journal_link import BATCH_ID, JournalSender
from lines.record import PartRow

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
frames = "tcp://127.0.0.1:5601"
verdicts = "tcp://127.0.0.1:5701"
cycle_time_ms = 50
deadline_ms = 150
"""
ZERO = {int: 0, bool: False, str: "", float: 0.0}


def part_row(seq: int, **changes: Any) -> dict[str, Any]:
    """A row of the right types."""
    hints = get_type_hints(PartRow)
    blank = {field.name: ZERO.get(hints[field.name]) for field in fields(PartRow)}
    return {**blank, "line": "line01", "session": "s", "seq": seq, "part_id": f"p{seq}", **changes}


class Plant:
    """A plant folder with its journal process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("m.onnx", "m8.onnx"):
            (folder / name).write_text(name)
        (folder / "plant.toml").write_text(PLANT)
        self.told = folder / "stderr"
        self.endpoint = f"ipc://{folder}/run/journal.sock"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def start(self, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        with self.told.open("a") as told:
            process = subprocess.Popen(
                [sys.executable, "-m", "appliance.journal", "--plant", "plant.toml"],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stderr=told,
                preexec_fn=before,  # noqa: PLW1509 (no other Python thread here)
            )
        self.processes.append(process)
        return process

    def sender(self, unit: str = "line-line01", rows_max: int = 100_000) -> JournalSender:
        return JournalSender(self.context, self.endpoint, unit, 60, rows_max)

    def evidence(self) -> Evidence:
        return read_evidence(self.folder / "journal", None)

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.evidence().events if event["kind"] == kind]


@pytest.fixture
def plant(tmp_path: Path) -> Iterator[Plant]:
    made = Plant(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait(5)
    made.context.destroy(0)


def pump(sender: JournalSender, until: Callable[[], bool], seconds: float = 10) -> bool:
    """Run the sender's loop until the condition holds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        due = sender.flush_due_at_ns()
        if due is not None and due <= time.monotonic_ns():
            sender.flush(time.monotonic_ns())
        if sender.socket.poll(5):
            sender.on_readable()
        if until():
            return True
    return False


def test_kill_9_under_load_loses_nothing(plant: Plant) -> None:
    process = plant.start()
    sender = plant.sender()
    seq = 0
    for round_ in range(4):
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            sender.add("parts", part_row(seq))
            seq += 1
            pump(sender, lambda: True)
        if round_ < 3:
            process.kill()
            process.wait(5)
            process = plant.start()
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.close()
    assert sorted(row.seq for row in plant.evidence().parts) == list(range(seq))
    assert plant.events("journal.conflict") == []
    assert sender.dropped_rows == 0


def test_sigterm_commits_what_has_come_and_ends_quickly(plant: Plant) -> None:
    process = plant.start()
    sender = plant.sender()
    sender.add("parts", part_row(0))
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.add("parts", part_row(1))
    sender.flush(time.monotonic_ns())
    time.sleep(0.005)
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(5) == 0
    assert time.monotonic() - asked < 0.5
    assert len(plant.evidence().parts) == 2
    assert not (plant.folder / "run" / "journal.sock").exists()
    sender.close(0)


def test_the_same_row_again_is_harmless_and_another_is_a_conflict(plant: Plant) -> None:
    plant.start()
    sender = plant.sender()
    for verdict in ("PASS", "PASS", "FAIL"):
        sender.add("parts", part_row(0, verdict=verdict))
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.close()
    assert [row.verdict for row in plant.evidence().parts] == ["PASS"]
    (conflict,) = plant.events("journal.conflict")
    assert conflict["subject"] == "line01/s/0"
    assert "'PASS' → 'FAIL'" in conflict["detail"]


def test_garbage_is_an_event_and_costs_no_other_row(plant: Plant) -> None:
    plant.start()
    sender = plant.sender()
    for payload in (
        b"",
        b"{",
        b"[" * 100_000,
        b"5",
        b'{"parts": 5}',
        b'{"unit": 1, "events": [1]}',
    ):
        frames = [b"R", BATCH_ID.pack(hash(payload) & 2**63 - 1), payload]
        sender.socket.send_multipart(frames)
    sender.socket.send_multipart([b"X"])
    sender.add("parts", part_row(0))
    sender.add("parts", {**part_row(1), "seq": "one"})
    sender.add("parts", {"line": "line01"})
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.close()
    assert [row.seq for row in plant.evidence().parts] == [0]
    assert len(plant.events("journal.malformed")) >= 8


def test_a_full_disk_delays_the_rows_and_stops_nobody(plant: Plant) -> None:
    plant.start()
    sender = plant.sender()
    sender.add("parts", part_row(0))
    assert pump(sender, lambda: sender.rows_held == 0)
    plant.processes[0].terminate()
    assert plant.processes[0].wait(5) == 0

    def small_files() -> None:
        # A file size limit is a disk that fills up: the write fails, the process goes on.
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))

    process = plant.start(small_files)
    for seq in range(1, 2000):
        sender.add("parts", part_row(seq, part_id="x" * 64))
    assert not pump(sender, lambda: sender.rows_held == 0, 2.5)
    assert process.poll() is None
    asked = time.monotonic()
    process.send_signal(signal.SIGTERM)
    process.wait(5)
    assert time.monotonic() - asked < 0.5
    assert "journal.disk" in plant.told.read_text()

    plant.start()
    assert pump(sender, lambda: sender.rows_held == 0, 20)
    sender.close()
    assert len(plant.evidence().parts) == 2000


def test_a_second_journal_of_the_plant_is_refused(plant: Plant) -> None:
    plant.start()
    sender = plant.sender()
    sender.add("parts", part_row(0))
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.close()
    second = plant.start()
    assert second.wait(10) == 1
    assert "another journal of this plant is running" in plant.told.read_text()


def test_a_sender_without_a_journal_keeps_its_limit_and_says_what_it_dropped(plant: Plant) -> None:
    sender = plant.sender(rows_max=100)
    for seq in range(250):
        sender.add("parts", part_row(seq))
        if seq % 10 == 9:
            sender.flush(time.monotonic_ns())
    assert sender.rows_held <= 100
    assert sender.dropped_rows >= 150
    plant.start()
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.close()
    (event,) = plant.events("journal.dropped")
    assert event["detail"].startswith(f"{sender.dropped_rows} rows")
    stored = sorted(row.seq for row in plant.evidence().parts)
    assert stored == list(range(250 - len(stored), 250))


def test_meta_names_plant_and_models(plant: Plant) -> None:
    plant.start()
    sender = plant.sender()
    sender.add("parts", part_row(0))
    assert pump(sender, lambda: sender.rows_held == 0)
    sender.close()
    evidence = plant.evidence()
    assert evidence.meta["plant"] == "test"
    assert {name.split("@")[0] for name in evidence.models or ()} == {"m"}
    assert len(evidence.models or ()) == 2
    assert asdict(evidence.parts[0]) == part_row(0)


def test_no_journal_is_said(tmp_path: Path) -> None:
    with pytest.raises(EvidenceError, match="no journal there"):
        read_evidence(tmp_path, None)
