"""From an answer to a verdict and a row: who judges, and that every nanosecond is placed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadline_batcher.link import Result
from fallback.route import RoutePlan
from lines import wire
from lines.admission import Limits
from lines.clock import Capture
from lines.parts import ModelIdentity, OpenPart, due_times, judge, row_of, verdict_fields
from lines.record import STAGES, PartRow
from lines.settings import LineSettings
from lines.threads import FallbackOutcome

MS = 1_000_000
MODELS = {
    "pool": ModelIdentity("m@0123456789ab", 0.5, ("scratch",)),
    "fallback": ModelIdentity("m@ba9876543210", 0.25, ("dent",)),
}


def settings(**changes: Any) -> LineSettings:
    nowhere = Path("/nowhere")
    fields: dict[str, Any] = {
        "line_id": "line01", "plant_tag": "0" * 8, "camera": None, "frames_endpoint": "",
        "verdicts_endpoint": "", "batcher_endpoint": "", "journal_endpoint": "",
        "keys_folder": nowhere, "runtime_folder": nowhere, "model_name": "m",
        "pool_model": ModelIdentity("", 0.5, ()), "fallback_path": nowhere, "fallback_threads": 1,
        "fallback_concurrent_max": 1, "fallback_core": 0, "wcet_fallback_ns": 1, "warm_every_ns": 1,
        "deadline_ns": 100 * MS, "actuation_ns": 20 * MS, "output_ns": 3 * MS, "timer_ns": 1,
        "start_ns": 1, "transport_min_ns": 0, "transport_max_ns": 0, "fail_safe": "divert",
        "inhibit_outputs": False, "slots": 4, "limits": Limits(1, 1), "journal_backlog_s": 1.0,
        "route_plan": RoutePlan(1, 1, 90, 1, 0, 0, 1, 1, 1, 1, 1), "trial_latency_ns": 1,
        "trial_bands": (0.0, 0.0),
    }  # fmt: skip
    return LineSettings(**{**fields, **changes})


def part(**changes: Any) -> OpenPart:
    """Captured at 10, received at 12, in its slot at 15 ms."""
    fields: dict[str, Any] = {
        "part": 1, "routing_id": b"r", "session": "s", "seq": 5, "part_id": "p5",
        "captured_ns": 99, "capture": Capture(10 * MS, "ptp", False), "received_at_ns": 12 * MS,
        "due_at_ns": 87 * MS, "deadline_at_ns": 110 * MS, "slot": 2, "generation": 4, "nonce": 77,
        "ready_at_ns": 15 * MS,
    }  # fmt: skip
    return OpenPart(**{**fields, **changes})


def result(score: float = 0.2, nonce: int = 77) -> Result:
    """Queued 1 ms, sent to its GPU at 20, called at 21, answered at 26 ms."""
    return Result(
        part=1, generation=4, nonce_echo=nonce, score=score, gpu=3, endpoint_epoch=9, batch_id=40,
        batch_size=6, queue_ns=1 * MS, window_ns=4 * MS, dispatched_at_ns=20 * MS,
        sent_at_ns=21 * MS, answered_at_ns=26 * MS,
    )  # fmt: skip


def run(score: float = 0.2, nonce: int = 77) -> FallbackOutcome:
    """Ordered at 60, started at 62, done at 70 ms."""
    return FallbackOutcome(1, True, score, nonce, 60 * MS, 62 * MS, 70 * MS, "")


def row(given_part: OpenPart, by: str, reason: str, decided_ms: int, sent_ms: int) -> PartRow:
    decision = judge(given_part, by, reason, MODELS, decided_ms * MS)
    return row_of(settings(), given_part, decision, "pass", sent_ms * MS)


def stages(made: PartRow) -> dict[str, int]:
    return {name: getattr(made, f"{name}_ns") // MS for name in STAGES}


def test_due_and_deadline_count_from_the_capture() -> None:
    assert due_times(settings(), 10 * MS) == (87 * MS, 110 * MS)


# --- judging ----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["pool", "fallback"])
def test_an_answer_whose_time_is_over_is_no_pass(by: str) -> None:
    """As after a SIGSTOP between the guard's word and the verdict."""
    good = part(result=result(), fallback=run())
    assert judge(good, by, "", MODELS, 87 * MS - 1).verdict == "PASS"
    late = judge(good, by, "", MODELS, 87 * MS)
    assert (late.verdict, late.reason, late.answered_by) == ("UNINSPECTED", "deadline", "failsafe")
    assert (late.score, late.model) == (None, None)


@pytest.mark.parametrize(
    ("by", "score", "verdict"),
    [
        ("pool", 0.0, "PASS"),
        ("pool", 0.49, "PASS"),
        ("pool", 0.5, "FAIL"),
        ("pool", 1.0, "FAIL"),
        ("fallback", 0.24, "PASS"),
        ("fallback", 0.25, "FAIL"),  # each engine by its own threshold
    ],
)
def test_a_score_at_the_threshold_or_above_fails(by: str, score: float, verdict: str) -> None:
    decision = judge(part(result=result(score), fallback=run(score)), by, "", MODELS, 30 * MS)
    assert (decision.verdict, decision.answered_by, decision.reason) == (verdict, by, "")
    assert decision.model == MODELS[by]
    assert decision.score == score


