"""Certified windows (DeepRT: Yang, Nahrstedt, Guo, Zhou, SEC 2021), for N GPUs.

A window of a category opens with the first part that is in none, and closes `window_ns` later (a
timer may be `timer_ns` late). It then holds at most

    n = sum over its lines of ceil((window + timer + jitter) / cycle)

parts. It becomes a job that is cut into batches of the cap and a rest, with the deadline of its
earliest part: at least D - window - timer after it closed, D the shortest of its lines. Jobs of a
category close at least `window_ns` apart, so a job is a task with that period, and any test for
tasks applies: on one GPU DeepRT's own claim (with window = D / 2, period = deadline), on N GPUs
with a central queue the two of `global_np`. With fewer parts a job only costs less (worst cases
do not fall with the batch size), so early, late and missing parts are covered.

It covers a scheduler that closes windows by time alone (`window_tasks`). The shipped `window` rule
slides instead: a category may start when its longest-waiting part has waited `window_ns`, or when
a full batch waits, and takes all that waits up to the cap. For it (`sliding_tasks`):

A batch that is not full leaves nothing waiting, so the next that is not full closes at least
`window_ns` after it started: in x there are at most ceil(x / window) such. With b = l(cap) / cap
and a = max over sizes of (l(size) - b size), a batch of any size costs at most a + b size, a full
one no more than b size. So in the terms of the work-conserving test a category costs `a` every
window and every part of a line `b`, ready to run up to window + timer after it was ready. It must
leave time for a batch of the cap, so that no batch is ever cut short or closed early for slack.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deadline_batcher.sizing.bounds import frontier
from deadline_batcher.sizing.global_np import Result, earliest_deadline, work_conserving
from deadline_batcher.sizing.load import Load, Task, ceil_div, releases_in, running_ns
from deadline_batcher.sizing.partitioned import assign

PARTS_OF_DEADLINE = 32
"""Windows are looked for in 32nds of the shortest deadline, DeepRT's half first."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows and caps per category that hold, and the test that says so."""

    windows_ns: tuple[int, ...]
    caps: tuple[int, ...]
    result: Result


def window_tasks(load: Load) -> list[Task] | None:
    """The jobs of every category's window; None where a window leaves no time to run."""
    tasks = []
    for number, category in enumerate(load.categories):
        streams = [stream for stream in load.streams if stream.category == number]
        if not streams:
            continue
        held_ns = category.window_ns + load.timer_ns
        parts = sum(releases_in(held_ns, one.cycle_ns, one.jitter_ns) for one in streams)
        full, rest = divmod(parts, category.cap)
        cost_ns = full * category.wcet_ns[-1] + (category.wcet_ns[rest - 1] if rest else 0)
        piece_ns = category.wcet_ns[min(parts, category.cap) - 1]
        relative_ns = min(one.relative_ns for one in streams) - held_ns
        needed_ns = min(one.needed_ns for one in streams) - held_ns
        if category.window_ns <= 0 or needed_ns < piece_ns:
            return None
        name = min(streams, key=lambda one: one.needed_ns).name
        own_ns = category.wcet_ns[0]
        tasks.append(
            Task(name, category.window_ns, 0, relative_ns, needed_ns, cost_ns, piece_ns, own_ns)
        )
    return tasks


