"""Which golden is next: every size within the hour, one picture nearly always."""

from __future__ import annotations

import pytest

from appliance.triton.golden_turns import HOUR, GoldenTurns


@pytest.mark.parametrize("batch_max", [[1], [4], [16], [128], [16, 16, 8], [128, 128, 128]])
def test_every_size_of_every_model_has_its_turn_within_the_hour(batch_max: list[int]) -> None:
    turns = GoldenTurns(batch_max)
    seen = set()
    large = 0
    for _ in range(HOUR):
        category, rows = turns.next()
        assert 1 <= rows <= batch_max[category]
        large += rows > 1
        seen.add((category, rows))
        turns.ran(category, rows)
    wanted = {(c, rows) for c, most in enumerate(batch_max) for rows in range(1, most + 1)}
    assert seen == wanted
    assert large <= HOUR / 2


def test_a_small_one_follows_a_larger_one_and_a_larger_one_a_small_one() -> None:
    turns = GoldenTurns([6])
    sizes = []
    while len(sizes) < 5:
        category, rows = turns.next()
        turns.ran(category, rows)
        if rows > 1:
            sizes.append(rows)
    assert sizes == [6, 2, 5, 3, 4]


def test_a_large_one_that_found_no_idle_gpu_keeps_its_turn_and_small_ones_go_on() -> None:
    turns = GoldenTurns([4])
    wanted = [turns.next() for _ in range(100)]
    assert {one for one in wanted if one[1] > 1} == {(0, 4)}
    assert wanted.count((0, 1)) == 95


def test_models_take_turns() -> None:
    turns = GoldenTurns([1, 1, 1])
    assert [turns.next() for _ in range(4)] == [(1, 1), (2, 1), (0, 1), (1, 1)]
