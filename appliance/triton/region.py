"""The shared-memory region of one endpoint: batch slots that Triton reads from and writes to.

A region's name is never used twice; it is registered once, and dropped whole when its server is
gone. A slot is handed out again only once the server surely no longer touches it: a call that is
overdue keeps its slot, and one that ended without the server's own word (its time was over, the
connection broke, it answered before it wrote) keeps it for ever (reliability case 2: two parts
mixed). The real server was seen to write 400 ms after the client had given up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from appliance.triton.faults import Failure
from deadline_batcher.shm import Segment, new_name

_ALIGN = 64
_POISON_SCORE = np.float32(np.nan)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


@dataclass(frozen=True, slots=True)
class BatchSlot:
    """Views of one batch slot, and where they lie in the region (offsets in bytes).

    images: room for the largest batch, flat uint8; nonces, echoes [batch_max] int64; scores
    [batch_max] float32. Views live as long as the region.
    """

    images: npt.NDArray[np.uint8]
    nonces: npt.NDArray[np.int64]
    scores: npt.NDArray[np.float32]
    echoes: npt.NDArray[np.int64]
    image_offset: int
    nonce_offset: int
    score_offset: int
    echo_offset: int

    def pictures(self, rows: int, picture_bytes: int) -> npt.NDArray[np.uint8]:
        """The first `rows` pictures of a model, [rows, picture_bytes]."""
        return self.images[: rows * picture_bytes].reshape(rows, picture_bytes)

    def poison(self, rows: int) -> None:
        """Make outputs that nobody writes unmistakable: NaN scores, nonces that are not ours."""
        self.scores[:rows] = _POISON_SCORE
        np.invert(self.nonces[:rows], out=self.echoes[:rows])


class Region:
    """`slot_count` batch slots in one segment of shared memory."""

    def __init__(self, tag: str, gpu: int, slot_count: int, rows: int, picture_bytes: int) -> None:
        sizes = [
            _aligned(rows * picture_bytes),
            _aligned(rows * 8),
            _aligned(rows * 4),
            _aligned(rows * 8),
        ]
        stride = sum(sizes)
        self.size = slot_count * stride
        self.segment = Segment.create(new_name(tag, f"gpu{gpu}"), self.size)
        self.name = self.segment.name
        buffer = self.segment.mapping
        self.slots: list[BatchSlot] = []
        for number in range(slot_count):
            image = number * stride
            nonce = image + sizes[0]
            score = nonce + sizes[1]
            echo = score + sizes[2]
            images = np.frombuffer(buffer, np.uint8, rows * picture_bytes, image)
            self.slots.append(
                BatchSlot(
                    images,
                    np.frombuffer(buffer, np.int64, rows, nonce),
                    np.frombuffer(buffer, np.float32, rows, score),
                    np.frombuffer(buffer, np.int64, rows, echo),
                    image,
                    nonce,
                    score,
                    echo,
                )
            )
        self._free = deque(range(slot_count))  # the keeper's and the loop's: atomic both ways

    def take(self) -> int | None:
        """A free slot's number, or None while all are with the server."""
        try:
            return self._free.popleft()
        except IndexError:
            return None

    def release(self, number: int) -> None:
        """The server has answered the call that used the slot: nobody touches it any more."""
        self._free.append(number)

    def settle(self, number: int, failure: Failure | None) -> None:
        """The call that used the slot has ended like this: free again, or never again."""
        if failure is None or failure.consequence.is_over:
            self.release(number)

    def unlink(self) -> None:
        """Remove the name; mappings (ours and the server's) live on until they end."""
        self.segment.unlink()
