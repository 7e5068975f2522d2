"""Decides promises 1 to 4 of DESIGN.md from what the journal and both ends of the wire wrote down.

Pure. Instants are monotonic nanoseconds of one host. Logs are the entries of `camera-LINE.jsonl`
and `actuator-LINE.jsonl`; without them the judgement is partial: nobody else says what was owed.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from hil_sim.findings import (
    Entry,
    Finding,
    Report,
    costly_stage,
    is_restart,
    is_too_late,
    left_at_ns,
    of_entry,
    of_row,
    usual_stages_ns,
)
from hil_sim.provenance import constant_mistakes, pool_mistakes, provenance_mistakes
from lines.ledger import PERHAPS_SENT
from lines.record import PartRow
from lines.wire import UNINSPECTED_REASONS

Key = tuple[str, str, int]  # line, session, seq

SAME_PART_NS: Final = 60_000_000_000
"""A part_id seen again on a line within this is a duplicate (docs/protocol.md)."""
AFTER_LOSS_NS: Final = 10_000_000_000
"""A part that fails within this after a loss is held against promise 4 too."""
ON_ITS_WAY_NS: Final = 100_000_000
"""A verdict sent this shortly before an actuator stopped may never have been read."""
LAST_WORDS_NS: Final = 2_000_000_000
"""An actuator may be stopped this long before its line: what is sent after is nobody's word."""
SILENT_NS: Final = 500_000_000
"""An actuator is told silent or unreachable at most this long after it heard its last."""
LOSS_WORDS: Final = frozenset({"lost", "exited", "died", "killed", "gone", "failed", "down"})
COMPARED: Final = {
    **{
        name: name
        for name in ("part_id", "verdict", "reason", "action", "answered_by", "model", "score")
    },
    "deadline_ns": "deadline_at_ns",
}
"""A field of the verdict, and the row's column that must say the same."""


def check(
    parts: Sequence[PartRow],
    camera_log: Sequence[Entry] | None = None,
    actuator_log: Sequence[Entry] | None = None,
    *,
    models: Collection[str] | None = None,
    events: Sequence[Entry] = (),
    lines: Sequence[str] | None = None,
    batches: Sequence[Entry] | None = None,
) -> Report:
    """Judge every part. models: the known name@sha12; None where the journal does not say.

    lines: the plant's, all of which must be there; None where the journal does not say. batches:
    what the pool's answers are held against; None: they are taken at their word.
    Promises 1 and 4 need both logs to be decided in full; 4 is decided only with them.
    """
    report = Report(is_partial=camera_log is None or actuator_log is None)
    report.promises = {1: True, 2: True, 3: True, 4: None if report.is_partial else True}
    rows = {(row.line, row.session, row.seq): row for row in parts}
    _check_rows(report, parts, models)
    _check_sources(report, parts, camera_log, events, batches)
    _check_conflicts(report, events)
    _check_presence(report, parts, camera_log, actuator_log, events, lines)
    if camera_log is not None:
        _check_camera(report, rows, camera_log, _end_ns(parts, camera_log, actuator_log, events))
    if actuator_log is not None:
        seen, ends_ns = _check_actuator(report, rows, actuator_log, events)
        unseen = [row for key, row in rows.items() if row.sent_at_ns and key not in seen]
        _check_unseen(report, unseen, ends_ns, _line_ends_ns(parts, camera_log or ()), events)
    if report.promises[4] is not None:
        _check_losses(report, events)
    return report


