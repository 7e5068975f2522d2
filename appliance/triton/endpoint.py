"""One GPU of the pool, kept by a thread of its own: connect, register, prove, watch, begin again.

The loop that owns the scheduler never waits for a server: it uses `live` while there is one and
reads `news`. Triton's own `ready` is only ever a negative signal; goldens through the real path
decide. Each start of a server is an epoch with a new channel and a new region.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

from appliance.triton.client import CallFailed, Counters, TritonClient
from appliance.triton.goldens import Goldens
from appliance.triton.region import Region
from deadline_batcher.shm import SharedMemoryError
from deadline_batcher.timer import Signal

SLOTS = 4
LOOK_EVERY_S = 0.1
WATCH_EVERY_S = 1.0
GOLDEN_LIMIT_S = 5.0
READMIT_GOLDENS = 20
READMIT_NS = 5_000_000_000
CONTROL_JOIN_S = 0.5


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model of the plant as the pool serves it."""

    name: str
    batch_max: int
    goldens: Goldens


@dataclass(frozen=True, slots=True)
class Live:
    """What one start of a server is used through."""

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


class Proved(NamedTuple):
    """The keeper itself ran one golden batch; `mistake` is None if every row was right."""

    gpu: int
    epoch: int
    model: str
    rows: int
    sent_at_ns: int
    answered_at_ns: int
    mistake: str | None


class Watched(NamedTuple):
    """A regular look: Triton's counters, per model; it is time for a golden."""

    gpu: int
    live: Live
    counters: tuple[tuple[str, Counters], ...]


News = Ready | Lost | Proved | Watched


class Endpoint:
    """The keeper of one GPU. `news` is filled and `signal` rung from its thread."""

    def __init__(
        self,
        gpu: int,
        url: str,
        plant_tag: str,
        models: Sequence[ServedModel],
        news: deque[News],
        signal: Signal,
    ) -> None:
        self.gpu = gpu
        self.url = url
        self.live: Live | None = None
        self.readmissions = 0
        """How many were asked for. A `Ready` that knows of fewer is from before the last."""
        self._tag = plant_tag
        self._models = models
        self._news = news
        self._signal = signal
        self._epoch = 0
        self._doubted = threading.Event()
        self._is_fault = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name=f"gpu{gpu}", daemon=True)

    def start(self) -> None:
        """Begin to look for the server."""
        self._thread.start()

    def doubt(self, is_fault: bool) -> None:
        """Prove the server again, now: with every batch size after an answer that was wrong or
        none, with one picture after one that is merely late. Late means busy, and a proof of every
        size would keep it so.
        """
        self._is_fault = self._is_fault or is_fault
        self._doubted.set()

    def readmit(self) -> None:
        """The GPU is drained: prove it as after a loss, before it is `Ready` again."""
        self.readmissions += 1
        self._doubted.set()

    def stop(self) -> None:
        """End the thread and give shared memory back."""
        self._stopping.set()
        self._doubted.set()
        self._thread.join(CONTROL_JOIN_S)
        if self.live is not None:
            self.live.region.unlink()

    # --- the thread -------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._stopping.is_set():
            live: Live | None = None
            detail = "not ready"
            try:
                live = self._connect()
                if live is None:
                    return
                asked = self.readmissions
                self._prove(live, is_first=self._epoch == 1)
                self.live = live
                self._tell(Ready(self.gpu, live.epoch, f"Triton {live.version}", asked))
                self._watch(live)
            except (CallFailed, SharedMemoryError) as error:
                detail = str(error)
            finally:
                self.live = None
                if live is not None:
                    live.region.unlink()
            if self._stopping.is_set():
                return
            self._tell(Lost(self.gpu, self._epoch, detail))
            self._stopping.wait(LOOK_EVERY_S)

    def _connect(self) -> Live | None:
        """Wait for a server that says ready, and give it a region of its own."""
        client = TritonClient(self.url)
        while not all(client.is_ready(model.name) for model in self._models):
            if self._stopping.wait(LOOK_EVERY_S):
                client.close()
                return None
        self._epoch += 1
        rows = max(model.batch_max for model in self._models)
        picture_bytes = max(model.goldens.facts.picture_bytes for model in self._models)
        region = Region(self._tag, self.gpu, SLOTS, rows, picture_bytes)
        try:
            client.register(region)
            return Live(self._epoch, client, region, client.version())
        except CallFailed:
            region.unlink()
            client.close()
            raise

    def _prove(self, live: Live, is_first: bool) -> None:
        """Goldens of every batch size, big-small-big; after a loss more of them, for longer."""
        self._doubted.clear()
        self._is_fault = False
        until_ns = time.monotonic_ns() + (0 if is_first else READMIT_NS)
        wanted = 0 if is_first else READMIT_GOLDENS
        done = 0
        while True:
            for model in self._models:
                for rows in _big_small_big(model.batch_max):
                    self._golden(live, model, rows)
                    done += 1
                    if self._stopping.is_set():
                        raise CallFailed("stopping")
            remaining_ns = until_ns - time.monotonic_ns()
            if done >= wanted and remaining_ns <= 0:
                return
            self._stopping.wait(max(0.0, min(remaining_ns / 1e9, 1.0)))

    def _golden(self, live: Live, model: ServedModel, rows: int) -> None:
        number = live.region.take()
        if number is None:
            raise CallFailed("every slot is with the server")
        slot = live.region.slots[number]
        chosen = model.goldens.fill(slot, rows)
        ended, abandoned = threading.Event(), threading.Event()
        errors: list[str] = []

        def on_answer(error: str | None) -> None:
            if error is not None:
                errors.append(error)
            ended.set()
            if abandoned.is_set():  # only now is nobody writing to the slot any more
                live.region.release(number)

        sent_at_ns = time.monotonic_ns()
        shape = model.goldens.facts.shape
        live.client.infer(model.name, live.region, number, rows, shape, on_answer)
        if not ended.wait(GOLDEN_LIMIT_S):
            abandoned.set()
            raise CallFailed(f"a golden was not answered within {GOLDEN_LIMIT_S:g} s")
        answered_at_ns = 0 if errors else time.monotonic_ns()
        mistake = errors[0] if errors else model.goldens.mistake(slot, chosen)
        live.region.release(number)
        self._tell(
            Proved(self.gpu, live.epoch, model.name, rows, sent_at_ns, answered_at_ns, mistake)
        )
        if mistake is not None:
            raise CallFailed(f"golden of {rows}: {mistake}")

    def _watch(self, live: Live) -> None:
        readmitted = self.readmissions
        while not self._stopping.is_set():
            if self._doubted.wait(WATCH_EVERY_S):
                if self._stopping.is_set():
                    return
                is_fault, self._is_fault = self._is_fault, False
                self._doubted.clear()
                asked = self.readmissions
                if asked > readmitted:
                    self._prove(live, is_first=False)
                    readmitted = asked
                else:
                    for model in self._models:
                        for rows in _big_small_big(model.batch_max) if is_fault else (1,):
                            self._golden(live, model, rows)
                self._tell(Ready(self.gpu, live.epoch, "goldens passed again", asked))
            counters = tuple(
                (model.name, live.client.counters(model.name)) for model in self._models
            )
            self._tell(Watched(self.gpu, live, counters))

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._signal.ring()


def _big_small_big(batch_max: int) -> chain[int]:
    return chain(range(batch_max, 0, -1), (batch_max,))
