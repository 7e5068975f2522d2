"""What a line and the batcher say to each other: keys, never pixels.

Little-endian, fixed size, first byte the kind. `hello` alone is JSON: it is rare and names things.
Times are instants or lengths on the host's monotonic clock, in nanoseconds.

    line → batcher   H hello   P part   D pool_due moved   W withdrawn   B beat   O offered load
    monitor → batcher  M doubt about a GPU
    batcher → line   R result  F refused  G beat           Q who are you (hello again)   A admission
"""

from __future__ import annotations

import struct
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

LINK_VERSION: Literal[1] = 1


class LinkError(Exception):
    """A message that is none of ours."""


class Hello(BaseModel):
    """A line introduces itself and its slots."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = LINK_VERSION
    line: str
    model: str
    segment: str
    slot_count: int = Field(ge=1, le=1024)
    slot_bytes: int = Field(ge=1)


class Part(NamedTuple):
    """A picture is ready in a slot and may be answered by the pool until `pool_due_at_ns`."""

    part: int
    slot: int
    generation: int
    nonce: int
    ready_at_ns: int
    pool_due_at_ns: int
    due_at_ns: int


class PoolDue(NamedTuple):
    """The latest useful instant of a part has moved."""

    part: int
    pool_due_at_ns: int


class Withdrawn(NamedTuple):
    """The line no longer wants the pool's answer."""

    part: int


class LineBeat(NamedTuple):
    """A line lives."""

    at_ns: int


class OfferedLoad(NamedTuple):
    """Parts with a picture since the line's start, whoever answered them; its route by ROUTES."""

    at_ns: int
    parts: int
    route: int


class GpuDoubt(NamedTuple):
    """Something beside the pool gives doubts about a GPU; `is_fault`: about every batch size."""

    gpu: int
    is_fault: bool


class Result(NamedTuple):
    """The pool's answer for one part, and where its time went."""

    part: int
    generation: int
    nonce_echo: int
    score: float
    gpu: int
    endpoint_epoch: int
    batch_id: int
    batch_size: int
    queue_ns: int
    window_ns: int
    dispatched_at_ns: int
    sent_at_ns: int
    answered_at_ns: int


class Refused(NamedTuple):
    """The pool will not answer this part; `reason` indexes REFUSALS."""

    part: int
    reason: int


class BatcherBeat(NamedTuple):
    """The batcher lives: which start of it, and how many GPUs lines may count on."""

    epoch: int
    gpus_ready: int


class Carried(NamedTuple):
    """Whether the pool carries the line; if not, `reason` indexes SHED_REASONS.

    gpus: READY ones. carried, lines: how many of the plant's lines those carry.
    """

    is_carried: bool
    reason: int
    gpus: int
    carried: int
    lines: int


class Who(NamedTuple):
    """The batcher does not know this line: say hello, then offer every open part again."""

    epoch: int


MONITOR = "monitor"
"""The address of the monitor at the batcher; no line may be called that."""

ROUTES = ("POOL", "FALLBACK", "RETURNING")
SHED_REASONS = ("", "gpus", "load", "hopeless", "start")
"""Too few GPUs for the plant file's rates; enough for those, but lines run faster; a line that
would be late even alone on an idle GPU; the pool has only started."""
REFUSALS = ("infeasible", "late", "lost", "torn", "full", "wrong-answer", "shed")

Message = (
    Part
    | PoolDue
    | Withdrawn
    | LineBeat
    | OfferedLoad
    | GpuDoubt
    | Result
    | Refused
    | BatcherBeat
    | Carried
    | Who
)

_FORMATS: dict[bytes, tuple[type, struct.Struct]] = {
    b"P": (Part, struct.Struct("<QIQqqqq")),
    b"D": (PoolDue, struct.Struct("<Qq")),
    b"W": (Withdrawn, struct.Struct("<Q")),
    b"B": (LineBeat, struct.Struct("<q")),
    b"M": (GpuDoubt, struct.Struct("<H?")),
    b"O": (OfferedLoad, struct.Struct("<qQB")),
    b"R": (Result, struct.Struct("<QQqdHIQHqqqqq")),
    b"F": (Refused, struct.Struct("<QH")),
    b"G": (BatcherBeat, struct.Struct("<QH")),
    b"A": (Carried, struct.Struct("<?BHHH")),
    b"Q": (Who, struct.Struct("<Q")),
}
_KINDS = {cls: (kind, form) for kind, (cls, form) in _FORMATS.items()}


def pack(message: Message) -> bytes:
    """Bytes of one message."""
    kind, form = _KINDS[type(message)]
    return kind + form.pack(*message)


def pack_hello(hello: Hello) -> bytes:
    """Bytes of a hello."""
    return b"H" + hello.model_dump_json().encode()


def unpack(raw: bytes) -> Message | Hello:
    """The message in `raw`. Raises LinkError for anything that is not exactly one."""
    kind = raw[:1]
    if kind == b"H":
        try:
            return Hello.model_validate_json(raw[1:])
        except ValidationError as error:
            raise LinkError(f"hello: {error.error_count()} wrong fields") from None
    known = _FORMATS.get(kind)
    if known is None or len(raw) != 1 + known[1].size:
        raise LinkError(f"{len(raw)} bytes of kind {kind!r}")
    cls, form = known
    message: Message = cls(*form.unpack_from(raw, 1))
    return message
