"""What a line accepted and what it surely sent, in shared memory that outlives its process.

An entry holds two rows for the journal: the one to write if the process dies before the verdict is
surely sent (`UNINSPECTED(restart)`, written before the ack), and the final one. The state byte is
changed after the row it speaks of is whole, so that a kill at any instant leaves one true row.

A part whose row the journal has is settled: it is journalled no more, and stays until its place is
needed, because the next process must know it: the camera goes on counting in the same session.
A lost frame has no entry; a mark says up to which one its session's have been named.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Any

from deadline_batcher.shm import SHM_FOLDER, Segment, SharedMemoryError

ENTRIES = 512
ROW_BYTES = 2040
_ENTRY_BYTES = 8 + 2 * (4 + ROW_BYTES)
_STATE = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_SESSION_BYTES = 256
_MARK = struct.Struct(f"<QqI{_SESSION_BYTES}s")  # turn, seq, length of the session, session
_SIZE = ENTRIES * _ENTRY_BYTES + 2 * _MARK.size
PERHAPS_SENT = "restart.perhaps_sent"
"""The event that names a part in doubt whose verdict was leaving; its subject: line/session/seq."""


class EntryState(IntEnum):
    """How far a part has come; SETTLED comes on top once the journal has its row."""

    FREE = 0
    ACCEPTED = 1
    SENDING = 2
    SENT = 3
    SETTLED = 4


def ledger_name(tag: str, line_id: str) -> str:
    """The one name in shared memory that is used again: the next process of the line needs it."""
    return f"takt-{tag}-ledger-{line_id}"


def remove_settled(tag: str) -> list[str]:
    """Remove the ledgers of a plant that has ended in which nothing waits to be journalled."""
    removed = []
    for path in sorted(SHM_FOLDER.glob(f"{ledger_name(tag, '')}*")):
        content = path.read_bytes()
        states = [
            _STATE.unpack_from(content, offset)[0]
            for offset in range(0, len(content) - _ENTRY_BYTES + 1, _ENTRY_BYTES)
        ]
        if all(state == EntryState.FREE or state & EntryState.SETTLED for state in states):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def _encoded(row: dict[str, Any]) -> bytes:
    raw = json.dumps(row, separators=(",", ":")).encode()
    if len(raw) > ROW_BYTES:
        raise ValueError(f"a ledger row of {len(raw)} bytes; at most {ROW_BYTES}")
    return raw


class Ledger:
    """A ring of the last ENTRIES parts of a line."""

    def __init__(self, tag: str, line_id: str) -> None:
        """Open the ledger that a former process left, or make one."""
        name = ledger_name(tag, line_id)
        try:
            self._segment = Segment.attach(name, _SIZE, writable=True)
        except SharedMemoryError:
            # Of another size: another version's ledger, which this one cannot read.
            (SHM_FOLDER / name).unlink(missing_ok=True)
            self._segment = Segment.create(name, _SIZE)

    def accept(self, part: int, restart_row: dict[str, Any]) -> None:
        """Before the ack: from here on the part is owed."""
        raw = _encoded(restart_row)
        if self._state(part % ENTRIES) & EntryState.SETTLED:
            self._set(part, EntryState.FREE)  # else half of this row would be remembered as that
        self._write_row(part, 0, raw)
        self._set(part, EntryState.ACCEPTED)

    def sending(self, part: int) -> None:
        """Just before the verdict goes to the socket."""
        self._set(part, EntryState.SENDING)

    def sent(self, part: int, row: dict[str, Any]) -> None:
        """The verdict has left; `row` is the part's final row."""
        self._write_row(part, 1, _encoded(row))
        self._set(part, EntryState.SENT)

    def mark_lost(self, session: str, seq: int) -> None:
        """Before a lost frame is named: frames of the session up to this one have their verdict."""
        raw = session.encode()[:_SESSION_BYTES]
        turn = max(turn for turn, _, _ in self._marks()) + 1
        offset = _SIZE - (1 + turn % 2) * _MARK.size  # never over the one that counts
        self._segment.mapping[offset : offset + 8] = bytes(8)
        _MARK.pack_into(self._segment.mapping, offset, 0, seq, len(raw), raw)
        _STATE.pack_into(self._segment.mapping, offset, turn)

    def lost_up_to(self) -> tuple[str, int] | None:
        """(session, seq) of the last lost frame that was named, or None."""
        turn, seq, session = max(self._marks())
        return (session, seq) if turn else None

    def _marks(self) -> list[tuple[int, int, str]]:
        marks = []
        for number in (1, 2):
            turn, seq, length, raw = _MARK.unpack_from(
                self._segment.mapping, _SIZE - number * _MARK.size
            )
            marks.append((turn, seq, raw[:length].decode("utf-8", "replace")))
        return marks

    def left_over(self) -> list[dict[str, Any]]:
        """The rows a former process left, for the journal, which ignores those it has."""
        return [row for state, row in self._entries() if not state & EntryState.SETTLED]

    def leaving(self) -> list[dict[str, Any]]:
        """The rows in doubt of `left_over` whose verdict may have left: killed as it did."""
        return [row for state, row in self._entries() if state == EntryState.SENDING]

    def next_number(self) -> int:
        """The number for a first part that takes the place of the oldest entry."""
        latest_ns, latest = 0, 0
        for entry in range(ENTRIES):
            if self._state(entry) != EntryState.FREE:
                row = self._read_row(entry * _ENTRY_BYTES, 0) or {}
                at_ns = int(row.get("received_at_ns", 0))
                latest_ns, latest = max((latest_ns, latest), (at_ns, entry))
        return latest + 1

    def remembered(self) -> list[dict[str, Any]]:
        """A row of every part that is still known, settled ones as well, in order of arrival."""
        rows = [row for _, row in self._entries()]
        return sorted(rows, key=lambda row: int(row["received_at_ns"]))

    def settle(self) -> None:
        """The journal has the row of every part so far."""
        for entry in range(ENTRIES):
            state = self._state(entry)
            if state != EntryState.FREE:
                _STATE.pack_into(
                    self._segment.mapping, entry * _ENTRY_BYTES, state | EntryState.SETTLED
                )

    def _entries(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for entry in range(ENTRIES):
            state = self._state(entry)
            if state == EntryState.FREE:
                continue
            is_sent = state & ~EntryState.SETTLED == EntryState.SENT
            row = self._read_row(entry * _ENTRY_BYTES, 1 if is_sent else 0)
            if row is not None:
                yield state, row

    def _state(self, entry: int) -> int:
        (state,) = _STATE.unpack_from(self._segment.mapping, entry * _ENTRY_BYTES)
        return int(state)

    def _set(self, part: int, state: EntryState) -> None:
        _STATE.pack_into(self._segment.mapping, (part % ENTRIES) * _ENTRY_BYTES, state)

    def _write_row(self, part: int, which: int, raw: bytes) -> None:
        offset = (part % ENTRIES) * _ENTRY_BYTES + 8 + which * (4 + ROW_BYTES)
        _LENGTH.pack_into(self._segment.mapping, offset, len(raw))
        self._segment.mapping[offset + 4 : offset + 4 + len(raw)] = raw

    def _read_row(self, entry_offset: int, which: int) -> dict[str, Any] | None:
        offset = entry_offset + 8 + which * (4 + ROW_BYTES)
        (length,) = _LENGTH.unpack_from(self._segment.mapping, offset)
        raw = self._segment.mapping[offset + 4 : offset + 4 + min(length, ROW_BYTES)]
        try:
            row: dict[str, Any] = json.loads(raw)
        except ValueError:
            return None
        return row
