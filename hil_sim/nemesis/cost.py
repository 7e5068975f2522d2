"""What a run's faults cost, from the camera's log, the actuator's log and the journal. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final, Protocol

from hil_sim.check_journal import judge
from hil_sim.evidence import Evidence
from hil_sim.findings import is_restart, left_at_ns
from hil_sim.summary import quantile
from lines.record import PartRow

MISSING: Final = ("missing", "unseen", "unjournalled", "unconfirmed")
SAME_SCORE: Final = 1e-3
"""The same model on the same picture; engines of one model differ by less than 1e-5."""
ALIKE_MIN: Final = 3
STOPPED_AFTER_NS: Final = 1_000_000_000
"""A process that goes on after a stop has this long until its queue is worked off."""
_LATENESS: Final = re.compile(r"max ([0-9.]+) ms")


class Hurt(Protocol):
    """What is used of an injection."""

    @property
    def fault(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def at_ns(self) -> int: ...
    @property
    def ended_at_ns(self) -> int: ...
    @property
    def back_at_ns(self) -> int: ...


def odd_scores(parts: Iterable[PartRow]) -> list[PartRow]:
    """Rows whose score is not the one that the same model gave most of the same pictures.

    A swapped, stale or unwritten row that nothing else shows is one of these.
    """
    alike: dict[tuple[str, int], list[PartRow]] = defaultdict(list)
    for row in parts:
        if row.score is not None:
            alike[row.model, row.crc32c].append(row)
    odd = []
    for same in alike.values():
        if len(same) >= ALIKE_MIN:
            usual = median(row.score for row in same if row.score is not None)
            odd += [r for r in same if r.score is not None and abs(r.score - usual) > SAME_SCORE]
    return odd


def _is_stopped_line(row: PartRow, done: Sequence[Hurt]) -> bool:
    """Whether the part's own line was stopped, or its link cut, while it waited."""
    return any(
        one.subject == f"line-{row.line}"
        and one.at_ns <= row.due_at_ns
        and row.received_at_ns <= (one.ended_at_ns or one.back_at_ns) + STOPPED_AFTER_NS
        for one in done
    )


def batch_p999_ms(batches: Iterable[Mapping[str, Any]]) -> float | None:
    """The 99.9th percentile of a call's time, sent to answered; None without a batch."""
    times_ms = sorted(
        (batch["answered_at_ns"] - batch["sent_at_ns"]) / 1e6
        for batch in batches
        if batch["outcome"] == "ok" and batch["batch_id"] > 0
    )
    return round(quantile(times_ms, 0.999), 3) if times_ms else None


def timer_late_most_ms(events: Iterable[Mapping[str, Any]]) -> float | None:
    """How late any timer of a line or the batcher was at most; None where nobody said."""
    said = (_LATENESS.search(str(e["detail"])) for e in events if e["kind"] == "timer.lateness")
    return max((float(found[1]) for found in said if found), default=None)


def cost_of(evidence: Evidence, done: Sequence[Hurt]) -> dict[str, Any]:
    """Counts over the whole run.

    owed: parts owed a verdict. missing: owed and without one at the actuator. late: left after
    due; `late_own`: of these, of a line that was itself stopped; `late_answers`: PASS or FAIL that
    left after due, in any line. wrong: PASS or FAIL whose provenance or score does not hold.
    in_doubt: UNINSPECTED(restart), a killed line's own. The rest is who answered.
    """
    report = judge(evidence)
    rows = [row for row in evidence.parts if row.owed and not is_restart(row)]
    late = [row for row in rows if left_at_ns(row) > row.due_at_ns >= row.received_at_ns]
    own = [row for row in late if _is_stopped_line(row, done)]
    odd = odd_scores(evidence.parts)
    wrong = {(f.line, f.session, f.seq) for f in report.findings if f.promise in (2, 3)}
    wrong |= {(row.line, row.session, row.seq) for row in odd}
    answered = Counter(row.answered_by for row in rows)
    counts = report.counts
    return {
        "owed": sum(row.owed for row in evidence.parts),
        "frames_sent": counts["frames_sent"],
        "frames_dropped": counts["frames_dropped"],
        "missing": sum(report.found[what] for what in MISSING),
        "late": len(late) - len(own),
        "late_own": len(own),
        "late_answers": sum(row.verdict in ("PASS", "FAIL") for row in late),
        "late_by_ms": sorted(
            (round((left_at_ns(row) - row.due_at_ns) / 1e6, 1) for row in late), reverse=True
        )[:20],
        "duplicate": report.found["duplicate"],
        "wrong": len(wrong),
        "in_doubt": counts["restart"],
        "arrived_too_late": counts["arrived_too_late"],
        "pool": answered["pool"],
        "fallback": answered["fallback"],
        "failsafe": answered["failsafe"],
        "reasons": dict(Counter(row.reason for row in rows if row.reason)),
        "batch_p999_ms": batch_p999_ms(evidence.batches),
        "timer_late_most_ms": timer_late_most_ms(evidence.events),
        "found": dict(report.found),
        "examples": [str(finding) for finding in report.findings[:5]],
    }
