"""The journal's file: SQLite, WAL, every transaction on the disk before it returns."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lines.journal_schema import (
    ALL_TABLES,
    EVENTS,
    JOURNAL_FILE,
    META,
    PARTS,
    ROW_TABLES,
    SCHEMA_VERSION,
    SEGMENT_FILES,
    RowError,
    Table,
    Value,
)

UNIT: Final = "journal"
BUSY_MS: Final = 200
"""How long a transaction waits for a reader that holds the file."""

MERGED_META: Final = ("models", "lines")
"""Keys of `meta` that keep what earlier starts said: their verdicts are in the file too."""


class StoreError(Exception):
    """The file cannot be used as a journal; the text says why."""


@dataclass(frozen=True)
class RecordBatch:
    """One parsed record batch: per table, the rows in column order; and what was wrong with it."""

    rows: dict[str, list[tuple[Value, ...]]]
    malformed: tuple[str, ...] = ()


def parse_batch(payload: bytes) -> RecordBatch:
    """The rows of a batch that the tables can take. Never raises: the rest goes to `malformed`."""
    try:
        batch = json.loads(payload)
    except (ValueError, RecursionError) as error:
        return RecordBatch({}, (f"no JSON: {error}"[:200],))
    if not isinstance(batch, dict):
        return RecordBatch({}, ("no JSON object",))
    unit = str(batch.get("unit", ""))[:64]
    rows: dict[str, list[tuple[Value, ...]]] = {}
    malformed = []
    for name, table in ROW_TABLES.items():
        listed = batch.get(name, [])
        if not isinstance(listed, list):
            malformed.append(f"{unit}: {name} is no list")
            continue
        for row in listed:
            try:
                rows.setdefault(name, []).append(table.values(row))
            except RowError as error:
                malformed.append(f"{unit}: {name}: {error}"[:200])
    return RecordBatch(rows, tuple(malformed))


def event_values(at_ns: int, kind: str, subject: str, detail: str) -> tuple[Value, ...]:
    """A row of `events` by the journal itself."""
    return (at_ns, UNIT, kind, subject, detail)


def segments(folder: Path) -> list[Path]:
    """The journal's files in the order they were begun; empty where there is none."""
    first = folder / JOURNAL_FILE
    return ([first] if first.exists() else []) + sorted(folder.glob(SEGMENT_FILES))


def merged_meta(key: str, before: str, now: str) -> str:
    """Both values of one of MERGED_META in one."""
    earlier, later = json.loads(before), json.loads(now)
    if key == "models":
        return json.dumps({**earlier, **later}, sort_keys=True)
    return json.dumps(list(dict.fromkeys([*earlier, *later])))


