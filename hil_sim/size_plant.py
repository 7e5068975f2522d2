"""From plant file and profiles to what sizing works on, and every refusal, by how much.

The deadline arithmetic is DESIGN.md's. Of a part of a line, from exposure to the gate:

    transport_max + wait + execution + result          the pool's answer is with the line
      <= deadline - actuation - output - timer - start - wcet_fallback     (pool_due)

`needed` of a line is what that leaves for wait and execution; where `slo_p99_ms` is tighter, the
answer must also leave by then: transport_max + wait + execution + result + output <= slo_p99.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.planning import ModelProfiles, due_budget_ns, pool_budget_ns
from appliance.plant import LineSection, ModelSection, Plant, ms_to_ns
from deadline_batcher.profile import Profile, ProfileError, load_profile
from deadline_batcher.sizing.load import Load, SizedCategory, Stream, ceil_div
from hil_sim.size_fallback import grouped, own_faults, runs_of

GPUS_MAX = 64
"""What a plant file may name; a load that needs more fits no pool."""


@dataclass(frozen=True, slots=True)
class LineBudget:
    """Where a line's time goes. All in ns; needed_ns is left for wait and execution."""

    line: LineSection
    wcet_fallback_ns: int
    relative_ns: int
    needed_ns: int
    is_taken_over: bool

    def ends_at_ms(self, plant: Plant, used_ns: int) -> list[tuple[str, float]]:
        """The sum from exposure to the gate, term by term, with `used_ns` on the pool."""
        line, margins = self.line, plant.margins
        terms = [
            ("transport_max", line.transport_max_ms),
            ("wait and execution on the pool", used_ns / 1e6),
            ("result", margins.result_ms),
        ]
        if self.is_taken_over:
            terms += [
                ("fallback worst case", self.wcet_fallback_ns / 1e6),
                ("fallback start", margins.start_ms),
                ("timer", margins.timer_ms),
            ]
        return [*terms, ("output", margins.output_ms), ("actuation", line.actuation_ms)]


def load_profiles(plant: Plant) -> tuple[dict[str, ModelProfiles], list[str]]:
    """Profiles by model, and why any of them cannot be used."""
    found: dict[str, ModelProfiles] = {}
    refused: list[str] = []
    for model in plant.model:
        pair = []
        for engine in ("pool", "fallback"):
            told = model.profile if engine == "pool" else model.fallback_profile_file
            path = plant.path(told)
            try:
                profile = load_profile(path)
            except ProfileError as error:
                refused += list(_raw_faults(path)) or [str(error)]
                continue
            refused += list(_misfits(plant, model, engine, path, profile))
            pair.append(profile)
        if len(pair) == 2:
            found[model.name] = ModelProfiles(*pair)
    refused += _mixed_gpus(plant, found)
    return found, refused


