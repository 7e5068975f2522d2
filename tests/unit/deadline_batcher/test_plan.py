"""The frozen plan refuses what no scheduler could keep, and says which sizes are worth running."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from deadline_batcher.board import Board
from deadline_batcher.plan import Category, Plan, frontier

MODEL = Category("m", (4, 5, 9), window_ns=10)


def cap_for(category: Category, available_ns: int) -> int:
    return Board(Plan((category,), 1, 1, 1, 1, 8), is_by_due=True).cap_for(0, available_ns)


@pytest.mark.parametrize(
    ("available_ns", "size"), [(-1, 0), (0, 0), (3, 0), (4, 1), (5, 2), (8, 2), (9, 3), (99, 3)]
)
def test_the_largest_batch_that_fits(available_ns: int, size: int) -> None:
    assert cap_for(MODEL, available_ns) == size


def test_equal_worst_cases_fill_the_larger_batch() -> None:
    assert cap_for(Category("m", (4, 4, 4), 0), 4) == 3
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


@pytest.mark.parametrize(
    ("wcet_ns", "used", "usable"),
    [
        ((18, 24, 30, 36), (), (0, 1, 2, 3, 4)),  # affine: every size
        ((10, 20, 30, 40), (), (0, 1, 1, 1, 1)),  # no gain: the first of two ends sooner
        ((628, 1450, 1600, 1800), (), (0, 1, 1, 3, 4)),  # super-additive at 2 (VGG-16)
        ((10, 25, 30, 41), (), (0, 1, 1, 1, 1)),  # 4 costs more than 2 + 2, split themselves
        ((26, 50, 50, 50, 51), (), (0, 1, 2, 3, 4, 5)),  # a step at 2: 50 < 26 + 26
        ((26, 53, 53, 53, 54), (), (0, 1, 1, 3, 4, 5)),  # a step above two alone
        ((18, 24, 30, 36), (1, 2, 4), (0, 1, 2, 2, 4)),  # the profile leaves 3 out
        ((10, 12, 30, 31), (1, 3, 4), (0, 1, 1, 1, 4)),  # 3 is no better than alone, 2 not used
        ((10, 12, 25, 26), (1, 3, 4), (0, 1, 1, 3, 4)),  # 4 would lose to 2 + 2, but 2 is not used
        ((5, 6, 7), (1,), (0, 1, 1, 1)),
    ],
)
def test_the_sizes_worth_running(
    wcet_ns: tuple[int, ...], used: tuple[int, ...], usable: tuple[int, ...]
) -> None:
    assert frontier(wcet_ns, used) == usable


@pytest.mark.parametrize("used", [(2, 3), (1, 4), (1, 3, 2), (1, 1, 2), (0, 1)])
def test_strange_used_sizes_are_refused(used: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="category m: used must"):
        Category("m", (4, 5, 9), 10, used)
