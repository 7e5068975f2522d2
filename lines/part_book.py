"""The open parts of a line: numbered, placed in time, written to the ledger, given a slot."""

from __future__ import annotations

import secrets

from lines import wire
from lines.admission import Admission
from lines.clock import Capture, ClockMap
from lines.journal_link import JournalSender
from lines.ledger import PERHAPS_SENT, Ledger
from lines.parts import Decision, OpenPart, due_times, row_of
from lines.settings import LineSettings
from lines.slots import SlotWriter

_NO_STAGES = dict.fromkeys(("transport", "decode", "queue", "window", "gather", "model", "post"), 0)


RESTART_SETTLE_NS = 1_000_000_000


class PartBook:
    """Every part from its arrival until nothing works on its slot any more."""

    def __init__(self, settings: LineSettings, slots: SlotWriter, ledger: Ledger) -> None:
        self._settings = settings
        self._slots = slots
        self._ledger = ledger
        self._parts: dict[int, OpenPart] = {}
        self._reading: set[int] = set()
        self._trials: set[int] = set()
        self._next_number = 1
        self._last_lost = 0
        self.new_clock()

    def __getitem__(self, number: int) -> OpenPart:
        return self._parts[number]

    def get(self, number: int) -> OpenPart | None:
        """The part, or None once it is over."""
        return self._parts.get(number)

    def numbers(self) -> list[int]:
        """The numbers of all parts, oldest first."""
        return list(self._parts)

    def new_clock(self) -> None:
        """A camera started: its clock is a new one."""
        settings = self._settings
        self._clock = ClockMap(settings.transport_min_ns, settings.transport_max_ns)

    def take_over(self, journal: JournalSender, admission: Admission, now_ns: int) -> int | None:
        """Journal what a former process of this line left; its parts are never sent.

        Returns how many of them were in doubt; None where there was no former process.
        """
        left_over = self._ledger.left_over()
        for row in left_over:
            journal.add("parts", row)
        for row in self._ledger.leaving():
            subject = f"{row['line']}/{row['session']}/{row['seq']}"
            journal.event(now_ns, PERHAPS_SENT, subject, "killed while its verdict was leaving")
        for row in self._ledger.remembered():
            if row["part_id"]:
                admission.remember_part(row["part_id"], row["session"], row["seq"], now_ns)
        lost = self._ledger.lost_up_to()
        if lost is not None:
            admission.remember_seq(*lost)
        # What the journal has not taken yet is found again after another death, in its place.
        self._next_number = self._ledger.next_number()
        if journal.settle(RESTART_SETTLE_NS) == 0:
            self._ledger.settle()
        return sum(row["reason"] == "restart" for row in left_over) if left_over else None

    def open(
        self, routing_id: bytes, frame: wire.Frame, picture_bytes: int, arrived_at_ns: int
    ) -> OpenPart:
        """A part is owed a verdict: in the ledger before anybody is told."""
        capture = self._clock.map(frame.captured_ns, frame.clock, arrived_at_ns)
        due_at_ns, deadline_at_ns = due_times(self._settings, capture.captured_at_ns)
        part = OpenPart(
            part=self._new_number(),
            routing_id=routing_id,
            session=frame.session,
            seq=frame.seq,
            part_id=frame.part_id,
            captured_ns=frame.captured_ns,
            capture=capture,
            received_at_ns=arrived_at_ns,
            due_at_ns=due_at_ns,
            deadline_at_ns=deadline_at_ns,
            crc32c=frame.crc32c,
            picture_bytes=picture_bytes,
        )
        self._parts[part.part] = part
        in_doubt = Decision("UNINSPECTED", "restart", "failsafe", None, None, arrived_at_ns)
        in_doubt.stages_ns = _NO_STAGES
        row = row_of(self._settings, part, in_doubt, self._settings.fail_safe, 0)
        self._ledger.accept(part.part, row.as_dict())
        return part

    def open_lost(self, session: str, seq: int, noticed_at_ns: int) -> OpenPart:
        """A frame never came. Nobody knows when its part reaches the gate."""
        # Counted downward: it is not owed, and must not take another part's place in the ledger.
        self._last_lost -= 1
        number = self._last_lost
        self._ledger.mark_lost(session, seq)
        capture = Capture(noticed_at_ns, "none", False)
        due_at_ns, deadline_at_ns = due_times(self._settings, noticed_at_ns)
        part = OpenPart(
            number, b"", session, seq, "", 0, capture, noticed_at_ns, due_at_ns, deadline_at_ns
        )
        part.is_owed = False
        self._parts[number] = part
        return part

    def take_slot(self, part: OpenPart) -> int:
        """A slot and a nonce for the part's picture; admission found one free in this turn."""
        slot = self._slots.take()
        if slot is None:
            raise RuntimeError("a frame was let in without a free slot")
        part.slot, part.nonce = slot, secrets.randbits(63)
        return slot

    @property
    def decoding_count(self) -> int:
        """Parts whose frame has not been answered yet."""
        return sum(part.slot is not None and not part.is_acked for part in self._parts.values())

    def read_begins(self, part: OpenPart) -> None:
        """The fallback thread reads the part's slot from here on."""
        self._reading.add(part.part)

    def read_ended(self, number: int) -> None:
        """The fallback thread no longer reads the part's slot."""
        self._reading.discard(number)

    def trial_begins(self, part: OpenPart) -> None:
        """The pool's answer on the part is wanted also after its verdict."""
        self._trials.add(part.part)

    def trial_ended(self, number: int) -> None:
        """It is wanted no more."""
        self._trials.discard(number)

    def close(self, part: OpenPart) -> None:
        """Give the slot back and forget the part, unless a thread or the pool still reads it."""
        if part.part in self._reading or part.part in self._trials:
            return
        if self._parts.pop(part.part, None) is not None and part.slot is not None:
            self._slots.release(part.slot)

    def _new_number(self) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        return number