class JournalStore:
    """Writes record batches into the newest file of a journal folder."""

    def __init__(self, folder: Path, meta: Mapping[str, str]) -> None:
        """Open or make the journal. Raises StoreError, and sqlite3.Error where the disk refuses."""
        self._folder = folder
        self._meta = dict(meta)
        self._identity: tuple[int, int] | None = None
        found = segments(folder)
        self.path = found[-1] if found else folder / JOURNAL_FILE
        self._file = self._open()

    def _open(self) -> sqlite3.Connection:
        file = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_MS / 1000)
        try:
            file.execute("PRAGMA journal_mode = WAL")
            # FULL: an acknowledged batch survives a power cut, where NORMAL survives only a crash.
            file.execute("PRAGMA synchronous = FULL")
            file.execute("BEGIN IMMEDIATE")
            for table in ALL_TABLES:
                for statement in table.create_sql:
                    file.execute(statement)
            self._write_meta(file)
            file.execute("COMMIT")
            self._identity = _identity(self.path)
        except BaseException:
            file.close()
            raise
        return file

    @property
    def is_gone(self) -> bool:
        """Whether the file was deleted or another put in its place: SQLite would write on."""
        try:
            return _identity(self.path) != self._identity
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a disk that does not answer says nothing of the file
            return False

    def _write_meta(self, file: sqlite3.Connection) -> None:
        stored = dict(file.execute("SELECT key, value FROM meta"))
        version = stored.get("schema_version", str(SCHEMA_VERSION))
        if version != str(SCHEMA_VERSION):
            raise StoreError(
                f"{self.path}: schema version {version}, this Takt writes {SCHEMA_VERSION}; "
                "move the journal's files away to begin a new one"
            )
        for key, value in {"schema_version": str(SCHEMA_VERSION), **self._meta}.items():
            if key in MERGED_META and key in stored:
                value = merged_meta(key, stored[key], value)  # noqa: PLW2901
            elif key == "started_wall" and key in stored:
                continue
            file.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def write(
        self, batches: Iterable[RecordBatch], events: Iterable[tuple[Value, ...]], now_ns: int
    ) -> list[str]:
        """One transaction with all of it, on the disk when this returns. What is worth telling.

        Raises sqlite3.Error where the disk refuses; then none of it is stored.
        """
        told: list[str] = []
        file = self._file
        file.execute("BEGIN IMMEDIATE")
        try:
            for batch in batches:
                for name, rows in batch.rows.items():
                    if name == PARTS.name:
                        told += self._insert_parts(rows)
                    else:
                        file.executemany(ROW_TABLES[name].insert_sql, rows)
                for detail in batch.malformed:
                    told.append(f"journal.malformed {detail}")
                    self._event(now_ns, "journal.malformed", "", detail)
            file.executemany(EVENTS.insert_sql, events)
            file.execute("COMMIT")
        except BaseException:
            if file.in_transaction:
                file.execute("ROLLBACK")
            raise
        return told

    def _insert_parts(self, rows: Iterable[tuple[Value, ...]]) -> list[str]:
        told = []
        insert, select = PARTS.insert_sql, PARTS.select_by_key_sql
        at = [column.name for column in PARTS.columns].index("decided_at_ns")
        for row in rows:
            if self._file.execute(insert, row).rowcount:
                continue
            key = PARTS.key_of(row)
            stored = self._file.execute(select, key).fetchone()
            if stored == row:
                continue
            subject = "/".join(str(part) for part in key)
            detail = _difference(PARTS, stored, row)
            # Stamped with the row's own instant, so that a repeated batch repeats no event.
            self._event(row[at], "journal.conflict", subject, detail)
            told.append(f"journal.conflict {subject}: {detail}")
        return told

    def _event(self, at_ns: Value, kind: str, subject: str, detail: str) -> None:
        self._file.execute(EVENTS.insert_sql, (at_ns, UNIT, kind, subject, detail))

    def begin_segment(self) -> Path:
        """Leave the file whose disk failed as it is and go on in a new one; its path.

        After a failed fsync the kernel may call pages clean that never reached the disk, so the old
        file is never written again. Makes the folder where it is gone. Raises like the
        constructor, and OSError.
        """
        self.close()
        self._identity = None
        self._folder.mkdir(parents=True, exist_ok=True)
        taken = [path.stem.rpartition("-")[2] for path in self._folder.glob(SEGMENT_FILES)]
        number = max((int(text) for text in taken if text.isdecimal()), default=0) + 1
        self.path = self._folder / f"journal-{number:04d}.sqlite"
        self._file = self._open()
        return self.path

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._file.close()


def _identity(path: Path) -> tuple[int, int]:
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _difference(table: Table, stored: Any, row: tuple[Value, ...]) -> str:
    changes = [
        f"{column.name} {old!r} → {new!r}"
        for column, old, new in zip(table.columns, stored, row, strict=True)
        if old != new
    ]
    more = f" and {len(changes) - 5} more" if len(changes) > 5 else ""
    return f"kept the first; {', '.join(changes[:5])}{more}"[:500]


__all__ = ["META", "JournalStore", "RecordBatch", "StoreError", "event_values", "parse_batch"]
