"""Shedding at literal instants: who leaves, in which order, who returns when, and the alarms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from deadline_batcher import shedding as sh
from deadline_batcher.sizing.admission import admit
from deadline_batcher.sizing.load import Load, SizedCategory, Stream

MS = 1_000_000
S = 1000 * MS
PART_MS = 20
CATEGORY = SizedCategory("m", (PART_MS * MS,))


def stream(name: str, criticality: int, cycle_ms: int = 100, needed_ms: int = 60) -> Stream:
    """A line that needs PART_MS / cycle of a GPU: a fifth, as it stands here."""
    needed_ns = needed_ms * MS
    return Stream(name, 0, cycle_ms * MS, needed_ns, needed_ns, criticality=criticality)


def plan(*streams: Stream, gpus: int = 4, lost: int = 1, **changes: object) -> sh.ShedPlan:
    load = Load((CATEGORY,), streams)
    made = sh.ShedPlan(
        load=load,
        tests=(),
        capacity=sh.proportional(load, gpus, lost),
        rate_window_ns=10 * S,
        rate_margin_permille=50,
        peak_hold_ns=60 * S,
        suspect_ns=500 * MS,
        return_after_ns=2 * S,
        return_step_ns=250 * MS,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


SIX = tuple(stream(f"line{n}", criticality=n) for n in (3, 1, 6, 2, 5, 4))
"""Criticality is the name's number; the place in the plant is another."""
ROW = (1, 3, 0, 5, 4, 2)


class Pool:
    """A shedding core with a memory of what it ordered."""

    def __init__(self, told: sh.ShedPlan) -> None:
        self.core = sh.Shedding(told)
        self.orders: list[sh.ShedCommand] = []

    def feed(self, event: sh.ShedEvent, now_ms: float) -> list[sh.ShedCommand]:
        orders = list(self.core.handle(event, round(now_ms * MS)))
        self.orders += orders
        return orders

    def gpus(self, ready: int, now_ms: float, doubtful: int = 0) -> list[sh.ShedCommand]:
        return self.feed(sh.GpusSeen(ready, doubtful), now_ms)

    def pass_until(self, now_ms: float) -> list[tuple[float, sh.ShedCommand]]:
        """Every order on the way, with its instant in ms."""
        found: list[tuple[float, sh.ShedCommand]] = []
        for _ in range(100):
            at_ns = self.core.wakeup_at_ns()
            if at_ns is None or at_ns > now_ms * MS:
                return found
            found += [(at_ns / MS, one) for one in self.feed(sh.TimeReached(), at_ns / MS)]
        raise AssertionError("the core spins")


def full(told: sh.ShedPlan) -> Pool:
    """All GPUs READY at 0, all lines carried."""
    pool = Pool(told)
    pool.gpus(len(told.capacity) - 1, 0)
    assert pool.core.carried_count == len(told.load.streams)
    return pool


def test_lines_come_onto_a_pool_that_starts_by_criticality_without_a_hold_or_an_alarm() -> None:
    pool = Pool(plan(*SIX))
    assert pool.gpus(0, 0) == []
    assert {pool.core.reason(line) for line in ROW} == {"start"}
    # all six need 1.2 GPUs, which three are said to carry: 0.4 of a GPU each, two lines
    assert pool.gpus(1, 1000) == [sh.UnshedLine(line) for line in ROW[:2]]
    assert pool.gpus(2, 1500) == [sh.UnshedLine(line) for line in ROW[2:4]]
    assert pool.gpus(4, 2000) == [sh.UnshedLine(line) for line in ROW[4:]]
    assert pool.core.wakeup_at_ns() is None


def test_a_pool_that_never_gets_enough_gpus_says_so_after_ten_seconds() -> None:
    pool = Pool(plan(*SIX))
    pool.gpus(1, 1000)
    assert pool.pass_until(10_999) == []
    assert pool.pass_until(11_000) == [(11_000, sh.TellCapacity(True, 1, 2, 1_200_000))]


def test_the_loss_that_is_tolerated_sheds_nobody() -> None:
    pool = full(plan(*SIX))
    assert pool.gpus(3, 1000) == []


def test_one_more_sheds_just_enough_the_highest_number_first_and_says_so() -> None:
    pool = full(plan(*SIX))
    assert pool.gpus(2, 1000) == [
        sh.ShedLine(2, "gpus"),
        sh.ShedLine(4, "gpus"),
        sh.TellCapacity(True, 2, 4, 1_200_000),
    ]
    assert pool.core.shed == (4, 2)
    assert pool.gpus(0, 1100) == [sh.ShedLine(line, "gpus") for line in (5, 0, 3, 1)]


def test_lines_return_in_reverse_order_after_headroom_was_held_one_at_a_time() -> None:
    pool = full(plan(*SIX))
    pool.gpus(1, 1000)
    assert pool.core.shed == (0, 5, 4, 2)
    assert pool.gpus(4, 5000) == [sh.TellCapacity(False, 4, 6, 1_200_000)]
    assert pool.pass_until(20_000) == [
        (7000, sh.UnshedLine(0)),
        (7250, sh.UnshedLine(5)),
        (7500, sh.UnshedLine(4)),
        (7750, sh.UnshedLine(2)),
    ]


def test_headroom_that_goes_away_before_its_time_begins_anew() -> None:
    pool = full(plan(*SIX))
    pool.gpus(2, 1000)
    pool.gpus(3, 2000)
    pool.pass_until(3999)
    pool.gpus(2, 3999)
    pool.gpus(3, 4100)
    assert [at_ms for at_ms, _ in pool.pass_until(20_000)] == [6100, 6350]


