"""Bounds, tests and admission on cases worked by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from deadline_batcher.sizing import bounds, deeprt, global_np, partitioned
from deadline_batcher.sizing.admission import admit
from deadline_batcher.sizing.load import (
    Load,
    SizedCategory,
    Stream,
    Task,
    parts_at_once,
    releases_in,
    running_ns,
    settle_ns,
)

T4 = tuple(2270 + 824 * size for size in range(1, 33))  # us; batching.md 4.1, affine fit
VGG = (6280, 14500, 17525, 20550)  # us; two take longer than one and one
YOLO9000 = (21680, 41180, 60267, 79353)  # us; 1.09 times batch 1 at best


def one_model(wcet: tuple[int, ...], *lines: tuple[int, int], jitter: int = 0) -> Load:
    """lines: (cycle, deadline)."""
    streams = tuple(
        Stream(f"l{number}", 0, cycle, deadline, deadline, jitter, number + 1)
        for number, (cycle, deadline) in enumerate(lines)
    )
    return Load((SizedCategory("m", wcet),), streams)


def task(cost: int, period: int, deadline: int, jitter: int = 0) -> Task:
    return Task("t", period, jitter, deadline, deadline, cost, cost, cost)


# --- counting -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "period", "jitter", "most"),
    [(0, 10, 0, 0), (1, 10, 0, 1), (10, 10, 0, 1), (11, 10, 0, 2), (1, 10, 10, 2), (3, 10, 8, 2)],
)
def test_releases_in_a_half_open_interval(length: int, period: int, jitter: int, most: int) -> None:
    assert releases_in(length, period, jitter) == most


def test_settling_stops_above_the_last_trouble() -> None:
    # The bound is 6 from 5 on: at 5 it is above x, from 6 on never.
    assert settle_ns(lambda x: 6 if x >= 5 else 3, 100) == 6
    assert settle_ns(lambda _: 0, 100) == 0


def test_the_jth_longest_running_batch_has_at_most_a_jth_of_the_parts() -> None:
    # One line, deadline 40, cycle 10: four parts at once. Batches of 4, then 2, then 1.
    plant = one_model((5, 6, 7, 8, 9), (10, 40))
    assert parts_at_once(plant, 0) == 4
    assert running_ns(plant, 2) == (8, 6, 5)


# --- bounds ---------------------------------------------------------------------------------


def test_fluid_bound_of_four_gpus_at_the_deadline() -> None:
    # Deadline 25 ms: the largest that fits is 27 (24,518 us), 908.07 us a part, 4,405 parts/s.
    plant = one_model(T4, (1000, 25_000))
    assert bounds.least_cost(T4, 25_000, 32) == Fraction(24_518, 27)
    assert bounds.fluid_load(plant, 4) == pytest.approx(4 * 1000 / (24_518 / 27))


def test_staggered_size_is_five_quarters_of_the_deadline_on_four_gpus() -> None:
    # 1.25 l(b) <= 25,000: l(b) <= 20,000: b = 21 (19,574 us); on one GPU l(b) <= 12,500: 12.
    assert bounds.staggered_size(T4, 25_000, 4) == 21
    assert bounds.staggered_size(T4, 25_000, 1) == 12
    assert bounds.staggered_size(T4, 3_000, 1) == 0


def test_reach_counts_only_parts_that_come_soon_enough() -> None:
    # Deadline 20, l = 4, 6, 8, 10: three need to come within 12,
    # in which a line of 8 brings 2; two lines bring 4.
    assert bounds.reach(one_model((4, 6, 8, 10), (8, 20)), 0, 20) == 2
    assert bounds.reach(one_model((4, 6, 8, 10), (8, 20), (8, 20)), 0, 20) == 4


def test_arrival_limited_use_of_given_arrivals() -> None:
    # Parts at 0 and 5 (due 20, 25) share a batch of two (6 us), the one at 100 is alone (4 us).
    arrivals = [(0, 20), (5, 25), (100, 120)]
    assert bounds.arrival_limited_use(arrivals, (4, 6)) == 3 + 3 + 4
    assert bounds.arrival_limited_use([(0, 3)], (4, 6)) is None


def test_arrival_limited_is_never_above_fluid() -> None:
    plant = one_model(T4, *[(20_000, 25_000)] * 12)
    assert bounds.arrival_limited_load(plant, 4) <= bounds.fluid_load(plant, 4)


def test_shapes() -> None:
    assert bounds.frontier(VGG[:2]) == (1,)
    found = bounds.shape(VGG)
    assert found.superadditive == (2,)
    assert (found.best, found.has_no_gain) == (4, True)  # 4 x 6.28 / 20.55 = 1.22
    assert bounds.shape(YOLO9000).has_no_gain
    step = bounds.shape((26_300, 49_800, 49_950, 50_100, 50_625, 51_150))
    assert (step.steps, step.best) == ((2,), 6)
    assert bounds.shape(T4).superadditive == ()


# --- the work-conserving test ---------------------------------------------------------------


def test_wait_in_a_work_conserving_pool_by_hand() -> None:
    # Two GPUs, three lines of 4 every 100. Carry: one run of 4. In x <= 100 all three come:
    # 2 x < 4 + 12 - 4 = 12, so no part waits longer than 6; 6 + 4 = 10 is the least deadline.
    plant = one_model((4,), (100, 10), (100, 10), (100, 10))
    found = global_np.certify_work_conserving(plant, 2)
    assert (found.holds, found.wait_ns, found.binding.margin_ns) == (True, 6, 0)
    tighter = one_model((4,), (100, 10), (100, 9), (100, 10))
    found = global_np.certify_work_conserving(tighter, 2)
    assert (found.holds, found.binding.name, found.binding.margin_ns) == (False, "l1", -1)


def test_goldens_count_where_a_gpu_was_idle() -> None:
    plant = replace(one_model((4,), (100, 10)), golden_ns=4)
    # One GPU: a golden of 4 may have begun just before; 4 + 4 = 8.
    assert global_np.certify_work_conserving(plant, 1).wait_ns == 4


def test_more_work_than_gpus_never_holds() -> None:
    plant = one_model((10,), *[(10, 1000)] * 3)
    for gpus in (1, 2, 3):
        assert not global_np.certify_work_conserving(plant, gpus).holds
        assert not global_np.certify_batch_one(plant, gpus).holds


def test_guans_remark_a_long_task_beside_a_tight_one_holds_at_low_load() -> None:
    # Baruah 2006 refuses whenever max C >= min D, however little there is to do. Here C = 50,
    # D = 20, but three GPUs, and only one line has the long run.
    long = SizedCategory("long", (50,))
    short = SizedCategory("short", (2,))
    streams = (Stream("a", 0, 1000, 500, 500), Stream("b", 1, 100, 20, 20))
    plant = Load((long, short), streams)
    assert global_np.certify_batch_one(plant, 3).holds
    assert not global_np.certify_batch_one(plant, 1).holds


# --- one GPU --------------------------------------------------------------------------------


def test_jeffay_by_hand() -> None:
    # (C, T) = (2, 5), (3, 10): U = 0.7; for L in (5, 10): L >= 3 + floor((L - 1) / 5) 2 = 5: holds.
    assert partitioned.holds_on_one([task(2, 5, 5), task(3, 10, 10)])
    # (2, 5), (5, 15): at L = 6: 5 + 2 = 7 > 6: does not, although U = 0.73.
    assert not partitioned.holds_on_one([task(2, 5, 5), task(5, 15, 15)])


def test_blocking_is_by_what_began_just_before() -> None:
    # A run of 4 that began one instant before leaves 3: 3 + 3 = 6 fits a deadline of 6, not 5.
    assert partitioned.holds_on_one([task(3, 100, 6), task(4, 100, 100)])
    assert not partitioned.holds_on_one([task(3, 100, 5), task(4, 100, 100)])


def test_prosas_example_holds_at_its_deadline_of_a_hundred() -> None:
    # (C, T) = (79, 120), (11, 34), (1, 190), all with D = 100: response times 91, 91, 91
    # (batching.md section 8, the mechanised analysis's unit test).
    tasks = [task(79, 120, 100), task(11, 34, 100), task(1, 190, 100)]
    assert partitioned.holds_on_one(tasks)
    tighter = [replace(one, relative_ns=90, needed_ns=90) for one in tasks]
    assert not partitioned.holds_on_one(tighter)


def test_first_fit_gives_each_line_a_gpu() -> None:
    plant = one_model((6,), *[(10, 10)] * 3)
    assert partitioned.certify_partitioned(plant, 3) == [["l0"], ["l1"], ["l2"]]
    assert partitioned.certify_partitioned(plant, 2) is None


# --- windows --------------------------------------------------------------------------------


def test_deeprts_own_case_one_gpu_half_the_deadline() -> None:
    # Three lines, cycle 50, deadline 40, window 20: n = 3; l(3) = 8 fits the other half.
    plant = one_model((4, 6, 8), *[(50, 40)] * 3).windowed([20])
    tasks = deeprt.window_tasks(plant)
    assert tasks is not None
    assert (tasks[0].cost_ns, tasks[0].period_ns, tasks[0].relative_ns) == (8, 20, 20)
    found = deeprt.certify_windows(plant, 1)
    assert found is not None
    assert found.holds


def test_a_job_larger_than_the_cap_is_cut() -> None:
    plant = one_model((4, 6), *[(50, 40)] * 3).windowed([20])
    tasks = deeprt.window_tasks(plant)
    assert tasks is not None
    assert (tasks[0].cost_ns, tasks[0].piece_ns, tasks[0].own_ns) == (6 + 4, 6, 4)


def test_sliding_windows_cost_a_start_each_and_a_share_for_every_part() -> None:
    # l = 2 + 2 b up to 4: b = ceil(10 / 4) = 3, a = max(4 - 3, 6 - 6, 8 - 9, 10 - 12) = 1.
    plant = one_model((4, 6, 8, 10), (50, 40)).windowed([20])
    tasks = deeprt.sliding_tasks(plant)
    assert tasks is not None
    assert [(one.cost_ns, one.period_ns, one.jitter_ns) for one in tasks] == [
        (3, 50, 20),
        (1, 20, 0),
    ]


def test_windows_leave_time_for_the_cap() -> None:
    plant = one_model((4, 6, 8, 25), (50, 40)).windowed([20])
    assert deeprt.sliding_tasks(plant) is None
    found = deeprt.find_windows(plant.windowed([0]), 2)
    assert found is not None
    assert found.windows_ns[0] + plant.categories[0].wcet_ns[found.caps[0] - 1] <= 40


# --- admission ------------------------------------------------------------------------------


def test_lines_go_from_the_highest_number_down() -> None:
    # Criticality is 1, 2, 3, ...: six lines of 0.5 GPU each, deadlines loose.
    plant = one_model((50,), *[(100, 100_000)] * 6)
    found = admit(plant, 2)
    assert found.carried == ("l0", "l1", "l2")
    assert found.shed == ("l3", "l4", "l5")
    assert found.unproved == ("l3",)  # exactly two GPUs' worth: no bound forbids it
    assert admit(plant, 4).shed == ()


def test_a_hopeless_line_does_not_take_others_with_it() -> None:
    plant = one_model((50,), (1000, 40), (1000, 500))
    found = admit(plant, 1)
    assert (found.carried, found.shed) == (("l1",), ("l0",))


def test_a_line_measured_faster_is_asked_again() -> None:
    plant = one_model((50,), *[(200, 1000)] * 3)
    assert admit(plant, 1).shed == ()
    assert admit(plant.with_cycle("l0", 100), 1).shed == ("l2",)


def test_no_gpu_carries_nothing() -> None:
    found = admit(one_model((5,), (100, 50)), 0)
    assert (found.carried, found.shed) == ((), ("l0",))
