"""Reads what a run left behind: the journal's files and the logs of cameras and actuators."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_type_hints

from appliance.journal_store import MERGED_META, merged_meta, segments
from lines.journal_schema import PARTS, ROW_TABLES, Table
from lines.record import PartRow

_BOOLS: Final = tuple(n for n, hint in get_type_hints(PartRow).items() if hint is bool)


class EvidenceError(Exception):
    """Something that should be read cannot be; the text says what."""


@dataclass
class Evidence:
    """One run. A log is None where no file of its kind was found."""

    parts: list[PartRow] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    triton: list[dict[str, Any]] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)
    camera_log: list[dict[str, Any]] | None = None
    actuator_log: list[dict[str, Any]] | None = None

    @property
    def models(self) -> set[str] | None:
        """The plant's models as name@sha12; None where the journal does not say."""
        return set(json.loads(self.meta["models"])) if "models" in self.meta else None

    @property
    def lines(self) -> list[str] | None:
        """The plant's lines; None in a journal of before they were kept there."""
        return list(json.loads(self.meta["lines"])) if "lines" in self.meta else None


def _rows(file: sqlite3.Connection, table: Table) -> Iterator[dict[str, Any]]:
    names = [column.name for column in table.columns]
    for values in file.execute(f"SELECT {', '.join(names)} FROM {table.name}"):
        yield dict(zip(names, values, strict=True))


def _read_segment(evidence: Evidence, path: Path) -> None:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as file:
        for row in _rows(file, PARTS):
            for name in _BOOLS:
                row[name] = bool(row[name])
            evidence.parts.append(PartRow(**row))
        for name, kept in (
            ("batches", evidence.batches),
            ("events", evidence.events),
            ("triton", evidence.triton),
        ):
            kept.extend(_rows(file, ROW_TABLES[name]))
        found = dict(file.execute("SELECT key, value FROM meta"))
        for key in MERGED_META:
            if key in found and key in evidence.meta:
                found[key] = merged_meta(key, evidence.meta[key], found[key])
        evidence.meta.update(found)


def _read_logs(folder: Path, pattern: str) -> list[dict[str, Any]] | None:
    paths = sorted(folder.glob(pattern))
    if not paths:
        return None
    entries = []
    for path in paths:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, text in enumerate(lines, 1):
            try:
                entries.append(json.loads(text))
            except ValueError as error:
                # A sender that was killed leaves half a line at the end; elsewhere it is damage.
                if number < len(lines):
                    raise EvidenceError(f"{path}:{number}: {error}") from error
    return entries


def read_evidence(journal: Path, logs: Path | None) -> Evidence:
    """Everything of one run. journal: its folder or one of its files. Raises EvidenceError."""
    paths: Sequence[Path] = segments(journal) if journal.is_dir() else [journal]
    if not paths or not paths[0].is_file():
        raise EvidenceError(f"{journal}: no journal there")
    evidence = Evidence()
    for path in paths:
        try:
            _read_segment(evidence, path)
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise EvidenceError(f"{path}: {error}") from error
    # A row repeated in a later segment is the same row sent twice.
    evidence.parts = list({(r.line, r.session, r.seq): r for r in evidence.parts[::-1]}.values())
    evidence.parts.sort(key=lambda row: row.captured_at_ns)
    if logs is not None:
        evidence.camera_log = _read_logs(logs, "camera-*.jsonl")
        evidence.actuator_log = _read_logs(logs, "actuator-*.jsonl")
    return evidence
