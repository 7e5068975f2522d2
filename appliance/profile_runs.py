"""Timed runs through the real path: one endpoint warm, alone, in turn with other models, together.

Each endpoint has a client and a region of its own. Sizes are run in turn and not one after the
other, so that a disturbance falls on all of them and not on one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from appliance.gpu_facts import GpuFacts, gpu_facts
from appliance.plant import ModelSection, Plant
from appliance.profile_samples import Place, Samples
from appliance.profile_statistics import Coverage
from appliance.triton.client import CallFailed, TritonClient
from appliance.triton.faults import Failure
from appliance.triton.goldens import Goldens
from appliance.triton.region import Region
from deadline_batcher.shm import SharedMemoryError

CALL_LIMIT_S = 30.0
LOOK_S = 0.2

OnProgress = Callable[[str, int, int], None]
"""What is measured now, runs done, runs in all."""


class ProfilerError(Exception):
    """The measurement failed; the text says where."""


@dataclass(frozen=True, slots=True)
class Golden:
    """A model and the pictures whose right answer is known."""

    section: ModelSection
    goldens: Goldens

    @property
    def sizes(self) -> range:
        """Every batch size."""
        return range(1, self.section.batch_max + 1)


class Endpoint:
    """One endpoint under measurement. Use as a context; one thread at a time."""

    def __init__(self, plant: Plant, gpu: int, models: Sequence[Golden]) -> None:
        self.gpu = gpu
        self.name = f"gpu{gpu}"
        self._url = plant.pool.endpoints[gpu]
        self._has_gpu = not plant.pool.embedded  # embedded servers run on the CPU
        self._client = TritonClient(self._url)
        rows = max(model.section.batch_max for model in models)
        picture_bytes = max(model.goldens.facts.picture_bytes for model in models)
        self._region = Region(plant.tag, gpu, 1, rows, picture_bytes)

    def __enter__(self) -> Endpoint:
        try:
            self._client.register(self._region)
        except CallFailed:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._client.unregister(self._region)
        finally:
            self._end()

    def _end(self) -> None:
        self._region.unlink()
        self._client.close()

    def gpu_facts(self) -> GpuFacts | None:
        """What the driver says of its GPU; None where the server has none or nobody is to ask."""
        return gpu_facts(self.gpu) if self._has_gpu else None

    def time_run(self, model: Golden, size: int) -> int:
        """One golden batch, from the call to its answer, in nanoseconds. Raises ProfilerError."""
        slot = self._region.slots[0]
        chosen = model.goldens.fill(slot, size)
        ended = threading.Event()
        outcome: list[tuple[int, Failure | None]] = []

        def on_answer(failure: Failure | None) -> None:
            outcome.append((time.monotonic_ns(), failure))
            ended.set()

        started_ns = time.monotonic_ns()
        shape = model.goldens.facts.shape
        self._client.infer(model.section.name, self._region, 0, size, shape, on_answer)
        said = f"{self._url}: {model.section.name}, a batch of {size}"
        if not ended.wait(CALL_LIMIT_S):
            raise ProfilerError(f"{said} took longer than {CALL_LIMIT_S:g} s")
        ended_ns, failure = outcome[0]
        mistake = failure or model.goldens.mistake(slot, chosen)
        if mistake:
            raise ProfilerError(f"{said}: {mistake}")
        return ended_ns - started_ns


@dataclass(frozen=True, slots=True)
class Warm:
    """How warm-up ended. discarded: runs that count for nothing; lacking: what was not steady."""

    discarded: int
    lacking: Mapping[int, str]
    mean_ns: Mapping[int, float]
    memory: GpuMemory


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """GPU memory in MiB: all there is, in use before the first batch, after the first of each size.

    All nothing where there is no GPU to ask.
    """

    total_mib: int = 0
    idle_mib: int = 0
    in_use_mib: Mapping[int, int] = field(default_factory=dict)

    def largest(self, other: GpuMemory) -> GpuMemory:
        """Of two endpoints: the larger use, the least before it, the smaller GPU."""
        if not (self.in_use_mib and other.in_use_mib):
            return self if self.in_use_mib else other
        most = {
            size: max(mib, other.in_use_mib.get(size, 0)) for size, mib in self.in_use_mib.items()
        }
        total_mib = min(self.total_mib, other.total_mib)
        return GpuMemory(total_mib, min(self.idle_mib, other.idle_mib), most)


def warm_up(
    endpoint: Endpoint, model: Golden, runs: int, rounds_max: int, on_progress: OnProgress
) -> Warm:
    """Every size until it was seen `runs` times and none changes any more; bounded, and told."""
    coverage = Coverage(model.sizes, runs)
    before = endpoint.gpu_facts()
    in_use: dict[int, int] = {}
    for turn in range(rounds_max):
        for size in model.sizes:
            coverage.note(size, endpoint.time_run(model, size))
            if turn == 0 and before and (facts := endpoint.gpu_facts()) is not None:
                in_use[size] = facts.used_mib
        on_progress(f"warm-up of {model.section.name}, {endpoint.name}", turn + 1, rounds_max)
        if turn + 1 >= runs and not coverage.lacking():
            break
    memory = GpuMemory(before.total_mib, before.used_mib, in_use) if before else GpuMemory()
    return Warm(coverage.discarded, coverage.lacking(), coverage.mean_ns(), memory)


def time_alone(
    endpoint: Endpoint,
    model: Golden,
    wanted: Mapping[int, int],
    samples: Samples,
    condition: str,
    on_progress: OnProgress,
    others: Sequence[Golden] = (),
) -> None:
    """Size → runs wanted; those already kept count. others: run once each before every run."""
    total = sum(wanted.values())
    while True:
        left = [
            size
            for size, runs in wanted.items()
            if samples.count((condition, endpoint.name, size)) < runs
        ]
        if not left:
            return
        for size in left:
            for other in others:
                endpoint.time_run(other, other.section.batch_max)
            samples.add((condition, endpoint.name, size), [endpoint.time_run(model, size)])
        done = sum(
            min(runs, samples.count((condition, endpoint.name, size)))
            for size, runs in wanted.items()
        )
        on_progress(f"{model.section.name} {condition}, {endpoint.name}", done, total)


def time_together(
    endpoints: Sequence[Endpoint],
    model: Golden,
    wanted: Mapping[int, int],
    samples: Samples,
    condition: str,
    on_progress: OnProgress,
) -> None:
    """All endpoints at once, each until all have what is wanted, so that none measures an idle
    host. Raises ProfilerError."""
    total = len(endpoints) * sum(wanted.values())
    ending = threading.Event()
    troubles: list[Exception] = []

    def done() -> int:
        return sum(
            min(runs, samples.count((condition, one.name, size)))
            for one in endpoints
            for size, runs in wanted.items()
        )

    def run(endpoint: Endpoint) -> None:
        try:
            while not ending.is_set():
                for size in wanted:
                    took_ns = endpoint.time_run(model, size)
                    place: Place = (condition, endpoint.name, size)
                    if samples.count(place) < wanted[size]:
                        samples.add(place, [took_ns])
        except (ProfilerError, CallFailed, SharedMemoryError) as error:
            troubles.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in endpoints]
    for thread in threads:
        thread.start()
    try:
        while (so_far := done()) < total and not troubles:
            on_progress(f"{model.section.name} {condition}, all endpoints", so_far, total)
            time.sleep(LOOK_S)
    finally:
        ending.set()
        for thread in threads:
            thread.join(CALL_LIMIT_S)
    if troubles:
        raise ProfilerError(str(troubles[0]))