def sliding_tasks(load: Load) -> list[Task] | None:
    """What the shipped window rule may have to run; None where a window leaves no time."""
    tasks = []
    for number, category in enumerate(load.categories):
        streams = [stream for stream in load.streams if stream.category == number]
        if not streams:
            continue
        held_ns, piece_ns = category.window_ns + load.timer_ns, category.wcet_ns[-1]
        least_ns = min(one.needed_ns for one in streams)
        if category.window_ns <= 0 or least_ns - held_ns < piece_ns:
            return None
        part_ns = ceil_div(piece_ns, category.cap)
        start_ns = max(
            0, *(cost - part_ns * size for size, cost in enumerate(category.wcet_ns, start=1))
        )
        for one in streams:
            relative_ns, needed_ns = one.relative_ns - held_ns, one.needed_ns - held_ns
            jitter_ns = one.jitter_ns + held_ns
            line = (one.name, one.cycle_ns, jitter_ns, relative_ns, needed_ns)
            tasks.append(Task(*line, cost_ns=part_ns, piece_ns=piece_ns, own_ns=part_ns))
        opened = (f"{category.name} windows", category.window_ns, 0, least_ns, least_ns)
        tasks.append(Task(*opened, cost_ns=start_ns, piece_ns=0, own_ns=part_ns))
    return tasks


def certify_sliding(load: Load, gpus: int) -> Result | None:
    """The shipped window rule with the load's windows and caps; None where it cannot apply."""
    tasks = sliding_tasks(load)
    if not tasks:
        return None
    return work_conserving(tasks, running_ns(load, gpus), gpus, load.golden_ns)


def certify_windows(load: Load, gpus: int) -> Result | None:
    """The better of both tests for windows closed by time alone; None where none can apply."""
    tasks = window_tasks(load)
    if not tasks:
        return None
    running = running_ns(load, gpus)
    results = (
        earliest_deadline(tasks, running, gpus),
        work_conserving(tasks, running, gpus, load.golden_ns),
    )
    return max(results, key=lambda result: (result.holds, result.binding.margin_ns))


Certify = Callable[[Load, int], Result | None]


def find_windows(load: Load, gpus: int, certify: Certify = certify_sliding) -> Windows | None:
    """The largest common share of the deadline, at most half, at which some caps hold; then each
    category's window is made as large as still holds."""
    for part in range(PARTS_OF_DEADLINE // 2, 0, -1):
        windows = [_part_of_deadline(load, number, part) for number in range(len(load.categories))]
        for halvings in range(6):
            caps = [
                _cap(load, number, windows[number], halvings)
                for number in range(len(load.categories))
            ]
            held = load.capped(caps).windowed(windows)
            result = certify(held, gpus)
            if result is not None and result.holds:
                return _widened(held, gpus, part, result, certify)
    return None


def _widened(load: Load, gpus: int, part: int, result: Result, certify: Certify) -> Windows:
    for number in range(len(load.categories)):
        for larger in range(PARTS_OF_DEADLINE // 2, part, -1):
            windows = [category.window_ns for category in load.categories]
            windows[number] = _part_of_deadline(load, number, larger)
            wider = load.windowed(windows)
            found = certify(wider, gpus)
            if found is not None and found.holds:
                load, result = wider, found
                break
    caps = tuple(category.cap for category in load.categories)
    return Windows(tuple(category.window_ns for category in load.categories), caps, result)


def _part_of_deadline(load: Load, number: int, part: int) -> int:
    needed = [one.needed_ns for one in load.streams if one.category == number]
    return max(0, min(needed, default=0)) * part // PARTS_OF_DEADLINE


def _cap(load: Load, number: int, window_ns: int, halvings: int) -> int:
    """The largest efficient batch that fits what the window leaves, halved so many times."""
    category = load.categories[number]
    needed = [one.needed_ns for one in load.streams if one.category == number]
    left_ns = min(needed, default=0) - window_ns - load.timer_ns
    fits = [size for size in frontier(category.wcet_ns) if category.wcet_ns[size - 1] <= left_ns]
    wanted = max(fits, default=1) >> halvings
    return max((size for size in fits if size <= wanted), default=1)


def partition_windows(load: Load, gpus: int) -> list[list[str]] | None:
    """DeepRT as published: each category's windows on one GPU of their own choice, first fit."""
    tasks = window_tasks(load)
    places = assign(tasks, gpus, load.golden_ns) if tasks else None
    return None if places is None else [[task.name for task in place] for place in places]
