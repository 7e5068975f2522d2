"""The checker finds every planted violation, and nothing in a clean run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hil_sim.findings import Report
from hil_sim.promise import check
from lines.record import PartRow

MS = 1_000_000
S = 1000 * MS
MODEL = "tile@0123456789ab"


def row(seq: int = 0, **changes: Any) -> PartRow:
    """A part answered by the pool: captured at 1 s + seq × 0.1 s, sent 40 ms later, due at 135."""
    at = S + seq * 100 * MS
    made = PartRow(
        line="line01", session="s", seq=seq, part_id=f"p{seq}", verdict="PASS", reason="",
        action="pass", answered_by="pool", owed=True, acked=True, score=0.1, model=MODEL,
        threshold=0.5, engine="gpu0", endpoint_epoch=1, batch_id=7, batch_size=2, slot=3,
        generation=5, nonce=1000 + seq, nonce_ok=True, crc32c=0xABC, clock="utc", captured_ns=1,
        captured_at_ns=at, received_at_ns=at + 2 * MS, ready_at_ns=at + 5 * MS,
        decided_at_ns=at + 39 * MS, sent_at_ns=at + 40 * MS, due_at_ns=at + 135 * MS,
        deadline_at_ns=at + 150 * MS, transport_ns=2 * MS, decode_ns=3 * MS, queue_ns=4 * MS,
        window_ns=5 * MS, gather_ns=1 * MS, model_ns=20 * MS, post_ns=4 * MS, output_ns=1 * MS,
        picture_bytes=30_000, simulated=False, fallback_started=False,
    )  # fmt: skip
    return replace(made, **changes)


def uninspected(seq: int, reason: str, **changes: Any) -> PartRow:
    return row(
        seq, verdict="UNINSPECTED", reason=reason, action="reject", answered_by="failsafe",
        model="", score=None, threshold=None, engine="", batch_id=0, nonce_ok=False, **changes,
    )  # fmt: skip


def camera(parts: list[PartRow]) -> list[dict[str, Any]]:
    """The camera's log of these parts: all sent and acknowledged."""
    log: list[dict[str, Any]] = [
        {"event": "ready", "line": "line01", "session": "s", "at_ns": 1, "credit": 8,
         "deadline_ms": 150.0}
    ]  # fmt: skip
    for part in parts:
        key = {"line": part.line, "session": part.session, "seq": part.seq}
        log.append(
            {"event": "frame", **key, "part_id": part.part_id, "sent": True,
             "scheduled_at_ns": part.captured_at_ns, "sent_at_ns": part.captured_at_ns,
             "truth": "free", "bytes": 30_000, "crc32c": part.crc32c}
        )  # fmt: skip
        log.append({"event": "ack", **key, "at_ns": part.ready_at_ns})
    return log


def actuator(parts: list[PartRow]) -> list[dict[str, Any]]:
    """The actuator's log of these parts, and its end a minute later."""
    log: list[dict[str, Any]] = [
        {"event": "verdict", "line": p.line, "session": p.session, "seq": p.seq,
         "part_id": p.part_id, "verdict": p.verdict, "reason": p.reason, "action": p.action,
         "answered_by": p.answered_by, "model": p.model, "score": p.score, "resent": False,
         "received_at_ns": p.sent_at_ns + MS, "deadline_ns": p.deadline_at_ns, "acted": True}
        for p in parts
    ]  # fmt: skip
    return [*log, {"event": "end", "line": "line01", "at_ns": 61 * S}]


def run(parts: list[PartRow], **changes: Any) -> Report:
    """The judgement of a run whose logs agree with its rows, but for the changes."""
    given: dict[str, Any] = {"camera_log": camera(parts), "actuator_log": actuator(parts)}
    return check(parts, **{**given, "models": {MODEL}, **changes})


STARTED = {"at_ns": 1, "unit": "journal", "kind": "journal.started", "subject": "", "detail": ""}


def found(report: Report) -> list[tuple[int, str, int]]:
    return [(finding.promise, finding.what, finding.seq) for finding in report.findings]


