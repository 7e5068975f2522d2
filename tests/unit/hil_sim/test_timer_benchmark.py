"""What units say of their timers is gathered by kind, the worst counting."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from deadline_batcher.timer import Timer
from hil_sim.timer_benchmark import lateness


def test_the_worst_of_each_kind(tmp_path: Path) -> None:
    timer = Timer()
    timer.lateness_ns = [1_000_000] * 999 + [9_000_000]
    said = timer.take_lateness()
    assert said == "n 1000 p99 1.000 ms p99.9 1.000 ms max 9.000 ms"
    base = sqlite3.connect(tmp_path / "journal.sqlite")
    base.execute("create table events (unit text, kind text, detail text)")
    rows = [
        ("line-line01", "timer.lateness", said),
        ("line-line02", "timer.lateness", "n 10 p99 2.000 ms p99.9 3.000 ms max 4.000 ms"),
        ("batcher", "timer.lateness", "n 5 p99 0.100 ms p99.9 0.200 ms max 0.300 ms"),
        ("batcher", "gpu.ready", "n 5 p99 7.000 ms p99.9 7.000 ms max 7.000 ms"),
    ]
    base.executemany("insert into events values (?, ?, ?)", rows)
    base.commit()
    base.close()
    timer.close()
    assert lateness(tmp_path / "journal.sqlite") == {
        "line": {"n": 1010, "p99_ms": 2.0, "p999_ms": 3.0, "max_ms": 9.0},
        "batcher": {"n": 5, "p99_ms": 0.1, "p999_ms": 0.2, "max_ms": 0.3},
    }
