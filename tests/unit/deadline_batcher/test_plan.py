"""The frozen plan refuses what no scheduler could keep, and answers which size fits."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from deadline_batcher.plan import Category, Plan

MODEL = Category("m", (4, 5, 9), window_ns=10)


@pytest.mark.parametrize(
    ("available_ns", "size"), [(-1, 0), (0, 0), (3, 0), (4, 1), (5, 2), (8, 2), (9, 3), (99, 3)]
)
def test_the_largest_batch_that_fits(available_ns: int, size: int) -> None:
    assert MODEL.cap_for(available_ns) == size


def test_equal_worst_cases_fill_the_larger_batch() -> None:
    assert Category("m", (4, 4, 4), 0).cap_for(4) == 3
    assert MODEL.batch_max == 3


@pytest.mark.parametrize(
    ("wcet_ns", "window_ns", "says"),
    [
        ((), 1, "positive"),
        ((0,), 1, "positive"),
        ((4, -5), 1, "positive"),
        ((5, 4), 1, "must not fall"),
        ((4,), -1, "window_ns is negative"),
    ],
)
def test_an_impossible_category_is_refused(
    wcet_ns: tuple[int, ...], window_ns: int, says: str
) -> None:
    with pytest.raises(ValueError, match=f"category m: .*{says}"):
        Category("m", wcet_ns, window_ns)


@pytest.mark.parametrize(("categories", "gpus"), [((MODEL,), 0), ((), 1)])
def test_a_plan_without_gpus_or_models_is_refused(
    categories: tuple[Category, ...], gpus: int
) -> None:
    with pytest.raises(ValueError, match="at least one GPU and one category"):
        Plan(categories, gpus, 1, 1, 1, 8)


def test_a_plan_is_frozen() -> None:
    plan = Plan((MODEL,), 1, 1, 1, 1, 8)
    with pytest.raises(FrozenInstanceError):
        plan.gpus = 2  # type: ignore[misc]
