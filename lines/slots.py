"""Preallocated picture slots of one line in shared memory, written by it, read by the batcher.

Each slot: a 64-byte header, then the picture. The header's generation is odd while the line
writes; a reader that does not find the generation, the nonce and the checksum it was told, before
and after its copy, has a torn or newer picture and must not use it.
"""

from __future__ import annotations

import struct

import crc32c
import numpy as np
import numpy.typing as npt

from deadline_batcher.shm import Segment

HEADER_BYTES = 64
_HEADER = struct.Struct("<QqI")  # generation, nonce, crc32c of the picture

Picture = npt.NDArray[np.uint8]


def slot_stride(picture_bytes: int) -> int:
    """Bytes from one slot to the next: header and picture, rounded up to a cache line."""
    return HEADER_BYTES + -(-picture_bytes // 64) * 64


class SlotWriter:
    """The line's side: which slots are free, and writing them."""

    def __init__(self, segment: Segment, count: int, picture_bytes: int) -> None:
        self.segment = segment
        self.picture_bytes = picture_bytes
        self._stride = slot_stride(picture_bytes)
        self._free = list(range(count - 1, -1, -1))
        self._pictures = [
            np.frombuffer(
                segment.mapping, np.uint8, picture_bytes, slot * self._stride + HEADER_BYTES
            )
            for slot in range(count)
        ]

    @property
    def free_count(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def take(self) -> int | None:
        """A free slot, or None."""
        return self._free.pop() if self._free else None

    def release(self, slot: int) -> None:
        """The slot may be used for another part. Readers notice by its generation."""
        self._free.append(slot)

    def write(self, slot: int, picture: Picture, nonce: int) -> int:
        """Put a picture in; returns the slot's new generation (even)."""
        offset = slot * self._stride
        generation, _, _ = _HEADER.unpack_from(self.segment.mapping, offset)
        _HEADER.pack_into(self.segment.mapping, offset, generation + 1, 0, 0)
        target = self._pictures[slot]
        target[:] = picture.reshape(-1)
        checksum = crc32c.crc32c(target.data)
        _HEADER.pack_into(self.segment.mapping, offset, generation + 2, nonce, checksum)
        return int(generation) + 2

    def picture(self, slot: int) -> Picture:
        """The slot's bytes, as a live view."""
        return self._pictures[slot]


class SlotReader:
    """The batcher's side: copy a picture out, or find that it is not the one meant."""

    def __init__(self, segment: Segment, count: int, picture_bytes: int) -> None:
        self.count = count
        self.picture_bytes = picture_bytes
        self._segment = segment
        self._stride = slot_stride(picture_bytes)

    def copy(self, slot: int, generation: int, nonce: int, row: Picture) -> bool:
        """Copy into `row` [picture_bytes]; False if it was not that picture, whole."""
        offset = slot * self._stride
        if slot >= self.count:
            return False
        found, found_nonce, checksum = _HEADER.unpack_from(self._segment.mapping, offset)
        if found != generation or found_nonce != nonce:
            return False
        row[:] = np.frombuffer(
            self._segment.mapping, np.uint8, self.picture_bytes, offset + HEADER_BYTES
        )
        again, _, _ = _HEADER.unpack_from(self._segment.mapping, offset)
        return bool(again == generation and crc32c.crc32c(row.data) == checksum)
