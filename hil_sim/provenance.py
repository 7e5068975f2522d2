"""Where a verdict comes from: what a row says for itself, and what its batch says of it.

Promises 2 and 3. A pool's answer is held against the row that the batcher wrote of the batch.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from lines.record import STAGES, PartRow

STAGES_TOLERANCE_NS: Final = 1_000
BEFORE_RESTART_NS: Final = 1_000_000_000
"""A batcher that is killed takes its last rows along; none is older than this."""
BEFORE_END_NS: Final = 200_000_000
"""So does a whole plant that is killed: rows travel for at most 50 ms."""
ROWS_LOST_NS: Final = 120_000_000_000
"""A sender that says it dropped rows for want of a journal dropped some of this time before."""
VERDICTS: Final = ("PASS", "FAIL", "UNINSPECTED")

Mistake = tuple[int, str, str]
"""Promise, kind of finding, detail."""
RowMistake = tuple[PartRow, int, str, str]
"""The row, and its mistake."""


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


def constant_mistakes(
    rows: Sequence[PartRow], started_ns: Iterable[int], deadline_ns: Mapping[str, int]
) -> Iterator[RowMistake]:
    """Rows that disagree with most others in what the plant file and the model fix.

    A plant file may change between two starts (started_ns), a model's threshold never: another
    threshold is another model. deadline_ns: what each line told its camera.
    """
    by_line: dict[tuple[str, int], list[PartRow]] = defaultdict(list)
    by_model: dict[str, list[PartRow]] = defaultdict(list)
    starts = sorted(started_ns)
    for row in rows:
        by_line[row.line, bisect_right(starts, row.received_at_ns)].append(row)
        if row.model:
            by_model[row.model].append(row)
    for same in by_line.values():
        apart = Counter(row.deadline_at_ns - row.due_at_ns for row in same)
        ahead = Counter(row.deadline_at_ns - row.captured_at_ns for row in same)
        usual_ns, usual_ahead_ns = (c.most_common(1)[0][0] for c in (apart, ahead))
        for row in same:
            if row.deadline_at_ns - row.due_at_ns != usual_ns:
                told = f"due {row.deadline_at_ns - row.due_at_ns} ns before the gate acts"
                yield row, 1, "due", f"{told}, others of the line {usual_ns} ns"
            elif row.deadline_at_ns - row.captured_at_ns != usual_ahead_ns:
                told = f"deadline {row.deadline_at_ns - row.captured_at_ns} ns after capture"
                yield row, 1, "due", f"{told}, others of the line {usual_ahead_ns} ns"
        told_ns = deadline_ns.get(same[0].line, usual_ahead_ns)
        if len(starts) <= 1 and told_ns != usual_ahead_ns:
            told = f"deadline {usual_ahead_ns} ns after capture in all {len(same)} rows"
            yield same[0], 1, "due", f"{told}, the camera was told {told_ns} ns"
    for model, same in by_model.items():
        usual = Counter(row.threshold for row in same).most_common(1)[0][0]
        for row in same:
            if row.threshold != usual:
                told = f"threshold {row.threshold}, other rows of {model} have {usual}"
                yield row, 3, "threshold", told


def pool_mistakes(
    rows: Iterable[PartRow],
    batches: Sequence[Mapping[str, Any]],
    events: Iterable[Mapping[str, Any]],
) -> Iterator[RowMistake]:
    """Pool answers that no batch row bears out; `unproved`: it went with a killed batcher.

    Batches count from 1 with each start of the batcher and a part does not say which start: any
    whose times are the part's own will do.
    """
    known: dict[tuple[str, int], list[Mapping[str, Any]]] = defaultdict(list)
    for batch in batches:
        known[str(batch["gpu"]), int(batch["batch_id"])].append(batch)
    excuses = _Excuses(batches, events)
    members: Counter[tuple[int, int]] = Counter()
    for row in rows:
        if row.answered_by != "pool" or row.verdict not in ("PASS", "FAIL"):
            continue
        dispatched_at_ns = row.ready_at_ns + row.queue_ns + row.window_ns
        sent_at_ns = dispatched_at_ns + row.gather_ns
        answered_at_ns = sent_at_ns + row.model_ns
        told = (dispatched_at_ns, sent_at_ns, answered_at_ns)
        candidates = known[row.engine, row.batch_id]
        fitting = [one for one in candidates if _times(one) == told]
        which = f"batch {row.batch_id} on {row.engine}"
        if not fitting and not any(_is_within(row, one) for one in candidates):
            is_excused = excuses.covers(answered_at_ns)
            yield row, 3, "unproved" if is_excused else "batch", f"no row of {which} at its time"
        elif not fitting:
            yield row, 3, "batch", f"{which} has other times than the part's stages"
        else:
            batch = fitting[0]
            key = (int(batch["epoch"]), row.batch_id)
            members[key] += 1
            for detail in _batch_mistakes(row, batch, members[key]):
                yield row, 3, "batch", f"{which}: {detail}"


def _times(batch: Mapping[str, Any]) -> tuple[int, int, int]:
    return batch["dispatched_at_ns"], batch["sent_at_ns"], batch["answered_at_ns"]


def _is_within(row: PartRow, batch: Mapping[str, Any]) -> bool:
    """Whether a batch may be this part's: between its coming and its verdict."""
    return bool(row.received_at_ns <= batch["sent_at_ns"] <= row.decided_at_ns)


