"""Goldens: pictures whose right answer is known, run through the real path.

At least eight different ones, drawn at random, because a single repeated probe passes on any frozen
path; and pictures whose answers differ, because a path that answers every picture alike would pass
those that are alike. The right answers come from the same model file in a session of our own on the
CPU.
"""

from __future__ import annotations

import hashlib
import random
import secrets
from pathlib import Path

import numpy as np
import numpy.typing as npt

from appliance.triton.faults import Failure, Kind
from appliance.triton.region import BatchSlot
from fallback.session import ModelFacts, Session

GOLDENS = 12
TOLERANCE = 2e-3
"""Largest difference of a score that is still the same answer: float32 on two engines."""
APART = 5 * TOLERANCE
"""How far the scores of two goldens must lie apart to be told from each other."""
ROUNDS_MAX = 5

Pictures = npt.NDArray[np.uint8]
Scores = npt.NDArray[np.float32]


def candidates(draw: np.random.Generator, shape: tuple[int, int, int]) -> Pictures:
    """GOLDENS pictures of four kinds: waves, coarse and fine grain, and grain with a dark spot."""
    height, width, channels = shape
    rows, columns = np.mgrid[0:height, 0:width]
    made = []
    for number in range(GOLDENS):
        base = draw.integers(40, 216)
        if number % 4 == 0:
            by_row, by_column = draw.uniform(0.5, 3.0, 2) * 2 * np.pi / (height, width)
            wave = np.sin(rows * by_row + columns * by_column + draw.uniform(0, 6.28))
            picture = np.repeat(base + draw.uniform(5, 60) * wave[..., None], channels, 2)
        else:
            step = int(draw.choice([2, 8, 32]))
            swing = int(draw.integers(2, 80))
            coarse = (-(-height // step), -(-width // step), channels)
            grain = draw.integers(-swing, swing + 1, coarse).repeat(step, 0).repeat(step, 1)
            picture = base + grain[:height, :width].astype(float)
        if number % 4 == 3:
            size = max(1, min(height, width) // int(draw.integers(6, 40)))
            top, left = draw.integers(0, height - size + 1), draw.integers(0, width - size + 1)
            picture[top : top + size, left : left + size] -= draw.integers(20, 90)
        made.append(np.clip(picture, 0, 255).astype(np.uint8))
    return np.stack(made)


class Goldens:
    """The golden pictures of one model and their scores.

    apart: how many of them have a score of their own, APART from every other's.
    """

    def __init__(self, path: Path) -> None:
        """Compute the right answers. Raises SessionError if the model cannot be used."""
        session = Session(path, threads=1)
        self.facts: ModelFacts = session.facts
        draw = np.random.default_rng(20_261_130)
        pictures: list[Pictures] = []
        scores: list[np.float32] = []
        spare: list[tuple[Pictures, np.float32]] = []
        for _ in range(ROUNDS_MAX):
            drawn = candidates(draw, self.facts.shape)
            found, _ = session.run(drawn, np.arange(GOLDENS, dtype=np.int64))
            for picture, score in zip(drawn, found, strict=True):
                is_new = all(abs(score - other) >= APART for other in scores)
                if is_new and len(pictures) < GOLDENS:
                    pictures.append(picture)
                    scores.append(score)
                else:
                    spare.append((picture, score))
            if len(pictures) == GOLDENS:
                break
        self.apart = len(pictures)
        missing = spare[: GOLDENS - len(pictures)]
        self._pictures: Pictures = np.stack([*pictures, *(picture for picture, _ in missing)])
        self._scores: Scores = np.array([*scores, *(score for _, score in missing)], np.float32)
        self._random = random.Random(20_261_130)

    @staticmethod
    def sha256_of(path: Path) -> str:
        """The model file's hash."""
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def fill(self, slot: BatchSlot, rows: int) -> list[int]:
        """Put `rows` goldens into a slot, no two of GOLDENS in a row alike; which ones."""
        chosen: list[int] = []
        while len(chosen) < rows:
            chosen += self._random.sample(range(GOLDENS), GOLDENS)
        chosen = chosen[:rows]
        pictures = slot.pictures(rows, self.facts.picture_bytes)
        for row, golden in enumerate(chosen):
            pictures[row] = self._pictures[golden].reshape(-1)
            slot.nonces[row] = secrets.randbits(63)
        slot.poison(rows)
        return chosen

    def mistake(self, slot: BatchSlot, chosen: list[int]) -> Failure | None:
        """What is wrong with the answers in a slot; None if every row is right."""
        rows = len(chosen)
        unwritten = unwritten_rows(slot, rows)
        if unwritten is not None:
            return unwritten
        difference = np.abs(slot.scores[:rows] - self._scores[chosen])
        if not bool(np.all(difference <= TOLERANCE)):  # NaN compares false
            row = int(np.argmax(np.nan_to_num(difference, nan=np.inf)))
            found, right = slot.scores[row], self._scores[chosen[row]]
            text = f"row {row} of {rows}: score {found:.5f}, right is {right:.5f}"
            return Failure(Kind.WRONG, text)
        return None


def unwritten_rows(slot: BatchSlot, rows: int) -> Failure | None:
    """Whether a row's answer is not that row's: the server said yes and may write only now."""
    if np.array_equal(slot.echoes[:rows], slot.nonces[:rows]):
        return None
    return Failure(Kind.UNWRITTEN, "a row was not written, or is another's")


def not_a_score(slot: BatchSlot, rows: int) -> Failure | None:
    """Whether a row's score is none; the line would not take it for one either."""
    if bool(np.all(np.isfinite(slot.scores[:rows]))):
        return None
    return Failure(Kind.WRONG, "a score is not a number")
