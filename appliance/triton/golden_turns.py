"""Which golden is next on one GPU: one picture of each model in turn, now and then a larger batch.

Pure: no clock. `next` is asked once a second.
"""

from __future__ import annotations

from collections.abc import Sequence

LARGE_EVERY = 20
"""Every so many goldens a larger one is wanted, until every size has had its turn."""
HOUR = 3600
"""Goldens in an hour, in which every size of every model must have been wanted."""


class GoldenTurns:
    """batch_max: of each model, in the plan's order."""

    def __init__(self, batch_max: Sequence[int]) -> None:
        self._models = len(batch_max)
        # Large and small in turn: what a larger batch leaves behind must not show in a smaller.
        self._large: list[tuple[int, int]] = []
        for category, largest in enumerate(batch_max):
            sizes = list(range(2, largest + 1))
            while sizes:
                self._large.append((category, sizes.pop()))
                if sizes:
                    self._large.append((category, sizes.pop(0)))
        self._every = min(LARGE_EVERY, max(2, HOUR // (2 * max(1, len(self._large)))))
        self._asked = self._small = 0
        self._at = 0

    def next(self) -> tuple[int, int]:
        """Category and rows of the golden that is wanted now."""
        self._asked += 1
        if self._large and self._asked % self._every == 0:
            return self._large[self._at]
        self._small = (self._small + 1) % self._models
        return self._small, 1

    def ran(self, category: int, rows: int) -> None:
        """A golden was run: a large one only then gives its turn to the next."""
        if self._large and (category, rows) == self._large[self._at]:
            self._at = (self._at + 1) % len(self._large)