def _check_rows(report: Report, parts: Sequence[PartRow], models: Collection[str] | None) -> None:
    usual_ns = usual_stages_ns(parts)
    by_name: dict[tuple[str, str], list[PartRow]] = defaultdict(list)
    nonces: dict[int, PartRow] = {}
    for row in parts:
        report.counts["rows"] += 1
        report.counts["owed"] += row.owed
        if is_restart(row):
            report.counts["restart"] += 1
            continue
        report.counts[row.verdict.lower() if row.verdict else "none"] += 1
        report.counts["not_sent"] += row.sent_at_ns == 0
        late_ns = left_at_ns(row) - row.due_at_ns
        if row.owed and is_too_late(row):
            report.counts["arrived_too_late"] += 1
        elif row.owed and late_ns > 0:
            stage, took_ns = costly_stage(row, usual_ns)
            detail = f"late by {late_ns / 1e6:.3f} ms; {stage} took {took_ns / 1e6:.3f} ms"
            report.add(of_row(row, 1, "late", detail))
        for promise, what, detail in provenance_mistakes(row, models):
            report.add(of_row(row, promise, what, detail))
        if row.owed and row.part_id:
            by_name[row.line, row.part_id].append(row)
        if row.nonce and row.verdict in ("PASS", "FAIL"):
            other = nonces.setdefault(row.nonce, row)
            if other is not row:
                report.add(of_row(row, 3, "nonce", f"the same as {other.line} seq {other.seq}"))
    for same in by_name.values():
        same.sort(key=lambda row: row.received_at_ns)
        for first, second in itertools.pairwise(same):
            if second.received_at_ns - first.received_at_ns < SAME_PART_NS:
                detail = f"answered at seq {first.seq} too ({first.verdict}, {second.verdict})"
                report.add(of_row(second, 1, "duplicate", detail))


def _check_sources(
    report: Report,
    parts: Sequence[PartRow],
    camera_log: Sequence[Entry] | None,
    events: Sequence[Entry],
    batches: Sequence[Entry] | None,
) -> None:
    """Rows against the batches they name, against each other and against the camera's deadline."""
    live = [row for row in parts if not is_restart(row)]
    started = [int(event["at_ns"]) for event in events if event["kind"] == "journal.started"]
    deadline_ns = {
        entry["line"]: round(entry["deadline_ms"] * 1e6)
        for entry in camera_log or ()
        if entry["event"] == "ready" and entry.get("deadline_ms") is not None
    }
    for row, promise, what, detail in constant_mistakes(live, started, deadline_ns):
        report.add(of_row(row, promise, what, detail))
    if batches is None:
        return
    for row, promise, what, detail in pool_mistakes(live, batches, events):
        if what == "unproved":
            report.counts["unproved"] += 1
        else:
            report.add(of_row(row, promise, what, detail))


def _check_presence(
    report: Report,
    parts: Sequence[PartRow],
    camera_log: Sequence[Entry] | None,
    actuator_log: Sequence[Entry] | None,
    events: Sequence[Entry],
    lines: Sequence[str] | None,
) -> None:
    """Every line of the plant in the rows and in both logs; the journal's own start."""
    begun = ("journal.started", "journal.segment")
    if (events or lines is not None) and not any(e["kind"] in begun for e in events):
        _absent(report, "", "the journal has no event of its own start: events are gone")
    if lines is None:
        return
    have_logs = camera_log is not None or actuator_log is not None
    in_rows = {row.line for row in parts}
    in_camera = {str(entry["line"]) for entry in camera_log or ()}
    in_actuator = {str(entry["line"]) for entry in actuator_log or ()}
    sending = {str(e["line"]) for e in camera_log or () if e["event"] == "frame" and e["sent"]}
    if not have_logs:  # nobody else's word: a line whose camera had connected should have parts
        sending = {
            str(event["unit"]).removeprefix("line-")
            for event in events
            if event["kind"] == "camera.connected"
        }
    for line in lines:
        if have_logs and line not in in_camera:
            _absent(report, line, "its camera's log is not there, or empty")
        if have_logs and line not in in_actuator:
            _absent(report, line, "its actuator's log is not there, or empty")
        if line in in_rows:
            continue
        if line in sending or (have_logs and line not in in_camera):
            _absent(report, line, "no row of it in the journal")
        else:
            report.counts["idle_lines"] += 1


def _absent(report: Report, line: str, detail: str) -> None:
    report.is_partial = True
    report.promises[4] = None
    report.absent.append(f"{line}: {detail}" if line else detail)
    report.add(Finding(1, "absent", line, "", 0, "", detail))


def _check_conflicts(report: Report, events: Iterable[Entry]) -> None:
    for event in events:
        if event["kind"] != "journal.conflict":
            continue
        if "restart" in str(event["detail"]):
            # A verdict that was sent, and the same part in the dead process's ledger.
            report.counts["restart_conflict"] += 1
            continue
        line, session, seq = str(event["subject"]).split("/")
        report.add(
            Finding(1, "duplicate", line, session, int(seq), "", str(event["detail"]),
                    int(event["at_ns"]))
        )  # fmt: skip


