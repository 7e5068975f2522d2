"""What the demo shows while it runs: a live table in a terminal, plain lines elsewhere.

It reads the journal, as anybody may; it asks nothing of the processes that owe verdicts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text

RECENT_NS = 5_000_000_000


@dataclass(frozen=True, slots=True)
class LineFigures:
    """One line's figures. Margins and latency in milliseconds; None before the first part."""

    line: str
    parts: int
    passed: int
    failed: int
    uninspected: int
    pool: int
    fallback: int
    late: int
    p99_ms: float | None
    margin_min_ms: float | None


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU's state and work."""

    gpu: str
    state: str
    batches: int
    mean_size: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What the journal holds now."""

    lines: tuple[LineFigures, ...]
    gpus: tuple[GpuFigures, ...]

    @property
    def parts(self) -> int:
        """Parts with a verdict."""
        return sum(line.parts for line in self.lines)

    @property
    def late(self) -> int:
        """Parts whose verdict left after it was due, or not at all."""
        return sum(line.late for line in self.lines)


class JournalView:
    """Reads figures out of a journal that is being written."""

    def __init__(self, journal: Path, lines: Sequence[str], gpus: int) -> None:
        self._path = journal
        self._lines = lines
        self._gpus = [f"gpu{number}" for number in range(gpus)]
        self._file: sqlite3.Connection | None = None

    def ready_gpus(self) -> int:
        """How many GPUs passed their goldens and were not lost since."""
        return sum(state == "READY" for state in self._states().values())

    def figures(self) -> Figures:
        """Everything, now. Zeros while there is no journal yet."""
        return Figures(tuple(self._line_figures()), tuple(self._gpu_figures()))

    def close(self) -> None:
        """Close the journal."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _rows(self, sql: str, *values: object) -> list[tuple[object, ...]]:
        try:
            if self._file is None:
                if not self._path.is_file():
                    return []
                self._file = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
            return self._file.execute(sql, values).fetchall()
        except sqlite3.OperationalError:  # its tables are being made, or it is being replaced
            return []

    def _states(self) -> dict[str, str]:
        states = dict.fromkeys(self._gpus, "WARMING")
        words = {"ready": "READY", "lost": "LOST", "suspect": "SUSPECT", "drained": "DRAINING"}
        sql = "SELECT subject, kind FROM events WHERE kind LIKE 'gpu.%' ORDER BY at_ns"
        for subject, kind in self._rows(sql):
            word = words.get(str(kind).removeprefix("gpu."))
            if word is not None:
                states[str(subject)] = word
        return states

    def _gpu_figures(self) -> list[GpuFigures]:
        states = self._states()
        sql = """
            SELECT gpu, count(*), avg(size) FROM batches
            WHERE outcome = 'ok' AND batch_id > 0 GROUP BY gpu"""
        work = {str(row[0]): row[1:] for row in self._rows(sql)}
        return [
            GpuFigures(gpu, states[gpu], int(str(count)), float(str(mean)))
            for gpu in self._gpus
            for count, mean in [work.get(gpu, (0, 0.0))]
        ]

    def _line_figures(self) -> list[LineFigures]:
        sql = """
            SELECT line, count(*), sum(verdict = 'PASS'), sum(verdict = 'FAIL'),
                   sum(verdict = 'UNINSPECTED'), sum(answered_by = 'pool'),
                   sum(answered_by = 'fallback'),
                   sum(owed AND (sent_at_ns = 0 OR sent_at_ns > due_at_ns)),
                   min(CASE WHEN sent_at_ns > 0 THEN due_at_ns - sent_at_ns END)
            FROM parts GROUP BY line"""
        counted = {str(row[0]): row[1:] for row in self._rows(sql)}
        p99 = self._recent_p99_ms()
        found = []
        for line in self._lines:
            row = counted.get(line, (0,) * 7 + (None,))
            parts, passed, failed, uninspected, pool, fallback, late = (
                int(str(count or 0)) for count in row[:7]
            )
            margin_ms = None if row[7] is None else int(str(row[7])) / 1e6
            found.append(
                LineFigures(
                    line, parts, passed, failed, uninspected, pool, fallback, late,
                    p99.get(line), margin_ms,
                )
            )  # fmt: skip
        return found

    def _recent_p99_ms(self) -> dict[str, float]:
        sql = """
            SELECT line, sent_at_ns - captured_at_ns FROM parts
            WHERE captured_at_ns > (SELECT max(captured_at_ns) FROM parts) - ? AND sent_at_ns > 0
            ORDER BY line, 2"""
        times: dict[str, list[int]] = {}
        for line, latency_ns in self._rows(sql, RECENT_NS):
            times.setdefault(str(line), []).append(int(str(latency_ns)))
        return {
            line: ordered[int(0.99 * (len(ordered) - 1))] / 1e6 for line, ordered in times.items()
        }


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def table(figures: Figures, elapsed_s: float, seconds: float, note: str) -> Group:
    """The live table."""
    grid = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("line", "parts", "pass", "fail", "uninsp.", "pool", "fallback", "late"):
        grid.add_column(name, justify="left" if name == "line" else "right")
    grid.add_column("p99 ms", justify="right")
    grid.add_column("margin ms", justify="right")
    for line in figures.lines:
        grid.add_row(
            line.line,
            *(str(line.parts), str(line.passed), str(line.failed)),
            Text(str(line.uninspected), "yellow" if line.uninspected else ""),
            str(line.pool),
            Text(str(line.fallback), "yellow" if line.fallback else ""),
            Text(f"{line.late} !" if line.late else "0", "bold red" if line.late else ""),
            *(_ms(line.p99_ms), _ms(line.margin_min_ms)),
        )
    pool = Table(box=None, padding=(0, 1), header_style="bold")
    for name in ("pool", "state", "batches", "mean size"):
        pool.add_column(name, justify="left" if name in ("pool", "state") else "right")
    for gpu in figures.gpus:
        state = Text(gpu.state, "" if gpu.state == "READY" else "bold yellow")
        pool.add_row(gpu.gpu, state, str(gpu.batches), f"{gpu.mean_size:.1f}")
    head = Text(f"{elapsed_s:5.0f} of {seconds:g} s   {figures.parts} parts   ")
    head.append(
        f"{figures.late} late" if figures.late else "none late",
        "bold red" if figures.late else "green",
    )
    return Group(head, Text(note, "yellow"), grid, pool)


def plain(figures: Figures, elapsed_s: float) -> str:
    """One line for a log."""
    gpus = " ".join(f"{gpu.gpu}={gpu.state}" for gpu in figures.gpus)
    fallback = sum(line.fallback for line in figures.lines)
    uninspected = sum(line.uninspected for line in figures.lines)
    return (
        f"{elapsed_s:5.0f} s  {figures.parts} parts, {figures.late} late, "
        f"{fallback} by fallback, {uninspected} uninspected  {gpus}"
    )
