"""From the plan and the plant file to what shedding is told: load, capacities, holds."""

from __future__ import annotations

from appliance.capacity import CapacityError, load_table
from appliance.planning import ModelProfiles, due_budget_ns, pool_budget_ns
from appliance.plant import LineSection, Plant, ms_to_ns
from deadline_batcher.plan import Plan
from deadline_batcher.shedding import ShedPlan, proportional
from deadline_batcher.sizing.load import Load, SizedCategory, Stream

TESTS: dict[str, tuple[str, ...]] = {"eager": ("work-conserving",), "window": ("windows",)}
"""The sufficient tests that say something of a rule; none covers `takt` and the others."""


def shed_plan(plant: Plant, plan: Plan, profiles: dict[str, ModelProfiles]) -> ShedPlan:
    """What shedding is told. Raises nothing: a plant that has a plan has this."""
    load = offered_load(plant, plan, profiles)
    told = plant.route
    capacity, capacity_from = _capacity(plant, plan, load)
    return ShedPlan(
        load=load,
        tests=TESTS.get(plan.policy.name, ()),
        capacity=capacity,
        rate_window_ns=ms_to_ns(told.rate_window_ms),
        rate_margin_permille=round(1000 * told.rate_margin_share),
        peak_hold_ns=ms_to_ns(told.rate_peak_hold_ms),
        suspect_ns=ms_to_ns(told.suspect_ms),
        return_after_ns=ms_to_ns(told.shed_return_after_ms),
        return_step_ns=ms_to_ns(told.shed_return_step_ms),
        capacity_from=capacity_from,
    )


def _capacity(plant: Plant, plan: Plan, load: Load) -> tuple[tuple[int, ...], str]:
    """Capacities and how they are known. A table that does not fit stops no plant."""
    by_word = proportional(load, plan.gpus, plant.plant.gpus_lost_tolerated)
    told = "the plant file's word, in proportion"
    if plant.route.capacity is None:
        return by_word, told
    path = plant.path(plant.route.capacity)
    try:
        table = load_table(path, load, plan.policy.name, plan.gpus)
    except CapacityError as error:
        return by_word, f"{told}, because {error}"
    return tuple(table.capacity), f"the evidence in {path.name}"


def offered_load(plant: Plant, plan: Plan, profiles: dict[str, ModelProfiles]) -> Load:
    """Every line at the plant file's rate, in its order."""
    categories = tuple(
        SizedCategory(one.name, one.wcet_ns, one.window_ns) for one in plan.categories
    )
    streams = []
    for line, timing in zip(plant.line, plan.lines, strict=True):
        left_ns = _needed_ns(plant, line, profiles[line.model].fallback.wcet_ns[1])
        jitter_ns = ms_to_ns(line.transport_max_ms - line.transport_min_ms)
        streams.append(
            Stream(
                line.id,
                timing.category,
                timing.cycle_ns,
                left_ns,
                left_ns,
                jitter_ns,
                line.criticality,
            )
        )
    golden_ns = max(one.wcet_ns[0] for one in plan.categories)
    return Load(categories, tuple(streams), plan.timer_ns, golden_ns)


def _needed_ns(plant: Plant, line: LineSection, wcet_fallback_ns: int) -> int:
    """What is left for wait and execution on the pool, at the latest transport.

    A best-effort line may use the pool until its verdict is due.
    """
    is_taken_over = line.takeover == "guaranteed"
    pool_ns = pool_budget_ns(plant, line, wcet_fallback_ns)
    budget_ns = pool_ns if is_taken_over else due_budget_ns(plant, line)
    return budget_ns - ms_to_ns(line.transport_max_ms + plant.margins.result_ms)
