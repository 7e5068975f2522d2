"""Takt's clauses at literal instants: the batch that the load needs, room, saturation."""

from __future__ import annotations

from deadline_batcher import messages as m
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec, frontier
from deadline_batcher.policies.pace import Enough, Pace
from deadline_batcher.scheduler import Scheduler

MS = 1_000_000
AFFINE = tuple((12 + 6 * size) * MS for size in range(1, 17))  # 18, 24, … 108 ms


def plan(
    wcets: list[tuple[int, ...]], gpus: int, lines: list[tuple[int, float, int]], margin_ms: int = 0
) -> Plan:
    """lines: (category, cycle ms, deadline ms)."""
    categories = tuple(Category(f"m{n}", wcet, 50 * MS) for n, wcet in enumerate(wcets))
    timings = tuple(LineTiming(c, round(cycle * MS), due * MS) for c, cycle, due in lines)
    spec = PolicySpec("takt")
    return Plan(categories, gpus, margin_ms * MS, margin_ms * MS, 20 * MS, 1000, spec, timings)


def enough(told: Plan, ready: int) -> list[Enough]:
    return Pace(told, [frontier(one.wcet_ns) for one in told.categories]).for_gpus(ready)


def pool(told: Plan) -> Scheduler:
    scheduler = Scheduler(told)
    for gpu in range(told.gpus):
        scheduler.handle(m.GpuReady(gpu), 0)
    return scheduler


def put(
    scheduler: Scheduler, line: int, part: int, at_ms: float, due_ms: float, category: int = 0
) -> list[tuple[int, int]]:
    """(category, size) of every batch that starts."""
    at_ns = round(at_ms * MS)
    event = m.PartReady(m.PartKey(line, part), category, at_ns, round(due_ms * MS))
    return runs(scheduler.handle(event, at_ns))


def runs(commands: tuple[m.Command, ...]) -> list[tuple[int, int]]:
    return [(one.category, len(one.parts)) for one in commands if isinstance(one, m.RunBatch)]


def tick(scheduler: Scheduler, at_ms: float) -> list[tuple[int, int]]:
    at_ns = round(at_ms * MS)
    return runs(scheduler.handle(m.TimeReached(), at_ns))


# --- the batch that the load needs ----------------------------------------------------------------


def test_a_light_load_needs_batches_of_one_and_waits_for_nobody() -> None:
    # A part in 40 ms is 0.45 of a GPU in batches of one.
    told = plan([AFFINE], 1, [(0, 40, 150)])
    assert enough(told, 1) == [Enough(1, 150 * MS)]


def test_the_batch_grows_until_the_load_fits_the_ready_gpus() -> None:
    # A part in 10 ms: of three GPUs one each 18 ms would do (1.8 ≤ 2.85), of two as well; one
    # needs batches of 4 (9 ms a part, 0.9 ≤ 0.95), not of 3 (10 ms).
    told = plan([AFFINE], 3, [(0, 20, 150), (0, 20, 150)])
    assert enough(told, 3) == [Enough(1, 150 * MS)]
    assert enough(told, 2) == [Enough(1, 150 * MS)]
    assert enough(told, 1) == [Enough(4, (150 - 30) * MS)]  # three more parts take 30 ms to come


def test_the_wait_leaves_time_for_the_longest_batch_of_others_and_the_margins() -> None:
    # Batches of 3 and 4 are 0.5 + 0.45 of the GPU. Two more parts of the first come in 40 ms, but
    # the GPU may just have begun the other's batch: 100 − 2 · 5 − 30 − 36 leaves 24.
    told = plan([AFFINE, AFFINE], 1, [(0, 20, 100), (1, 20, 200)], margin_ms=5)
    first, second = enough(told, 1)
    assert (first.size, second.size) == (3, 4)
    assert first.before_due_ns == (100 - 24) * MS
    assert second.before_due_ns == (200 - 60) * MS


def test_a_profile_without_gain_is_not_waited_for() -> None:
    # 18 in 14 ms and 20 in 20 are 2.29 of 1.9 GPUs. In pairs the first is 0.86, the second 0.995.
    flat = (20 * MS, round(39.8 * MS), round(59.6 * MS))
    told = plan([AFFINE, flat], 2, [(0, 14, 150), (1, 20, 300)])
    assert [one.size for one in enough(told, 2)] == [2, 1]


def test_without_cycle_times_nothing_is_waited_for() -> None:
    assert enough(plan([AFFINE], 2, []), 2) == [Enough(1, 100 * MS)]


def test_parts_wait_for_the_batch_that_the_load_needs() -> None:
    scheduler = pool(plan([AFFINE], 1, [(0, 20, 150), (0, 20, 150)]))
    assert put(scheduler, 0, 1, 100, 250) == []
    assert put(scheduler, 1, 1, 110, 260) == []
    assert put(scheduler, 0, 2, 120, 270) == []
    assert put(scheduler, 1, 2, 127, 277) == [(0, 4)]


