"""What `takt` does with the parts that come back from a lost GPU, at literal times."""

from __future__ import annotations

import pytest

from deadline_batcher import messages as m
from deadline_batcher.plan import Category, LineTiming, Plan
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
