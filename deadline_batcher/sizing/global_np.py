"""Sufficient tests for one queue over all GPUs, non-preemptive, work-conserving.

Guan, Yi, Gu, Deng and Yu (RTSS 2008, "New schedulability test conditions for non-preemptive
scheduling on multiprocessor platforms") give such tests. Their exact formulas were not at hand;
what stands here is derived from first principles in their manner, and proved below.

**Work-conserving test** (any order, any batching up to the caps). Let a part become ready at r
and still wait at s. Go back from r to the latest t0 at which just before some GPU was idle. In
[t0, s] all N GPUs are busy, and just before t0 nothing waited, so everything that runs in [t0, s)
either ran at t0 already (at most N - 1 batches), is a golden that the idle GPU began at t0, or
became ready in [t0, s). With x = s - t0:

    N x  <  (N - 1 longest) + golden + sum over lines of ceil((x + jitter) / cycle) * c - c_min

where c is the most GPU time a part can cost, max over b <= cap of l(b) / b, and c_min is the
part's own, not yet run. Where the right side is at most N x for every x >= X, no part waits
longer than X. A part that starts X after it is ready needs l(1) more; the batch it is in is cut
to end in time. Nothing here rests on phases, on order, or on execution times being the worst
ones: parts that come later, never, or run shorter only remove terms (sustainable).

**Earliest deadline first at batch 1.** Let the part have deadline d and still wait at
s = d - C. Go back from r to the latest t0 just before which no part with a deadline up to d
waited. In [t0, s] all N are busy and only parts with deadlines up to d start. With y = d - t0:

    N (y - C)  <  (N longest runs) + sum over lines of (floor((y - D + jitter) / T) + 1) * C - C_k

A part passes where that fails for every y >= D. The first line that fails gives the shortfall.

Both tests also ask that the (N + 1)-th running batch would not be longer than the slack, which
makes them monotone: a GPU more never turns a pass into a refusal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deadline_batcher.sizing.load import (
    SCALE_BITS,
    Load,
    Task,
    ceil_div,
    parts_at_once,
    running_ns,
    settle_ns,
    share_scaled,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One task's outcome. margin_ns >= 0: it holds.

    In the work-conserving test that much is to spare; under earliest deadline first it is only how
    far the demand is from trouble (`spare_under_edf` says what is to spare).
    """

    name: str
    margin_ns: int


@dataclass(frozen=True, slots=True)
class Result:
    """A test's outcome.

    wait_ns: the longest any release can wait for a GPU (work-conserving test only, else 0).
    share: GPUs kept busy in the long run. carry_ns: what runs already when a wait begins.
    """

    test: str
    holds: bool
    binding: Finding
    wait_ns: int
    carry_ns: int
    share: float


