"""What a judgement of a run consists of: findings, the report, and what a row says of itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from lines.record import STAGES, PartRow

Entry = Mapping[str, Any]
FINDINGS_KEPT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that breaks a promise."""

    promise: int
    what: str
    line: str
    session: str
    seq: int
    part_id: str
    detail: str
    at_ns: int = 0

    def __str__(self) -> str:
        return (
            f"promise {self.promise}: {self.what}: {self.line} seq {self.seq} "
            f"part {self.part_id or '(none)'}: {self.detail} [session {self.session}]"
        )


@dataclass
class Report:
    """What was judged and what was found. `promises`: number → held; None: not decided.

    `absent`: evidence that should be there and is not; with any, the report is partial.
    """

    is_partial: bool
    absent: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)
    found: Counter[str] = field(default_factory=Counter)
    promises: dict[int, bool | None] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found."""
        return not self.found

    def add(self, finding: Finding) -> None:
        """Count a finding, and keep it as far as there is room."""
        self.found[finding.what] += 1
        self.promises[finding.promise] = False
        if len(self.findings) < FINDINGS_KEPT_MAX:
            self.findings.append(finding)


def left_at_ns(row: PartRow) -> int:
    """When the verdict left; where no actuator took it, when it was decided."""
    return row.sent_at_ns or row.decided_at_ns


def is_restart(row: PartRow) -> bool:
    """Whether its line's process died with it: never sent, counted apart."""
    return row.verdict == "UNINSPECTED" and row.reason == "restart"


def is_too_late(row: PartRow) -> bool:
    """Whether it arrived after its verdict was due: nobody could have answered it in time."""
    return row.received_at_ns > row.due_at_ns


def costly_stage(row: PartRow, usual_ns: Mapping[str, float]) -> tuple[str, int]:
    """The stage that took most beyond its usual time, and that time."""
    return max(
        ((stage, getattr(row, f"{stage}_ns")) for stage in STAGES),
        key=lambda item: item[1] - usual_ns.get(item[0], 0.0),
    )


def usual_stages_ns(parts: Iterable[PartRow]) -> dict[str, float]:
    """Each stage's median over the parts in time."""
    in_time = [row for row in parts if left_at_ns(row) <= row.due_at_ns and not is_restart(row)]
    if not in_time:
        return {}
    return {stage: median(getattr(row, f"{stage}_ns") for row in in_time) for stage in STAGES}


def of_row(row: PartRow, promise: int, what: str, detail: str) -> Finding:
    at_ns = row.received_at_ns
    return Finding(promise, what, row.line, row.session, row.seq, row.part_id, detail, at_ns)


def of_entry(entry: Entry, promise: int, what: str, detail: str) -> Finding:
    return Finding(
        promise, what, entry["line"], entry["session"], entry["seq"], entry["part_id"], detail,
        entry["received_at_ns"],
    )  # fmt: skip
