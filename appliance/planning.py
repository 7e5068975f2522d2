"""From plant file and profiles to what the cores are told: the deadline arithmetic of DESIGN.md.

Everything here is in integer nanoseconds. Errors say by how much something does not fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.plant import LineSection, ModelSection, Plant, ms_to_ns
from appliance.profile_provenance import provenance_of
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.profile import Profile, ProfileError, load_profile
from deadline_batcher.window import deeprt_window_ns
from fallback.route import RoutePlan

GRACE_MIN_NS = 20_000_000
"""How much longer than its worst case a batch may at least take before its GPU is suspect; the
largest worst case of the pool where that is more."""
WAITING_MAX = 4096
MUST_MATCH = ("model_sha256", "device", "gpu", "driver")
"""What makes a profile another's; `takt profile --check` compares all the rest as well."""


class PlanningError(Exception):
    """The plant cannot run as it is; the text says which line or model, and by how much."""


@dataclass(frozen=True, slots=True)
class ModelProfiles:
    """The two profiles of one model."""

    pool: Profile
    fallback: Profile


def profiles_of(plant: Plant) -> dict[str, ModelProfiles]:
    """Every model's profiles. Raises PlanningError naming each that is missing or wrong."""
    found: dict[str, ModelProfiles] = {}
    troubles = []
    for model in plant.model:
        try:
            found[model.name] = ModelProfiles(
                _engine_profile(plant, model, "pool"), _engine_profile(plant, model, "fallback")
            )
        except ProfileError as error:
            troubles.append(str(error))
    if troubles:
        raise PlanningError("\n".join(troubles))
    return found


def _engine_profile(plant: Plant, model: ModelSection, engine: str) -> Profile:
    path = plant.path(model.profile if engine == "pool" else model.fallback_profile_file)
    profile = load_profile(path)
    if profile.engine != engine or profile.model != model.name:
        raise ProfileError(
            f"{path}: is of {profile.model} on the {profile.engine}, "
            f"not of {model.name} on the {engine}"
        )
    if engine == "pool" and profile.batch_max < model.batch_max:
        raise ProfileError(
            f"{path}: has batch sizes up to {profile.batch_max}, "
            f"{model.batch_max - profile.batch_max} short of the plant file's batch_max "
            f"{model.batch_max}; measure again: takt profile"
        )
    if profile.origin != "published":
        _check_origin(plant, model, profile, path)
    return profile


def _check_origin(plant: Plant, model: ModelSection, profile: Profile, path: Path) -> None:
    """A measured profile is of this model file on this processor and GPU, or of no use here."""
    here = provenance_of(plant, model, profile.engine)
    found = [
        text for text in profile.provenance.mismatch(here) if text.partition(":")[0] in MUST_MATCH
    ]
    if found:
        raise ProfileError(f"{path}: {'; '.join(found)}; measure again: takt profile")


def due_budget_ns(plant: Plant, line: LineSection) -> int:
    """From capture to the instant the verdict must have left."""
    return ms_to_ns(line.deadline_ms - line.actuation_ms - plant.margins.output_ms)


def pool_budget_ns(plant: Plant, line: LineSection, wcet_fallback_ns: int) -> int:
    """From capture to the latest instant at which a pool answer still spares the fallback."""
    margins = plant.margins
    reserve_ns = ms_to_ns(margins.timer_ms + margins.start_ms) + wcet_fallback_ns
    return due_budget_ns(plant, line) - reserve_ns


LATE_PER_MISS, LATE_SHARE_MIN, LATE_SHARE_MAX = 10, 0.1, 0.5
"""A line leaves the pool when ten times as many parts as `slo_pool_share` allows were not answered
by it, or twice as many again needed a hedge; never for less than a tenth of a window's parts."""


def slo_ns(plant: Plant, line: LineSection) -> int:
    """The line's objective from exposure to verdict; without one, until it must have left."""
    told_ns = None if line.slo_p99_ms is None else ms_to_ns(line.slo_p99_ms)
    return due_budget_ns(plant, line) if told_ns is None else told_ns