def _end_ns(
    parts: Iterable[PartRow],
    camera_log: Iterable[Entry],
    actuator_log: Iterable[Entry] | None,
    events: Iterable[Entry],
) -> int:
    """The latest instant that anybody wrote down."""
    instants = [left_at_ns(row) for row in parts]
    instants += [int(event["at_ns"]) for event in events]
    for entry in (*camera_log, *(actuator_log or ())):
        named = ("at_ns", "sent_at_ns", "received_at_ns")
        instants += [int(entry[name]) for name in named if name in entry]
    return max(instants, default=0)


def _check_camera(
    report: Report, rows: Mapping[Key, PartRow], camera_log: Sequence[Entry], end_ns: int
) -> None:
    frames: dict[Key, Entry] = {}
    deadline_ns: dict[str, int] = {}
    answered: dict[Key, Entry] = {}
    for entry in camera_log:
        if entry["event"] == "frame":
            frames[entry["line"], entry["session"], entry["seq"]] = entry
            report.counts["frames_sent" if entry["sent"] else "frames_dropped"] += 1
        elif entry["event"] == "ready" and entry.get("deadline_ms") is not None:
            deadline_ns[entry["line"]] = round(entry["deadline_ms"] * 1e6)
        elif entry["event"] in ("ack", "reject") and entry.get("seq") is not None:
            report.counts[f"camera_{entry['event']}"] += 1
            answered[entry["line"], entry["session"], entry["seq"]] = entry
    for key, answer in answered.items():
        is_owed = answer["event"] == "ack" or answer.get("reason") in UNINSPECTED_REASONS
        frame, row = frames.get(key), rows.get(key)
        if not is_owed or frame is None:
            continue
        if row is not None:
            _compare_with_frame(report, row, frame, answer)
        elif frame["scheduled_at_ns"] + deadline_ns.get(key[0], 0) >= end_ns:
            report.counts["in_flight"] += 1
        else:
            detail = f"{answer['event']} at {answer['at_ns']} but no row: it never got a verdict"
            report.add(Finding(1, "missing", *key, frame["part_id"], detail, answer["at_ns"]))
    for key, row in rows.items():
        report.counts["unlogged"] += row.acked and key not in frames
        if row.verdict in ("PASS", "FAIL") and key not in answered and key[0] in deadline_ns:
            report.counts["answered_unheard"] += 1


def _compare_with_frame(report: Report, row: PartRow, frame: Entry, answer: Entry) -> None:
    if not row.owed:
        report.add(
            of_row(row, 1, "owed", f"the camera got {answer['event']}, the row says not owed")
        )
    if row.part_id != frame["part_id"]:
        detail = f"the camera sent part {frame['part_id']} with this seq"
        report.add(of_row(row, 3, "part", detail))
    if row.verdict in ("PASS", "FAIL"):
        if answer["event"] == "reject":
            detail = f"{row.verdict} although the frame was refused: {answer['reason']}"
            report.add(of_row(row, 2, "doubt", detail))
        if row.crc32c != frame.get("crc32c", row.crc32c):
            detail = f"checksum {row.crc32c:#x}, the camera sent {frame['crc32c']:#x}"
            report.add(of_row(row, 3, "checksum", detail))


def _check_actuator(
    report: Report,
    rows: Mapping[Key, PartRow],
    actuator_log: Sequence[Entry],
    events: Iterable[Entry],
) -> tuple[Collection[Key], Mapping[str, int]]:
    """What the actuators saw, and each one's last instant."""
    perhaps = {str(event["subject"]) for event in events if event["kind"] == PERHAPS_SENT}
    seen: dict[Key, Entry] = {}
    end_ns: dict[str, int] = defaultdict(int)
    for entry in actuator_log:
        line = entry["line"]
        end_ns[line] = max(end_ns[line], entry.get("at_ns") or entry.get("received_at_ns") or 0)
        if entry["event"] == "beat_back":
            report.counts["beats_lost"] += 1
        if entry["event"] != "verdict":
            continue
        key = (line, entry["session"], entry["seq"])
        report.counts["verdicts_seen"] += 1
        report.counts["seen_after_gate"] += entry["received_at_ns"] > entry["deadline_ns"]
        first = seen.setdefault(key, entry)
        if first is not entry and (not entry["resent"] or (first["acted"] and entry["acted"])):
            detail = f"sent twice ({first['verdict']}, {entry['verdict']})"
            report.add(of_entry(entry, 1, "duplicate", detail))
        row = rows.get(key)
        if row is None:
            report.add(of_entry(entry, 1, "unjournalled", "the actuator got it, no row has it"))
        elif is_restart(row) and "/".join(map(str, key)) in perhaps:
            report.counts["restart_sent"] += 1  # its line was killed while it left, and says so
        elif is_restart(row):
            report.add(of_row(row, 1, "restart", "was sent and journalled as never sent"))
        else:
            _compare_with_verdict(report, row, entry)
    return seen, end_ns


