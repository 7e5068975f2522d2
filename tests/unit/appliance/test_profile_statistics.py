"""How many runs are enough, order statistics, trend and coverage: literal numbers."""

from __future__ import annotations

import math
import random

import pytest

from appliance.profile_statistics import (
    Coverage,
    confidence_of,
    disturbance_notes,
    extreme_ns,
    runs_needed,
    statistics_of,
    trend,
)


@pytest.mark.parametrize(
    ("share", "confidence", "runs"),
    [(0.999, 0.99, 4603), (0.999, 0.95, 2995), (0.99, 0.99, 459), (0.5, 0.5, 1)],
)
def test_runs_needed(share: float, confidence: float, runs: int) -> None:
    assert runs_needed(share, confidence) == runs
    assert 1 - share**runs >= confidence > 1 - share ** (runs - 1)


def test_what_fewer_runs_say() -> None:
    assert confidence_of(4603) == pytest.approx(0.990001, abs=1e-6)
    assert confidence_of(1000) == pytest.approx(0.632305, abs=1e-6)


def test_order_statistics_by_nearest_rank() -> None:
    one = statistics_of([*range(1000, 0, -1)])
    assert (one.samples, one.p50_ns, one.p95_ns, one.p99_ns, one.p999_ns, one.max_ns) == (
        1000, 501, 951, 991, 1000, 1000,
    )  # fmt: skip


def test_extremes_need_ten_blocks_of_fifty() -> None:
    assert extreme_ns([5] * 499) is None
    assert extreme_ns([5] * 500) == 5


def test_the_gumbel_advice_by_hand() -> None:
    # Five blocks whose largest is 100 and five whose largest is 120: mean 110, deviation 10.
    samples = [*([10] * 49 + [100]) * 5, *([10] * 49 + [120]) * 5]
    scale = 10 * math.sqrt(6) / math.pi
    by_hand = 110 - 0.5772156649 * scale - scale * math.log(50e-6)
    assert extreme_ns(samples) == round(by_hand) == 183


def test_noise_is_no_trend_and_a_small_change_is_none() -> None:
    chance = random.Random(7)
    assert trend([round(chance.gauss(1000, 100)) for _ in range(20)]) == 0
    assert trend([1000 + turn for turn in range(20)]) == 0  # 1 % between the halves
    assert trend([]) == 0


def test_a_machine_that_still_warms_up_is_seen() -> None:
    assert trend([2000 - 50 * turn for turn in range(20)]) == pytest.approx(-500 / 1525)


def test_warm_up_ends_when_every_size_was_seen_and_none_changes() -> None:
    coverage = Coverage((1, 2), runs=4)
    for _ in range(3):
        coverage.note(1, 100)
    coverage.note(2, 200)
    assert coverage.lacking() == {1: "seen 3 of 4 times", 2: "seen 1 of 4 times"}
    coverage.note(1, 100)
    for _ in range(3):
        coverage.note(2, 200)
    assert coverage.lacking() == {}
    assert coverage.discarded == 8
    assert coverage.mean_ns() == {1: 100, 2: 200}


def test_warm_up_goes_on_while_a_size_still_changes() -> None:
    coverage = Coverage((1,), runs=20)
    for turn in range(20):
        coverage.note(1, 2000 - 50 * turn)
    assert coverage.lacking() == {1: "still changes by -33%"}
    for _ in range(20):
        coverage.note(1, 1000)
    assert coverage.lacking() == {}


def test_a_run_out_of_all_proportion_is_named_and_counts() -> None:
    calm = statistics_of([10_000_000 + n % 100 for n in range(4603)])
    # The full-length profile of the demo's plant, size 3: 10.06 ms at 99.9 %, 1044.84 at most.
    out = statistics_of([10_060_000] * 4602 + [1_044_840_000])
    (note,) = disturbance_notes({1: calm, 3: out})
    assert "disturbed at 3: the largest of 4603 runs, 1044.84 ms, is 104 times" in note
    assert "99.9th percentile, 10.06 ms" in note
    assert disturbance_notes({3: statistics_of([10_060_000] * 600 + [1_044_840_000])}) == []
