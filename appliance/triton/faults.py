"""What went wrong with a call, and what follows from it. Pure: a code and a text in, a kind out.

The code alone does not say it: Triton answers UNAVAILABLE for a queue that was too long as well as
for a server that is gone, and INTERNAL for a sticky CUDA error as well as for one bad batch.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """Whose trouble it is."""

    CONNECTION = "connection"
    UNANSWERED = "unanswered"
    SILENT = "silent"
    UNWRITTEN = "unwritten"
    QUEUE = "queue"
    STICKY = "sticky"
    OUT_OF_MEMORY = "out-of-memory"
    STUB = "stub"
    REGION_UNKNOWN = "region-unknown"
    REGION_TAKEN = "region-taken"
    SHM_DISABLED = "shm-disabled"
    SHM_UNREACHABLE = "shm-unreachable"
    VERSION = "version"
    NOT_READY = "not-ready"
    WRONG = "wrong"
    DISAGREED = "disagreed"
    CALL = "call"
    SERVER = "server"


class Step(Enum):
    """What the keeper of a GPU does about it, the mildest first."""

    NONE = 0
    PROVE_ONE = 1
    PROVE_ALL = 2
    RECONNECT = 3
    RESTART = 4
    REFUSE = 5


class Consequence(NamedTuple):
    """step: see Step. is_over: the server surely no longer reads or writes the call's slot.

    is_gpu_fault: the scheduler gives the GPU no work until goldens have passed again.
    """

    step: Step
    is_over: bool
    is_gpu_fault: bool = True


CONSEQUENCES: dict[Kind, Consequence] = {
    Kind.CONNECTION: Consequence(Step.RECONNECT, is_over=False),
    Kind.UNANSWERED: Consequence(Step.RECONNECT, is_over=False),
    Kind.SILENT: Consequence(Step.RECONNECT, is_over=False),
    Kind.UNWRITTEN: Consequence(Step.RECONNECT, is_over=False),
    Kind.QUEUE: Consequence(Step.NONE, is_over=True, is_gpu_fault=False),
    Kind.STICKY: Consequence(Step.RESTART, is_over=False),
    Kind.OUT_OF_MEMORY: Consequence(Step.RESTART, is_over=False),
    Kind.STUB: Consequence(Step.RESTART, is_over=False),
    Kind.REGION_UNKNOWN: Consequence(Step.RECONNECT, is_over=True),
    Kind.REGION_TAKEN: Consequence(Step.RECONNECT, is_over=True),
    Kind.SHM_DISABLED: Consequence(Step.REFUSE, is_over=True),
    Kind.SHM_UNREACHABLE: Consequence(Step.REFUSE, is_over=True),
    Kind.VERSION: Consequence(Step.REFUSE, is_over=True),
    Kind.NOT_READY: Consequence(Step.RECONNECT, is_over=True),
    Kind.WRONG: Consequence(Step.PROVE_ALL, is_over=True),
    Kind.DISAGREED: Consequence(Step.RESTART, is_over=True),
    Kind.CALL: Consequence(Step.PROVE_ALL, is_over=True),
    Kind.SERVER: Consequence(Step.PROVE_ALL, is_over=True),
}

_ANY: tuple[str, ...] = ()
# (kind, the codes it comes with, what its text holds); the first that fits decides.
_TABLE: tuple[tuple[Kind, tuple[str, ...], str], ...] = (
    (Kind.UNANSWERED, ("DEADLINE_EXCEEDED", "CANCELLED"), ""),
    # A frozen server's kernel still takes connections; that nobody speaks is not "not there".
    (Kind.SILENT, ("UNAVAILABLE",), r"timed out before receiving SETTINGS|keepalive"),
    (
        Kind.STICKY,
        _ANY,
        r"cud(a|nn).*\b(700|702|709|710|71[4-9]|999)\b|illegal memory access"
        r"|unspecified launch failure|misaligned address|device-side assert"
        r"|cudaError(IllegalAddress|LaunchFailure|Unknown|Assert|MisalignedAddress|EccUncorrectable)"
        r"|uncorrectable ECC",
    ),
    (
        Kind.OUT_OF_MEMORY,
        _ANY,
        r"out of memory|cudaErrorMemoryAllocation|failed to allocate memory|bad_alloc|BFCArena",
    ),
    (Kind.STUB, _ANY, r"stub process\b.*\b(not healthy|exited|died|restarted)"),
    (Kind.QUEUE, ("UNAVAILABLE", "RESOURCE_EXHAUSTED"), r"timeout expired|maximum queue size"),
    (Kind.REGION_TAKEN, ("ALREADY_EXISTS",), ""),
    (
        Kind.SHM_DISABLED,
        _ANY,
        r"allow.client.shm|shared memory.*\b(not allowed|not permitted|disabled|not enabled"
        r"|not supported)",
    ),
    (Kind.REGION_UNKNOWN, _ANY, r"unable to find (system )?shared memory region"),
    (
        Kind.SHM_UNREACHABLE,
        _ANY,
        r"(unable to open|invalid|failed to register) shared memory region",
    ),
    (Kind.CONNECTION, ("UNAVAILABLE", "UNKNOWN", "ABORTED"), ""),
    (Kind.CALL, ("INVALID_ARGUMENT", "NOT_FOUND", "UNIMPLEMENTED", "OUT_OF_RANGE"), ""),
    (Kind.SERVER, _ANY, ""),
)
_COMPILED = tuple((kind, codes, re.compile(text, re.I | re.S)) for kind, codes, text in _TABLE)


class Failure(NamedTuple):
    """Why a call did not succeed; the text is the server's."""

    kind: Kind
    text: str

    @property
    def consequence(self) -> Consequence:
        """What follows from it."""
        return CONSEQUENCES[self.kind]

    def __str__(self) -> str:
        return self.text


def failure_of(code: str, details: str) -> Failure:
    """The failure behind a gRPC status code's name and the text that came with it."""
    for kind, codes, text in _COMPILED:
        if (not codes or code in codes) and text.search(details):
            return Failure(kind, f"[{code}] {details}")
    raise AssertionError("the table ends with a kind that fits all")