CLEAN = [
    row(0),
    row(1),
    uninspected(2, "deadline"),
    row(3, verdict="FAIL", action="reject", score=0.5),
]


def test_a_clean_run() -> None:
    report = run(CLEAN)
    assert found(report) == []
    assert report.promises == {1: True, 2: True, 3: True, 4: True}
    assert (report.counts["owed"], report.counts["uninspected"], report.is_partial) == (4, 1, False)


def test_a_journal_alone_is_partial_and_does_not_decide_promise_4() -> None:
    report = check(CLEAN, models={MODEL})
    assert report.is_partial
    assert report.promises == {1: True, 2: True, 3: True, 4: None}


def test_late_names_the_stage_that_cost_it() -> None:
    at = row(1).captured_at_ns
    late = row(
        1, verdict="UNINSPECTED", reason="deadline", action="reject", answered_by="failsafe",
        decided_at_ns=at + 139 * MS, sent_at_ns=at + 140 * MS, model_ns=120 * MS,
    )  # fmt: skip
    report = run([row(0), late, row(2)])
    assert found(report) == [(1, "late", 1)]
    assert report.findings[0].detail == "late by 5.000 ms; model took 120.000 ms"
    assert report.promises[1] is False


def test_sent_exactly_when_due_is_in_time() -> None:
    at = row(0).captured_at_ns
    exact = row(0, decided_at_ns=at + 134 * MS, sent_at_ns=at + 135 * MS, model_ns=115 * MS)
    assert found(run([exact])) == []


@pytest.mark.parametrize(
    ("part", "promise", "what"),
    [
        (row(verdict="MAYBE"), 2, "verdict"),
        (row(verdict="", action="none"), 2, "verdict"),
        (uninspected(0, ""), 2, "reason"),
        (uninspected(0, "deadline", sent_at_ns=0), None, ""),
        (replace(uninspected(0, "deadline"), action="pass"), 2, "action"),
        (row(verdict="FAIL", score=0.9), 2, "action"),
        (row(reason="checksum"), 2, "doubt"),
        (row(answered_by="failsafe"), 2, "default"),
        (row(simulated=True), 2, "action"),
        (row(model=""), 3, "provenance"),
        (row(part_id=""), 3, "provenance"),
        (row(score=None), 3, "provenance"),
        (row(acked=False), 3, "provenance"),
        (row(generation=0), 3, "provenance"),
        (row(slot=-1), 3, "provenance"),
        (row(batch_id=0), 3, "provenance"),
        (row(nonce=0), 3, "nonce"),
        (row(nonce_ok=False), 3, "nonce"),
        (row(model="tile@ffffffffffff"), 3, "model"),
        (row(engine="fallback"), 3, "engine"),
        (row(answered_by="fallback"), 3, "engine"),
        (row(score=0.5), 3, "score"),
        (row(ready_at_ns=1), 3, "times"),
        (row(model_ns=21 * MS), 3, "times"),
    ],
)  # fmt: skip
def test_a_row_that_breaks_a_promise(part: PartRow, promise: int | None, what: str) -> None:
    report = check([part], models={MODEL})
    kinds = {(finding.promise, finding.what) for finding in report.findings}
    assert (promise, what) in kinds if promise else not kinds


def test_a_pass_decided_after_it_was_due_breaks_two_promises() -> None:
    at = row(0).captured_at_ns
    late = row(0, decided_at_ns=at + 136 * MS, sent_at_ns=at + 137 * MS, model_ns=117 * MS)
    assert {(p, w) for p, w, _ in found(run([late]))} == {(1, "late"), (2, "doubt")}


def test_a_nonce_seen_twice() -> None:
    assert found(run([row(0), row(1, nonce=1000)])) == [(3, "nonce", 1)]


@pytest.mark.parametrize(("seconds", "is_found"), [(59, True), (60, False)])
def test_a_part_answered_twice_within_60_s(seconds: int, is_found: bool) -> None:
    again = row(10 * seconds, part_id="p0")
    parts = [row(0), again]
    report = run(parts, actuator_log=None)
    assert found(report) == ([(1, "duplicate", 10 * seconds)] if is_found else [])


