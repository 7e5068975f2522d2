"""`takt profile`: worst-case execution times, measured through the real path.

Every batch size on every endpoint of the pool: alone, in turn with the other models, and with all
endpoints, decoders and fallback sessions busy in the worst phase the plant can be in. The largest
figure of all counts. Warm-up is left out; the profile's worst case is the largest seen × a margin,
made monotone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from appliance.fallback_load import FallbackLoad
from appliance.plant import ModelSection, Plant
from appliance.profile_provenance import cpu_name, mismatches, profile_files, provenance_of
from appliance.profile_runs import (
    Endpoint,
    Golden,
    GpuMemory,
    OnProgress,
    ProfilerError,
    Warm,
    time_alone,
    time_together,
    warm_up,
)
from appliance.profile_samples import Samples, SamplesError
from appliance.profile_statistics import (
    WARM_RUNS,
    disturbance_notes,
    runs_needed,
    statistics_of,
)
from appliance.triton.client import CallFailed
from appliance.triton.goldens import Goldens
from deadline_batcher.profile import (
    Measured,
    Profile,
    SizeStatistics,
    monotone,
)
from deadline_batcher.profile_shape import efficient_sizes, lifted_notes, shape_notes
from deadline_batcher.shm import SharedMemoryError

MARGIN = 1.25
ALONE, TOGETHER, BUSY = "alone", "together", "busy"
ALTERNATING, FALLBACK = "alternating", "fallback"
BESIDE_FALLBACKS = "beside fallbacks"
TOGETHER_RUNS = 200
OFF_FRONTIER = 1.10
OFF_FRONTIER_SHARE = 0.1
LARGEST_RULE = "largest seen x margin, monotone in batch size; warm-up left out"
SHORT_RULE = (
    "short measurement on shared cores: 95th percentile x margin, monotone in batch size; "
    "a longer batch is an overrun, and the line's fallback covers it"
)

OnSay = Callable[[str], None]

__all__ = ["ProfilerError", "cpu_name", "mismatches", "profile_files", "provenance_of"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. runs: timed runs of each batch size on each endpoint and condition.

    pool_margin, pool_rule: what the pool's worst case is made by. The fallback's is always the
    largest seen x MARGIN: nothing stands behind it. warm_runs, warm_rounds_max: how often every
    size is seen before anything counts, and when to give up. is_full: every condition, not only
    beside the fallbacks.
    """

    runs: int
    fallback_rounds: int
    pool_margin: float
    pool_rule: str
    warm_runs: int = WARM_RUNS
    warm_rounds_max: int = 400
    is_full: bool = True
    all_sizes: bool = False
    afresh: bool = False

    def pool_basis_ns(self, sizes: Mapping[int, SizeStatistics]) -> dict[int, int]:
        """What the pool's worst cases are made of."""
        return {size: one.max_ns if self.is_full else one.p95_ns for size, one in sizes.items()}

    def pool_wcet_ns(self, sizes: Mapping[int, SizeStatistics]) -> dict[int, int]:
        """The pool's worst cases."""
        basis = self.pool_basis_ns(sizes)
        return monotone(
            {size: round(time_ns * self.pool_margin) for size, time_ns in basis.items()}
        )


FULL = Effort(runs_needed(), 1000, MARGIN, LARGEST_RULE)
SHORT = Effort(25, 60, 1.5, SHORT_RULE, warm_runs=10, warm_rounds_max=10, is_full=False)


def samples_file(plant: Plant, model: ModelSection) -> Path:
    """Where the runs of a measurement in progress are kept: beside the profile."""
    pool = profile_files(plant, model)["pool"]
    return pool.with_name(pool.name + ".samples")


def measure(plant: Plant, effort: Effort, on_progress: OnProgress, say: OnSay) -> None:
    """Measure and save every model's profiles; the pool must be running.

    Raises ProfilerError. What was measured before it was stopped is kept and gone on with.
    """
    models = [Golden(model, Goldens(plant.path(model.pool))) for model in plant.model]
    try:
        for model in models:
            _Measurement(plant, models, model, effort, on_progress, say).run()
    except (CallFailed, SharedMemoryError, SamplesError) as error:
        raise ProfilerError(str(error)) from None


