"""Goldens: pictures whose right answer is known, run through the real path.

At least eight different ones, because a single repeated probe passes on any frozen path. The right
answers come from the same model file in a session of our own on the CPU.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.triton.region import BatchSlot
from fallback.session import ModelFacts, Session

GOLDENS = 12
TOLERANCE = 2e-3
"""Largest difference of a score that is still the same answer: float32 on two engines."""


class Goldens:
    """The golden pictures of one model and their scores."""

    def __init__(self, path: Path) -> None:
        """Compute the right answers. Raises SessionError if the model cannot be used."""
        session = Session(path, threads=1)
        self.facts: ModelFacts = session.facts
        height, width, channels = self.facts.shape
        random = np.random.default_rng(20_261_130)
        coarse = random.integers(20, 235, (GOLDENS, 7, 7, channels))
        pictures = np.repeat(np.repeat(coarse, -(-height // 7), 1), -(-width // 7), 2)
        pictures = pictures[:, :height, :width] + random.integers(
            -15, 16, (GOLDENS, height, width, channels)
        )
        self._pictures: npt.NDArray[np.uint8] = pictures.astype(np.uint8)
        scores, _ = session.run(self._pictures, np.arange(GOLDENS, dtype=np.int64))
        self._scores = scores
        self._turn = itertools.count()

    @staticmethod
    def sha256_of(path: Path) -> str:
        """The model file's hash."""
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def fill(self, slot: BatchSlot, rows: int) -> list[int]:
        """Put `rows` different goldens (as far as there are) into a slot; which ones."""
        first = next(self._turn)
        chosen = [(first + row) % GOLDENS for row in range(rows)]
        pictures = slot.pictures(rows, self.facts.picture_bytes)
        for row, golden in enumerate(chosen):
            pictures[row] = self._pictures[golden].reshape(-1)
            slot.nonces[row] = secrets.randbits(63)
        slot.poison(rows)
        return chosen

    def mistake(self, slot: BatchSlot, chosen: list[int]) -> str | None:
        """What is wrong with the answers in a slot; None if every row is right."""
        rows = len(chosen)
        if not np.array_equal(slot.echoes[:rows], slot.nonces[:rows]):
            return "a row was not written, or is another's"
        difference = np.abs(slot.scores[:rows] - self._scores[chosen])
        if not bool(np.all(difference <= TOLERANCE)):  # NaN compares false
            row = int(np.argmax(np.nan_to_num(difference, nan=np.inf)))
            found, right = slot.scores[row], self._scores[chosen[row]]
            return f"row {row} of {rows}: score {found:.5f}, right is {right:.5f}"
        return None