def test_two_rows_of_one_key_are_a_duplicate_but_not_a_restart() -> None:
    event = {"at_ns": 5, "unit": "journal", "kind": "journal.conflict", "subject": "line01/s/0",
             "detail": "kept the first; verdict 'PASS' → 'FAIL'"}  # fmt: skip
    assert found(run(CLEAN, events=[STARTED, event])) == [(1, "duplicate", 0)]
    restarted = {**event, "detail": "kept the first; reason '' → 'restart'"}
    assert found(run(CLEAN, events=[STARTED, restarted])) == []


def test_owed_but_no_row() -> None:
    parts = [row(0), row(1), row(2)]
    report = check([row(0), row(2)], camera(parts), actuator([row(0), row(2)]), models={MODEL})
    assert found(report) == [(1, "missing", 1)]
    assert report.findings[0].part_id == "p1"


def test_refused_but_named_is_owed() -> None:
    log = [e | {"event": "reject", "reason": "checksum"} if e["event"] == "ack" else e
           for e in camera([row(0)])]  # fmt: skip
    assert found(check([], log, actuator([]))) == [(1, "missing", 0)]
    owed = uninspected(0, "checksum", acked=False)
    assert found(check([owed], log, actuator([owed]))) == []
    for reason in ("duplicate", "header", "version", "line"):
        not_owed = [e | {"reason": reason} if e["event"] == "reject" else e for e in log]
        assert found(check([], not_owed, actuator([]))) == []


def test_a_refused_frame_cannot_pass() -> None:
    log = [e | {"event": "reject", "reason": "decode"} if e["event"] == "ack" else e
           for e in camera([row(0)])]  # fmt: skip
    assert found(run([row(0)], camera_log=log)) == [(2, "doubt", 0)]


def test_in_flight_when_everything_stopped_is_no_finding() -> None:
    parts = [row(0), row(1)]
    end = {"event": "end", "line": "line01", "at_ns": row(1).captured_at_ns + 150 * MS}
    log = [*actuator([row(0)])[:-1], end]
    report = check([row(0)], camera(parts), log, models={MODEL})
    assert (found(report), report.counts["in_flight"]) == ([], 1)
    end["at_ns"] += 1
    assert found(check([row(0)], camera(parts), log, models={MODEL})) == [(1, "missing", 1)]


def test_restart_parts_are_counted_apart() -> None:
    lost = uninspected(1, "restart", sent_at_ns=0)
    report = run([row(0), lost], actuator_log=actuator([row(0)]))
    assert (found(report), report.counts["restart"]) == ([], 1)
    sent_all_the_same = run([row(0), lost])
    assert found(sent_all_the_same) == [(1, "restart", 1)]
    key = f"{lost.line}/{lost.session}/{lost.seq}"
    said = {"at_ns": 1, "unit": "line-line01", "kind": "restart.perhaps_sent", "subject": key,
            "detail": ""}  # fmt: skip
    told = run([row(0), lost], events=[STARTED, said])
    assert (found(told), told.counts["restart_sent"]) == ([], 1)
    of_another = run([row(0), lost], events=[STARTED, {**said, "subject": f"{key}0"}])
    assert found(of_another) == [(1, "restart", 1)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"verdict": "FAIL"}, (3, "differs", 0)),
        ({"action": "reject"}, (3, "differs", 0)),
        ({"part_id": "p9"}, (3, "differs", 0)),
        ({"model": "other@0123456789ab"}, (3, "differs", 0)),
    ],
)
def test_actuator_and_row_differ(change: dict[str, str], expected: tuple[int, str, int]) -> None:
    log = actuator([row(0)])
    log[0] |= change
    assert found(run([row(0)], actuator_log=log)) == [expected]


def test_a_row_the_actuator_never_got() -> None:
    assert found(run([row(0), row(1)], actuator_log=actuator([row(0)]))) == [(1, "unseen", 1)]