def route_plan(plant: Plant, line: LineSection) -> RoutePlan:
    """What the line's route is told: the plant file's `[route]` and the line's objectives."""
    told = plant.route
    late = LATE_PER_MISS * (1 - line.slo_pool_share)
    late = min(LATE_SHARE_MAX, max(LATE_SHARE_MIN, late))
    late_share = late if told.late_share is None else told.late_share
    hedge_share = min(LATE_SHARE_MAX, 2 * late) if told.hedge_share is None else told.hedge_share
    return RoutePlan(
        window_ns=ms_to_ns(told.window_ms),
        window_parts_min=told.window_parts_min,
        latency_percentile=told.latency_percentile,
        latency_ns=round(told.latency_share * slo_ns(plant, line)),
        hedge_permille=round(1000 * hedge_share),
        late_permille=round(1000 * late_share),
        beat_lost_ns=ms_to_ns(told.batcher_silent_ms),
        return_after_ns=ms_to_ns(told.return_after_ms),
        return_after_max_ns=ms_to_ns(told.return_after_max_ms),
        steady_ns=ms_to_ns(told.steady_ms),
        trial_frames=told.trial_frames,
        trial_differ_max=told.trial_differ_max,
    )


def make_plan(
    plant: Plant, profiles: dict[str, ModelProfiles], policy: PolicySpec | None = None
) -> Plan:
    """The scheduler's plan; `takt` forms its batches unless another policy is given.

    Raises PlanningError for a line that the pool can never serve.
    """
    result_ns = ms_to_ns(plant.margins.result_ms)
    categories = []
    numbers = {model.name: number for number, model in enumerate(plant.model)}
    timings: dict[str, LineTiming] = {}
    short: dict[str, list[str]] = {}
    for model in plant.model:
        wcet_ns = tuple(
            profiles[model.name].pool.wcet_ns[size] for size in range(1, model.batch_max + 1)
        )
        relative_ns = []
        for line in plant.line:
            if line.model != model.name:
                continue
            wcet_fallback_ns = profiles[model.name].fallback.wcet_ns[1]
            left_ns = pool_budget_ns(plant, line, wcet_fallback_ns)
            left_ns -= ms_to_ns(line.transport_max_ms)
            short_ns = wcet_ns[0] + result_ns - left_ns
            if short_ns > 0 and line.takeover == "guaranteed":
                text = (
                    f"deadline_ms {line.deadline_ms:g} is {short_ns / 1e6:.1f} ms too short for "
                    f"one picture on the pool ({wcet_ns[0] / 1e6:.1f} ms at worst) and a take-over "
                    f"without a gap ({wcet_fallback_ns / 1e6:.1f} ms)"
                )
                short.setdefault(text, []).append(line.id)
            relative_ns.append(max(left_ns, 0))
            timings[line.id] = LineTiming(
                numbers[model.name], ms_to_ns(line.cycle_time_ms), max(left_ns, 0)
            )
        window_ns = deeprt_window_ns(relative_ns) if relative_ns else 0
        used = [size for size in profiles[model.name].pool.used_sizes if size <= model.batch_max]
        categories.append(Category(model.name, wcet_ns, window_ns, tuple(used)))
    if short:
        told = [f"line {', '.join(ids)}: {text}" for text, ids in short.items()]
        way_out = 'lengthen it, shorten the margins, or say takeover = "best-effort"'
        raise PlanningError("\n".join([*told, way_out]))
    return Plan(
        tuple(categories),
        gpus=len(plant.pool.endpoints),
        result_ns=result_ns,
        timer_ns=ms_to_ns(plant.margins.timer_ms),
        grace_ns=max(GRACE_MIN_NS, *(category.wcet_ns[-1] for category in categories)),
        waiting_max=WAITING_MAX,
        policy=policy or PolicySpec(),
        lines=tuple(timings[line.id] for line in plant.line),
    )
