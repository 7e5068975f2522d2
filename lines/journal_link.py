"""A process's side of the journal: rows go out in batches and are kept until acknowledged.

For one thread around a `zmq.Poller`: register `socket`, call `on_readable` when it is, and `flush`
at `flush_due_at_ns`. Beyond its limits the oldest rows are dropped, counted and reported.
"""

from __future__ import annotations

import json
import secrets
import struct
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import zmq

from lines.journal_schema import ROW_TABLES

RECORDS: Final = b"R"
ACKNOWLEDGED: Final = b"A"
BATCH_ID: Final = struct.Struct("<Q")

FLUSH_EVERY_NS: Final = 50_000_000
RESEND_AFTER_NS: Final = 1_000_000_000
RESEND_AFTER_MAX_NS: Final = 8_000_000_000
BATCH_ROWS_MAX: Final = 1000
"""Keeps a batch far below the journal's largest message."""
SEND_HWM: Final = 64
EVENTS_PER_S_MAX: Final = 50
"""Of one kind: a storm of refusals must not push the parts' rows out."""


@dataclass(slots=True)
class _Batch:
    payload: bytes
    rows: int
    made_at_ns: int
    sent: bool = False
    sent_at_ns: int = 0


class JournalSender:
    """Sends rows of one unit to the journal at `endpoint`.

    Holds at most `rows_max` rows, for at most `backlog_s` seconds without an acknowledgement.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, unit: str,
        backlog_s: float, rows_max: int,
    ) -> None:  # fmt: skip
        self.unit = unit
        self.dropped_rows = 0
        self._backlog_ns = round(backlog_s * 1e9)
        self._rows_max = rows_max
        self._rows: dict[str, list[Mapping[str, Any]]] = {name: [] for name in ROW_TABLES}
        self._rows_waiting = 0
        self._event_counts: dict[str, tuple[int, int]] = {}
        self._rows_unacknowledged = 0
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        self._unsent = 0
        # Ids of two senders never meet, whatever the journal still holds of an earlier start.
        self._next_id = secrets.randbits(62)
        self._flushed_at_ns = 0
        self._silence_ns = RESEND_AFTER_NS
        self._resend_at_ns: int | None = None
        self._heard = False
        self._drops_reported = 0
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.IMMEDIATE, 1)
        self.socket.set(zmq.SNDHWM, SEND_HWM)
        self.socket.set(zmq.RECONNECT_IVL, 50)
        self.socket.set(zmq.RECONNECT_IVL_MAX, 500)
        self.socket.connect(endpoint)

    @property
    def rows_held(self) -> int:
        """Rows not yet acknowledged."""
        return self._rows_waiting + self._rows_unacknowledged

    def add(self, kind: str, row: Mapping[str, Any]) -> None:
        """Queue a row of `parts`, `batches`, `events` or `triton`. Never blocks.

        Raises KeyError on another kind.
        """
        self._rows[kind].append(row)
        self._rows_waiting += 1
        if self._rows_waiting + self._rows_unacknowledged > self._rows_max:
            self._drop_oldest()

    def event(self, at_ns: int, kind: str, subject: str, detail: str = "") -> None:
        """One event. Of one kind, at most EVENTS_PER_S_MAX a second are kept; the rest counted."""
        second = at_ns // 1_000_000_000
        counted_second, count = self._event_counts.get(kind, (second, 0))
        if counted_second != second:
            if count > EVENTS_PER_S_MAX:
                held_back = f"{count - EVENTS_PER_S_MAX} more in one second"
                self._add_event(at_ns, "limit.events", kind, held_back)
            count = 0
        self._event_counts[kind] = (second, count + 1)
        if count < EVENTS_PER_S_MAX:
            self._add_event(at_ns, kind, subject, detail)

    def _add_event(self, at_ns: int, kind: str, subject: str, detail: str) -> None:
        self.add(
            "events",
            {"at_ns": at_ns, "unit": self.unit, "kind": kind, "subject": subject, "detail": detail},
        )

    def flush_due_at_ns(self) -> int | None:
        """When `flush` next has something to do; None: nothing is held."""
        due = [self._flushed_at_ns + FLUSH_EVERY_NS] if self._rows_waiting or self._unsent else []
        if self._resend_at_ns is not None:
            due.append(self._resend_at_ns)
        return min(due, default=None)

    def flush(self, now_ns: int) -> None:
        """Send what is queued, and again what was not acknowledged after a silence."""
        self._flushed_at_ns = now_ns
        self._drop_stale(now_ns)
        if self._heard:
            self._heard = False
            self._silence_ns = RESEND_AFTER_NS
            # From the oldest on: acknowledgements of later ones must not put off one that was lost.
            oldest = next(iter(self._batches.values()), None)
            self._resend_at_ns = None if oldest is None else self._silent_from(oldest, now_ns)
        if self._resend_at_ns is not None and now_ns >= self._resend_at_ns:
            for batch in self._batches.values():
                batch.sent = False
            self._unsent = len(self._batches)
            self._silence_ns = min(2 * self._silence_ns, RESEND_AFTER_MAX_NS)
            self._resend_at_ns = now_ns + self._silence_ns
        while self._rows_waiting:
            self._make_batch(now_ns)
        if self._unsent:
            self._send_unsent(now_ns)
        if self._batches and self._resend_at_ns is None:
            self._resend_at_ns = now_ns + self._silence_ns

    def on_readable(self) -> None:
        """Take the acknowledgements that have come."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) != 2 or frames[0] != ACKNOWLEDGED or len(frames[1]) != BATCH_ID.size:
                continue
            self._heard = True
            batch = self._batches.pop(BATCH_ID.unpack(frames[1])[0], None)
            if batch is not None:
                self._rows_unacknowledged -= batch.rows
                self._unsent -= not batch.sent
                self._report_drops()
            if not self._batches:
                self._resend_at_ns = None

    def _report_drops(self) -> None:
        """The journal is back: say what it will never get."""
        count = self.dropped_rows - self._drops_reported
        if count:
            self._drops_reported = self.dropped_rows
            told = f"{count} rows lost: no journal"
            self.event(time.monotonic_ns(), "journal.dropped", self.unit, told)

    def settle(self, wait_ns: int = 300_000_000) -> int:
        """Send what is held, wait at most `wait_ns` for its acknowledgement; the rows left over."""
        end_ns = time.monotonic_ns() + wait_ns
        while self.rows_held and (now_ns := time.monotonic_ns()) < end_ns:
            self.flush(now_ns)
            if self.socket.poll(min(10, (end_ns - now_ns) // 1_000_000 + 1)):
                self.on_readable()
        return self.rows_held

    def close(self, wait_ns: int = 300_000_000) -> int:
        """Settle, then end; the rows left over."""
        left_over = self.settle(wait_ns)
        self.socket.close(0)
        return left_over

    def _make_batch(self, now_ns: int) -> None:
        batch: dict[str, Any] = {"unit": self.unit}
        room = BATCH_ROWS_MAX
        for kind, rows in self._rows.items():
            batch[kind], self._rows[kind] = rows[:room], rows[room:]
            room -= len(batch[kind])
        rows_taken = BATCH_ROWS_MAX - room
        payload = json.dumps(batch, separators=(",", ":")).encode()
        self._batches[self._next_id] = _Batch(payload, rows_taken, now_ns)
        self._next_id += 1
        self._unsent += 1
        self._rows_waiting -= rows_taken
        self._rows_unacknowledged += rows_taken

    def _silent_from(self, oldest: _Batch, now_ns: int) -> int:
        return (oldest.sent_at_ns if oldest.sent else now_ns) + RESEND_AFTER_NS

    def _send_unsent(self, now_ns: int) -> None:
        for batch_id, batch in self._batches.items():
            if batch.sent:
                continue
            frames = [RECORDS, BATCH_ID.pack(batch_id), batch.payload]
            try:
                self.socket.send_multipart(frames, zmq.NOBLOCK)
            except zmq.Again:
                return
            batch.sent, batch.sent_at_ns = True, now_ns
            self._unsent -= 1

    def _drop_stale(self, now_ns: int) -> None:
        while self._batches:
            batch_id, batch = next(iter(self._batches.items()))
            if now_ns - batch.made_at_ns <= self._backlog_ns:
                return
            self._forget(batch_id, batch)

    def _drop_oldest(self) -> None:
        if self._batches:
            self._forget(*next(iter(self._batches.items())))
            return
        for rows in self._rows.values():
            if rows:
                del rows[0]
                self._rows_waiting -= 1
                self.dropped_rows += 1
                return

    def _forget(self, batch_id: int, batch: _Batch) -> None:
        del self._batches[batch_id]
        self._rows_unacknowledged -= batch.rows
        self._unsent -= not batch.sent
        self.dropped_rows += batch.rows
