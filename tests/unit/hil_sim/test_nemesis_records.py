"""What the nemesis asks of a running plant's journal, and what it does to keys and pipes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import pytest

from appliance.journal_store import JournalStore, RecordBatch, event_values
from hil_sim.nemesis import storms
from hil_sim.nemesis.records import GPU_TROUBLE, Records
from lines.journal_schema import BATCHES, PARTS
from lines.keys import load_public, make_client_key, make_plant_keys
from lines.record import PartRow
from lines.wire import WireError, parse_camera

ZERO = {int: 0, bool: False, str: "", float: 0.0}


def part(line: str, seq: int, received_ns: int, by: str, sent_ns: int) -> tuple[Any, ...]:
    hints = get_type_hints(PartRow)
    blank = {field.name: ZERO.get(hints[field.name]) for field in fields(PartRow)}
    told = {"line": line, "session": "s", "seq": seq, "received_at_ns": received_ns,
            "answered_by": by, "sent_at_ns": sent_ns}  # fmt: skip
    return PARTS.values({**blank, **told})


def batch(number: int, gpu: str, sent_ns: int, answered_ns: int, outcome: str) -> tuple[Any, ...]:
    return BATCHES.values(
        {"batch_id": number, "epoch": 1, "gpu": gpu, "model": "m", "size": 1, "worst_ns": 1,
         "queue_at_ns": 1, "dispatched_at_ns": 1, "sent_at_ns": sent_ns,
         "answered_at_ns": answered_ns, "outcome": outcome}
    )  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    plant: Any = SimpleNamespace(
        path=lambda text: tmp_path / text, paths=SimpleNamespace(journal=".")
    )
    store = JournalStore(tmp_path, {})
    rows = {
        "parts": [
            part("line01", 1, 100, "pool", 150),
            part("line01", 2, 200, "failsafe", 230),
            part("line01", 3, 210, "fallback", 260),
            part("line02", 1, 220, "pool", 250),
            part("line02", 2, 240, "pool", 0),
        ],
        "batches": [
            batch(1, "gpu0", 110, 140, "ok"),
            batch(2, "gpu0", 210, 0, "lost"),
            batch(-3, "gpu0", 220, 225, "golden: wrong"),
            batch(4, "gpu0", 230, 240, "ok"),
        ],
    }
    first = [event_values(50, "gpu.ready", "gpu0", ""), event_values(51, "gpu.ready", "gpu1", "")]
    store.write([RecordBatch(rows)], first, 1)
    store.begin_segment()  # what a disk's refusal does: later rows lie in another file
    later = [event_values(205, "gpu.lost", "gpu0", ""), event_values(300, "gpu.ready", "gpu0", "")]
    store.write([], [*later, event_values(320, "gpu.suspect", "gpu1", "")], 2)
    made = Records(plant)
    yield made
    made.close()
    store.close()


def test_events_are_found_in_every_file_and_only_after_the_instant(records: Records) -> None:
    assert records.event_at(GPU_TROUBLE, "gpu0", 100) == 205
    assert records.event_at(GPU_TROUBLE, "gpu0", 205) == 0
    assert records.event_at(GPU_TROUBLE, "", 206) == 320
    assert records.ready_gpus() == ["gpu0"], "gpu1's last word is a suspicion"


def test_an_answer_counts_from_the_instant_its_part_came(records: Records) -> None:
    assert records.line_answers("line01", 0) == 150
    assert records.line_answers("line01", 100) == 260, "a fail-safe is no answer"
    assert records.pool_answers(100) == 250
    assert records.pool_answers(220) == 0, "one that no actuator took is none either"
    assert records.lines_answered(100) == 2
    assert records.lines_answered(215) == 1


def test_a_gpu_is_back_with_an_answer_that_was_right_or_with_its_last_word(
    records: Records,
) -> None:
    assert records.last_event_at(("gpu.ready",), "gpu0", 0) == 300
    assert records.last_event_at(("gpu.ready",), "gpu0", 300) == 0
    assert records.gpu_answers("gpu0", 0) == 140
    assert records.gpu_answers("gpu0", 200) == 240
    assert records.gpu_answers("gpu1", 0) == 0


def test_a_key_is_replaced_and_put_back(tmp_path: Path) -> None:
    keys, secrets = tmp_path / "keys", tmp_path / "secrets"
    make_plant_keys(keys)
    make_client_key("cameras", "camera-line01", keys, secrets)
    plant: Any = SimpleNamespace(
        path=lambda text: tmp_path / text, paths=SimpleNamespace(keys="keys")
    )
    path = keys / "cameras" / "camera-line01.key"
    own = load_public(path)
    with storms.other_key(plant, "camera-line01"):
        assert load_public(path) != own
    assert load_public(path) == own
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_flood_reaches_the_standard_error_of_another_process() -> None:
    code = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as child:  # fmt: skip
        assert child.stdout is not None and child.stdin is not None and child.stderr is not None
        child.stdout.readline()
        os.set_blocking(child.stderr.fileno(), False)
        seen = b""

        def take(seconds: float) -> None:
            nonlocal seen
            seen += child.stderr.read() or b""  # type: ignore[union-attr]
            time.sleep(seconds)

        written = storms.flood(child.pid, 0.2, take)
        child.stdin.close()
    assert written > 100_000
    assert seen.startswith(b"Corrupt JPEG data")


def test_bad_frames_are_bad_in_every_way_and_name_no_part() -> None:
    chance = random.Random(3)
    reasons = set()
    for _ in range(300):
        frames = storms._garbage("line01", "camera-line01", chance)
        try:
            message = parse_camera([memoryview(frame) for frame in frames])
        except WireError as error:
            reasons.add(error.reason)
            continue
        assert not getattr(message, "part_id", ""), "a part would be owed a verdict"
    assert {"version", "header"} <= reasons
