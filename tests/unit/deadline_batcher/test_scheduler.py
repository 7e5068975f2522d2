"""The scheduler's decisions at literal instants."""

from __future__ import annotations

import pytest

from deadline_batcher import messages as m
from deadline_batcher.overrun import NO_OVERRUNS
from deadline_batcher.plan import Category, Plan, PolicySpec
from deadline_batcher.scheduler import RUNS_MAX, Scheduler

MS = 1_000_000
MODEL = Category("m", (4 * MS, 6 * MS, 8 * MS), window_ns=10 * MS)
OTHER = Category("other", (5 * MS,), window_ns=3 * MS)


def plan(gpus: int = 1, waiting_max: int = 16) -> Plan:
    return Plan((MODEL, OTHER), gpus, 1 * MS, 1 * MS, 2 * MS, waiting_max, PolicySpec("window"))


def ready_pool(gpus: int = 1, waiting_max: int = 16) -> Scheduler:
    scheduler = Scheduler(plan(gpus, waiting_max))
    for gpu in range(gpus):
        assert scheduler.handle(m.GpuReady(gpu), 0) == ()
    return scheduler


def key(part: int) -> m.PartKey:
    return m.PartKey(0, part)


def put(
    scheduler: Scheduler, part: int, now_ms: int, due_ms: int, category: int = 0
) -> tuple[m.Command, ...]:
    event = m.PartReady(key(part), category, now_ms * MS, due_ms * MS)
    return scheduler.handle(event, now_ms * MS)


def tick(scheduler: Scheduler, now_ms: int) -> tuple[m.Command, ...]:
    return scheduler.handle(m.TimeReached(), now_ms * MS)


def batch(
    batch_id: int, gpu: int, parts: list[tuple[int, int, int]], end_ms: int, category: int = 0
) -> m.RunBatch:
    """parts: (part, queue ms, window ms)."""
    members = tuple(m.BatchPart(key(p), q * MS, w * MS) for p, q, w in parts)
    return m.RunBatch(batch_id, gpu, category, members, end_ms * MS)


def test_a_lone_part_waits_its_window_and_runs() -> None:
    scheduler = ready_pool()
    assert put(scheduler, 1, 5, 100) == ()
    assert scheduler.wakeup_at_ns() == 15 * MS
    assert tick(scheduler, 14) == ()
    assert tick(scheduler, 15) == (batch(1, 0, [(1, 0, 10)], end_ms=19),)
    assert scheduler.wakeup_at_ns() == 21 * MS  # worst end + grace
    assert scheduler.handle(m.BatchDone(1, 0), 18 * MS) == ()
    assert scheduler.is_empty
    assert scheduler.wakeup_at_ns() is None


def test_a_part_short_of_slack_runs_before_its_window_ends() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 14)
    # 14 − 6 for two − 1 result − 1 timer
    assert scheduler.wakeup_at_ns() == 6 * MS
    assert tick(scheduler, 6) == (batch(1, 0, [(1, 0, 6)], end_ms=10),)


def test_the_last_instant_at_which_one_part_fits_is_still_used() -> None:
    scheduler = ready_pool()
    # 5 + 4 worst case + 1 result = 10
    assert put(scheduler, 1, 5, 10) == (batch(1, 0, [(1, 0, 0)], end_ms=9),)


def test_a_part_that_cannot_be_answered_in_time_is_refused_at_once() -> None:
    scheduler = ready_pool()
    event = m.PartReady(key(1), 0, 5 * MS, 10 * MS - 1)
    assert scheduler.handle(event, 5 * MS) == (m.RefusePart(key(1), "infeasible"),)
    assert scheduler.is_empty


def test_a_full_batch_does_not_wait() -> None:
    scheduler = ready_pool()
    assert put(scheduler, 1, 0, 100) == ()
    assert put(scheduler, 2, 1, 90) == ()
    # earliest due first, whatever came first
    expected = batch(1, 0, [(2, 0, 1), (3, 0, 0), (1, 0, 2)], end_ms=10)
    assert put(scheduler, 3, 2, 95) == (expected,)


