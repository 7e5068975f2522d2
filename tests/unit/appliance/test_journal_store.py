"""The journal's file and the process's memory: what happens when the disk refuses."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from appliance.journal import HELD_BYTES_MAX, Journal, plant_meta
from appliance.journal_store import JournalStore, StoreError, parse_batch, segments
from appliance.plant_errors import load_plant

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


@pytest.mark.parametrize("how", ["folder", "file", "replaced"])
def test_a_journal_deleted_while_open_is_noticed_and_goes_on(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    store = JournalStore(folder, {"lines": '["line01"]'})
    journal = Journal(store, 60 * S)
    journal.take(b"c", b"1", payload(1), 1 * S)
    journal.write(1 * S)
    journal.look(1 * S)
    assert len(segments(folder)) == 1
    if how == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "journal.sqlite").unlink()
        if how == "replaced":
            shutil.copy(__file__, folder / "journal.sqlite")
    journal.look(1 * S + 1)  # not more often than once a second
    assert not (folder / "journal-0001.sqlite").exists()
    journal.look(2 * S)
    journal.take(b"c", b"2", payload(2), 2 * S)
    assert journal.write(2 * S) == [(b"c", b"2")]
    journal.look(3 * S)
    store.close()
    path = segments(folder)[-1]
    assert path.name == "journal-0001.sqlite"
    assert stored(path) == [2]
    assert stored(path, "journal.gone") == stored(path, "journal.segment") == [2 * S]


def test_a_journal_whose_folder_cannot_be_made_again_is_tried_again(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    journal = Journal(store := JournalStore(folder, {}), 60 * S)
    shutil.rmtree(folder)
    folder.write_text("a file in its place")
    for second in (1, 2, 3):
        journal.look(second * S)
        journal.take(b"c", b"%d" % second, payload(second), second * S)
        assert journal.write(second * S) == []
    folder.unlink()
    journal.look(4 * S)
    assert len(journal.write(4 * S)) == 3
    store.close()
    (path,) = segments(folder)
    assert stored(path) == [1, 2, 3]
    assert len(stored(path, "journal.gone")) == 1


def test_a_new_segment_never_continues_an_old_one(tmp_path: Path) -> None:
    store = JournalStore(tmp_path, {})
    store.begin_segment()
    store.begin_segment()
    (tmp_path / "journal-0001.sqlite").unlink()
    assert store.begin_segment().name == "journal-0003.sqlite"
    store.close()


def test_meta_names_the_lines_of_every_start(tmp_path: Path) -> None:
    for name in ("m.onnx", "m8.onnx"):
        (tmp_path / name).write_text("")
    plant_file = tmp_path / "plant.toml"
    for lines in (["b", "a"], ["a", "c"]):
        tables = [
            f'[[line]]\nid = "{line}"\nmodel = "m"\nframes = "tcp://127.0.0.1:56{n}1"\n'
            f'verdicts = "tcp://127.0.0.1:56{n}2"\ncycle_time_ms = 50\ndeadline_ms = 150\n'
            for n, line in enumerate(lines)
        ]
        plant_file.write_text(
            '[plant]\nname = "p"\n[pool]\nendpoints = ["grpc://127.0.0.1:8001"]\n[[model]]\n'
            'name = "m"\npool = "m.onnx"\nfallback = "m8.onnx"\nprofile = "p.json"\n'
            + "".join(tables)
        )
        JournalStore(tmp_path, plant_meta(load_plant(plant_file), plant_file)).close()
    with closing(sqlite3.connect(tmp_path / "journal.sqlite")) as file:
        kept = dict(file.execute("SELECT key, value FROM meta"))
    assert json.loads(kept["lines"]) == ["b", "a", "c"]
