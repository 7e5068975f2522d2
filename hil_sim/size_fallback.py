"""Whether the lines' own fallbacks carry the plant with every GPU gone: each that does not, by how
much.

Three things may be in the way. A line's fallback takes longer than its cycle time, or ends after
its verdict is due; all fallbacks together need more cores than `concurrent_max`; or, where a worst
case was measured with fewer sessions busy than there are lines, the runs of the lines of one core
group, one after the other, are too long.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.planning import ModelProfiles, due_budget_ns
from appliance.plant import LineSection, Plant, ms_to_ns

NAMED_MAX = 12
"""Lines named in one message."""
CONCURRENT_MAX = 256
GONE = "with all GPUs gone"


@dataclass(frozen=True, slots=True)
class FallbackRun:
    """One line's fallback at worst, and what limits it. left_ns: from ordered to done."""

    line: LineSection
    wcet_ns: int
    left_ns: int


def runs_of(plant: Plant, wcet_ns: Mapping[str, int]) -> list[FallbackRun]:
    """Every line's, in the plant file's order. wcet_ns: model → worst case of a picture."""
    found = []
    for line in plant.line:
        left_ns = due_budget_ns(plant, line) - ms_to_ns(line.transport_max_ms)
        left_ns -= ms_to_ns(plant.margins.timer_ms + plant.margins.start_ms)
        found.append(FallbackRun(line, wcet_ns[line.model], left_ns))
    return found


def grouped(faults: Sequence[tuple[str, str]]) -> list[str]:
    """(line, text): lines with the same to say are told once."""
    lines: dict[str, list[str]] = {}
    for line_id, text in faults:
        lines.setdefault(text, []).append(line_id)
    told = []
    for text, ids in lines.items():
        more = f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else ""
        word = "lines" if len(ids) > 1 else "line"
        told.append(f"{word} {', '.join(ids[:NAMED_MAX])}{more}: {text}")
    return told


def own_faults(plant: Plant, runs: Sequence[FallbackRun]) -> list[str]:
    """Lines whose own fallback is too slow for them, whatever the others do."""
    start_ms = plant.margins.start_ms
    slow, late = [], []
    for run in runs:
        line, wcet_ms = run.line, run.wcet_ns / 1e6
        each_ms = wcet_ms + start_ms
        if each_ms > line.cycle_time_ms:
            slow.append((
                line.id,
                f"{GONE} its fallback takes {each_ms:.1f} ms a part (worst case {wcet_ms:.1f} and "
                f"start_ms {start_ms:g}), {each_ms - line.cycle_time_ms:.1f} ms more than its "
                f"cycle time of {line.cycle_time_ms:g} ms: {each_ms / line.cycle_time_ms:.2f} "
                "parts come while it does one; needed is a faster fallback, or a concurrent_max "
                "and cores with which takt profile measures a shorter worst case",
            ))  # fmt: skip
        if run.wcet_ns > run.left_ns and line.takeover == "guaranteed":
            short_ms = (run.wcet_ns - run.left_ns) / 1e6
            late.append((
                line.id,
                f"{GONE} its fallback ends {short_ms:.1f} ms late: {wcet_ms:.1f} ms at worst, "
                f"{max(0, run.left_ns) / 1e6:.1f} ms left of deadline_ms {line.deadline_ms:g}; "
                f"needed is deadline_ms {line.deadline_ms + short_ms:.1f}, or takeover = "
                '"best-effort"',
            ))  # fmt: skip
    return grouped(slow) + grouped(late)


def cores_faults(
    plant: Plant, profiles: Mapping[str, ModelProfiles]
) -> tuple[list[str], list[str]]:
    """Refusals and notes on the cores that all fallbacks share.

    A worst case measured with every line's session busy, and no more of them at once than the plant
    allows, holds the wait for a core already.
    """
    fallbacks = [profiles[line.model].fallback for line in plant.line]
    runs = runs_of(plant, {name: pair.fallback.wcet_ns[1] for name, pair in profiles.items()})
    cores = plant.fallback.concurrent_max
    refused: list[str] = []
    notes: list[str] = []
    measured = {one.provenance.concurrent_max for one in fallbacks} - {0, cores}
    for other in sorted(measured):
        text = f"fallback worst cases were measured with {other} runs at once, the plant has "
        text += f"concurrent_max {cores}: the wait for a core is another; takt profile measures it"
        (refused if other > cores else notes).append(text)
    busy = min(one.provenance.sessions_busy for one in fallbacks)
    if busy >= len(runs):
        return refused, notes
    shares = [run.wcet_ns / ms_to_ns(run.line.cycle_time_ms) for run in runs]
    if sum(shares) > cores:
        heaviest = runs[shares.index(max(shares))].line
        refused.append(
            f"line {heaviest.id}: {GONE} the {len(runs)} lines' fallbacks need "
            f"{sum(shares):.2f} cores at worst, {sum(shares) - cores:.2f} more than "
            f"concurrent_max {cores}; this line needs the most, {max(shares):.2f}"
        )
    queued = group_faults(plant, runs, cores)
    if queued:
        enough = next((n for n in range(cores + 1, min(len(runs), CONCURRENT_MAX) + 1)
                       if not group_faults(plant, runs, n)), None)  # fmt: skip
        way_out = f"concurrent_max {enough} would carry it, given the cores" if enough else (
            "no concurrent_max mends that"
        )  # fmt: skip
        why = f"fallback worst cases were measured with {busy} of {len(runs)} sessions busy, so "
        why += f"the wait for a core is added; {way_out}; takt profile measures the real wait"
        refused += [*queued, why]
    if not refused:
        notes.append(
            f"fallback worst cases were measured with {busy} sessions busy, the plant has "
            f"{len(runs)} lines: the lines of each of {cores} core groups fit one after the "
            "other; what they cost each other beside that is not known; takt profile measures it"
        )
    return refused, notes


def group_faults(plant: Plant, runs: Sequence[FallbackRun], cores: int) -> list[str]:
    """Lines that a core group cannot serve in time when all its lines' runs are ordered at once.

    A line waits for the lock of its own group (`lines.threads.CoreLocks`), so the last to get it
    waits for one run of every other line of the group.
    """
    found = []
    for number, run in enumerate(runs):
        group = runs[number % cores :: cores]
        total_ns, line = sum(one.wcet_ns for one in group), run.line
        if len(group) < 2:
            continue
        limit_ns = ms_to_ns(line.cycle_time_ms - plant.margins.start_ms)
        limit = f"cycle time of {line.cycle_time_ms:g} ms less start_ms {plant.margins.start_ms:g}"
        if line.takeover == "guaranteed" and run.left_ns < limit_ns:
            limit_ns, limit = run.left_ns, f"{run.left_ns / 1e6:.1f} ms left of its deadline_ms"
        if total_ns > limit_ns:
            found.append((
                line.id,
                f"{GONE} all {len(group)} lines of its core group ({number % cores + 1} of "
                f"{cores}) run one after the other: {total_ns / 1e6:.1f} ms at worst, "
                f"{(total_ns - limit_ns) / 1e6:.1f} ms more than the {limit}",
            ))  # fmt: skip
    return grouped(found)