def test_they_wait_no_longer_than_its_gathering_takes() -> None:
    scheduler = pool(plan([AFFINE], 1, [(0, 20, 150), (0, 20, 150)]))
    put(scheduler, 0, 1, 100, 250)
    assert scheduler.wakeup_at_ns() == 130 * MS
    assert tick(scheduler, 129) == []
    assert tick(scheduler, 130) == [(0, 1)]


def test_a_part_due_sooner_than_its_line_says_waits_no_longer_than_is_safe() -> None:
    scheduler = pool(plan([AFFINE], 1, [(0, 20, 150), (0, 20, 150)]))
    assert put(scheduler, 0, 1, 100, 215) == [(0, 1)]  # 215 − 120 is past


# --- room for parts to come -----------------------------------------------------------------------


def room_pool(tight_cycle_ms: float) -> Scheduler:
    tight = (4 * MS, 6 * MS, 8 * MS, 10 * MS)
    return pool(plan([tight, (22 * MS,)], 2, [(0, tight_cycle_ms, 15), (1, 24, 400)]))


def test_the_last_gpu_is_kept_where_more_parts_come_than_one_batch_would_answer() -> None:
    # One GPU is busy to 22. At 12 a part of the long model could take the last to 34: a tight part
    # that came now would find the first at 22, in time for itself (12 + 15 − 4 = 23) but not for
    # two of the four that come until then at one in 3 ms (12 + 15 − 6 = 21).
    scheduler = room_pool(3)
    assert put(scheduler, 1, 1, 0, 400, category=1) == [(1, 1)]
    assert put(scheduler, 1, 2, 12, 412, category=1) == []


def test_the_last_gpu_is_given_where_few_come() -> None:
    scheduler = room_pool(30)
    assert put(scheduler, 1, 1, 0, 400, category=1) == [(1, 1)]
    assert put(scheduler, 1, 2, 12, 412, category=1) == [(1, 1)]


# --- saturation -----------------------------------------------------------------------------------


def test_at_saturation_tight_parts_go_before_loose_ones_that_can_still_fill_up() -> None:
    scheduler = pool(plan([AFFINE], 1, [(0, 1000, 60), (0, 1000, 600)]))
    assert put(scheduler, 1, 0, 0, 600) == [(0, 1)]  # busy to 18
    assert put(scheduler, 0, 0, 0, 35) == []  # cannot be answered after 17: lost
    assert tick(scheduler, 17.001) == []
    for part in range(1, 13):
        put(scheduler, 1, part, 17.1, 617.1)
    for part in range(1, 7):
        put(scheduler, 0, part, 17.2, 77.2)
    # At 18 six tight ones and twelve loose ones wait. The largest batch is 7 (54 ms, the head has
    # 59): 6 · 7.5 + 6.75 = 51.75 in 54 ms; of 6 tight ones 45 in 48; twelve loose ones 81 in 84.
    # The loose can still fill up, so the tight go, and with them the one that fits: 0.958.
    assert runs(scheduler.handle(m.BatchDone(1, 0), 18 * MS)) == [(0, 7)]


def test_at_saturation_a_full_batch_of_loose_parts_goes_first() -> None:
    scheduler = pool(plan([AFFINE], 1, [(0, 1000, 60), (0, 1000, 600)]))
    put(scheduler, 1, 0, 0, 600)
    put(scheduler, 0, 0, 0, 35)
    tick(scheduler, 17.001)
    for part in range(1, 17):
        put(scheduler, 1, part, 17.1, 617.1)
    for part in range(1, 7):
        put(scheduler, 0, part, 17.2, 77.2)
    commands = scheduler.handle(m.BatchDone(1, 0), 18 * MS)
    assert runs(commands) == [(0, 16)]
    members = next(one for one in commands if isinstance(one, m.RunBatch)).parts
    assert {member.key.line for member in members} == {1}


def test_at_saturation_the_batch_worth_most_for_its_time_goes_not_the_largest() -> None:
    scheduler = pool(plan([AFFINE], 1, [(0, 1000, 60), (0, 1000, 600)]))
    put(scheduler, 1, 0, 0, 600)
    put(scheduler, 0, 0, 0, 35)
    tick(scheduler, 17.001)
    for part in range(1, 8):
        put(scheduler, 1, part, 17.1, 168)
    for part in range(1, 7):
        put(scheduler, 0, part, 17.2, 67)
    # Seven that are due at 168 are worth 7 · 6.75 in 54 ms. Six that are due at 67, for which
    # seven would be late, are worth all of their 48: no batch of theirs could be cheaper.
    commands = scheduler.handle(m.BatchDone(1, 0), 18 * MS)
    assert runs(commands) == [(0, 6)]
    members = next(one for one in commands if isinstance(one, m.RunBatch)).parts
    assert {member.key.line for member in members} == {0}
