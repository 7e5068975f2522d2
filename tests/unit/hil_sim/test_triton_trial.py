"""The trial's arithmetic: arrivals, the model of Triton, the search, what counts as disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.triton.repository import OwnBatcher
from hil_sim.trial_plants import MIXED_DEADLINE, PLANTS, THREE_MODELS, Part, arrivals
from hil_sim.trial_pool import Overhead
from hil_sim.trial_search import Cell, climb
from hil_sim.triton_model import Setting, largest_load, misses

MS = 1_000_000
WCET = {"m": tuple(range(20 * MS, 60 * MS, 10 * MS))}  # 20, 30, 40, 50 ms


def part(at_ms: float, deadline_ms: float = 100, urgency: int = 1) -> Part:
    return Part(round(at_ms * MS), round(deadline_ms * MS), "m", urgency)


@pytest.mark.parametrize(
    ("name", "bounds"), [("mixed-deadline", (3.33, 2.50)), ("three-models", (4.66, 3.49))]
)
def test_the_plants_have_the_bounds_of_the_scenarios(
    name: str, bounds: tuple[float, float]
) -> None:
    plant = PLANTS[name]
    assert tuple(round(plant.bound(gpus), 2) for gpus in (4, 3)) == bounds


def test_arrivals_follow_the_load_and_the_stretch() -> None:
    once = arrivals(MIXED_DEADLINE, 1.0, 1200, 1)
    assert len(once) == 4 * 30 + 8 * 10
    assert len(arrivals(MIXED_DEADLINE, 2.0, 1200, 1)) == 2 * len(once)
    assert max(one.arrives_at_ns for one in once) <= (1200 + 0.05 * 120) * 3 * MS
    assert {one.deadline_ns for one in once} == {180 * MS, 1200 * MS}
    assert once == arrivals(MIXED_DEADLINE, 1.0, 1200, 1)


def test_the_model_of_triton_batches_what_waits_when_a_gpu_is_free() -> None:
    parts = [part(0, 60), part(1, 60), part(2, 60), part(3, 60)]
    # 0-20 the first alone, 20-60 the other three together.
    assert misses(parts, WCET, 1, Setting(4, 0.0), 0) == 0
    # One by one to 80: only the first two are in time for 41 and 60 after their arrival.
    assert misses(parts, WCET, 1, Setting(1, 0.0), 0) == 1


def test_the_model_of_triton_waits_the_delay_of_the_oldest() -> None:
    assert misses([part(0, 49)], WCET, 1, Setting(4, 30.0), 30 * MS) == 1  # 30 + 20
    assert misses([part(0, 50)], WCET, 1, Setting(4, 30.0), 30 * MS) == 0
    four = [part(0, 53), part(1), part(2), part(3, 50)]
    assert misses(four, WCET, 1, Setting(4, 30.0), 30 * MS) == 0  # full at 3, ends at 53
    # Arrives while the GPU is busy (30-50) and is not forgotten after it: 45 + 30 + 20.
    assert misses([part(0, 50), part(45, 50)], WCET, 1, Setting(4, 30.0), 30 * MS) == 0


def test_a_second_gpu_takes_the_shorter_queue() -> None:
    parts = [part(0, 25), part(1, 25)]
    assert misses(parts, WCET, 1, Setting(1, 0.0), 0) == 1
    assert misses(parts, WCET, 2, Setting(1, 0.0), 0) == 0


def test_the_least_work_is_not_the_shortest_queue() -> None:
    # 100 ms on the first GPU: all short ones fit behind each other on the second (11, 21, 31, 41);
    # the shortest queue sends every other one behind the long one, and the last is late there.
    wcet = {"long": (100 * MS,), "short": (10 * MS,)}
    parts = [
        Part(0, 500 * MS, "long", 1),
        Part(MS, 500 * MS, "short", 1),
        Part(2 * MS, 500 * MS, "short", 1),
        Part(3 * MS, 40 * MS, "short", 1),
        Part(4 * MS, 40 * MS, "short", 1),
    ]
    assert misses(parts, wcet, 2, Setting(1, 0.0), 0, "least-work") == 0
    assert misses(parts, wcet, 2, Setting(1, 0.0), 0, "shortest") == 1


def test_priorities_let_the_urgent_part_go_first() -> None:
    parts = [part(0, 500, 2), part(1, 500, 2), part(2, 45, 1)]
    assert misses(parts, WCET, 1, Setting(1, 0.0), 0) == 1
    assert misses(parts, WCET, 1, Setting(1, 0.0, with_priorities=True), 0) == 0


def test_one_central_queue_is_generous_to_triton() -> None:
    told = (MIXED_DEADLINE, 4, Setting(4, 0.0), 1000, [1])
    assert largest_load(*told, "central") > largest_load(*told, "shortest")


@pytest.mark.parametrize(
    ("start", "floor", "truth", "load", "fails_at"),
    [
        (1.0, 0.0, 1.2, 1.158, 1.216),  # up by 5 %: 1.05, 1.1025, 1.158, 1.216 fails
        (1.0, 0.0, 0.867, 0.843, 0.874),  # 0.907 fails, 0.784 holds, then the middle, twice
        (1.0, 0.98, 0.5, 0.0, 1.0),  # another setting has 0.98 already: one try
    ],
)
def test_the_search_brackets_the_largest_load(
    start: float, floor: float, truth: float, load: float, fails_at: float
) -> None:
    cell = Cell("p", "s", "x", 4, "shortest")
    tried: list[float] = []

    def holds(one: float) -> bool:
        tried.append(one)
        return one <= truth

    climb(start, floor, 5.0, holds, cell)
    assert (cell.load, cell.fails_at) == pytest.approx((load, fails_at), abs=0.002)
    assert len(tried) <= 6


def test_overhead_is_a_share_of_the_emulated_time() -> None:
    assert Overhead(2, 3, 4, 1, 100).share == pytest.approx(0.10)
    assert Overhead(2, 3, 4, 1, 0).share == 0


def test_what_stands_in_the_config() -> None:
    assert OwnBatcher().lines() == ["dynamic_batching {  }"]
    assert OwnBatcher((4, 8), 5000, 2, 1, 100, Path("p")).lines() == [
        "dynamic_batching { preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 5000 "
        "priority_levels: 2 default_priority_level: 2 "
        "default_queue_policy { max_queue_size: 100 } }"
    ]


def test_the_plants_are_stretched_so_that_the_host_keeps_up() -> None:
    assert THREE_MODELS.models[1].wcet_ns(THREE_MODELS.stretch)[0] == 19 * MS