def _batch_mistakes(row: PartRow, batch: Mapping[str, Any], members: int) -> Iterator[str]:
    if batch["outcome"] != "ok":
        yield f"answered, yet its outcome is {batch['outcome']}"
    if batch["size"] < row.batch_size:
        yield f"{batch['size']} parts, the row says {row.batch_size}"
    if members > batch["size"]:
        yield f"{batch['size']} parts, this is number {members} that names it"
    if batch.get("model", row.model) != row.model:
        yield f"was of {batch['model']}, the row says {row.model}"
    dispatched_at_ns, sent_at_ns, answered_at_ns = _times(batch)
    ordered = (row.received_at_ns, dispatched_at_ns, sent_at_ns, answered_at_ns, row.decided_at_ns)
    if list(ordered) != sorted(ordered):
        yield f"its times are out of order with the part's: {ordered}"


class _Excuses:
    """When rows of batches may be missing though nobody took them away."""

    def __init__(
        self, batches: Iterable[Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
    ) -> None:
        first_ns: dict[int, int] = {}
        self._written_ns = sorted(max(_times(batch)) for batch in batches)
        for batch in batches:
            epoch, at_ns = int(batch["epoch"]), min(_times(batch)[:2])
            first_ns[epoch] = min(at_ns, first_ns.get(epoch, at_ns))
        restarts_ns = list(first_ns.values())
        self._dropped_ns = []
        for event in events:
            if event["kind"] == "line.connected" and event["unit"] == "batcher":
                restarts_ns.append(int(event["at_ns"]))
            elif event["kind"] == "journal.memory_full" or (
                event["kind"] == "journal.dropped" and event["subject"] == "batcher"
            ):
                self._dropped_ns.append(int(event["at_ns"]))
        self._restarts_ns = sorted(restarts_ns)

    def covers(self, answered_at_ns: int) -> bool:
        """Whether the batcher ended, or started anew, right after the last that it wrote before.

        It must have written something shortly before: a table without rows excuses nothing.
        """
        if any(0 <= at_ns - answered_at_ns <= ROWS_LOST_NS for at_ns in self._dropped_ns):
            return True
        place = bisect_left(self._restarts_ns, answered_at_ns)
        if place == len(self._restarts_ns):
            last_ns = self._written_ns[-1] if self._written_ns else answered_at_ns
            return 0 < answered_at_ns - last_ns <= BEFORE_END_NS
        before = bisect_left(self._written_ns, self._restarts_ns[place])
        if before == 0:
            return False
        return abs(answered_at_ns - self._written_ns[before - 1]) <= BEFORE_RESTART_NS
