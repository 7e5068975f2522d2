"""Only the monotonic clock decides: wall time is read where it is written down for people, only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERDICT_PATH = ("lines", "fallback", "deadline_batcher", "appliance")
WALL = {
    ("time", "time"), ("time", "time_ns"), ("time", "localtime"), ("time", "gmtime"),
    ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
}  # fmt: skip
FOR_PEOPLE = {
    "appliance/unit_log.py": "stamps of log lines",
    "appliance/journal.py": "stderr, and when the journal was begun",
    "appliance/profile_provenance.py": "the day a profile was measured",
    "appliance/batcher.py": "a number that differs with each start; nothing is compared with it",
    "lines/doc_tables.py": "",
}


def wall_reads(path: Path) -> Iterator[str]:
    """Each call of a wall clock in a file, also under another name for its module."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if (node.value.id, node.attr) in WALL:
                yield f"{path.relative_to(ROOT)}:{node.lineno}"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            names = {alias.name for alias in node.names}
            if names & {"time", "time_ns", "localtime", "gmtime"}:
                yield f"{path.relative_to(ROOT)}:{node.lineno}"


def test_no_decision_reads_the_wall_clock() -> None:
    found = [
        place
        for package in VERDICT_PATH
        for path in sorted((ROOT / package).rglob("*.py"))
        for place in wall_reads(path)
        if place.rpartition(":")[0] not in FOR_PEOPLE
    ]
    assert found == [], "a step of this clock would change a verdict"