class _Measurement:
    """One model's."""

    def __init__(
        self,
        plant: Plant,
        models: Sequence[Golden],
        model: Golden,
        effort: Effort,
        on_progress: OnProgress,
        say: OnSay,
    ) -> None:
        self.plant, self.model, self.effort = plant, model, effort
        self.others = [one for one in models if one is not model]
        self.on_progress, self.say = on_progress, say
        self.samples = Samples(
            samples_file(plant, model.section),
            provenance_of(plant, model.section, "pool"),
            afresh=effort.afresh or not effort.is_full,
        )
        self.notes: list[str] = []
        self.memory = GpuMemory()
        self.wanted = dict.fromkeys(model.sizes, effort.runs)

    def run(self) -> None:
        """Warm up, measure, save."""
        if self.samples.resumed:
            self.say(f"going on from {self.samples.resumed} runs kept in {self.samples.path.name}")
        every = [self.model, *self.others]
        # This model's lines first: their fallbacks' samples are kept, the others' are load.
        loads = [FallbackLoad(self.plant, one.section) for one in every]
        with contextlib.ExitStack() as held:
            held.callback(self.samples.flush)
            for load in loads:
                held.callback(load.stop)
            endpoints = [
                held.enter_context(Endpoint(self.plant, gpu, every))
                for gpu in range(len(self.plant.pool.endpoints))
            ]
            if self.effort.is_full:
                self._full(endpoints, loads)
            else:
                self._beside_fallbacks(endpoints, loads)
        self._save_pool()
        self._save_fallback()
        self.samples.discard()

    def _beside_fallbacks(
        self, endpoints: Sequence[Endpoint], loads: Sequence[FallbackLoad]
    ) -> None:
        self._start(loads)
        for endpoint in endpoints:
            self._warm(endpoint, may_end_unsteady=True)
            self._alone(endpoint, BESIDE_FALLBACKS)
        self._finish(loads[0])

    def _full(self, endpoints: Sequence[Endpoint], loads: Sequence[FallbackLoad]) -> None:
        warm = [self._warm(endpoint) for endpoint in endpoints]
        for other in self.others:
            for endpoint in endpoints:
                warm_up(endpoint, other, 1, 1, self.on_progress)
        self._leave_out(warm[0].mean_ns)
        self._estimate(warm[0].mean_ns, len(endpoints))
        for endpoint in endpoints:
            self._alone(endpoint, ALONE)
        if self.others:
            for endpoint in endpoints:
                self._alone(endpoint, ALTERNATING, self.others)
        runs = min(TOGETHER_RUNS, self.effort.runs)
        largest = {max(self.model.sizes): runs}
        time_together(endpoints, self.model, largest, self.samples, TOGETHER, self.on_progress)
        self._estimate_busy(warm[0].mean_ns)
        self._start(loads)
        time_together(endpoints, self.model, self.wanted, self.samples, BUSY, self.on_progress)
        self._finish(loads[0])

    def _alone(self, endpoint: Endpoint, condition: str, others: Sequence[Golden] = ()) -> None:
        time_alone(
            endpoint, self.model, self.wanted, self.samples, condition, self.on_progress, others
        )

    def _warm(self, endpoint: Endpoint, *, may_end_unsteady: bool = False) -> Warm:
        effort = self.effort
        warm = warm_up(
            endpoint, self.model, effort.warm_runs, effort.warm_rounds_max, self.on_progress
        )
        self.memory = self.memory.largest(warm.memory)
        text = f"warm-up of {endpoint.name}: {warm.discarded} runs left out"
        if warm.lacking:
            text += "; not steady: " + ", ".join(
                f"size {size} {why}" for size, why in warm.lacking.items()
            )
            if not may_end_unsteady:
                raise ProfilerError(f"INVALID, never warmed: {text}")
        self.notes.append(text)
        if effort.is_full:
            self.say(text)
        return warm

    def _leave_out(self, mean_ns: Mapping[int, float]) -> None:
        """Sizes far off the frontier already in warm-up get a tenth of the runs: to show it."""
        if self.effort.all_sizes:
            return
        times_ns = {size: round(time_ns) for size, time_ns in mean_ns.items()}
        near = efficient_sizes(
            {size: round(ns / (OFF_FRONTIER if size > 1 else 1)) for size, ns in times_ns.items()}
        )
        for size in set(self.wanted) - set(near):
            self.wanted[size] = max(1, round(self.effort.runs * OFF_FRONTIER_SHARE))

    def _estimate(self, mean_ns: Mapping[int, float], endpoints: int) -> None:
        """Say how long it will take, before it does."""
        names = [f"gpu{number}" for number in range(endpoints)]
        alone_s = sum(self._left_s(ALONE, name, mean_ns) for name in names)
        alternating_s = 0.0
        if self.others:
            each_s = len(self.others) * mean_ns[max(mean_ns)] / 1e9  # as long as this model's
            alternating_s = sum(self._left_s(ALTERNATING, name, mean_ns, each_s) for name in names)
        load = FallbackLoad(self.plant, self.model.section)
        busy_s = max(self._left_s(BUSY, names[0], mean_ns), load.seconds(self._rounds()))
        self.say(
            f"{self.model.section.name}: at least {spoken(alone_s + alternating_s + busy_s)} from "
            f"here: alone {spoken(alone_s)}, alternating {spoken(alternating_s)}, busy "
            f"{spoken(busy_s)} or more. Ctrl-C keeps what is measured"
        )

    def _left_s(
        self, condition: str, endpoint: str, mean_ns: Mapping[int, float], each_s: float = 0.0
    ) -> float:
        """Seconds that the runs still wanted take, with `each_s` more for every one of them."""
        left = {
            size: max(0, runs - self.samples.count((condition, endpoint, size)))
            for size, runs in self.wanted.items()
        }
        return sum(count * (mean_ns[size] / 1e9 + each_s) for size, count in left.items())

    def _estimate_busy(self, mean_ns: Mapping[int, float]) -> None:
        """Say again how long the last condition takes: what endpoints share is known now."""
        count = len(self.plant.pool.endpoints)
        factor = self._speed_up().get(count, 1.0)
        once_s = self._left_s(BUSY, "gpu0", mean_ns)
        load = FallbackLoad(self.plant, self.model.section)
        busy_s = max(once_s * count / max(0.1, factor), load.seconds(self._rounds()))
        self.say(
            f"busy: at least {spoken(busy_s)} from here, for {count} endpoints at once do "
            f"{factor:g} times the work of one; longer by what the fallbacks take of the cores"
        )

    def _rounds(self) -> int:
        """Rounds of all lines' fallbacks that give as many runs as the pool gets."""
        lines = sum(line.model == self.model.section.name for line in self.plant.line)
        if not self.effort.is_full:
            return self.effort.fallback_rounds
        return -(-self.effort.runs // max(1, lines))

    def _start(self, loads: Sequence[FallbackLoad]) -> None:
        for load in loads:
            load.start()
        self.on_progress("starting every line's fallback", 0, 1)
        for load in loads:
            load.wait_running()

    def _finish(self, load: FallbackLoad) -> None:
        self.samples.add((FALLBACK, "", 1), load.finish(self._rounds(), self.on_progress))

    # --- what is kept -----------------------------------------------------------------------

    def _conditions(self) -> dict[str, dict[str, Measured]]:
        found: dict[str, dict[str, Measured]] = {}
        for condition, endpoint, size in sorted(self.samples.places()):
            if condition != FALLBACK:
                one = statistics_of(self.samples.of((condition, endpoint, size)))
                found.setdefault(condition, {}).setdefault(endpoint, {})[size] = one
        return found

    def _counted(self) -> dict[int, SizeStatistics]:
        """Each size's runs on all endpoints in the condition with the largest figure."""
        found: dict[int, SizeStatistics] = {}
        for size in self.model.sizes:
            pooled: dict[str, list[int]] = {}
            for condition, endpoint, one_size in self.samples.places():
                if one_size == size and condition not in (FALLBACK, TOGETHER):
                    runs = self.samples.of((condition, endpoint, size))
                    pooled.setdefault(condition, []).extend(runs)
            found[size] = max(map(statistics_of, pooled.values()), key=lambda one: one.max_ns)
        return found

    def _speed_up(self) -> dict[int, float]:
        size, count = max(self.model.sizes), len(self.plant.pool.endpoints)
        alone = self.samples.of((ALONE, "gpu0", size))
        together = [
            ns
            for condition, endpoint, one_size in self.samples.places()
            if condition == TOGETHER and one_size == size
            for ns in self.samples.of((condition, endpoint, size))
        ]
        if not alone or not together:
            return {}
        return {1: 1.0, count: round(count * median(alone) / median(together), 2)}

    def _save_pool(self) -> None:
        effort, model = self.effort, self.model.section
        counted = self._counted()
        wcet_ns = effort.pool_wcet_ns(counted)
        used = list(self.model.sizes)
        notes = [*self.notes]
        if effort.is_full:
            full = {size for size, runs in self.wanted.items() if runs == effort.runs}
            used = [size for size in efficient_sizes(wcet_ns) if size in full]
            notes += shape_notes(wcet_ns)
        else:
            notes.append("every size counts as used: too few runs to say which are efficient")
        notes += lifted_notes(effort.pool_basis_ns(counted))
        notes += disturbance_notes(counted) if effort.is_full else []
        if not self.memory.in_use_mib:
            notes.append("GPU memory: not measured, there is no GPU to ask")
        loaded = [one.name for one in self.plant.model]
        Profile(
            model=model.name,
            engine="pool",
            origin="emulated" if self.plant.pool.emulate else "measured",
            margin=effort.pool_margin,
            rule=effort.pool_rule,
            wcet_ns=wcet_ns,
            used=used,
            measured=counted,
            conditions=self._conditions(),
            speed_up=self._speed_up(),
            gpu_memory_mib=dict(self.memory.in_use_mib),
            gpu_memory_total_mib=self.memory.total_mib,
            gpu_memory_idle_mib=self.memory.idle_mib,
            gpu_memory_loaded=loaded if self.memory.total_mib else [],
            notes=notes,
            provenance=provenance_of(self.plant, model, "pool"),
        ).save(profile_files(self.plant, model)["pool"])

    def _save_fallback(self) -> None:
        one = statistics_of(self.samples.of((FALLBACK, "", 1)))
        model = self.model.section
        Profile(
            model=model.name,
            engine="fallback",
            origin="measured",
            margin=MARGIN,
            rule=LARGEST_RULE,
            wcet_ns={1: round(one.max_ns * MARGIN)},
            measured={1: one},
            notes=disturbance_notes({1: one}),
            provenance=provenance_of(self.plant, model, "fallback"),
        ).save(profile_files(self.plant, model)["fallback"])


def spoken(seconds: float) -> str:
    """A length of time as a person would say it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