@pytest.mark.parametrize("by", ["pool", "fallback"])
@pytest.mark.parametrize(
    "spoilt", [{"nonce": 78}, {"score": float("nan")}, {"score": -0.01}, {"score": 1.01}, None]
)
def test_what_does_not_match_is_never_a_pass(by: str, spoilt: dict[str, Any] | None) -> None:
    changes: dict[str, Any] = {}
    if spoilt is not None:
        changes = {"result": result(**spoilt)} if by == "pool" else {"fallback": run(**spoilt)}
    decision = judge(part(**changes), by, "", MODELS, 30 * MS)
    assert (decision.verdict, decision.reason) == ("UNINSPECTED", "engine")
    assert (decision.answered_by, decision.score, decision.model) == ("failsafe", None, None)


def test_the_other_engines_answer_does_not_count() -> None:
    decision = judge(part(fallback=run()), "pool", "", MODELS, 30 * MS)
    assert decision.verdict == "UNINSPECTED"


def test_a_fail_safe_keeps_its_reason_even_where_answers_lie_there() -> None:
    decision = judge(part(result=result(), fallback=run()), "failsafe", "deadline", MODELS, 1)
    assert (decision.verdict, decision.reason) == ("UNINSPECTED", "deadline")


# --- where the time went ----------------------------------------------------------------------


def test_the_stages_of_a_pools_verdict() -> None:
    made = row(part(result=result()), "pool", "", 28, 29)
    assert stages(made) == {
        "transport": 2, "decode": 3, "queue": 1, "window": 4, "gather": 1, "model": 5, "post": 2,
        "output": 1,
    }  # fmt: skip
    assert (made.engine, made.endpoint_epoch, made.batch_id, made.batch_size) == ("gpu3", 9, 40, 6)


def test_the_stages_of_a_fallbacks_verdict() -> None:
    made = row(part(fallback=run(), result=result()), "fallback", "", 71, 73)
    assert stages(made) == {
        "transport": 2, "decode": 3, "queue": 2, "window": 45, "gather": 0, "model": 8, "post": 1,
        "output": 2,
    }  # fmt: skip
    assert (made.engine, made.batch_id, made.threshold) == ("fallback", 0, 0.25)


def test_the_stages_of_a_fail_safe() -> None:
    made = row(part(), "failsafe", "deadline", 85, 86)
    assert stages(made) == {
        "transport": 2, "decode": 3, "queue": 70, "window": 0, "gather": 0, "model": 0, "post": 0,
        "output": 1,
    }  # fmt: skip
    assert (made.engine, made.model, made.threshold, made.nonce_ok) == ("", "", None, False)


def test_the_stages_of_a_reject_before_there_was_a_picture() -> None:
    made = row(part(ready_at_ns=0, slot=None), "failsafe", "checksum", 14, 15)
    assert stages(made) == {
        "transport": 2, "decode": 2, "queue": 0, "window": 0, "gather": 0, "model": 0, "post": 0,
        "output": 1,
    }  # fmt: skip
    assert made.slot == -1


def test_a_verdict_that_no_actuator_took_has_no_output() -> None:
    made = row(part(result=result()), "pool", "", 28, 0)
    assert (made.sent_at_ns, made.output_ns) == (0, 0)


STEP = st.integers(0, 10**12)


@given(
    by=st.sampled_from(["pool", "fallback", "failsafe", "reject"]),
    start=STEP,
    steps=st.lists(STEP, min_size=7, max_size=7),
    queue=st.integers(0, 10**12),
)
def test_the_stages_add_up_to_sent_less_captured_to_the_nanosecond(
    by: str, start: int, steps: list[int], queue: int
) -> None:
    instants = [start]
    for step in steps:
        instants.append(instants[-1] + step)
    captured, received, ready, first, second, third, decided, sent = instants
    answer = result()._replace(
        queue_ns=queue, dispatched_at_ns=first, sent_at_ns=second, answered_at_ns=third
    )
    open_part = part(
        capture=Capture(captured, "utc", False),
        received_at_ns=received,
        ready_at_ns=0 if by == "reject" else max(1, ready),
        result=answer,
        fallback=FallbackOutcome(1, True, 0.1, 77, first, second, third, ""),
        due_at_ns=decided + 1,
    )
    engine = "failsafe" if by == "reject" else by
    decision = judge(open_part, engine, "x", MODELS, decided)
    made = row_of(settings(), open_part, decision, "none", sent)
    assert decision.answered_by == engine
    total = sum(getattr(made, f"{name}_ns") for name in STAGES)
    if sent:
        assert total == sent - captured
    assert len(STAGES) == 8


# --- the verdict message ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("score", "changes", "action", "labels"),
    [
        (0.1, {}, "pass", []),
        (0.9, {}, "reject", ["scratch"]),
        (float("nan"), {}, "divert", []),
        (0.1, {"inhibit_outputs": True}, "none", []),
        (0.9, {"inhibit_outputs": True}, "none", ["scratch"]),
    ],
)
def test_what_the_gate_is_told(
    score: float, changes: dict[str, Any], action: str, labels: list[str]
) -> None:
    told = settings(**changes)
    open_part = part(result=result(score))
    decision = judge(open_part, "pool", "", MODELS, 28 * MS)
    fields = verdict_fields(told, open_part, decision, 29 * MS)
    assert (fields["action"], fields["labels"]) == (action, labels)
    assert (fields["margin_ns"], fields["deadline_ns"]) == (58 * MS, 110 * MS)
    assert fields["simulated"] is bool(changes)
    message = wire.parse_to_actuator(wire.verdict(**fields))
    assert isinstance(message, wire.Verdict) and message.part_id == "p5"


def test_a_late_verdict_says_by_how_much() -> None:
    open_part = part(result=result())
    decision = judge(open_part, "failsafe", "deadline", MODELS, 88 * MS)
    assert verdict_fields(settings(), open_part, decision, 90 * MS)["margin_ns"] == -3 * MS