def test_a_batch_is_no_larger_than_its_earliest_due_allows() -> None:
    scheduler = ready_pool()
    busy = put(scheduler, 9, 0, 5)
    assert busy == (batch(1, 0, [(9, 0, 0)], end_ms=4),)
    for part in (1, 2, 3):
        assert put(scheduler, part, 1, 11) == ()
    # at 4: 11 − 1 result − 4 = 6 holds two, not three (8)
    assert scheduler.handle(m.BatchDone(1, 0), 4 * MS) == (
        batch(2, 0, [(1, 3, 0), (2, 3, 0)], end_ms=10),
    )
    assert tick(scheduler, 6) == ()
    assert scheduler.wakeup_at_ns() == 6 * MS + 1
    late = scheduler.handle(m.TimeReached(), 6 * MS + 1)
    assert late == (m.RefusePart(key(3), "late"),)


def test_the_reserve_for_handing_over_counts_against_the_size() -> None:
    scheduler = ready_pool()
    put(scheduler, 9, 0, 5)
    put(scheduler, 1, 0, 10)
    put(scheduler, 2, 0, 40)
    # at 4: 10 − 4 = 6 would hold two, less 1 for the result one
    assert scheduler.handle(m.BatchDone(1, 0), 4 * MS) == (batch(2, 0, [(1, 4, 0)], end_ms=8),)


def test_a_batch_that_cannot_grow_goes_before_one_that_can() -> None:
    scheduler = ready_pool()
    put(scheduler, 9, 0, 5)
    put(scheduler, 1, 0, 60)
    put(scheduler, 2, 0, 30, category=1)  # batches of this model hold one part
    assert scheduler.handle(m.BatchDone(1, 0), 4 * MS) == (
        batch(2, 0, [(2, 4, 0)], end_ms=9, category=1),
    )


def test_waiting_while_no_gpu_is_free_is_queue_and_the_rest_is_window() -> None:
    scheduler = ready_pool()
    put(scheduler, 9, 0, 5)  # runs from 0
    put(scheduler, 1, 1, 100)
    assert scheduler.handle(m.BatchDone(1, 0), 3 * MS) == ()
    assert tick(scheduler, 11) == (batch(2, 0, [(1, 2, 8)], end_ms=15),)


def test_one_batch_a_gpu_and_the_longest_idle_first() -> None:
    scheduler = ready_pool(gpus=2)
    assert put(scheduler, 1, 1, 6) == (batch(1, 0, [(1, 0, 0)], end_ms=5),)
    assert put(scheduler, 2, 1, 6) == (batch(2, 1, [(2, 0, 0)], end_ms=5),)
    assert put(scheduler, 3, 1, 12) == ()
    done = scheduler.handle(m.BatchDone(2, 1), 4 * MS)
    assert done == (batch(3, 1, [(3, 3, 0)], end_ms=8),)
    scheduler.handle(m.BatchDone(1, 0), 5 * MS)
    scheduler.handle(m.BatchDone(3, 1), 6 * MS)
    assert put(scheduler, 4, 7, 12) == (batch(4, 0, [(4, 0, 0)], end_ms=11),)


def test_a_part_offered_again_is_the_same_part() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 100)
    put(scheduler, 1, 1, 100)
    assert scheduler.snapshot().waiting == (1, 0)
    tick(scheduler, 10)
    assert put(scheduler, 1, 11, 100) == ()
    assert scheduler.snapshot().waiting == (0, 0)


def test_no_more_parts_wait_than_the_plan_allows() -> None:
    scheduler = Scheduler(plan(waiting_max=2))
    assert put(scheduler, 1, 0, 100) == put(scheduler, 2, 0, 100, category=1) == ()
    assert put(scheduler, 3, 0, 100) == (m.RefusePart(key(3), "full"),)


def test_a_moved_due_moves_the_part() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 100)
    put(scheduler, 2, 0, 100)
    scheduler.handle(m.PoolDueMoved(key(2), 12 * MS), 1 * MS)
    # 12 − 8 for three − 2
    assert scheduler.wakeup_at_ns() == 2 * MS
    assert tick(scheduler, 2) == (batch(1, 0, [(2, 0, 2), (1, 0, 2)], end_ms=8),)
    assert scheduler.handle(m.PoolDueMoved(key(7), 5 * MS), 3 * MS) == ()


def test_a_due_moved_into_the_past_is_a_refusal() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 100)
    moved = scheduler.handle(m.PoolDueMoved(key(1), 5 * MS), 1 * MS)
    assert moved == (m.RefusePart(key(1), "late"),)


def test_a_withdrawn_part_is_run_no_more() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 100)
    assert scheduler.handle(m.PartWithdrawn(key(1)), 1 * MS) == ()
    assert scheduler.is_empty
    assert tick(scheduler, 10) == ()


