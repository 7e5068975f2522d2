"""A sufficient test for one GPU of its own: non-preemptive earliest deadline first, batch 1.

George, Rivierre and Spuri (INRIA RR-2966, 1996); for implicit deadlines Jeffay, Stanat and Martel
(RTSS 1991). Let work with deadline d not end by d. Go back to the latest t0 just before which
nothing with a deadline up to d was pending. From t0 to d the GPU is never idle and runs only such
work, but for one run that had begun before t0 with a later deadline. With y = d - t0:

    max {C_j - 1 : D_j + jitter_j > y}  +  sum (floor((y - D + jitter) / T) + 1) * C   >   y

so the set holds where the left side is at most y for every y. Exact for sporadic lines without
jitter, sufficient with it. It covers lines bound to a GPU, one certificate per GPU; it does not
cover a central queue, where any line's part may run anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from deadline_batcher.sizing.global_np import batched_tasks
from deadline_batcher.sizing.load import (
    SCALE_BITS,
    Load,
    Task,
    ceil_div,
    share_scaled,
)

CHECKS_MAX = 20_000
"""Points of time looked at; a set that needs more counts as not proved."""


def holds_on_one(tasks: Sequence[Task], golden_ns: int = 0) -> bool:
    """Whether one GPU, earliest deadline first, never ends any of it late.

    golden_ns: a golden may have begun just before.
    """
    spare = (1 << SCALE_BITS) - share_scaled(tasks)
    if not tasks:
        return True
    if spare <= 0:
        return False
    least_ns = min(task.needed_ns for task in tasks)
    if least_ns <= 0:
        return False
    longest_ns = max(golden_ns, *(task.piece_ns for task in tasks))
    gap_ns = max(task.relative_ns - task.needed_ns for task in tasks)
    burst_ns = (
        longest_ns
        + gap_ns
        + sum(task.cost_ns * (1 + ceil_div(task.jitter_ns, task.period_ns)) for task in tasks)
    )
    # Ranges of y in which the longest blocker stays the same.
    steps = {task.relative_ns + task.jitter_ns for task in tasks}
    steps |= {task.relative_ns for task in tasks}
    edges = [*sorted(steps), max(*steps, ceil_div(burst_ns << SCALE_BITS, spare)) + 2]
    checks = 0
    for low_ns, high_ns in pairwise(edges):
        blocked_ns = max(
            (t.piece_ns - 1 for t in tasks if t.relative_ns + t.jitter_ns > low_ns),
            default=0,
        )
        blocked_ns = max(blocked_ns, golden_ns)
        late_ns = max(
            (t.relative_ns - t.needed_ns for t in tasks if t.relative_ns <= low_ns), default=0
        )
        at_ns = high_ns - 1
        while at_ns >= low_ns:
            checks += 1
            need_ns = blocked_ns + late_ns + _demand_ns(tasks, at_ns)
            if need_ns > at_ns or checks > CHECKS_MAX:
                return False
            at_ns = min(at_ns, need_ns) - 1
    return True


def _demand_ns(tasks: Sequence[Task], length_ns: int) -> int:
    return sum(
        task.cost_ns * ((length_ns - task.relative_ns + task.jitter_ns) // task.period_ns + 1)
        for task in tasks
        if length_ns >= task.relative_ns
    )


def assign(tasks: Sequence[Task], gpus: int, golden_ns: int = 0) -> list[list[Task]] | None:
    """Tasks per GPU, densest first, each on the first GPU that still holds; None where one fits
    nowhere. First fit is no search: another assignment may exist."""
    places: list[list[Task]] = [[] for _ in range(gpus)]
    densest = sorted(
        tasks, key=lambda task: -task.cost_ns * 1_000_000 // min(task.period_ns, task.relative_ns)
    )
    for task in densest:
        for place in places:
            if holds_on_one([*place, task], golden_ns):
                place.append(task)
                break
        else:
            return None
    return places


def certify_partitioned(load: Load, gpus: int) -> list[list[str]] | None:
    """Lines per GPU that hold at batch 1; None where first fit finds no such assignment."""
    single = load.capped([1] * len(load.categories)).windowed([0] * len(load.categories))
    if any(stream.needed_ns <= 0 for stream in load.streams):
        return None
    places = assign(batched_tasks(single), gpus, load.golden_ns)
    return None if places is None else [[task.name for task in place] for place in places]
