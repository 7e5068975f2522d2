"""What `takt` keeps for a lost GPU and does with the parts that come back, at literal times."""

from __future__ import annotations

import pytest

from deadline_batcher import messages as m
from deadline_batcher.board import Board
from deadline_batcher.plan import Category, LineTiming, Plan
from deadline_batcher.policies.lost import less_one
from deadline_batcher.scheduler import Scheduler

MS = 1_000_000
LONG = Category("long", (30 * MS,), window_ns=150 * MS)
SHORT = Category("short", (4 * MS, 5 * MS, 6 * MS, 7 * MS, 8 * MS, 9 * MS), window_ns=12 * MS)
FLAT = Category("flat", (20 * MS, 21 * MS, 22 * MS, 23 * MS), window_ns=100 * MS)


def pool(gpus: int, *categories: Category, lines: tuple[LineTiming, ...] = ()) -> Scheduler:
    scheduler = Scheduler(Plan(categories, gpus, 0, 0, 20 * MS, 64, lines=lines))
    for gpu in range(gpus):
        scheduler.handle(m.GpuReady(gpu), 0)
    return scheduler


def put(
    scheduler: Scheduler, part: int, now_ms: int, due_ms: int, category: int = 0, line: int = 0
) -> list[tuple[int, list[int], int]]:
    key = m.PartKey(line, part)
    return told(scheduler, m.PartReady(key, category, now_ms * MS, due_ms * MS), now_ms)


