"""What the keeper of a GPU tells the batcher's loop, and what they both use a server through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from appliance.triton.client import Counters, TritonClient
from appliance.triton.faults import Failure
from appliance.triton.goldens import Goldens
from appliance.triton.region import Region


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the plant as the pool serves it."""

    name: str
    batch_max: int
    goldens: Goldens


@dataclass(frozen=True, slots=True)
class Live:
    """What one epoch of a server is used through."""

    epoch: int
    client: TritonClient
    region: Region
    version: str


class Ready(NamedTuple):
    """Goldens passed. `readmissions`: how many had been asked for when this proof began."""

    gpu: int
    epoch: int
    detail: str
    readmissions: int


class Lost(NamedTuple):
    """The server, its region or its goldens failed."""

    gpu: int
    epoch: int
    detail: str


class Noted(NamedTuple):
    """Something that a person should be able to see; `kind` names the event."""

    gpu: int
    kind: str
    detail: str


class Proved(NamedTuple):
    """The keeper itself ran one golden batch; `mistake` is None if every row was right."""

    gpu: int
    epoch: int
    model: str
    rows: int
    sent_at_ns: int
    answered_at_ns: int
    mistake: Failure | None


class Watched(NamedTuple):
    """A regular look: Triton's counters, per model; it is time for a golden."""

    gpu: int
    live: Live
    counters: tuple[tuple[str, Counters], ...]


News = Ready | Lost | Noted | Proved | Watched