def test_a_verdict_without_a_row() -> None:
    parts = [row(0), row(1)]
    report = check([row(0)], camera([row(0)]), actuator(parts), models={MODEL})
    assert found(report) == [(1, "unjournalled", 1)]


def test_a_verdict_sent_twice() -> None:
    log = actuator([row(0)])
    log.insert(1, {**log[0], "acted": False})
    assert found(run([row(0)], actuator_log=log)) == [(1, "duplicate", 0)]
    log[1] |= {"resent": True}
    assert found(run([row(0)], actuator_log=log)) == []
    log[1] |= {"acted": True}
    assert found(run([row(0)], actuator_log=log)) == [(1, "duplicate", 0)]


def test_the_camera_sent_another_part_or_picture() -> None:
    log = camera([row(0)])
    log[1] |= {"part_id": "p7"}
    assert found(run([row(0)], camera_log=log)) == [(3, "part", 0)]
    log = camera([row(0)])
    log[1] |= {"crc32c": 5}
    assert found(run([row(0)], camera_log=log)) == [(3, "checksum", 0)]


@pytest.mark.parametrize(("seconds", "held"), [(1, False), (20, True)])
def test_a_part_lost_right_after_a_loss_breaks_promise_4(seconds: int, held: bool) -> None:
    event = {"at_ns": row(1).captured_at_ns - seconds * S, "unit": "batcher", "kind": "gpu.lost",
             "subject": "gpu2", "detail": ""}  # fmt: skip
    parts = [row(0), row(1), row(2)]
    seen = [row(0), row(2)]
    report = check(seen, camera(parts), actuator(seen), models={MODEL}, events=[STARTED, event])
    assert report.promises == {1: False, 2: True, 3: True, 4: held}


def test_lost_frames_are_not_owed() -> None:
    lost = replace(uninspected(1, "lost"), part_id="", owed=False, acked=False)
    log = camera([row(0)])
    assert found(run([row(0), lost], camera_log=log)) == []


def of_line(line: str, parts: list[PartRow]) -> list[PartRow]:
    return [replace(part, line=line, nonce=part.nonce + 1_000_000) for part in parts]