def _raw_faults(path: Path) -> Iterator[str]:
    """What is wrong with a profile that does not load: sizes by name, falls by how much."""
    try:
        raw: Any = json.loads(path.read_bytes())
        told = {int(size): value for size, value in raw["wcet_ns"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return
    gone = sorted(set(range(1, max(told, default=1) + 1)) - set(told))
    if gone:
        missing = f"{len(gone)} {'is' if len(gone) == 1 else 'are'} missing"
        yield (
            f"{path}: of batch sizes 1 to {max(told, default=1)}, {missing}: "
            f"{', '.join(map(str, gone))}; measure again: takt profile"
        )
    times = {}
    for size in sorted(told):
        value = told[size]
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            yield f"{path}: wcet_ns of size {size} is {value!r}, not a finite number"
        elif value <= 0:
            yield f"{path}: wcet_ns of size {size} is {value:g}; a batch takes time"
        else:
            times[size] = value
    for size in sorted(times):
        before = times.get(size - 1)
        if before is not None and times[size] < before:
            yield (
                f"{path}: wcet_ns falls by {(before - times[size]) / 1e6:.3f} ms from size "
                f"{size - 1} to {size}: a worst case cannot; measure again: takt profile"
            )


def _misfits(
    plant: Plant, model: ModelSection, engine: str, path: Path, profile: Profile
) -> Iterator[str]:
    if profile.engine != engine or profile.model != model.name:
        yield (
            f"{path}: is of {profile.model} on the {profile.engine}, "
            f"not of {model.name} on the {engine}"
        )
        return
    if engine == "pool" and profile.batch_max < model.batch_max:
        short = model.batch_max - profile.batch_max
        yield (
            f"{path}: has sizes up to {profile.batch_max}, batch_max is {model.batch_max}: "
            f"{short} sizes short; measure again: takt profile"
        )
    file = plant.path(model.pool if engine == "pool" else model.fallback)
    if file.is_file():
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if profile.provenance.model_sha256 != found:
            yield (
                f"{path}: is of another {model.name}: measured was "
                f"{profile.provenance.model_sha256[:12]}, {file.name} is {found[:12]}; "
                "measure again: takt profile"
            )


def _mixed_gpus(plant: Plant, found: dict[str, ModelProfiles]) -> list[str]:
    """Categories share the GPUs: their profiles must be of the same kind of GPU."""
    devices: dict[str, list[str]] = {}
    for name, profiles in found.items():
        devices.setdefault(profiles.pool.provenance.device, []).append(name)
    if len(devices) < 2:
        return []
    told = "; ".join(f"{', '.join(names)} on {device}" for device, names in devices.items())
    return [f"profiles of {len(devices)} kinds of GPU: {told}; all models share one pool"]


def budgets_of(plant: Plant, profiles: dict[str, ModelProfiles]) -> list[LineBudget]:
    """Every line's budget, in the plant file's order."""
    result_ns, output_ns = ms_to_ns(plant.margins.result_ms), ms_to_ns(plant.margins.output_ms)
    found = []
    for line in plant.line:
        wcet_ns = profiles[line.model].fallback.wcet_ns[1]
        latest_ns = ms_to_ns(line.transport_max_ms)
        pool_ns, due_ns = pool_budget_ns(plant, line, wcet_ns), due_budget_ns(plant, line)
        is_taken_over = line.takeover == "guaranteed" or pool_ns > latest_ns
        left_ns = (pool_ns if is_taken_over else due_ns) - latest_ns - result_ns
        # A fallback slower than the line moves earlier parts' last_start forward (DESIGN).
        behind_ns = wcet_ns + ms_to_ns(plant.margins.start_ms) - ms_to_ns(line.cycle_time_ms)
        if is_taken_over and behind_ns > 0:
            left_ns -= (ceil_div(due_ns, ms_to_ns(line.cycle_time_ms)) - 1) * behind_ns
        needed_ns = left_ns
        if line.slo_p99_ms is not None:
            slo_ns = ms_to_ns(line.slo_p99_ms) - output_ns - latest_ns - result_ns
            needed_ns = min(left_ns, slo_ns)
        found.append(LineBudget(line, wcet_ns, left_ns, needed_ns, is_taken_over))
    return found


def load_of(plant: Plant, profiles: dict[str, ModelProfiles], budgets: list[LineBudget]) -> Load:
    """What the pool is asked to carry: every line at its cycle time, nothing said of phases."""
    numbers = {model.name: number for number, model in enumerate(plant.model)}
    categories = []
    for model in plant.model:
        wcet_ns = profiles[model.name].pool.wcet_ns
        times = tuple(wcet_ns[size] for size in range(1, model.batch_max + 1))
        categories.append(SizedCategory(model.name, times))
    streams = tuple(
        Stream(
            budget.line.id,
            numbers[budget.line.model],
            ms_to_ns(budget.line.cycle_time_ms),
            budget.relative_ns,
            budget.needed_ns,
            ms_to_ns(budget.line.transport_max_ms - budget.line.transport_min_ms),
            budget.line.criticality,
        )
        for budget in budgets
    )
    golden_ns = max(category.wcet_ns[0] for category in categories)
    return Load(tuple(categories), streams, ms_to_ns(plant.margins.timer_ms), golden_ns)


def refusals(plant: Plant, load: Load, budgets: list[LineBudget]) -> list[str]:
    """What no pool of any size mends: too short deadlines, too slow fallbacks, too many lines."""
    short = [(one.line.id, _too_short(plant, load, one)) for one in budgets]
    found = grouped([(line_id, text) for line_id, text in short if text])
    found += own_faults(
        plant, runs_of(plant, {one.line.model: one.wcet_fallback_ns for one in budgets})
    )
    share = least_share(load)
    if share > GPUS_MAX:
        found.append(
            f"{len(load.streams)} lines need {share:.1f} GPUs at least, "
            f"{share - GPUS_MAX:.1f} more than the {GPUS_MAX} that a pool may have"
        )
    return found


def least_share(load: Load) -> float:
    """GPUs that no rule can do without, however long the deadlines."""
    cheapest_ns = [
        min(wcet_ns / size for size, wcet_ns in enumerate(category.wcet_ns, start=1))
        for category in load.categories
    ]
    return sum(cheapest_ns[one.category] / one.cycle_ns for one in load.streams)


def _too_short(plant: Plant, load: Load, budget: LineBudget) -> str:
    line = budget.line
    category = next(one for one in load.categories if one.name == line.model)
    terms = budget.ends_at_ms(plant, category.wcet_ns[0])
    limit_ms, limit = line.deadline_ms, f"deadline_ms {line.deadline_ms:g}"
    if budget.needed_ns < budget.relative_ns and line.slo_p99_ms is not None:
        terms = [*terms[:3], ("output", plant.margins.output_ms)]
        limit_ms, limit = line.slo_p99_ms, f"slo_p99_ms {line.slo_p99_ms:g}"
    total_ms = sum(ms for _, ms in terms)
    if total_ms - limit_ms < 1e-6:
        return ""  # a fallback slower than its line takes more off; that is refused by itself
    told = " + ".join(f"{name} {ms:.1f}" for name, ms in terms)
    return (
        f"{limit} is {total_ms - limit_ms:.1f} ms shorter than one picture alone on an "
        f"idle GPU needs: {told} = {total_ms:.1f} ms"
    )