def test_the_parts_of_a_lost_gpu_run_elsewhere() -> None:
    scheduler = ready_pool(gpus=2)
    put(scheduler, 1, 0, 30)
    put(scheduler, 2, 0, 40)
    assert tick(scheduler, 10) == (batch(1, 0, [(1, 0, 10), (2, 0, 10)], end_ms=16),)
    assert scheduler.handle(m.GpuLost(0), 12 * MS) == (
        batch(2, 1, [(1, 0, 12), (2, 0, 12)], end_ms=18),
    )
    assert scheduler.snapshot().gpu_states == ("LOST", "READY")
    assert scheduler.handle(m.BatchDone(1, 0), 13 * MS) == ()  # too late: not its parts any more
    assert not scheduler.is_empty
    scheduler.handle(m.BatchDone(2, 1), 18 * MS)
    assert scheduler.is_empty


def test_a_gpu_without_answer_is_suspect_and_gets_no_work_until_ready() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 5)
    assert scheduler.wakeup_at_ns() == 6 * MS
    # its part is put back, and late by now
    assert tick(scheduler, 6) == (m.SuspectGpu(0, 1, False), m.RefusePart(key(1), "late"))
    assert put(scheduler, 2, 7, 30) == ()
    assert tick(scheduler, 20) == ()
    # answered 17 ms late: 21 ms where the profile says 4, of which half again counts
    assert scheduler.handle(m.BatchDone(1, 0), 21 * MS) == (m.Overrun(0, 1, 17 * MS, 500),)
    assert scheduler.snapshot().gpu_states == ("SUSPECT",)
    assert scheduler.handle(m.GpuReady(0), 22 * MS) == (batch(2, 0, [(2, 15, 0)], end_ms=28),)


def test_a_failed_batch_runs_again_and_a_faulty_gpu_is_suspect() -> None:
    scheduler = ready_pool(gpus=2)
    put(scheduler, 1, 1, 6)
    failed = scheduler.handle(m.BatchFailed(1, 0, True), 1 * MS)
    assert failed == (m.SuspectGpu(0, 1, True), batch(2, 1, [(1, 0, 0)], end_ms=5))
    again = scheduler.handle(m.BatchFailed(2, 1, False), 1 * MS)
    assert again == (batch(3, 1, [(1, 0, 0)], end_ms=5),)


def test_a_part_that_fails_batch_after_batch_is_refused() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 1, 6)
    for run in range(1, RUNS_MAX):
        again = scheduler.handle(m.BatchFailed(run, 0, False), 1 * MS)
        assert again == (batch(run + 1, 0, [(1, 0, 0)], end_ms=5),)
    last = scheduler.handle(m.BatchFailed(RUNS_MAX, 0, False), 1 * MS)
    assert last == (m.RefusePart(key(1), "lost"),)
    assert scheduler.is_empty


def test_a_drained_gpu_ends_its_batch_and_gets_no_other() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 1, 6)
    assert scheduler.handle(m.GpuDrained(0), 2 * MS) == ()
    scheduler.handle(m.BatchDone(1, 0), 4 * MS)
    put(scheduler, 2, 5, 100)
    assert tick(scheduler, 40) == ()
    assert scheduler.handle(m.GpuReady(0), 41 * MS) == (batch(2, 0, [(2, 36, 0)], end_ms=45),)


def test_a_doubt_from_outside_keeps_work_away_until_the_gpu_is_ready_again() -> None:
    scheduler = ready_pool()
    assert scheduler.handle(m.GpuDoubted(0, False), 1 * MS) == (m.SuspectGpu(0, 0, False),)
    assert scheduler.handle(m.GpuDoubted(0, False), 1 * MS) == ()  # one doubt is enough
    put(scheduler, 1, 2, 100)
    assert tick(scheduler, 40) == ()
    assert scheduler.handle(m.GpuReady(0), 41 * MS) == (batch(1, 0, [(1, 39, 0)], end_ms=45),)


