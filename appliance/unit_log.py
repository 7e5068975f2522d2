"""A unit's log file with a limit on its size, its age in files and the rate it grows at."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

RATE_BYTES_PER_S = 512 * 1024
BURST_BYTES = 2 * 1024 * 1024
_NOTE_EVERY_NS = 1_000_000_000


class UnitLog:
    """`UNIT.log`, then `UNIT.log.1` and so on: `files_max` files of `bytes_max` bytes at most.

    What comes faster than the rate, or does not fit on the disk, is dropped, counted and noted in
    the log; writing never raises and never waits for room.
    """

    def __init__(
        self,
        path: Path,
        bytes_max: int,
        files_max: int,
        *,
        rate_bytes_per_s: int = RATE_BYTES_PER_S,
        burst_bytes: int = BURST_BYTES,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.dropped_bytes = 0
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._rate = rate_bytes_per_s
        self._burst = burst_bytes
        self._room = float(burst_bytes)
        self._filled_ns = time.monotonic_ns()
        self._noted_dropped = 0
        self._noted_ns = 0
        self._file = path.open("ab", buffering=0)
        self._size = self._file.tell()

    def write(self, text: bytes) -> bool:
        """Append; False where some of it was dropped."""
        now_ns = time.monotonic_ns()
        filled = (now_ns - self._filled_ns) * self._rate / 1e9
        self._room = min(self._room + filled, float(self._burst))
        self._filled_ns = now_ns
        kept = text[: int(self._room)]
        self._room -= len(kept)
        self.dropped_bytes += len(text) - len(kept)
        if kept:
            self._append(kept)
        if self.dropped_bytes > self._noted_dropped and now_ns - self._noted_ns > _NOTE_EVERY_NS:
            self._note_dropped(now_ns)
        return len(kept) == len(text)

    def note(self, text: str) -> None:
        """A line of the supervisor's own, with the time of day for people; no rate applies."""
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
        self._append(f"{stamp}Z [takt] {text}\n".encode())

    def _note_dropped(self, now_ns: int) -> None:
        self._noted_ns = now_ns
        self._noted_dropped = self.dropped_bytes
        self.note(f"{self.dropped_bytes} bytes of output dropped so far: more than the log takes")

    def _append(self, text: bytes) -> None:
        try:
            for start in range(0, len(text), self._bytes_max):
                piece = text[start : start + self._bytes_max]
                if self._size + len(piece) > self._bytes_max and self._size:
                    self._rotate()
                self._size += self._file.write(piece)
        except OSError:
            self.dropped_bytes += len(text)

    def _rotate(self) -> None:
        names = [self.path.name, *(f"{self.path.name}.{n}" for n in range(1, self._files_max))]
        for newer, older in reversed(list(pairwise(names))):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(newer).replace(self.path.with_name(older))
        # With one file allowed there is nothing to rename: opening it anew empties it.
        fresh = self.path.open("wb", buffering=0)
        self._file.close()
        self._file = fresh
        self._size = 0

    def close(self) -> None:
        """Say what was dropped and close."""
        if self.dropped_bytes > self._noted_dropped:
            self._note_dropped(time.monotonic_ns())
        self._file.close()