def _overloaded(test: str, tasks: Sequence[Task], gpus: int, share: int) -> Result:
    """More work than GPUs: the margin is what is missing per longest period."""
    heaviest = max(tasks, key=lambda task: task.cost_ns * 1_000_000 // task.period_ns)
    short_ns = (share - (gpus << SCALE_BITS)) * heaviest.period_ns >> SCALE_BITS
    finding = Finding(heaviest.name, -max(1, short_ns))
    return Result(test, False, finding, 0, 0, share / (1 << SCALE_BITS))


def _groups(tasks: Sequence[Task]) -> list[tuple[int, int, int, int]]:
    """(cost, period, jitter, relative) with equal ones counted together."""
    found: dict[tuple[int, int, int], int] = {}
    for task in tasks:
        key = (task.period_ns, task.jitter_ns, task.relative_ns)
        found[key] = found.get(key, 0) + task.cost_ns
    return [(cost, *key) for key, cost in found.items()]


def work_conserving(
    tasks: Sequence[Task], running: Sequence[int], gpus: int, golden_ns: int = 0
) -> Result:
    """Any rule that never leaves a GPU idle while something is ready to run.

    running: the gpus + 1 longest pieces that may run at one instant, longest first. golden_ns:
    what the GPU that was idle just before t0 may have begun at t0, with nothing waiting yet.
    """
    test = "work-conserving"
    if not tasks:
        return Result(test, True, Finding("", 0), 0, 0, 0.0)
    share = share_scaled(tasks)
    spare = (gpus << SCALE_BITS) - share
    if spare <= 0:
        return _overloaded(test, tasks, gpus, share)
    carry_ns = sum(running[: gpus - 1]) + golden_ns
    own_ns = min(task.own_ns for task in tasks)
    groups = _groups(tasks)

    def bound_ns(length_ns: int) -> int:
        work_ns = carry_ns - own_ns
        for cost_ns, period_ns, jitter_ns, _ in groups:
            work_ns += cost_ns * ceil_div(length_ns + jitter_ns, period_ns)
        return ceil_div(max(0, work_ns), gpus)

    burst_ns = carry_ns + sum(
        cost_ns * (1 + ceil_div(jitter_ns, period_ns))
        for cost_ns, period_ns, jitter_ns, _ in groups
    )
    wait_ns = settle_ns(bound_ns, ceil_div(burst_ns << SCALE_BITS, spare) + 1)
    blocked_ns = max(wait_ns, running[gpus - 1])
    binding = min(
        (Finding(task.name, task.needed_ns - task.piece_ns - blocked_ns) for task in tasks),
        key=lambda finding: finding.margin_ns,
    )
    used = share / (1 << SCALE_BITS)
    return Result(test, binding.margin_ns >= 0, binding, wait_ns, carry_ns, used)


def earliest_deadline(tasks: Sequence[Task], running: Sequence[int], gpus: int) -> Result:
    """Earliest deadline first over all GPUs, each release run as it is (no batching across).

    running: the gpus + 1 longest pieces that may run at one instant, longest first.
    """
    test = "earliest-deadline"
    if not tasks:
        return Result(test, True, Finding("", 0), 0, 0, 0.0)
    share = share_scaled(tasks)
    spare = (gpus << SCALE_BITS) - share
    if spare <= 0:
        return _overloaded(test, tasks, gpus, share)
    carry_ns = sum(running[:gpus])
    groups = _groups(tasks)
    burst_ns = carry_ns + sum(
        cost_ns * (1 + ceil_div(jitter_ns, period_ns))
        for cost_ns, period_ns, jitter_ns, _ in groups
    )
    settled: dict[int, int] = {}
    binding = Finding("", 1 << 62)
    for task in tasks:
        extra_ns = (gpus - 1) * task.piece_ns + gpus * (task.relative_ns - task.needed_ns)
        if extra_ns not in settled:
            settled[extra_ns] = _settled(
                groups, carry_ns + extra_ns, burst_ns + extra_ns, gpus, spare
            )
        margin_ns = min(
            task.relative_ns - settled[extra_ns], task.needed_ns - task.piece_ns - running[gpus]
        )
        if margin_ns < binding.margin_ns:
            binding = Finding(task.name, margin_ns)
    used = share / (1 << SCALE_BITS)
    return Result(test, binding.margin_ns >= 0, binding, 0, carry_ns, used)


def spare_under_edf(tasks: Sequence[Task], running: Sequence[int], gpus: int) -> Finding:
    """The line whose need could shrink least under a set that holds, to the microsecond.

    A line that still passes with its need shortened by so much ends that much earlier at worst:
    the order of deadlines stays what it was.
    """
    tightest: dict[tuple[int, int], Task] = {}
    for task in tasks:
        key = (task.piece_ns, task.relative_ns - task.needed_ns)
        if key not in tightest or task.relative_ns < tightest[key].relative_ns:
            tightest[key] = task
    spare = (gpus << SCALE_BITS) - share_scaled(tasks)
    groups, carry_ns = _groups(tasks), sum(running[:gpus])
    burst_ns = carry_ns + sum(
        cost_ns * (1 + ceil_div(jitter_ns, period_ns))
        for cost_ns, period_ns, jitter_ns, _ in groups
    )
    found = Finding("", 1 << 62)
    for (piece_ns, gap_ns), task in tightest.items():
        low_ns, high_ns = 0, max(1, task.needed_ns - piece_ns - running[gpus] + 1)
        while high_ns - low_ns > 1_000:
            middle_ns = (low_ns + high_ns) // 2
            extra_ns = (gpus - 1) * piece_ns + gpus * (gap_ns + middle_ns)
            settled_ns = _settled(groups, carry_ns + extra_ns, burst_ns + extra_ns, gpus, spare)
            if settled_ns <= task.relative_ns:
                low_ns = middle_ns
            else:
                high_ns = middle_ns
        if low_ns < found.margin_ns:
            found = Finding(task.name, low_ns)
    return found


def _settled(
    groups: Sequence[tuple[int, int, int, int]], fixed_ns: int, burst_ns: int, gpus: int, spare: int
) -> int:
    """The least y from which on the demand of deadlines up to y always fits."""

    def bound_ns(length_ns: int) -> int:
        work_ns = fixed_ns
        for cost_ns, period_ns, jitter_ns, relative_ns in groups:
            if length_ns >= relative_ns:
                work_ns += cost_ns * ((length_ns - relative_ns + jitter_ns) // period_ns + 1)
        return ceil_div(work_ns, gpus)

    return settle_ns(bound_ns, ceil_div(burst_ns << SCALE_BITS, spare) + 1)


# --- from a load to tasks -------------------------------------------------------------------


def batched_tasks(load: Load) -> list[Task]:
    """Every line as a task that costs the most a part of it can in any batch up to the cap.

    A part held in a window of w becomes ready to run up to w + timer later than it was ready.
    """
    cost_ns = []
    for number, category in enumerate(load.categories):
        largest = max(1, min(category.cap, parts_at_once(load, number)))
        sizes = range(1, largest + 1)
        cost_ns.append(max(ceil_div(category.wcet_ns[size - 1], size) for size in sizes))
    tasks = []
    for one in load.streams:
        category = load.categories[one.category]
        held_ns = category.window_ns + load.timer_ns if category.window_ns else 0
        tasks.append(
            Task(
                one.name,
                one.cycle_ns,
                one.jitter_ns + held_ns,
                one.relative_ns - held_ns,
                one.needed_ns - held_ns,
                cost_ns[one.category],
                piece_ns=category.wcet_ns[0],
                own_ns=category.wcet_ns[0],
            )
        )
    return tasks


def certify_work_conserving(load: Load, gpus: int) -> Result:
    """The work-conserving test with the load's caps and windows."""
    running = running_ns(load, gpus)
    return work_conserving(batched_tasks(load), running, gpus, load.golden_ns)


def certify_batch_one(load: Load, gpus: int) -> Result:
    """Earliest deadline first with every part alone and no window."""
    single = load.capped([1] * len(load.categories)).windowed([0] * len(load.categories))
    return earliest_deadline(batched_tasks(single), running_ns(single, gpus), gpus)