def told(scheduler: Scheduler, event: m.Event, now_ms: int) -> list[tuple[int, list[int], int]]:
    """(gpu, parts, end ms) of every batch ordered; a refused part as (-1, [part], 0)."""
    found = []
    for command in scheduler.handle(event, now_ms * MS):
        if isinstance(command, m.RunBatch):
            parts = [key.part for key, _, _ in command.parts]
            found.append((command.gpu, parts, command.worst_end_at_ns // MS))
        elif isinstance(command, m.RefusePart):
            found.append((-1, [command.key.part], 0))
    return found


def pool_with_a_lost_batch(first_due_ms: int) -> Scheduler:
    """GPU 0 runs parts 1 to 4 from 20 ms, of which 1 is due first; GPU 1 is idle."""
    scheduler = pool(2, FLAT)
    assert put(scheduler, 8, 0, 100) == [(0, [8], 20)]
    assert put(scheduler, 9, 0, 100) == [(1, [9], 20)]
    for part, due_ms in ((1, first_due_ms), (2, 200), (3, 200), (4, 200)):
        assert put(scheduler, part, 1, due_ms) == []
    assert told(scheduler, m.BatchDone(1, 0), 20) == [(0, [1, 2, 3, 4], 43)]
    assert told(scheduler, m.BatchDone(2, 1), 20) == []
    return scheduler


def test_a_returned_part_that_would_make_the_batch_dear_is_left_to_its_fallback() -> None:
    # Due at 60: at 40 a batch of one fits, 20 ms a part; the three behind it cost 7.3.
    scheduler = pool_with_a_lost_batch(60)
    assert told(scheduler, m.GpuLost(0), 40) == [(1, [2, 3, 4], 62)]
    assert scheduler._board.returned == 1
    assert told(scheduler, m.TimeReached(), 41) == [(-1, [1], 0)]
    assert scheduler._board.returned == 0


def test_returned_parts_run_together_where_the_first_has_the_time() -> None:
    scheduler = pool_with_a_lost_batch(62)  # three fit by 62, at 7.3 ms each
    assert told(scheduler, m.GpuLost(0), 40) == [(1, [1, 2, 3], 62)]


def test_a_fresh_part_that_fits_rides_with_the_returned_one() -> None:
    scheduler = pool(2, FLAT)
    assert put(scheduler, 1, 0, 42) == [(0, [1], 20)]
    assert put(scheduler, 9, 0, 100) == [(1, [9], 20)]
    assert put(scheduler, 2, 5, 43) == []
    assert told(scheduler, m.GpuLost(0), 10) == []
    assert told(scheduler, m.BatchDone(2, 1), 20) == [(1, [1, 2], 41)]


def test_a_fresh_part_that_would_be_late_behind_the_returned_one_goes_first() -> None:
    scheduler = pool(2, FLAT)
    assert put(scheduler, 1, 0, 40) == [(0, [1], 20)]
    assert put(scheduler, 9, 0, 100) == [(1, [9], 20)]
    assert put(scheduler, 2, 5, 59) == []
    assert told(scheduler, m.GpuLost(0), 10) == []
    assert told(scheduler, m.BatchDone(2, 1), 20) == [(1, [2], 40)]


def test_a_returned_part_takes_no_gpu_that_a_part_to_come_would_need() -> None:
    # A short part that came at 10 would have to start by 30; the long batch would end at 40.
    scheduler = pool(2, LONG, SHORT)
    assert put(scheduler, 1, 0, 300) == [(0, [1], 30)]
    assert told(scheduler, m.GpuLost(0), 10) == []
    assert told(scheduler, m.TimeReached(), 270) == []  # not even at its last moment
    assert scheduler.wakeup_at_ns() == 270 * MS + 1  # then it is refused
    assert told(scheduler, m.GpuReady(0), 270) == [(1, [1], 300)]  # with two GPUs it costs nobody


def test_a_part_that_did_not_come_back_is_run_at_its_last_moment() -> None:
    scheduler = pool(1, LONG, SHORT)
    assert put(scheduler, 1, 0, 300) == []
    assert scheduler.wakeup_at_ns() == 270 * MS
    assert told(scheduler, m.TimeReached(), 270) == [(0, [1], 300)]


def test_fresh_parts_run_past_returned_ones_in_front_of_them() -> None:
    # Back at 10 and due at 90, part 1 would hold the only GPU against short parts; part 3 is
    # fresh and may take it at its last moment, 70, though part 1 stands in front of it.
    scheduler = pool(2, LONG, SHORT)
    assert put(scheduler, 1, 0, 90) == [(0, [1], 30)]
    assert told(scheduler, m.GpuLost(0), 10) == []
    assert put(scheduler, 3, 11, 100) == []
    assert told(scheduler, m.TimeReached(), 60) == []
    assert told(scheduler, m.TimeReached(), 61) == [(-1, [1], 0)]
    assert told(scheduler, m.TimeReached(), 70) == [(1, [3], 100)]


@pytest.mark.parametrize(("short_lines", "runs"), [(1, True), (6, False)])
def test_a_returned_part_counts_the_lines_that_are_due_before_the_next_gpu(
    short_lines: int, runs: bool
) -> None:
    # All short lines have had a part at 0 and are due at 25. Part 1 comes back at 22 and would
    # leave them the GPU that is free at 42: in time for one part that came at 22, not for six.
    lines = (LineTiming(0, 900 * MS, 300 * MS),) + short_lines * (LineTiming(1, 25 * MS, 24 * MS),)
    scheduler = pool(3, LONG, SHORT, lines=lines)
    for line in range(1, short_lines + 1):
        put(scheduler, 20 + line, 0, 24, 1, line)
    for now_ms in (9, 11):
        for gpu, batch_id in enumerate(scheduler.snapshot().gpu_batches):
            told(scheduler, m.BatchDone(batch_id, gpu, 1 * MS), now_ms)
    assert scheduler.is_empty
    ((lost, _, _),) = put(scheduler, 1, 12, 312)
    assert [one[1] for one in put(scheduler, 2, 12, 72)] == [[2]]
    back = told(scheduler, m.GpuLost(lost), 22)
    assert [one[1:] for one in back] == ([([1], 52)] if runs else [])


RESERVE_LINES = (LineTiming(0, 100 * MS, 300 * MS), LineTiming(1, 25 * MS, 24 * MS))


def test_a_batch_with_slack_for_a_second_run_leaves_what_a_lost_gpu_would_need() -> None:
    scheduler = pool(3, LONG, SHORT, lines=RESERVE_LINES)
    assert put(scheduler, 1, 0, 300) == [(0, [1], 30)]
    # With part 2 on the second GPU, a short part would have the third alone.
    assert put(scheduler, 2, 1, 301) == []
    assert scheduler.wakeup_at_ns() == 50 * MS  # GPU 0's worst end and grace
    assert told(scheduler, m.BatchDone(1, 0), 30) == [(1, [2], 60)]


def test_a_batch_without_that_slack_runs() -> None:
    scheduler = pool(3, LONG, SHORT, lines=RESERVE_LINES)
    assert put(scheduler, 1, 0, 300) == [(0, [1], 30)]
    assert put(scheduler, 2, 1, 61) == [(1, [2], 31)]  # 30 ms and 30 ms again: due at 61
    scheduler = pool(3, LONG, SHORT, lines=RESERVE_LINES)
    put(scheduler, 1, 0, 300)
    assert put(scheduler, 2, 1, 65) == []
    assert scheduler.wakeup_at_ns() == 5 * MS
    assert told(scheduler, m.TimeReached(), 5) == [(1, [2], 35)]


@pytest.mark.parametrize("long_lines", [0, 6])
def test_nothing_is_kept_where_one_gpu_less_would_not_carry_the_load(long_lines: int) -> None:
    # 6 more long lines keep 1.8 GPUs busy, of the two that would be left: 90 % and a little.
    lines = RESERVE_LINES + long_lines * (LineTiming(0, 100 * MS, 300 * MS),)
    scheduler = pool(3, LONG, SHORT, lines=lines)
    put(scheduler, 1, 0, 300)
    assert put(scheduler, 2, 1, 301) == ([(1, [2], 31)] if long_lines else [])


def test_without_lines_nothing_is_kept() -> None:
    scheduler = pool(3, LONG, SHORT)
    put(scheduler, 1, 0, 300)
    assert put(scheduler, 2, 1, 301) == [(1, [2], 31)]


def test_least_gpus_counts_the_cheapest_batch_that_a_deadline_allows() -> None:
    # short by 24 ms: 9 ms for 6; by 7 ms, 1 of them for the answer: 6 ms for 3. long: 30 ms.
    lines = (
        LineTiming(1, 10 * MS, 24 * MS),
        LineTiming(1, 10 * MS, 7 * MS),
        LineTiming(0, 100 * MS, 300 * MS),
    )
    plan = Plan((LONG, SHORT), 2, MS, 0, 20 * MS, 64, lines=lines)
    assert plan.least_gpus() == pytest.approx(0.15 + 0.2 + 0.3)
    assert Plan((LONG, SHORT), 2, MS, 0, 20 * MS, 64).least_gpus() == 0


@pytest.mark.parametrize(
    ("free", "ends_ms", "left_ms"),
    [([0, 1], [5, 9], [5, 9]), ([0], [5, 9, 12], [9, 12]), ([0], [], [])],
)
def test_the_loss_that_counts_is_of_the_gpu_that_is_free_first(
    free: list[int], ends_ms: list[int], left_ms: list[int]
) -> None:
    board = Board(Plan((LONG,), 4, 0, 0, MS, 8), is_by_due=True)
    board.free, board.ends_ns = free, [ms * MS for ms in ends_ms]
    assert less_one(board) == [ms * MS for ms in left_ms]
