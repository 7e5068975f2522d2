"""The figures of a run, from its journal and logs: what `takt demo --json` writes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any, Final

from hil_sim.evidence import Evidence
from hil_sim.findings import Report, is_restart, is_too_late, left_at_ns
from lines.record import STAGES, PartRow

ENGINES: Final = ("pool", "fallback", "failsafe")
LOST: Final = frozenset({"missing", "unjournalled", "unseen"})


def quantile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the sorted values do not exceed."""
    return ordered[max(0, -(-int(share * 1000 * len(ordered)) // 1000) - 1)]


def _spread(values_ns: Sequence[int], extreme: str) -> dict[str, float | int | None]:
    """p50, p95, p99 and min or max in milliseconds, and n; a margin's worst quantiles are low."""
    ordered = sorted(value / 1e6 for value in values_ns)
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    if not ordered:
        return {**dict.fromkeys((*shares, extreme)), "n": 0}
    if extreme == "min":
        figures = {
            name: -quantile([-v for v in reversed(ordered)], s) for name, s in shares.items()
        }
        figures["min"] = ordered[0]
    else:
        figures = {name: quantile(ordered, share) for name, share in shares.items()}
        figures["max"] = ordered[-1]
    return {**{name: round(value, 3) for name, value in figures.items()}, "n": len(ordered)}


def summarise(evidence: Evidence, report: Report) -> dict[str, Any]:
    """The demo's figures. A verdict's latency is sent − captured, its margin due − sent.

    missed: owed parts whose verdict left after `due` or never; without those that arrived after
    `due`, which no line can answer in time and which are in `arrived_too_late`. Parts of a line's
    dead process (`UNINSPECTED(restart)`) are in `restart` alone.
    """
    rows = [row for row in evidence.parts if not is_restart(row)]
    owed = [row for row in rows if row.owed]
    sent = [row for row in owed if row.sent_at_ns]
    late = sum(left_at_ns(row) > row.due_at_ns and not is_too_late(row) for row in owed)
    verdicts = Counter(row.verdict for row in rows)
    in_logs = report.found["missing"]
    answered = Counter(row.answered_by for row in owed)
    return {
        "parts": {
            "accepted": sum(row.acked for row in evidence.parts),
            "owed": sum(row.owed for row in evidence.parts) + in_logs,
            "verdicts": len(rows),
            "pass": verdicts["PASS"],
            "fail": verdicts["FAIL"],
            "uninspected": verdicts["UNINSPECTED"],
        },
        "missed": late + in_logs,
        "arrived_too_late": sum(is_too_late(row) for row in owed),
        "lost": sum(report.found[what] for what in LOST),
        "duplicate": report.found["duplicate"],
        "restart": report.counts["restart"],
        "reasons": dict(Counter(row.reason for row in rows if row.reason)),
        "answered_by": {name: answered[name] for name in ENGINES},
        "batches": _batches(evidence),
        "latency_ms": _spread([row.sent_at_ns - row.captured_at_ns for row in sent], "max"),
        "margin_ms": _spread([row.due_at_ns - row.sent_at_ns for row in sent], "min"),
        "stages_ms": {
            stage: _spread([getattr(row, f"{stage}_ns") for row in sent], "max") for stage in STAGES
        },
        "triton": _triton(evidence),
        "labelled": _labelled(evidence),
        "promises": {str(number): held for number, held in report.promises.items()},
        "is_partial": report.is_partial,
    }


def _batches(evidence: Evidence) -> dict[str, Any]:
    batches = [batch for batch in evidence.batches if batch["batch_id"] > 0]
    sizes = Counter(int(batch["size"]) for batch in batches)
    count = sum(sizes.values())
    parts = sum(size * times for size, times in sizes.items())
    return {
        "count": count,
        "by_size": {str(size): sizes[size] for size in sorted(sizes)},
        "mean_size": round(parts / count, 3) if count else None,
        "outcomes": dict(Counter(str(batch["outcome"]) for batch in batches)),
    }


def _epochs(evidence: Evidence) -> dict[tuple[str, int], list[dict[str, Any]]]:
    by_epoch: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    for row in sorted(evidence.triton, key=lambda row: int(row["at_ns"])):
        by_epoch[str(row["gpu"]), int(row["endpoint_epoch"])].append(row)
    return by_epoch


def _triton(evidence: Evidence) -> list[dict[str, Any]]:
    """One entry an endpoint; the counts of all its starts together."""
    found: dict[str, dict[str, Any]] = {}
    for (gpu, _), rows in sorted(_epochs(evidence).items()):
        last = rows[-1]
        entry = found.setdefault(gpu, {"inference_count": 0, "execution_count": 0, "starts": 0})
        entry |= {"gpu": gpu, "url": last["url"], "version": last["version"]}
        entry["inference_count"] += last["inference_count"]
        entry["execution_count"] += last["execution_count"]
        entry["starts"] += 1
    return list(found.values())


def _labelled(evidence: Evidence) -> dict[str, Any]:
    """How often PASS or FAIL agreed with what the camera knew of its picture."""
    truth = {
        (entry["line"], entry["session"], entry["seq"]): entry["truth"]
        for entry in evidence.camera_log or ()
        if entry["event"] == "frame" and entry.get("truth")
    }
    told = [
        (row.verdict == "PASS") == (truth[key] == "free")
        for row in evidence.parts
        if row.verdict in ("PASS", "FAIL") and (key := _key(row)) in truth
    ]
    return {"n": len(told), "accuracy": round(sum(told) / len(told), 4) if told else None}


def _key(row: PartRow) -> tuple[str, str, int]:
    return (row.line, row.session, row.seq)


def reconcile(evidence: Evidence) -> list[dict[str, Any]]:
    """Per GPU and start: our sent → answered against Triton's own queue + compute, seconds.

    Between the first and the last reading of its counters, batches answered in between; the ratio
    is Triton's share of what we call `model`. What it leaves is the way there and back.
    """
    summed = ("queue_ns", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
    found = []
    for (gpu, epoch), rows in sorted(_epochs(evidence).items()):
        first, last = rows[0], rows[-1]
        inside = [
            batch
            for batch in evidence.batches
            if batch["gpu"] == gpu
            and first["at_ns"] <= batch["sent_at_ns"]
            and 0 < batch["answered_at_ns"] <= last["at_ns"]
        ]
        if not inside:
            continue
        ours_ns = sum(batch["answered_at_ns"] - batch["sent_at_ns"] for batch in inside)
        theirs_ns = sum(last[name] - first[name] for name in summed)
        found.append(
            {
                "gpu": gpu,
                "endpoint_epoch": epoch,
                "batches": len(inside),
                "executions": last["execution_count"] - first["execution_count"],
                "ours_s": round(ours_ns / 1e9, 6),
                "triton_s": round(theirs_ns / 1e9, 6),
                "ratio": round(theirs_ns / ours_ns, 4) if ours_ns else None,
            }
        )
    return found