def test_the_parts_on_a_gpu_found_faulty_run_elsewhere_at_once() -> None:
    scheduler = ready_pool(gpus=2)
    put(scheduler, 1, 0, 100)
    assert tick(scheduler, 40) == (batch(1, 0, [(1, 0, 40)], end_ms=44),)
    assert scheduler.handle(m.GpuDoubted(0, True), 41 * MS) == (
        m.SuspectGpu(0, 1, True),
        batch(2, 1, [(1, 0, 41)], end_ms=45),
    )
    assert scheduler.handle(m.BatchFailed(1, 0, True), 44 * MS) == (m.SuspectGpu(0, 1, True),)
    assert scheduler.handle(m.BatchDone(2, 1), 45 * MS) == ()
    assert scheduler.is_empty


def test_a_golden_runs_on_an_idle_gpu_and_a_wrong_one_makes_it_suspect() -> None:
    scheduler = ready_pool()
    assert scheduler.handle(m.GoldenWanted(0), 1 * MS) == (m.RunGolden(0),)
    assert put(scheduler, 1, 2, 7) == ()  # the GPU is busy: late at 2 + 1 ns
    assert scheduler.wakeup_at_ns() == 2 * MS + 1
    assert scheduler.handle(m.GoldenDone(0, False), 2 * MS) == (m.SuspectGpu(0, 0, True),)


def test_a_golden_without_answer_makes_its_gpu_suspect() -> None:
    scheduler = ready_pool()
    scheduler.handle(m.GoldenWanted(0), 1 * MS)
    assert scheduler.wakeup_at_ns() == 7 * MS  # 1 + 4 + grace
    assert tick(scheduler, 7) == (m.SuspectGpu(0, 0, False),)
    assert scheduler.wakeup_at_ns() is None
    assert not scheduler.is_empty


def test_a_golden_of_several_pictures_takes_their_time_and_needs_another_idle_gpu() -> None:
    alone = ready_pool()
    assert alone.handle(m.GoldenWanted(0, 0, 3), 1 * MS) == (m.RunGolden(0, 0, 3),)
    assert alone.wakeup_at_ns() == 11 * MS  # 1 + 8 + grace
    pair = ready_pool(gpus=2)
    assert pair.handle(m.GoldenWanted(0, 1, 1), 1 * MS) == (m.RunGolden(0, 1, 1),)
    assert pair.handle(m.GoldenWanted(1, 0, 3), 1 * MS) == ()
    assert pair.handle(m.GoldenWanted(1, 0, 1), 2 * MS) == (m.RunGolden(1, 0, 1),)
    pair.handle(m.GoldenDone(0, True), 3 * MS)
    pair.handle(m.GoldenDone(1, True), 3 * MS)
    assert pair.handle(m.GoldenWanted(1, 0, 3), 4 * MS) == (m.RunGolden(1, 0, 3),)


@pytest.mark.parametrize(("due_ms", "runs"), [(18, True), (11, False)])
def test_a_golden_waits_where_a_batch_would_wait_for_it(due_ms: int, runs: bool) -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, due_ms)  # closes at due − 6 − 2; a golden from 1 may last until 5
    wanted = scheduler.handle(m.GoldenWanted(0), 1 * MS)
    assert wanted == ((m.RunGolden(0),) if runs else ())


def test_a_golden_that_had_to_wait_runs_after_the_batch() -> None:
    scheduler = ready_pool()
    put(scheduler, 1, 0, 12)
    scheduler.handle(m.GoldenWanted(0), 1 * MS)
    assert tick(scheduler, 4) == (batch(1, 0, [(1, 0, 4)], end_ms=8),)
    assert scheduler.handle(m.BatchDone(1, 0), 7 * MS) == (m.RunGolden(0),)


def test_a_golden_of_a_lost_gpu_is_forgotten() -> None:
    scheduler = ready_pool()
    scheduler.handle(m.GoldenWanted(0), 1 * MS)
    scheduler.handle(m.GpuLost(0), 2 * MS)
    assert scheduler.is_empty
    assert scheduler.handle(m.GoldenDone(0, False), 3 * MS) == ()
    scheduler.handle(m.GpuReady(0), 4 * MS)
    assert scheduler.snapshot() == ((0, 0), ("READY",), (0,), 0, (NO_OVERRUNS,))


def test_numbers_of_batches_follow_those_of_the_scheduler_before() -> None:
    scheduler = Scheduler(plan(), batches_run=41)
    scheduler.handle(m.GpuReady(0), 0)
    assert put(scheduler, 1, 0, 5) == (batch(42, 0, [(1, 0, 0)], end_ms=4),)
    assert scheduler.snapshot() == ((0, 0), ("READY",), (42,), 42, (NO_OVERRUNS,))
