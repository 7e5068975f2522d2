"""`takt profile`: worst-case execution times, measured through the real path.

Every batch size on every endpoint of the pool, and the fallback sessions of all lines started at
the same instant over and over, both at once: that is the worst phase the plant can be in. Warm-up
is left out; the profile's worst case is the largest seen × a margin, made monotone.
"""

from __future__ import annotations

import datetime
import platform
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.fallback_load import FallbackLoad
from appliance.plant import ModelSection, Plant
from appliance.triton.client import CallFailed, TritonClient
from appliance.triton.goldens import Goldens
from appliance.triton.region import Region
from deadline_batcher.profile import (
    Profile,
    ProfileError,
    Provenance,
    SizeStatistics,
    load_profile,
    monotone,
)
from deadline_batcher.shm import SharedMemoryError

WARM_RUNS = 10
MARGIN = 1.25
LARGEST_RULE = "largest seen x margin, monotone in batch size; warm-up left out"
SHORT_RULE = (
    "short measurement on shared cores: 95th percentile x margin, monotone in batch size; "
    "a longer batch is an overrun, and the line's fallback covers it"
)
CALL_LIMIT_S = 30.0

OnProgress = Callable[[str, int, int], None]
"""What is measured now, runs done, runs in all."""


class ProfilerError(Exception):
    """The measurement failed; the text says where."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. runs: timed runs of each batch size on each endpoint.

    pool_margin, pool_rule: what the pool's worst case is made by. The fallback's is always the
    largest seen x MARGIN: nothing stands behind it.
    """

    runs: int
    fallback_rounds: int
    pool_margin: float
    pool_rule: str

    def pool_wcet_ns(self, sizes: dict[int, SizeStatistics]) -> dict[int, int]:
        """The pool's worst cases."""
        is_short = self.pool_rule == SHORT_RULE
        basis = {size: one.p95_ns if is_short else one.max_ns for size, one in sizes.items()}
        return monotone(
            {size: round(time_ns * self.pool_margin) for size, time_ns in basis.items()}
        )


FULL = Effort(1000, 1000, MARGIN, LARGEST_RULE)
SHORT = Effort(25, 60, 1.5, SHORT_RULE)


def statistics_of(samples_ns: Sequence[int]) -> SizeStatistics:
    """Order statistics of timed runs (nearest rank)."""
    ordered = sorted(samples_ns)

    def rank(share: float) -> int:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return SizeStatistics(
        samples=len(ordered),
        p50_ns=rank(0.50),
        p95_ns=rank(0.95),
        p99_ns=rank(0.99),
        p999_ns=rank(0.999),
        max_ns=ordered[-1],
    )


def cpu_name() -> str:
    """The processor's name, as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def provenance_of(plant: Plant, model: ModelSection, engine: str) -> Provenance:
    """What a profile of this model on this machine would say of itself."""
    import onnxruntime
    import psutil

    from appliance.cli import takt_version
    from appliance.triton.fetch import SERVER_VERSION

    path = plant.path(model.pool if engine == "pool" else model.fallback)
    emulated = ""
    if plant.pool.emulate and engine == "pool":
        digest = Goldens.sha256_of(plant.path(plant.pool.emulate))[:8]
        emulated = f", emulating {Path(plant.pool.emulate).name}@{digest}"
    return Provenance(
        model_sha256=Goldens.sha256_of(path),
        device=cpu_name() + emulated,
        cores=psutil.cpu_count() or 1,
        server=SERVER_VERSION if engine == "pool" else "",
        runtime=f"onnxruntime {onnxruntime.__version__}",
        threads=1 if engine == "pool" else plant.fallback.threads,
        endpoints=len(plant.pool.endpoints),
        sessions_busy=sum(line.model == model.name for line in plant.line),
        measured_on=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        takt_version=takt_version(),
    )


def profile_files(plant: Plant, model: ModelSection) -> dict[str, Path]:
    """Engine → the file its profile belongs in."""
    return {
        "pool": plant.path(model.profile),
        "fallback": plant.path(model.fallback_profile_file),
    }


def mismatches(plant: Plant, model: ModelSection) -> list[str]:
    """Why the profiles there are do not fit what runs here; empty if they do."""
    found = []
    for engine, path in profile_files(plant, model).items():
        if not path.is_file():
            found.append(f"{path}: not there")
            continue
        try:
            profile = load_profile(path)
        except ProfileError as error:
            found.append(str(error))
            continue
        here = provenance_of(plant, model, engine)
        found += [f"{path}: {text}" for text in profile.provenance.mismatch(here)]
        if engine == "pool" and profile.batch_max < model.batch_max:
            found.append(f"{path}: batch sizes only up to {profile.batch_max}")
    return found


def measure(plant: Plant, effort: Effort, on_progress: OnProgress) -> None:
    """Measure and save every model's profiles; the pool must be running. Raises ProfilerError."""
    for model in plant.model:
        goldens = Goldens(plant.path(model.pool))
        load = FallbackLoad(plant, model)
        try:
            load.start()
            on_progress("starting every line's fallback", 0, 1)
            load.wait_running()
            pool = _measure_pool(plant, model, goldens, effort, on_progress)
            fallback = load.finish(effort.fallback_rounds, on_progress)
        except (CallFailed, SharedMemoryError) as error:
            raise ProfilerError(str(error)) from None
        finally:
            load.stop()
        _save_pool(plant, model, pool, effort)
        _save_fallback(plant, model, statistics_of(fallback))


