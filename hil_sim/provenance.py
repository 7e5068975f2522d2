"""What one journal row must say for itself: promises 2 and 3, without anybody else's word."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator
from typing import Final

from lines.record import STAGES, PartRow

STAGES_TOLERANCE_NS: Final = 1_000
VERDICTS: Final = ("PASS", "FAIL", "UNINSPECTED")

Mistake = tuple[int, str, str]
"""Promise, kind of finding, detail."""


def provenance_mistakes(row: PartRow, models: Collection[str] | None) -> Iterator[Mistake]:
    """Everything in the row that breaks promise 2 or 3. models: the known name@sha12, if any."""
    yield from _verdict_mistakes(row)
    if row.verdict in ("PASS", "FAIL"):
        yield from _evidence_mistakes(row, models)
        yield from _time_mistakes(row)


def _verdict_mistakes(row: PartRow) -> Iterator[Mistake]:
    if row.verdict not in VERDICTS:
        yield 2, "verdict", f"{row.verdict!r} is no verdict"
    elif row.verdict == "UNINSPECTED":
        if not row.reason:
            yield 2, "reason", "UNINSPECTED without a reason"
    else:
        if row.reason:
            yield 2, "doubt", f"{row.verdict} with the reason {row.reason}"
        if row.answered_by == "failsafe":
            yield 2, "default", f"{row.verdict} by the fail-safe: nobody looked at the part"
        if row.decided_at_ns > row.due_at_ns:
            late_ms = (row.decided_at_ns - row.due_at_ns) / 1e6
            yield 2, "doubt", f"{row.verdict} decided {late_ms:.3f} ms after it was due"
    if row.action == "pass" and row.verdict != "PASS":
        yield 2, "action", f"the gate was told to pass a part that is {row.verdict}"
    if row.simulated and row.action != "none":
        yield 2, "action", f"simulated, yet the action is {row.action}"


def _evidence_mistakes(row: PartRow, models: Collection[str] | None) -> Iterator[Mistake]:
    missing = [
        name
        for name, is_there in (
            ("part_id", bool(row.part_id)),
            ("acknowledged", row.acked and row.owed),
            ("slot", row.slot >= 0),
            ("generation", row.generation > 0),
            ("engine", bool(row.engine)),
            ("model", bool(row.model)),
            ("score", row.score is not None and math.isfinite(row.score)),
            ("threshold", row.threshold is not None),
            ("batch", row.answered_by != "pool" or (row.batch_id > 0 and row.batch_size > 0)),
        )
        if not is_there
    ]
    if missing:
        yield 3, "provenance", f"{row.verdict} without {', '.join(missing)}"
    if not row.nonce or not row.nonce_ok:
        yield 3, "nonce", f"{row.verdict} whose nonce was not matched"
    if row.model and models is not None and row.model not in models:
        yield 3, "model", f"{row.model} is no model of this plant"
    is_fallback = row.engine == "fallback"
    if row.engine and (row.answered_by == "fallback") != is_fallback:
        yield 3, "engine", f"answered by {row.answered_by} on {row.engine}"
    if row.score is not None and row.threshold is not None:
        told = "FAIL" if row.score >= row.threshold else "PASS"
        if told != row.verdict:
            detail = f"{row.verdict} at score {row.score:g}, threshold {row.threshold:g}"
            yield 3, "score", detail


def _time_mistakes(row: PartRow) -> Iterator[Mistake]:
    names = ("captured_at_ns", "received_at_ns", "ready_at_ns", "decided_at_ns", "sent_at_ns")
    instants = [(name, getattr(row, name)) for name in names]
    if row.sent_at_ns == 0:
        instants.pop()
    for (before, earlier), (after, later) in itertools.pairwise(instants):
        if later < earlier:
            yield 3, "times", f"{after} is {earlier - later} ns before {before}"
            return
    total_ns = sum(getattr(row, f"{stage}_ns") for stage in STAGES)
    latency_ns = instants[-1][1] - row.captured_at_ns
    if abs(total_ns - latency_ns) > STAGES_TOLERANCE_NS:
        yield 3, "times", f"the stages add up to {total_ns} ns, the part took {latency_ns} ns"
