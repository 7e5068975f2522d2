"""The batcher's side of re-scoring: a few answered parts go to a process that asks the CPU again.

Goldens cannot see a GPU that is right on goldens and wrong on parts. A part is chosen by its nonce,
which is random, so that nobody can tell beforehand. Never waits: what the process does not take is
dropped and counted.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import zmq

QUEUE_MAX = 16
"""Pictures that may wait for the process; one more is dropped."""
_JOB = struct.Struct("<QHIHf")
_ANSWER = struct.Struct("<QHIHff")


class Job(NamedTuple):
    """An answered part: which batch of which GPU and epoch, of which model, with what score."""

    batch_id: int
    gpu: int
    epoch: int
    category: int
    score: float

    def pack(self) -> bytes:
        """Bytes of it."""
        return _JOB.pack(*self)


class Answer(NamedTuple):
    """The same, with what the CPU says."""

    batch_id: int
    gpu: int
    epoch: int
    category: int
    score: float
    cpu_score: float

    def pack(self) -> bytes:
        """Bytes of it."""
        return _ANSWER.pack(*self)


def job_of(raw: bytes) -> Job:
    """The job in `raw`. Raises struct.error."""
    return Job(*_JOB.unpack(raw))


OnDisagreement = Callable[[Answer], None]


class RescoreLink:
    """permille: how many of a thousand parts are asked again. band: how far the two may differ."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        permille: int,
        band: float,
        on_disagreement: OnDisagreement,
    ) -> None:
        self.agreed = self.disagreed = self.dropped = 0
        self._permille, self._band = permille, band
        self._on_disagreement = on_disagreement
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.IMMEDIATE, 1)
        self.socket.set(zmq.SNDHWM, QUEUE_MAX)
        self.socket.set(zmq.RECONNECT_IVL, 100)
        self.socket.set(zmq.RECONNECT_IVL_MAX, 1000)
        self.socket.connect(endpoint)

    def is_chosen(self, nonce: int) -> bool:
        """Whether the part with this nonce is one of them."""
        return nonce % 1000 < self._permille

    def offer(self, job: Job, picture: npt.NDArray[np.uint8]) -> None:
        """Have a part asked again; the picture is copied before this returns."""
        try:
            self.socket.send_multipart([job.pack(), picture.tobytes()], zmq.NOBLOCK)
        except zmq.Again:
            self.dropped += 1

    def on_readable(self) -> None:
        """Take what came back."""
        for _ in range(QUEUE_MAX):
            try:
                answer = Answer(*_ANSWER.unpack(self.socket.recv(zmq.NOBLOCK)))
            except (zmq.Again, struct.error):
                return
            if abs(answer.score - answer.cpu_score) <= self._band:  # NaN compares false
                self.agreed += 1
            else:
                self.disagreed += 1
                self._on_disagreement(answer)

    def take_tally(self) -> str:
        """What there was since the last time; empty if nothing."""
        counts = (self.agreed, self.disagreed, self.dropped)
        self.agreed = self.disagreed = self.dropped = 0
        return "agreed={} disagreed={} dropped={}".format(*counts) if any(counts) else ""

    def close(self) -> None:
        """Leave."""
        self.socket.close(0)
