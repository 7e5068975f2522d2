"""One open part of a line: everything known of it, and the row and verdict made from that."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from deadline_batcher.link import Result
from lines.clock import Capture
from lines.record import PartRow
from lines.settings import LineSettings, ModelIdentity
from lines.threads import FallbackOutcome


@dataclass(slots=True)
class OpenPart:
    """A part that is owed a verdict (or a lost frame that gets one). Instants monotonic, ns."""

    part: int
    routing_id: bytes
    session: str
    seq: int
    part_id: str
    captured_ns: int
    capture: Capture
    received_at_ns: int
    due_at_ns: int
    deadline_at_ns: int
    crc32c: int = 0
    picture_bytes: int = 0
    is_owed: bool = True
    is_acked: bool = False
    slot: int | None = None
    generation: int = 0
    nonce: int = 0
    ready_at_ns: int = 0
    is_fallback_started: bool = False
    result: Result | None = None
    fallback: FallbackOutcome | None = None


@dataclass(slots=True)
class Decision:
    """The one verdict of a part."""

    verdict: str
    reason: str
    answered_by: str
    score: float | None
    model: ModelIdentity | None
    decided_at_ns: int
    stages_ns: dict[str, int] = field(default_factory=dict)


def due_times(settings: LineSettings, captured_at_ns: int) -> tuple[int, int]:
    """(due, deadline) of a part: when its verdict must have left, and when the gate acts."""
    deadline_at_ns = captured_at_ns + settings.deadline_ns
    return deadline_at_ns - settings.actuation_ns - settings.output_ns, deadline_at_ns


def judge(
    part: OpenPart, answered_by: str, reason: str, models: dict[str, ModelIdentity], now_ns: int
) -> Decision:
    """Score → verdict. Anything that is not a matching answer of an engine is UNINSPECTED.

    So is an answer at or after `due`: the process was stopped after its guard had decided.
    """
    if now_ns >= part.due_at_ns and answered_by in models:
        answered_by, reason = "failsafe", "deadline"
    model = models.get(answered_by)
    answer = part.result if answered_by == "pool" else part.fallback
    matches = answer is not None and answer.nonce_echo == part.nonce
    # Not finite or out of range is no score: NaN would be below every threshold, and so a PASS.
    if model is None or answer is None or not matches or not 0.0 <= answer.score <= 1.0:
        decision = Decision("UNINSPECTED", reason or "engine", "failsafe", None, None, now_ns)
    else:
        verdict = "FAIL" if answer.score >= model.threshold else "PASS"
        decision = Decision(verdict, "", answered_by, answer.score, model, now_ns)
    decision.stages_ns = _stages(part, decision)
    return decision


def _stages(part: OpenPart, decision: Decision) -> dict[str, int]:
    """Where the time until the decision went; `output` is added when the verdict has left."""
    stages = dict.fromkeys(("decode", "queue", "window", "gather", "model", "post", "output"), 0)
    stages["transport"] = part.received_at_ns - part.capture.captured_at_ns
    decided_at_ns = decision.decided_at_ns
    if not part.ready_at_ns:
        stages["decode"] = decided_at_ns - part.received_at_ns
        return stages
    stages["decode"] = part.ready_at_ns - part.received_at_ns
    if decision.answered_by == "pool" and part.result is not None:
        result = part.result
        stages["queue"] = result.queue_ns
        stages["window"] = result.dispatched_at_ns - part.ready_at_ns - result.queue_ns
        stages["gather"] = result.sent_at_ns - result.dispatched_at_ns
        stages["model"] = result.answered_at_ns - result.sent_at_ns
        stages["post"] = decided_at_ns - result.answered_at_ns
    elif decision.answered_by == "fallback" and part.fallback is not None:
        run = part.fallback
        stages["window"] = run.ordered_at_ns - part.ready_at_ns
        stages["queue"] = run.started_at_ns - run.ordered_at_ns
        stages["model"] = run.done_at_ns - run.started_at_ns
        stages["post"] = decided_at_ns - run.done_at_ns
    else:
        stages["queue"] = decided_at_ns - part.ready_at_ns
    return stages


def verdict_fields(
    settings: LineSettings, part: OpenPart, decision: Decision, sent_at_ns: int
) -> dict[str, Any]:
    """The fields of the verdict message (docs/protocol.md)."""
    is_fail = decision.verdict == "FAIL"
    action = {"PASS": "pass", "FAIL": "reject"}.get(decision.verdict, settings.fail_safe)
    return {
        "line": settings.line_id,
        "part_id": part.part_id,
        "seq": part.seq,
        "session": part.session,
        "verdict": decision.verdict,
        "reason": decision.reason,
        "action": "none" if settings.inhibit_outputs else action,
        "score": decision.score,
        "labels": list(decision.model.labels) if is_fail and decision.model else [],
        "answered_by": decision.answered_by,
        "model": decision.model.identity if decision.model else "",
        "captured_ns": part.captured_ns,
        "deadline_ns": part.deadline_at_ns,
        "sent_ns": sent_at_ns,
        "margin_ns": part.due_at_ns - sent_at_ns,
        "simulated": settings.inhibit_outputs,
        "resent": False,
    }


def row_of(
    settings: LineSettings, part: OpenPart, decision: Decision, action: str, sent_at_ns: int
) -> PartRow:
    """The journal's row. `sent_at_ns` is 0 when no actuator took the verdict."""
    result = part.result if decision.answered_by == "pool" else None
    stages = decision.stages_ns
    engine = {"pool": f"gpu{result.gpu}" if result else "", "fallback": "fallback"}
    return PartRow(
        line=settings.line_id,
        session=part.session,
        seq=part.seq,
        part_id=part.part_id,
        verdict=decision.verdict,
        reason=decision.reason,
        action=action,
        answered_by=decision.answered_by,
        owed=part.is_owed,
        acked=part.is_acked,
        score=decision.score,
        model=decision.model.identity if decision.model else "",
        threshold=decision.model.threshold if decision.model else None,
        engine=engine.get(decision.answered_by, ""),
        endpoint_epoch=result.endpoint_epoch if result else 0,
        batch_id=result.batch_id if result else 0,
        batch_size=result.batch_size if result else 0,
        slot=-1 if part.slot is None else part.slot,
        generation=part.generation,
        nonce=part.nonce,
        nonce_ok=decision.model is not None,
        crc32c=part.crc32c,
        clock=part.capture.quality,
        captured_ns=part.captured_ns,
        captured_at_ns=part.capture.captured_at_ns,
        received_at_ns=part.received_at_ns,
        ready_at_ns=part.ready_at_ns,
        decided_at_ns=decision.decided_at_ns,
        sent_at_ns=sent_at_ns,
        due_at_ns=part.due_at_ns,
        deadline_at_ns=part.deadline_at_ns,
        transport_ns=stages["transport"],
        decode_ns=stages["decode"],
        queue_ns=stages["queue"],
        window_ns=stages["window"],
        gather_ns=stages["gather"],
        model_ns=stages["model"],
        post_ns=stages["post"],
        output_ns=max(0, sent_at_ns - decision.decided_at_ns),
        picture_bytes=part.picture_bytes,
        simulated=settings.inhibit_outputs,
        fallback_started=part.is_fallback_started,
    )
