"""The two threads beside a line's loop: one decodes, one runs the fallback session.

Both release the interpreter while they work, so the loop that owns the deadlines never waits for a
picture or a model. Each takes one job at a time from a queue and rings when a result is there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from deadline_batcher.timer import Signal
from fallback.session import Session
from lines.decode import DecodeError, FrameHeader, decode
from lines.slots import SlotWriter

Job = TypeVar("Job")
Outcome = TypeVar("Outcome")


class JobThread(Generic[Job, Outcome]):
    """Runs `work(job)` for each job in order; outcomes wait in `outcomes`, `signal` rings."""

    def __init__(self, name: str, work: Callable[[Job], Outcome], signal: Signal) -> None:
        self.outcomes: deque[Outcome] = deque()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._work = work
        self._signal = signal
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Queue one job. How many may be open is the caller's limit (slots)."""
        self._jobs.put(job)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still takes jobs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End after the jobs queued so far."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self.outcomes.append(self._work(job))
            self._signal.ring()


class DecodeJob(NamedTuple):
    """A payload to bring into a slot."""

    part: int
    header: FrameHeader
    payload: Any
    slot: int
    nonce: int


class DecodeOutcome(NamedTuple):
    """The slot's generation, or why there is no picture (`reason` not empty)."""

    part: int
    generation: int
    reason: str
    detail: str
    done_at_ns: int


def decoding(
    slots: SlotWriter, shape: tuple[int, int, int]
) -> Callable[[DecodeJob], DecodeOutcome]:
    """The work of the decode thread."""

    def work(job: DecodeJob) -> DecodeOutcome:
        try:
            picture = decode(job.header, job.payload, shape)
            generation = slots.write(job.slot, picture, job.nonce)
        except DecodeError as error:
            return DecodeOutcome(job.part, 0, error.reason, error.detail, time.monotonic_ns())
        except Exception as error:  # whatever a picture does, the thread must see the next one
            detail = f"{type(error).__name__}: {error}"[:200]
            return DecodeOutcome(job.part, 0, "decode", detail, time.monotonic_ns())
        return DecodeOutcome(job.part, generation, "", "", time.monotonic_ns())

    return work


LOCK_LOOK_S = 0.0005
"""How often a run that waits for a core looks again; no lock of the kernel's has a bound."""


class CoreLocks:
    """At most `count` fallback runs at once on this host: lock files, freed by a dying holder.

    A holder that was stopped, or hangs, frees nothing: after `limit_s`, a run's worst case, whoever
    waits runs all the same. One line's trouble never keeps another from its fallback.
    """

    def __init__(self, folder: Path, count: int, first: int, limit_s: float) -> None:
        self._handles = [
            os.open(folder / f"fallback-core{k}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            for k in range(count)
        ]
        self._first = first
        self._limit_s = limit_s
        self._held: int | None = None

    def __enter__(self) -> None:
        count = len(self._handles)
        order = [self._handles[(self._first + k) % count] for k in range(count)]
        end_s = time.monotonic() + self._limit_s
        while True:
            for handle in order:
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self._held = handle
                    return
            if time.monotonic() >= end_s:
                return
            time.sleep(LOCK_LOOK_S)

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            fcntl.flock(self._held, fcntl.LOCK_UN)
            self._held = None


class FallbackJob(NamedTuple):
    """A picture for the session; `part` is None for a warm frame."""

    part: int | None
    picture: npt.NDArray[np.uint8]
    nonce: int
    ordered_at_ns: int


class FallbackOutcome(NamedTuple):
    """A score, if `ok`: finite, from 0 to 1, with the nonce that went in."""

    part: int | None
    ok: bool
    score: float
    nonce_echo: int
    ordered_at_ns: int
    started_at_ns: int
    done_at_ns: int
    detail: str


def answering(session: Session, locks: CoreLocks) -> Callable[[FallbackJob], FallbackOutcome]:
    """The work of the fallback thread."""

    def work(job: FallbackJob) -> FallbackOutcome:
        started_at_ns = time.monotonic_ns()
        score, echo, detail = 0.0, 0, ""
        try:
            with locks:
                started_at_ns = time.monotonic_ns()
                pictures = job.picture.reshape(1, *session.facts.shape)
                scores, echoes = session.run(pictures, np.array([job.nonce], np.int64))
            score, echo = float(scores[0]), int(echoes[0])
        except Exception as error:  # an engine's failure is an answer, never a crash of the line
            detail = f"{type(error).__name__}: {error}"[:200]
        ok = not detail and echo == job.nonce and 0.0 <= score <= 1.0
        return FallbackOutcome(
            job.part, ok, score, echo, job.ordered_at_ns, started_at_ns, time.monotonic_ns(), detail
        )

    return work