def _line_ends_ns(parts: Iterable[PartRow], camera_log: Iterable[Entry]) -> dict[str, int]:
    """Each line's last instant that is not its actuator's word."""
    ends_ns: dict[str, int] = defaultdict(int)
    for row in parts:
        ends_ns[row.line] = max(ends_ns[row.line], left_at_ns(row))
    for entry in camera_log:
        at_ns = entry.get("at_ns") or entry.get("sent_at_ns") or 0
        ends_ns[entry["line"]] = max(ends_ns[entry["line"]], at_ns)
    return ends_ns


def _check_unseen(
    report: Report,
    unseen: Iterable[PartRow],
    ends_ns: Mapping[str, int],
    line_ends_ns: Mapping[str, int],
    events: Sequence[Entry],
) -> None:
    """Verdicts that left and are in no actuator's log. ends_ns: the last entry of each log."""
    away = {line: _away_ns(line, end_ns, events) for line, end_ns in ends_ns.items()}
    unconfirmed: dict[str, list[PartRow]] = defaultdict(list)
    for row in unseen:
        if row.line not in ends_ns:
            continue  # the log is not there at all: told once
        if row.sent_at_ns < ends_ns[row.line] - ON_ITS_WAY_NS:
            report.add(of_row(row, 1, "unseen", "the actuator never got it"))
            continue
        report.counts["unconfirmed"] += 1
        is_last = row.sent_at_ns >= line_ends_ns[row.line] - LAST_WORDS_NS
        if not is_last and not any(a <= row.sent_at_ns < b for a, b in away[row.line]):
            unconfirmed[row.line].append(row)
    for line, rows in unconfirmed.items():
        first = min(rows, key=lambda row: row.sent_at_ns)
        ended_s = (line_ends_ns[line] - ends_ns[line]) / 1e9
        detail = (
            f"{len(rows)} verdicts from this one on are in no actuator's log, which ends "
            f"{ended_s:.1f} s before the line does"
        )
        report.add(of_row(first, 1, "unconfirmed", detail))


def _away_ns(line: str, end_ns: int, events: Iterable[Entry]) -> list[tuple[int, int]]:
    """When the line itself knew its actuator gone, after the last entry of the actuator's log.

    What was told before that entry was over by then: the actuator wrote again.
    """
    mine = sorted(
        (int(event["at_ns"]), str(event["kind"]))
        for event in events
        if event["unit"] == f"line-{line}" and str(event["kind"]).startswith("actuator.")
    )
    spans = []
    for at_ns, kind in mine:
        if kind in ("actuator.unreachable", "actuator.silent") and at_ns >= end_ns - SILENT_NS:
            back = (t for t, k in mine if k == "actuator.connected" and t > at_ns)
            spans.append((at_ns - SILENT_NS, next(back, 1 << 63)))
    return spans


def _compare_with_verdict(report: Report, row: PartRow, entry: Entry) -> None:
    differences = [
        f"{name} {entry[name]!r}, the row says {getattr(row, column)!r}"
        for name, column in COMPARED.items()
        if name in entry and entry[name] != getattr(row, column)
    ]
    if differences:
        report.add(of_row(row, 3, "differs", f"the actuator got {'; '.join(differences)}"))


def _check_losses(report: Report, events: Iterable[Entry]) -> None:
    losses = [
        int(event["at_ns"])
        for event in events
        if set(str(event["kind"]).replace("_", ".").split(".")) & LOSS_WORDS
    ]
    report.counts["losses"] = len(losses)
    for finding in report.findings:
        if finding.promise == 1 and any(
            0 <= finding.at_ns - at_ns <= AFTER_LOSS_NS for at_ns in losses
        ):
            report.promises[4] = False