def test_a_gpu_in_doubt_counts_for_half_a_second_and_a_lost_one_not_at_all() -> None:
    pool = full(plan(*SIX, lost=0))
    assert pool.gpus(3, 1000, doubtful=1) == []
    assert pool.core.wakeup_at_ns() == 1500 * MS
    assert pool.gpus(4, 1400) == []  # its golden was right
    assert pool.core.wakeup_at_ns() is None
    pool.gpus(3, 2000, doubtful=1)
    assert next(order for _, order in pool.pass_until(2500)) == sh.ShedLine(2, "gpus")
    pool = full(plan(*SIX, lost=0))
    pool.gpus(3, 1000, doubtful=1)
    assert sh.ShedLine(2, "gpus") in pool.gpus(3, 1100)


def test_two_gpus_in_doubt_after_one_was_lost_are_waited_for_once() -> None:
    pool = full(plan(*SIX))
    pool.gpus(2, 1000, doubtful=2)
    pool.gpus(2, 1400, doubtful=1)  # one of the two is gone: three are counted on
    assert pool.core.gpus == 3
    assert pool.core.wakeup_at_ns() == 1500 * MS


def run_line(pool: Pool, line: int, cycle_ms: float, begin_ms: int, end_ms: int) -> None:
    """The line's count, read four times a second, all orders kept."""
    for now_ms in range(begin_ms, end_ms, 250):
        pool.feed(sh.LoadSeen(line, int((now_ms - begin_ms) / cycle_ms)), now_ms)


def test_a_line_faster_than_the_plant_file_is_told_and_counts_at_its_own_rate() -> None:
    pool = full(plan(*SIX))
    pool.gpus(3, 0)
    run_line(pool, 1, 50, 0, 20_000)  # twice its rate: 0.2 GPUs more than the 1.2
    told = [order for order in pool.orders if isinstance(order, sh.TellRate)]
    assert [one.line for one in told] == [1]
    assert 48 * MS <= told[0].cycle_ns <= 56 * MS
    assert [order for order in pool.orders if isinstance(order, sh.ShedLine)] == [
        sh.ShedLine(2, "load")
    ]


def test_a_rate_is_the_fastest_of_the_last_minute_and_then_normal_again() -> None:
    pool = full(plan(*SIX))
    run_line(pool, 1, 50, 0, 20_000)
    told = []
    for now_ms in range(20_000, 100_000, 250):
        orders = pool.feed(sh.LoadSeen(1, 400 + (now_ms - 20_000) // 100), now_ms)
        told += [now_ms for order in orders if isinstance(order, sh.TellRate)]
    assert len(told) == 1 and 80_000 <= told[0] <= 90_000
    rates = [order for order in pool.orders if isinstance(order, sh.TellRate)]
    assert [bool(one.cycle_ns) for one in rates] == [True, False]


def test_a_line_that_starts_anew_is_measured_from_its_start() -> None:
    pool = full(plan(*SIX))
    run_line(pool, 1, 100, 0, 20_000)
    run_line(pool, 1, 50, 20_000, 26_000)  # half a window is enough
    assert [one.line for one in pool.orders if isinstance(one, sh.TellRate)] == [1]


@pytest.mark.parametrize("cycle_ms", [96, 100, 150, 1000])
def test_a_rate_within_the_margin_or_below_is_no_other_rate(cycle_ms: int) -> None:
    pool = full(plan(*SIX))
    run_line(pool, 1, cycle_ms, 0, 40_000)
    assert [one for one in pool.orders if isinstance(one, sh.TellRate | sh.ShedLine)] == []


def test_a_line_that_starts_anew_counts_from_nothing_and_is_no_faster_for_that() -> None:
    pool = full(plan(*SIX))
    run_line(pool, 1, 100, 0, 20_000)
    run_line(pool, 1, 100, 20_000, 40_000)
    assert [one for one in pool.orders if isinstance(one, sh.TellRate)] == []


def test_a_line_that_would_be_late_even_alone_is_shed_and_costs_the_others_nothing() -> None:
    pool = Pool(plan(*SIX, stream("line7", 1, needed_ms=19)))
    orders = pool.gpus(4, 0)
    assert orders[0] == sh.ShedLine(6, "hopeless")
    assert orders[1:] == [sh.UnshedLine(line) for line in ROW]
    assert pool.core.shed == (6,)


def test_a_sufficient_test_may_admit_more_than_the_evidence_and_never_less() -> None:
    told = plan(*SIX, capacity=(0, 400_000, 400_000, 400_000, 400_000))
    assert _carried(told, 4) == 2
    assert _carried(replace(told, tests=("work-conserving",)), 4) == 6
    tight = [replace(one, needed_ns=25 * MS, relative_ns=25 * MS) for one in SIX]
    poor = plan(*tight, capacity=(0, 800_000, 800_000, 800_000, 800_000))
    assert len(admit(poor.load, 1, ("work-conserving",)).carried) < 4
    assert _carried(replace(poor, tests=("work-conserving",)), 1) == 4


def _carried(told: sh.ShedPlan, gpus: int) -> int:
    pool = Pool(told)
    pool.gpus(gpus, 0)
    return pool.core.carried_count


@pytest.mark.parametrize("capacity", [(), (1, 2), (0, 2, 1)])
def test_capacities_that_make_no_sense_are_refused(capacity: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="capacities begin with 0"):
        plan(*SIX, capacity=capacity)


def test_capacities_without_evidence_go_by_the_plant_files_word() -> None:
    load = Load((CATEGORY,), SIX)
    assert sh.proportional(load, 4, 1) == (0, 400_000, 800_000, 1_200_000, 1_600_000)
    assert sh.proportional(load, 2, 0) == (0, 600_000, 1_200_000)
