"""What a journal's route events say of its parts."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hil_sim.routes import as_json, as_text, routes_of
from lines.record import PartRow

EMPTY: dict[str, Any] = {
    one.name: "" if one.type == "str" else 0 for one in fields(PartRow) if one.name != "score"
}


def part(line: str, ready_at_ns: int, answered_by: str) -> PartRow:
    told = {"line": line, "ready_at_ns": ready_at_ns, "answered_by": answered_by}
    return PartRow(**{**EMPTY, "score": None, **told})


def event(at_ns: int, line: str, kind: str, detail: str) -> dict[str, Any]:
    unit = f"line-{line}"
    return {"at_ns": at_ns, "unit": unit, "kind": kind, "subject": line, "detail": detail}


STORY = [
    event(10, "line01", "route.started", "FALLBACK: start"),
    event(20, "line01", "route.changed", "FALLBACK → RETURNING: headroom"),
    event(30, "line01", "route.changed", "RETURNING → POOL: trials"),
    event(40, "line01", "route.changed",
          "POOL → FALLBACK: shed: gpus: 2 GPUs carry 7 of 12 lines"),
    event(50, "line01", "route.changed", "FALLBACK → RETURNING: headroom"),
    event(15, "line02", "route.started", "FALLBACK: start"),
    event(15, "batcher", "gpu.ready", "POOL → nothing: of routes"),
]  # fmt: skip


def test_each_part_has_the_route_of_the_instant_its_picture_was_ready() -> None:
    parts = [
        part("line01", 12, "fallback"),
        part("line01", 20, "fallback"),
        part("line01", 30, "pool"),
        part("line01", 35, "fallback"),
        part("line01", 39, "failsafe"),
        part("line01", 40, "fallback"),
        part("line01", 49, "fallback"),
        part("line01", 60, "fallback"),
        part("line02", 99, "fallback"),
    ]
    found = routes_of(parts, STORY)
    assert found is not None
    assert (found.parts, found.by_pool, found.taken_over) == (8, 1, 1)
    assert found.off_pool == {"start": 2, "trial frames": 2, "shed: gpus": 2}
    assert found.changes == {"line01": 4, "line02": 0}
    assert as_text(found) == (
        "the pool answered 12.50 % of 8 parts, the fallback 7: 2 shed: gpus, 2 start, "
        "2 trial frames, 1 taken over; 4 changes of route on 2 lines"
    )
    told = as_json(found)
    assert told is not None and told["pool_share"] == 0.125


def test_a_part_before_the_first_word_of_its_line_was_on_the_fallback() -> None:
    found = routes_of([part("line01", 5, "fallback"), part("line09", 5, "fallback")], STORY)
    assert found is not None and found.off_pool == {"start": 2}


def test_a_journal_without_routes_says_nothing_and_one_without_parts_no_share() -> None:
    assert routes_of([part("line01", 5, "pool")], []) is None
    assert as_json(None) is None
    found = routes_of([], STORY)
    assert found is not None and found.pool_share is None
    assert as_text(found) == "no part was answered by an engine"


def test_a_plant_that_only_used_the_pool_is_told_so() -> None:
    found = routes_of([part("line01", 30, "pool")], STORY)
    assert found is not None
    assert as_text(found) == (
        "the pool answered 100.00 % of 1 parts; 4 changes of route on 2 lines"
    )
