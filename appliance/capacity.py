"""What so many GPUs have been seen to carry: the table that `takt capacity` writes.

A table speaks of one load (lines, deadlines, worst cases, rule) and is of no use for another.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deadline_batcher.sizing.load import Load


class CapacityError(Exception):
    """A table that cannot be used here; the text says why and what to do."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CapacityRow(_Part):
    """One number of GPUs: how many lines of the row fit, up to which factor on their rates."""

    gpus: int = Field(ge=1)
    lines: int = Field(ge=0)
    factor: float = Field(ge=0)
    how: str = Field(max_length=16)
    runs: int = Field(ge=0)


class CapacityTable(_Part):
    """capacity[g]: the share that g GPUs carry, in millionths of a GPU; from 0 GPUs up."""

    version: Literal[1] = 1
    policy: str
    asked_sha256: str
    capacity: list[int]
    rows: list[CapacityRow]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        partial = path.with_name(f"{path.name}.partial")
        partial.write_text(self.model_dump_json(indent=2) + "\n")
        partial.replace(path)


def asked_sha256(load: Load, policy: str) -> str:
    """What a table is of: change a line, a worst case or the rule and it is another."""
    return hashlib.sha256(json.dumps([asdict(load), policy]).encode()).hexdigest()


def load_table(path: Path, load: Load, policy: str, gpus: int) -> CapacityTable:
    """The table of a file, if it is of this load. Raises CapacityError."""
    try:
        table = CapacityTable.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CapacityError(f"{path}: {error.strerror}; make it with: takt capacity") from error
    except ValidationError as error:
        raise CapacityError(f"{path}: {error.error_count()} wrong fields; takt capacity") from error
    rising = table.capacity == sorted(table.capacity) and table.capacity[:1] == [0]
    if table.asked_sha256 != asked_sha256(load, policy) or len(table.capacity) != gpus + 1:
        raise CapacityError(f"{path}: is of another plant or profile; make it anew: takt capacity")
    if not rising:
        raise CapacityError(f"{path}: capacities must begin with 0 and not fall")
    return table
