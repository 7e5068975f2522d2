"""The journal's file and the process's memory: what happens when the disk refuses."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from appliance.journal import HELD_BYTES_MAX, Journal
from appliance.journal_store import JournalStore, StoreError, parse_batch, segments

S = 1_000_000_000


def payload(at_ns: int, filler: str = "") -> bytes:
    row = {"at_ns": at_ns, "unit": "u", "kind": "k", "subject": "s", "detail": filler}
    return json.dumps({"unit": "u", "events": [row]}).encode()


def stored(path: Path, kind: str = "k") -> list[int]:
    with closing(sqlite3.connect(path)) as file:
        return [at for (at,) in file.execute("SELECT at_ns FROM events WHERE kind = ?", (kind,))]


class RefusingStore(JournalStore):
    """Raises what it is told to, as often as it is told to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        self.refusals: list[sqlite3.OperationalError] = []

    def refuse(self, name: str, code: int) -> None:
        error = sqlite3.OperationalError(name)
        error.sqlite_errorcode, error.sqlite_errorname = code, name
        self.refusals.append(error)

    def write(self, batches: Iterable[Any], events: Iterable[Any], now_ns: int) -> list[str]:
        if self.refusals:
            raise self.refusals.pop(0)
        return super().write(batches, events, now_ns)


def test_a_failed_fsync_leaves_the_file_and_goes_on_in_a_new_one(tmp_path: Path) -> None:
    store = RefusingStore(tmp_path)
    journal = Journal(store, 60 * S)
    journal.take(b"c", b"1", payload(1), 1 * S)
    assert journal.write(1 * S) == [(b"c", b"1")]
    journal.take(b"c", b"2", payload(2), 2 * S)
    store.refuse("SQLITE_IOERR_FSYNC", sqlite3.SQLITE_IOERR_FSYNC)
    assert journal.write(2 * S) == []
    assert journal.write_due_at_ns == 3 * S
    assert journal.write(3 * S) == [(b"c", b"2")]
    store.close()
    first, second = segments(tmp_path)
    assert (stored(first), stored(second)) == ([1], [2])
    assert stored(second, "journal.disk") == stored(second, "journal.segment") == [2 * S]


def test_a_full_disk_is_tried_again_on_the_same_file(tmp_path: Path) -> None:
    store = RefusingStore(tmp_path)
    journal = Journal(store, 60 * S)
    journal.take(b"c", b"1", payload(1), 1 * S)
    for _ in range(2):
        store.refuse("SQLITE_FULL", sqlite3.SQLITE_FULL)
    assert (journal.write(1 * S), journal.write(2 * S)) == ([], [])
    journal.take(b"d", b"1", payload(1), 2 * S)
    assert journal.write(3 * S) == [(b"d", b"1")]
    assert journal.write(4 * S) == []
    store.close()
    (path,) = segments(tmp_path)
    assert stored(path) == [1]
    assert stored(path, "journal.disk") == [1 * S]
    assert len(stored(path, "journal.disk_back")) == 1


def test_memory_is_limited_by_age_and_by_bytes(tmp_path: Path) -> None:
    store = RefusingStore(tmp_path)
    journal = Journal(store, 2 * S)
    for second in (1, 2, 3, 4):
        journal.take(b"c", b"%d" % second, payload(second), second * S)
    big = payload(9, "x" * (HELD_BYTES_MAX // 2))
    journal.take(b"c", b"5", big, 4 * S)
    journal.take(b"c", b"6", big, 4 * S)
    assert [batch_id for _, batch_id in journal.write(4 * S)] == [b"6"]
    store.close()
    assert len(stored(tmp_path / "journal.sqlite", "journal.memory_full")) == 2


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    JournalStore(tmp_path, {}).close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as file:
        file.execute("UPDATE meta SET value = '99' WHERE key = 'schema_version'")
        file.commit()
    with pytest.raises(StoreError, match="schema version 99"):
        JournalStore(tmp_path, {})


def test_models_of_earlier_starts_stay_known(tmp_path: Path) -> None:
    for name in ("m@1", "m@2"):
        meta = {"models": json.dumps({name: {}}), "started_wall": name}
        JournalStore(tmp_path, meta).close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as file:
        kept = dict(file.execute("SELECT key, value FROM meta"))
    assert set(json.loads(kept["models"])) == {"m@1", "m@2"}
    assert kept["started_wall"] == "m@1"


@pytest.mark.parametrize(
    "garbage",
    [b"", b"\xff", b"[]", b"null", b"[" * 100_000, b'{"parts": {}}', b'{"events": [null]}',
     b'{"events": [{"at_ns": 99999999999999999999}]}', b'{"events": [{"at_ns": 1.5}]}'],
)  # fmt: skip
def test_garbage_is_told_and_never_raised(garbage: bytes) -> None:
    batch = parse_batch(garbage)
    assert len(batch.malformed) == 1
    assert not any(batch.rows.values())
