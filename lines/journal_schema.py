"""The journal's tables, defined once: SQL, the check of incoming rows and docs come from here.

Rows travel as JSON objects, column name → value. The keys make a row that is sent twice harmless.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, get_type_hints

from lines.record import PartRow

SCHEMA_VERSION: Final = 1
JOURNAL_FILE: Final = "journal.sqlite"
SEGMENT_FILES: Final = "journal-*.sqlite"
"""Continuations, begun where the disk failed under the file before."""

Value = int | float | str | None
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


class RowError(ValueError):
    """A row that a table cannot take; the text names the column."""


@dataclass(frozen=True)
class Column:
    """One column: its SQLite type, whether it may be NULL, what it means."""

    name: str
    sql: str  # INTEGER, REAL, TEXT
    meaning: str = ""
    nullable: bool = False

    def checked(self, value: Any) -> Value:
        """The value as SQLite stores it. Raises RowError."""
        if value is None and self.nullable:
            return None
        if isinstance(value, bool) and self.sql == "INTEGER":
            return int(value)
        if type(value) is int and INT64_MIN <= value <= INT64_MAX and self.sql != "TEXT":
            return value
        if type(value) is float and self.sql == "REAL":
            # SQLite has no NaN and stores NULL in its place; say so where that is not allowed.
            if self.nullable or not math.isnan(value):
                return value
            raise RowError(f"{self.name} is not a number")
        if isinstance(value, str) and self.sql == "TEXT":
            return value
        raise RowError(f"{self.name} is {value!r:.60}, not {self.sql}")


@dataclass(frozen=True)
class Table:
    """One table of the journal."""

    name: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    indices: tuple[tuple[str, ...], ...] = ()

    @property
    def create_sql(self) -> Iterator[str]:
        """The statements that make it where it is missing."""
        parts = [f"{c.name} {c.sql}{'' if c.nullable else ' NOT NULL'}" for c in self.columns]
        parts.append(f"PRIMARY KEY ({', '.join(self.key)})")
        yield f"CREATE TABLE IF NOT EXISTS {self.name} ({', '.join(parts)})"
        for names in self.indices:
            index = f"{self.name}_{'_'.join(names)}"
            yield f"CREATE INDEX IF NOT EXISTS {index} ON {self.name} ({', '.join(names)})"

    @property
    def insert_sql(self) -> str:
        """Takes the values in column order; a row whose key exists is left alone."""
        marks = ", ".join("?" * len(self.columns))
        names = ", ".join(c.name for c in self.columns)
        return f"INSERT OR IGNORE INTO {self.name} ({names}) VALUES ({marks})"

    @property
    def select_by_key_sql(self) -> str:
        """Takes the key's values; gives the row's in column order."""
        names = ", ".join(c.name for c in self.columns)
        return f"SELECT {names} FROM {self.name} WHERE {' AND '.join(f'{k} = ?' for k in self.key)}"

    def values(self, row: Any) -> tuple[Value, ...]:
        """A row's values in column order; unknown columns are ignored. Raises RowError."""
        if not isinstance(row, Mapping):
            raise RowError(f"a row of {self.name} is no object")
        values = []
        for column in self.columns:
            if column.name not in row:
                raise RowError(f"{column.name} is missing")
            values.append(column.checked(row[column.name]))
        return tuple(values)

    def key_of(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """The key's values out of a whole row's."""
        places = {column.name: place for place, column in enumerate(self.columns)}
        return tuple(values[places[name]] for name in self.key)


_SQL_OF: Final = {int: "INTEGER", bool: "INTEGER", float: "REAL", str: "TEXT"}


def _part_columns() -> Iterator[Column]:
    hints = get_type_hints(PartRow)
    for field in fields(PartRow):
        hint = hints[field.name]
        nullable = hint == float | None
        yield Column(field.name, "REAL" if nullable else _SQL_OF[hint], "", nullable)


def _columns(*named: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, sql, meaning) for name, sql, meaning in named)


PARTS: Final = Table(
    "parts",
    ("line", "session", "seq"),
    tuple(_part_columns()),
    (("line", "part_id"), ("captured_at_ns",)),
)
BATCHES: Final = Table(
    "batches",
    ("epoch", "batch_id"),
    _columns(
        ("batch_id", "INTEGER", "counted from 1 in one start of the batcher; goldens from -1 down"),
        ("epoch", "INTEGER", "which start of the batcher"),
        ("gpu", "TEXT", "the engine"),
        ("model", "TEXT", "name@sha12"),
        ("size", "INTEGER", "parts in it"),
        ("worst_ns", "INTEGER", "the profile's worst case"),
        ("queue_at_ns", "INTEGER", "its first part came"),
        ("dispatched_at_ns", "INTEGER", "the core decided to run it"),
        ("sent_at_ns", "INTEGER", "the call left"),
        ("answered_at_ns", "INTEGER", "the answer came; 0: never"),
        ("outcome", "TEXT", "ok, golden, or what went wrong"),
    ),
    (("gpu", "sent_at_ns"),),
)
EVENTS: Final = Table(
    "events",
    ("at_ns", "unit", "kind", "subject", "detail"),
    _columns(
        ("at_ns", "INTEGER", "when"),
        ("unit", "TEXT", "which process says it"),
        ("kind", "TEXT", "what happened, dotted"),
        ("subject", "TEXT", "to what"),
        ("detail", "TEXT", "for a person"),
    ),
    (("kind",),),
)
TRITON: Final = Table(
    "triton",
    ("at_ns", "gpu"),
    _columns(
        ("at_ns", "INTEGER", "when they were read"),
        ("gpu", "TEXT", "the engine"),
        ("url", "TEXT", "its endpoint"),
        ("version", "TEXT", "the server's"),
        ("endpoint_epoch", "INTEGER", "which start of the server; counters begin again with each"),
        ("inference_count", "INTEGER", "parts inferred"),
        ("execution_count", "INTEGER", "batches executed"),
        ("queue_ns", "INTEGER", "the sum of waits in the server"),
        ("compute_input_ns", "INTEGER", "sum"),
        ("compute_infer_ns", "INTEGER", "sum"),
        ("compute_output_ns", "INTEGER", "sum"),
        ("success_ns", "INTEGER", "the sum over all answered calls, waits included"),
    ),
)
META: Final = Table(
    "meta", ("key",), _columns(("key", "TEXT", "what"), ("value", "TEXT", "text or JSON"))
)

ROW_TABLES: Final = {table.name: table for table in (PARTS, BATCHES, EVENTS, TRITON)}
"""The tables that senders fill, by their name in a record batch."""
ALL_TABLES: Final = (PARTS, BATCHES, EVENTS, TRITON, META)
