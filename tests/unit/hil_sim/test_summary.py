"""Figures of a run, from literal rows."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_type_hints

from hil_sim.evidence import Evidence
from hil_sim.promise import check
from hil_sim.summary import quantile, reconcile, summarise
from lines.record import PartRow

MS = 1_000_000
ZERO = {int: 0, bool: False, str: "", float: 0.0}


def row(seq: int, **changes: Any) -> PartRow:
    hints = get_type_hints(PartRow)
    blank = {field.name: ZERO.get(hints[field.name]) for field in fields(PartRow)}
    made = {"line": "line01", "session": "s", "seq": seq, "part_id": f"p{seq}", "owed": True,
            "acked": True, "verdict": "PASS", "answered_by": "pool", "due_at_ns": 135 * MS,
            "sent_at_ns": 40 * MS, "decided_at_ns": 39 * MS}  # fmt: skip
    return PartRow(**{**blank, **made, **changes})


def frame(seq: int, truth: str | None) -> dict[str, Any]:
    return {"event": "frame", "line": "line01", "session": "s", "seq": seq, "truth": truth,
            "part_id": f"p{seq}", "sent": True, "scheduled_at_ns": 0, "sent_at_ns": 0}  # fmt: skip


def batch(number: int, size: int, sent_ms: int, answered_ms: int) -> dict[str, Any]:
    return {"batch_id": number, "epoch": 1, "gpu": "gpu0", "size": size, "outcome": "ok",
            "sent_at_ns": sent_ms * MS, "answered_at_ns": answered_ms * MS}  # fmt: skip


def reading(at_ms: int, count: int, infer_ms: int, epoch: int = 1) -> dict[str, Any]:
    return {"at_ns": at_ms * MS, "gpu": "gpu0", "url": "grpc://127.0.0.1:8001", "version": "2.51.0",
            "endpoint_epoch": epoch, "inference_count": count, "execution_count": count,
            "queue_ns": 0, "compute_input_ns": MS, "compute_infer_ns": infer_ms * MS,
            "compute_output_ns": 0, "success_ns": 0}  # fmt: skip


def test_quantile_is_a_value_that_was_seen() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [quantile(values, share) for share in (0.5, 0.95, 0.99, 1.0)] == [50, 95, 99, 100]
    assert quantile([7.0], 0.5) == 7.0


def test_figures() -> None:
    evidence = Evidence(
        parts=[
            row(0),
            row(1, verdict="FAIL", answered_by="fallback", sent_at_ns=60 * MS),
            row(2, verdict="UNINSPECTED", reason="deadline", answered_by="failsafe",
                sent_at_ns=136 * MS),
            row(3, verdict="UNINSPECTED", reason="restart", answered_by="failsafe", sent_at_ns=0),
        ],
        batches=[batch(1, 1, 0, 10), batch(2, 3, 20, 30)],
        triton=[reading(0, 10, 100), reading(50, 12, 114), reading(60, 5, 1, epoch=2)],
        camera_log=[frame(0, "free"), frame(1, "free"), frame(2, "defect")],
    )  # fmt: skip
    figures = summarise(evidence, check(evidence.parts))
    assert figures["parts"] == {
        "accepted": 4, "owed": 4, "verdicts": 3, "pass": 1, "fail": 1, "uninspected": 1,
    }  # fmt: skip
    assert (figures["missed"], figures["lost"], figures["duplicate"]) == (1, 0, 0)
    assert figures["restart"] == 1
    assert figures["answered_by"] == {"pool": 1, "fallback": 1, "failsafe": 1}
    assert figures["latency_ms"] == {"p50": 60, "p95": 136, "p99": 136, "max": 136, "n": 3}
    assert figures["margin_ms"] == {"p50": 75, "p95": -1, "p99": -1, "min": -1, "n": 3}
    assert figures["batches"]["by_size"] == {"1": 1, "3": 1}
    assert figures["batches"]["mean_size"] == 2
    assert figures["labelled"] == {"n": 2, "accuracy": 0.5}
    (triton,) = figures["triton"]
    assert (triton["url"], triton["inference_count"], triton["starts"]) == (
        "grpc://127.0.0.1:8001", 17, 2,
    )  # fmt: skip

    (found,) = reconcile(evidence)
    assert (found["batches"], found["executions"]) == (2, 2)
    assert (found["ours_s"], found["triton_s"], found["ratio"]) == (0.02, 0.014, 0.7)


def test_parts_that_came_too_late_are_not_missed() -> None:
    late = {"verdict": "UNINSPECTED", "reason": "late", "answered_by": "failsafe"}
    rows = [row(0), row(1, **late, received_at_ns=136 * MS, sent_at_ns=137 * MS),
            row(2, **late, received_at_ns=135 * MS, sent_at_ns=137 * MS)]  # fmt: skip
    figures = summarise(Evidence(parts=rows), check(rows))
    assert (figures["missed"], figures["arrived_too_late"]) == (1, 1)


def test_a_run_without_parts_has_figures_too() -> None:
    figures = summarise(Evidence(), check([]))
    assert figures["latency_ms"] == {"p50": None, "p95": None, "p99": None, "max": None, "n": 0}
    assert figures["labelled"] == {"n": 0, "accuracy": None}
