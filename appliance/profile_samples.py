"""Timed runs as they are made, kept beside the profile, so that a measurement cut short goes on.

One JSON line for a chunk of runs, appended; the first line is the provenance. A line cut off by a
crash is left out. Samples of another model, machine or plant are refused, with what differs.
"""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from deadline_batcher.profile import Provenance

Place = tuple[str, str, int]
"""Condition, endpoint, batch size."""
CHUNK = 64


class SamplesError(Exception):
    """Kept samples that cannot be gone on with; the text says why and the way out."""


class Samples:
    """The samples of one model. `add` may be called from several threads."""

    def __init__(self, path: Path, provenance: Provenance, *, afresh: bool = False) -> None:
        """Read what is kept, or begin. Raises SamplesError."""
        self.path = path
        self._lock = threading.Lock()
        self._kept: defaultdict[Place, list[int]] = defaultdict(list)
        self._fresh: defaultdict[Place, list[int]] = defaultdict(list)
        if afresh:
            path.unlink(missing_ok=True)
        if path.is_file():
            self._read(provenance)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(provenance.model_dump_json() + "\n")
        self.resumed = sum(map(len, self._kept.values()))

    def _read(self, provenance: Provenance) -> None:
        whole, _, cut = self.path.read_text().rpartition("\n")
        head, *lines = whole.splitlines() or [""]
        try:
            differences = Provenance.model_validate_json(head).mismatch(provenance)
            for line in lines:
                condition, endpoint, size, runs = json.loads(line)
                self._kept[condition, endpoint, size] += [int(one) for one in runs]
        except (ValidationError, ValueError, TypeError):
            raise SamplesError(f"{self.path}: spoilt; begin again with --afresh") from None
        if differences:
            told = "; ".join(differences)
            raise SamplesError(
                f"{self.path}: samples of something else ({told}); begin again with --afresh"
            )
        if cut:
            self.path.write_text(whole + "\n")

    def count(self, place: Place) -> int:
        """Runs there are of a place."""
        return len(self._kept[place]) + len(self._fresh[place])

    def of(self, place: Place) -> list[int]:
        """All runs of a place."""
        return self._kept[place] + self._fresh[place]

    def places(self) -> list[Place]:
        """Every place with a run."""
        return [place for place in {**self._kept, **self._fresh} if self.count(place)]

    def add(self, place: Place, runs_ns: Sequence[int]) -> None:
        """Runs just made; written down in chunks."""
        with self._lock:
            self._fresh[place] += runs_ns
            if len(self._fresh[place]) >= CHUNK:
                self._write([place])

    def flush(self) -> None:
        """Write down what is not yet."""
        with self._lock:
            self._write(list(self._fresh))

    def _write(self, places: Sequence[Place]) -> None:
        with self.path.open("a") as file:
            for place in places:
                runs = self._fresh.pop(place, [])
                if runs:
                    file.write(json.dumps([*place, runs]) + "\n")
                    self._kept[place] += runs

    def discard(self) -> None:
        """The profile is made: the samples are in it."""
        self.path.unlink(missing_ok=True)