def logs_of(*groups: list[PartRow]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Both logs of several lines."""
    cameras: list[dict[str, Any]] = []
    actuators: list[dict[str, Any]] = []
    for parts in groups:
        line = {"line": parts[0].line}
        cameras += [entry | line for entry in camera(parts)]
        actuators += [entry | line for entry in actuator(parts)]
    return cameras, actuators


@pytest.mark.parametrize("gone", ["camera", "actuator", "both logs and the rows", "the rows"])
def test_a_line_whose_evidence_is_gone(gone: str) -> None:
    one, two = [row(0), row(1)], of_line("line02", [row(0), row(1)])
    cameras, actuators = logs_of(one, two)
    lines = ["line01", "line02"]
    clean = run([*one, *two], camera_log=cameras, actuator_log=actuators, lines=lines,
                events=[STARTED])  # fmt: skip
    assert (found(clean), clean.is_partial, clean.promises[4]) == ([], False, True)

    if gone not in {"actuator", "the rows"}:
        cameras = [entry for entry in cameras if entry["line"] == "line01"]
    if gone not in {"camera", "the rows"}:
        actuators = [entry for entry in actuators if entry["line"] == "line01"]
    parts = one if "rows" in gone else [*one, *two]
    report = run(parts, camera_log=cameras, actuator_log=actuators, lines=lines, events=[STARTED])
    absent = [finding for finding in report.findings if finding.what == "absent"]
    assert {finding.line for finding in absent} == {"line02"}
    assert report.is_partial
    assert (report.promises[1], report.promises[4]) == (False, None)
    assert all(text.startswith("line02: ") for text in report.absent)


def test_a_line_without_parts_is_idle_only_if_its_camera_says_so() -> None:
    cameras, actuators = logs_of([row(0)])
    cameras.append({"event": "hello", "line": "line02", "session": "t", "at_ns": 5})
    actuators.append({"event": "ready", "line": "line02", "at_ns": 5})
    given: dict[str, Any] = {"lines": ["line01", "line02"], "events": [STARTED]}
    idle = run([row(0)], camera_log=cameras, actuator_log=actuators, **given)
    assert (found(idle), idle.counts["idle_lines"]) == ([], 1)
    silent = run([row(0)], camera_log=cameras[:-1], actuator_log=actuators, **given)
    assert {what for _, what, _ in found(silent)} == {"absent"}


def test_a_journal_alone_misses_a_line_whose_camera_had_connected() -> None:
    event = {"at_ns": 2, "unit": "line-line02", "kind": "camera.connected", "subject": "c",
             "detail": ""}  # fmt: skip
    given: dict[str, Any] = {"models": {MODEL}, "lines": ["line01", "line02"]}
    assert found(check([row(0)], events=[STARTED], **given)) == []
    assert found(check([row(0)], events=[STARTED, event], **given)) == [(1, "absent", 0)]


def test_events_without_the_journals_start_are_not_all_of_them() -> None:
    other = {**STARTED, "kind": "gpu.ready", "unit": "batcher"}
    assert found(run([row(0)], events=[other])) == [(1, "absent", 0)]
    assert found(run([row(0)], lines=["line01"])) == [(1, "absent", 0)]
    assert found(run([row(0)], events=[other, STARTED], lines=["line01"])) == []


def told(kind: str, at_ns: int, line: str = "line01") -> dict[str, Any]:
    return {"at_ns": at_ns, "unit": f"line-{line}", "kind": kind, "subject": "", "detail": ""}


def test_an_actuators_log_cut_in_half() -> None:
    parts = [row(seq) for seq in range(80)]
    cut = actuator(parts)[:30]
    report = run(parts, actuator_log=cut)
    assert found(report) == [(1, "unconfirmed", 30)]
    assert report.counts["unconfirmed"] == 50
    last_ns = parts[29].sent_at_ns
    for kind in ("actuator.unreachable", "actuator.silent"):
        gone = told(kind, last_ns + 400 * MS)
        assert found(run(parts, actuator_log=cut, events=[STARTED, gone])) == []
        other_line = told(kind, last_ns + 400 * MS, "line02")
        before = told(kind, last_ns - S)
        back = told("actuator.connected", last_ns + S)
        for events in ([other_line], [before], [gone, back]):
            report = run(parts, actuator_log=cut, events=[STARTED, *events])
            assert [what for _, what, _ in found(report)] == ["unconfirmed"]


def test_an_actuator_may_stop_two_seconds_before_its_line() -> None:
    parts = [row(seq) for seq in range(60)]
    log = actuator(parts)[:41]
    report = run(parts, actuator_log=log)
    assert (found(report), report.counts["unconfirmed"]) == ([], 19)


def test_the_deadline_the_actuator_got_is_the_rows() -> None:
    log = actuator([row(0)])
    log[0] |= {"deadline_ns": log[0]["deadline_ns"] + 1}
    assert found(run([row(0)], actuator_log=log)) == [(3, "differs", 0)]


@pytest.mark.parametrize("name", ["due_at_ns", "deadline_at_ns"])
def test_due_and_deadline_are_apart_by_one_constant(name: str) -> None:
    parts = [row(0), row(1), row(2)]
    changed = [*parts[:2], replace(parts[2], **{name: getattr(parts[2], name) + MS})]
    assert found(run(changed, actuator_log=None)) == [(1, "due", 2)]
    # Another plant file from the journal's second start on.
    starts = [STARTED, {**STARTED, "at_ns": parts[2].captured_at_ns}]
    assert found(run(changed, actuator_log=None, events=starts)) == []


def test_all_deadlines_moved_is_not_what_the_camera_was_told() -> None:
    moved = [
        replace(part, due_at_ns=part.due_at_ns + S, deadline_at_ns=part.deadline_at_ns + S)
        for part in (row(0), row(1))
    ]
    assert found(run(moved)) == [(1, "due", 0)]


def test_one_model_has_one_threshold() -> None:
    parts = [row(0), row(1), row(2, threshold=0.6)]
    assert found(run(parts)) == [(3, "threshold", 2)]


def batch(part: PartRow, **changes: Any) -> dict[str, Any]:
    """The batcher's row of the batch that a part names."""
    dispatched = part.ready_at_ns + part.queue_ns + part.window_ns
    made = {"batch_id": part.batch_id, "epoch": 1, "gpu": part.engine, "model": part.model,
            "size": 2, "worst_ns": 30 * MS, "queue_at_ns": part.ready_at_ns,
            "dispatched_at_ns": dispatched, "sent_at_ns": dispatched + part.gather_ns,
            "answered_at_ns": dispatched + part.gather_ns + part.model_ns,
            "outcome": "ok"}  # fmt: skip
    return {**made, **changes}


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": "a row was not written, or is another's"},
        {"size": 1},
        {"gpu": "gpu1"},
        {"batch_id": 8},
        {"model": "tile@ffffffffffff"},
        {"answered_at_ns": S + 36 * MS},
        {"sent_at_ns": 0, "dispatched_at_ns": 0},
    ],
)
def test_a_pool_answer_that_its_batch_does_not_bear_out(change: dict[str, Any]) -> None:
    part = row(0)
    assert found(run([part], batches=[batch(part)])) == []
    assert found(run([part], batches=[batch(part, **change)])) == [(3, "batch", 0)]


