"""What a running plant's journal says so far: the questions that a fault's end is found by."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from appliance.journal_store import segments
from appliance.plant import Plant

GPU_TROUBLE = ("gpu.lost", "gpu.suspect", "batch.failed", "golden.failed", "golden.wrong")


class Records:
    """Reads a journal that is being written, all its files."""

    def __init__(self, plant: Plant) -> None:
        self._folder: Path = plant.path(plant.paths.journal)
        self._files: dict[Path, sqlite3.Connection] = {}

    def rows(self, sql: str, *values: object) -> list[tuple[int, ...]]:
        """Rows of every file; none while there is no journal."""
        found: list[tuple[int, ...]] = []
        for path in segments(self._folder):
            with contextlib.suppress(sqlite3.Error):
                if path not in self._files:
                    self._files[path] = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
                found += self._files[path].execute(sql, values).fetchall()
        return found

    def least(self, sql: str, *values: object) -> int:
        """The least of one column over all files; 0 without any."""
        return min((row[0] for row in self.rows(sql, *values) if row[0]), default=0)

    def event_at(self, kinds: tuple[str, ...], subject: str, since_ns: int) -> int:
        """The first event of these kinds after an instant; its own instant, or 0."""
        marks = ", ".join("?" * len(kinds))
        sql = f"SELECT min(at_ns) FROM events WHERE kind IN ({marks}) AND at_ns > ?"
        if subject:
            return self.least(f"{sql} AND subject = ?", *kinds, since_ns, subject)
        return self.least(sql, *kinds, since_ns)

    def last_event_at(self, kinds: tuple[str, ...], subject: str, since_ns: int) -> int:
        """The last event of these kinds after an instant; its own instant, or 0."""
        marks = ", ".join("?" * len(kinds))
        sql = f"SELECT max(at_ns) FROM events WHERE kind IN ({marks}) AND subject = ? AND at_ns > ?"
        return max((row[0] or 0 for row in self.rows(sql, *kinds, subject, since_ns)), default=0)

    def ready_gpus(self) -> list[str]:
        """GPUs whose last word is that they are ready."""
        last: dict[str, tuple[int, str]] = {}
        kinds = "('gpu.ready', 'gpu.lost', 'gpu.suspect')"
        for subject, kind, at_ns in self.rows(
            f"SELECT subject, kind, at_ns FROM events WHERE kind IN {kinds}"
        ):
            last[str(subject)] = max(last.get(str(subject), (0, "")), (at_ns, str(kind)))
        return sorted(gpu for gpu, (_, kind) in last.items() if kind == "gpu.ready")

    def lines_answered(self, since_ns: int) -> int:
        """How many lines have answered, by an engine, a part that came after an instant."""
        sql = """
            SELECT DISTINCT line FROM parts
            WHERE received_at_ns > ? AND sent_at_ns > 0 AND answered_by != 'failsafe'"""
        return len(set(self.rows(sql, since_ns)))

    def line_answers(self, line: str, since_ns: int) -> int:
        """When a line sent its first answer to a part that came after an instant."""
        sql = """
            SELECT min(sent_at_ns) FROM parts
            WHERE line = ? AND received_at_ns > ? AND sent_at_ns > 0
              AND answered_by != 'failsafe'"""
        return self.least(sql, line, since_ns)

    def pool_answers(self, since_ns: int) -> int:
        """When the pool's first answer to a part that came after an instant left."""
        sql = """
            SELECT min(sent_at_ns) FROM parts
            WHERE received_at_ns > ? AND sent_at_ns > 0 AND answered_by = 'pool'"""
        return self.least(sql, since_ns)

    def gpu_answers(self, gpu: str, since_ns: int) -> int:
        """When a GPU answered its first batch, of parts or goldens, sent after an instant."""
        sql = """
            SELECT min(answered_at_ns) FROM batches
            WHERE gpu = ? AND sent_at_ns > ? AND outcome IN ('ok', 'golden')"""
        return self.least(sql, gpu, since_ns)

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()
        self._files = {}