def _save_pool(
    plant: Plant, model: ModelSection, sizes: dict[int, SizeStatistics], effort: Effort
) -> None:
    Profile(
        model=model.name,
        engine="pool",
        origin="emulated" if plant.pool.emulate else "measured",
        margin=effort.pool_margin,
        rule=effort.pool_rule,
        wcet_ns=effort.pool_wcet_ns(sizes),
        measured=sizes,
        provenance=provenance_of(plant, model, "pool"),
    ).save(profile_files(plant, model)["pool"])


def _save_fallback(plant: Plant, model: ModelSection, one: SizeStatistics) -> None:
    Profile(
        model=model.name,
        engine="fallback",
        origin="measured",
        margin=MARGIN,
        rule=LARGEST_RULE,
        wcet_ns={1: round(one.max_ns * MARGIN)},
        measured={1: one},
        provenance=provenance_of(plant, model, "fallback"),
    ).save(profile_files(plant, model)["fallback"])


def _measure_pool(
    plant: Plant,
    model: ModelSection,
    goldens: Goldens,
    effort: Effort,
    on_progress: OnProgress,
) -> dict[int, SizeStatistics]:
    samples: dict[int, list[int]] = {size: [] for size in range(1, model.batch_max + 1)}
    total = len(plant.pool.endpoints) * sum(effort.runs for _ in samples)
    done = 0
    for gpu, url in enumerate(plant.pool.endpoints):
        client = TritonClient(url)
        region = Region(plant.tag, gpu, 1, model.batch_max, goldens.facts.picture_bytes)
        try:
            client.register(region)
            for run in range(WARM_RUNS + effort.runs):
                # Sizes in turn, so that a disturbance falls on all of them and not on one.
                for size, kept in samples.items():
                    spent_ns = _time_run(client, region, model, goldens, size)
                    if run >= WARM_RUNS:
                        kept.append(spent_ns)
                        done += 1
                on_progress(f"gpu{gpu}, batches of 1 to {model.batch_max}", done, total)
            client.unregister(region)
        finally:
            region.unlink()
            client.close()
    on_progress("pool", total, total)
    return {size: statistics_of(kept) for size, kept in samples.items()}


def _time_run(
    client: TritonClient, region: Region, model: ModelSection, goldens: Goldens, size: int
) -> int:
    """One golden batch, from the call to its answer, in nanoseconds. Raises ProfilerError."""
    slot = region.slots[0]
    chosen = goldens.fill(slot, size)
    ended = threading.Event()
    outcome: list[tuple[int, str | None]] = []

    def on_answer(error: str | None) -> None:
        outcome.append((time.monotonic_ns(), error))
        ended.set()

    started_ns = time.monotonic_ns()
    client.infer(model.name, region, 0, size, goldens.facts.shape, on_answer)
    if not ended.wait(CALL_LIMIT_S):
        raise ProfilerError(f"{client.url}: a batch of {size} took longer than {CALL_LIMIT_S:g} s")
    ended_ns, error = outcome[0]
    mistake = error or goldens.mistake(slot, chosen)
    if mistake:
        raise ProfilerError(f"{client.url}: a batch of {size}: {mistake}")
    return ended_ns - started_ns