def test_batches_count_anew_with_each_start_of_the_batcher() -> None:
    first, second = row(0), row(9)
    batches = [batch(first), batch(second, epoch=2)]
    assert found(run([first, second], batches=batches)) == []
    assert found(run([first, second], batches=batches[:1])) == [(3, "batch", 9)]


def test_more_parts_name_a_batch_than_it_had() -> None:
    parts = of_line("line02", [row(0)]) + of_line("line03", [row(0, nonce=7)]) + [row(0)]
    report = check(parts, models={MODEL}, batches=[batch(row(0))])
    assert found(report) == [(3, "batch", 0)]


def test_all_batches_deleted() -> None:
    connected = {**STARTED, "unit": "batcher", "kind": "line.connected", "at_ns": S + 50 * MS}
    report = run([row(0), row(1)], batches=[], events=[STARTED, connected])
    assert found(report) == [(3, "batch", 0), (3, "batch", 1)]


def test_a_killed_batcher_takes_its_last_rows_along() -> None:
    parts = [row(seq, batch_id=seq + 1) for seq in range(40)]
    kept = [batch(part) for part in parts if part.seq not in (5, 19)]
    connected = {**STARTED, "unit": "batcher", "kind": "line.connected",
                 "at_ns": parts[20].captured_at_ns}  # fmt: skip
    report = run(parts, batches=kept, events=[STARTED, connected])
    assert (found(report), report.counts["unproved"]) == ([(3, "batch", 5)], 1)
    assert {what for _, what, _ in found(run(parts, batches=kept))} == {"batch"}
    # A plant that is killed as a whole takes the very last ones.
    last = [batch(part) for part in parts[:-1]]
    report = run(parts, batches=last)
    assert (found(report), report.counts["unproved"]) == ([], 1)
    assert len(found(run(parts, batches=last[:-3]))) == 2


def test_a_part_that_came_after_it_was_due_is_counted_apart() -> None:
    at = row(1).captured_at_ns
    came = uninspected(
        1, "late", received_at_ns=at + 136 * MS, ready_at_ns=at + 136 * MS,
        decided_at_ns=at + 136 * MS, sent_at_ns=at + 137 * MS,
    )  # fmt: skip
    report = run([row(0), came])
    assert (found(report), report.counts["arrived_too_late"]) == ([], 1)
    in_time = replace(came, received_at_ns=came.due_at_ns)
    assert found(run([row(0), in_time])) == [(1, "late", 1)]


def test_parts_that_no_cameras_log_shows_are_counted() -> None:
    parts = [row(0), row(1), row(2)]
    report = run(parts, camera_log=camera(parts)[:3])
    assert (found(report), report.counts["unlogged"]) == ([], 2)
