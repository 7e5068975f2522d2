"""Judges a run while it goes on: what the promise of DESIGN.md forbids, and bounds of all queues.

Promises are named by their number there. What an actuator, a camera and the journal saw is compared
with what the lines did; nothing is asked of the code that is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from hil_sim.fuzz.engines import FACTS, score_of
from hil_sim.fuzz.host import MS, Process, World
from hil_sim.fuzz.outside import Camera, Got, Key, Sent
from lines import ledger as ledger_
from lines.journal_link import JournalSender
from lines.ledger import Ledger
from lines.output import VerdictOutput
from lines.settings import LineSettings

OWED_BOUND = 400
"""More parts than a line may ever have open here."""


@dataclass(slots=True)
class Accepted:
    """A part that a line wrote into its ledger. crowd: parts of the line that were open then."""

    life: Process
    received_at_ns: int
    due_at_ns: int
    crowd: int
    place: int
    """In the ledger's ring."""
    overwritten_by: Process | None = None


@dataclass(slots=True)
class Decided:
    """The verdict that a line made of a part."""

    life: Process
    fields: dict[str, Any]
    is_sent: bool = False


class Audit:
    """Everything that was seen. `excused` says whether a fault explains an uninspected part."""

    def __init__(
        self,
        world: World,
        settings: dict[str, LineSettings],
        slack_ns: int,
        excused: Callable[[str, int], bool],
    ) -> None:
        self.world = world
        self.accepted: dict[Key, Accepted] = {}
        self.decided: dict[Key, Decided] = {}
        self.counts: Counter[str] = Counter()
        self.cameras: dict[str, Camera] = {}
        self.verdict_trace: list[tuple[Any, ...]] = []
        self.pool_answered_at_ns: dict[str, int] = {}
        self._settings = settings
        self._slack_ns = slack_ns
        self._excused = excused
        self._perhaps_sent: set[str] = set()
        self._open: Counter[Process] = Counter()
        self._ring: dict[tuple[str, int], Accepted] = {}

    # --- where it looks ---------------------------------------------------------------------

    def wrappers(self) -> Sequence[tuple[Any, str, Any]]:
        """Where it listens in: a part accepted, a verdict handed to the actuator's socket."""
        accept, send, event = Ledger.accept, VerdictOutput.send, JournalSender.event

        @wraps(accept)
        def on_accept(ledger: Ledger, part: int, row: dict[str, Any]) -> None:
            accept(ledger, part, row)
            self._accepted(row, part % ledger_.ENTRIES)

        @wraps(send)
        def on_send(output: VerdictOutput, fields: dict[str, Any]) -> bool:
            decided = self._deciding(fields)
            is_sent = send(output, fields)
            decided.is_sent = is_sent
            return is_sent

        @wraps(event)
        def on_event(
            sender: JournalSender, at_ns: int, kind: str, subject: str, detail: str = ""
        ) -> None:
            self.world.note(self.world.here.name, f"{kind} {subject} {detail}")
            event(sender, at_ns, kind, subject, detail)

        return [
            (Ledger, "accept", on_accept),
            (VerdictOutput, "send", on_send),
            (JournalSender, "event", on_event),
        ]

    def _accepted(self, row: dict[str, Any], place: int) -> None:
        key = (row["line"], row["session"], row["seq"])
        life = self.world.here
        if key in self.accepted:
            self.world.mistake(1, f"{key} is accepted a second time")
        self._open[life] += 1
        crowd = self._open[life]
        accepted = Accepted(life, row["received_at_ns"], row["due_at_ns"], crowd, place)
        former = self._ring.get((key[0], place))
        if former is not None:
            former.overwritten_by = life
        self.accepted[key] = self._ring[key[0], place] = accepted

    def _deciding(self, fields: dict[str, Any]) -> Decided:
        key = (fields["line"], fields["session"], fields["seq"])
        life = self.world.here
        told = f"{fields['verdict']}({fields['reason']}) by {fields['answered_by']}"
        self.world.note(life.name, f"{key[1]}/{key[2]} {told}")
        self.verdict_trace.append((*key, told, fields["sent_ns"]))
        self.counts[fields["answered_by"]] += 1
        if fields["reason"]:
            self.counts[fields["reason"]] += 1
        former, accepted = self.decided.get(key), self.accepted.get(key)
        if former is not None:
            first = former.fields
            self.world.mistake(
                1, f"{key} gets a second verdict: {first['verdict']}({first['reason']}), {told}"
            )
        elif accepted is not None and accepted.life is not life:
            self.world.mistake(4, f"{key} was in doubt at a restart and got {told} all the same")
        decided = self.decided[key] = Decided(life, fields)
        if accepted is not None and accepted.life is life:
            self._open[life] -= 1
        self._judge_time(key, fields, accepted)
        self._judge_content(key, fields)
        if fields["answered_by"] == "failsafe" and fields["reason"] in ("deadline", "engine"):
            self._judge_take_over(key, fields, accepted)
        if fields["answered_by"] == "pool" and accepted is not None:
            self.pool_answered_at_ns[key[0]] = accepted.received_at_ns
        return decided

    # --- one verdict ------------------------------------------------------------------------

    def _judge_time(self, key: Key, fields: dict[str, Any], accepted: Accepted | None) -> None:
        if fields["margin_ns"] >= 0:
            return
        settings = self._settings[key[0]]
        least_ns = settings.timer_ns + self._slack_ns
        came_late = accepted is not None and (
            accepted.received_at_ns >= accepted.due_at_ns - least_ns
        )
        if came_late and fields["verdict"] == "UNINSPECTED":
            self.counts["came_late"] += 1
            return
        self.world.mistake(1, f"{key} {fields['verdict']} is {-fields['margin_ns'] / MS} ms late")

    def _judge_content(self, key: Key, fields: dict[str, Any]) -> None:
        camera = self.cameras[key[0]]
        if key[2] > camera.highest.get(key[:2], -1):
            self.world.mistake(2, f"{key} gets {fields['verdict']} and was never sent")
        if fields["verdict"] == "UNINSPECTED":
            return
        sent = camera.sent.get(key)
        if sent is None or not sent.is_good:
            self.world.mistake(2, f"{key} {fields['verdict']} without a good picture")
            return
        right = score_of(sent.picture)
        expected = "FAIL" if right >= FACTS.threshold else "PASS"
        if abs(fields["score"] - right) > 1e-6 or fields["verdict"] != expected:
            self.world.mistake(
                3, f"{key} {fields['verdict']} with score {fields['score']}, its own is {right}"
            )
        if fields["part_id"] != sent.part_id or not fields["model"]:
            self.world.mistake(3, f"{key} is called {fields['part_id']}, model {fields['model']!r}")

    def _judge_take_over(self, key: Key, fields: dict[str, Any], accepted: Accepted | None) -> None:
        """Whatever happens to the pool: the fallback answers, where it had the time."""
        settings = self._settings[key[0]]
        if accepted is None:
            return
        run_ns = settings.wcet_fallback_ns + settings.start_ns + self._slack_ns
        needed_ns = (accepted.crowd + 2) * run_ns + settings.timer_ns
        if accepted.due_at_ns - accepted.received_at_ns < needed_ns:
            return
        if not self._excused(key[0], accepted.received_at_ns):
            self.world.mistake(4, f"{key} UNINSPECTED({fields['reason']}): nobody took over")

    def on_actuator(self, line: str, got: Got) -> None:
        """An actuator got a verdict."""
        fields = got.fields
        key = (line, fields["session"], fields["seq"])
        decided = self.decided.get(key)
        if decided is None:
            self.world.mistake(3, f"{key}: the actuator got a verdict that no line made")
        elif decided.fields["verdict"] != fields["verdict"]:
            self.world.mistake(3, f"{key}: the actuator got {fields['verdict']}")

    # --- at the end -------------------------------------------------------------------------

    def finish(self, rows: list[dict[str, Any]], events: list[dict[str, Any]]) -> None:
        """Compare with the journal and with what the cameras were told."""
        dropped: Counter[str] = Counter()
        for event in events:
            if event["kind"] == "journal.dropped":
                dropped[event["unit"]] += int(event["detail"].split()[0])
        is_memory_full = any(event["kind"] == "journal.memory_full" for event in events)
        self._perhaps_sent = {e["subject"] for e in events if e["kind"] == ledger_.PERHAPS_SENT}
        journalled = {(row["line"], row["session"], row["seq"]): row for row in rows}
        for key, accepted in self.accepted.items():
            row = journalled.get(key)
            if row is None:
                dropped[f"line-{key[0]}"] -= 1
                is_told = dropped[f"line-{key[0]}"] >= 0 or is_memory_full
                # A line and the journal lost together: rows of more parts than the ledger holds.
                is_past = accepted.life.is_dead and accepted.overwritten_by is not None
                self.counts["rows_past_the_ring"] += is_past
                if not is_told and not is_past:
                    self.world.mistake(8, f"{key} has no row, and nobody said that rows were lost")
                continue
            self._judge_row(key, accepted, row)
        for event in events:
            if event["kind"] == "journal.conflict":
                self.world.mistake(1, f"two rows of {event['subject']}: {event['detail'][:150]}")
            if event["kind"] == "journal.malformed":
                self.world.mistake(8, f"a row the journal cannot take: {event['detail'][:150]}")
        for camera in self.cameras.values():
            for sent in camera.sent.values():
                self._judge_sent(sent)

    def _judge_row(self, key: Key, accepted: Accepted, row: dict[str, Any]) -> None:
        decided = self.decided.get(key)
        is_restart = row["reason"] == "restart"
        if decided is None:
            if not accepted.life.is_dead:
                self.world.mistake(1, f"{key} was accepted and never got a verdict")
            elif not is_restart:
                self.world.mistake(4, f"{key} was in doubt, its row says {row['verdict']}")
            else:
                self.counts["in_doubt"] += 1
        elif is_restart:
            # Killed between handing the verdict to the socket and writing that it was sent.
            self.counts["in_doubt_sent"] += 1
            if "/".join(map(str, key)) not in self._perhaps_sent and decided.is_sent:
                self.world.mistake(1, f"{key} was sent, its row says restart and nobody tells")
            if not decided.life.is_dead:
                self.world.mistake(4, f"{key} has a verdict, its row says restart")
        elif row["verdict"] != decided.fields["verdict"]:
            self.world.mistake(3, f"{key}: row {row['verdict']}, sent {decided.fields['verdict']}")

    def _judge_sent(self, sent: Sent) -> None:
        is_owed = sent.answer == "ack" or sent.answer in (
            "session", "size", "format", "checksum", "decode", "late", "overload",
        )  # fmt: skip
        if is_owed and sent.key not in self.accepted:
            self.world.mistake(1, f"{sent.key} was answered {sent.answer} and never accepted")
