"""Efficient sizes and odd shapes, in literal numbers from `batching.md` 4.6 (ms as ns × 10⁶)."""

from __future__ import annotations

import pytest

from deadline_batcher.profile_shape import (
    cheapest_split,
    efficient_sizes,
    lifted_notes,
    shape_notes,
)

MS = 1_000_000


def ms(*times: float) -> dict[int, int]:
    return {size: round(time_ms * MS) for size, time_ms in enumerate(times, start=1)}


def test_an_affine_profile_uses_every_size_and_is_not_odd() -> None:
    affine = ms(18, 24, 30, 36, 42)
    assert efficient_sizes(affine) == (1, 2, 3, 4, 5)
    assert shape_notes(affine) == []


def test_a_size_that_takes_more_than_two_smaller_batches_is_split() -> None:
    # VGG-16 on a TITAN X (Nexus): two together take 14.50 ms, one after the other 12.56.
    vgg = ms(6.28, 14.50, 16, 18)
    assert efficient_sizes(vgg) == (1, 3, 4)
    assert cheapest_split(vgg, 2) == (12_560_000, 1)
    assert "super-additive at 2: 1.94 ms more than 1 and 1 apart; split, not used" in shape_notes(
        vgg
    )


def test_a_split_is_reckoned_with_sizes_that_are_split_themselves() -> None:
    # 4 costs 41; as 2 + 2 it is 40 only because 2 itself runs as 1 + 1.
    assert efficient_sizes(ms(10, 25, 30, 41)) == (1, 3)
    assert cheapest_split(ms(10, 25, 30, 41), 4) == (40 * MS, 1)


def test_taking_exactly_as_long_as_two_smaller_ones_is_no_reason_to_split() -> None:
    assert efficient_sizes(ms(10, 20, 30)) == (1, 2, 3)


def test_no_gain_is_named_by_how_much() -> None:
    # About Mask R-CNN on a T4.
    assert shape_notes(ms(71.9, 140, 209, 274.6)) == [
        "no gain: a part is at best 1.05 times cheaper in a batch than alone"
    ]


def test_a_step_is_named() -> None:
    # EfficientDet on an A100: 26 ms alone, 50 for two, and hardly more for four.
    notes = shape_notes(ms(26.3, 49.8, 50.0, 50.1, 50.6))
    assert notes == ["step at 2: 23.50 ms more than 1, where a part usually adds 0.35 ms"]


def test_efficiency_that_falls_again_is_named() -> None:
    notes = shape_notes(ms(10, 12, 14, 40, 44))
    assert "efficiency falls again: a part costs least at 3, 1.89 times that at 5" in notes


def test_a_fall_is_explained_and_not_hidden() -> None:
    assert lifted_notes(ms(5, 4, 6)) == [
        "not monotone at 2: 1.00 ms below a smaller size, whose figure counts"
    ]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_size_alone_is_always_used(size: int) -> None:
    assert efficient_sizes(dict.fromkeys(range(1, size + 1), 7))[0] == 1
