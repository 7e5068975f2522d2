"""Goldens of the shipped model: different, in random order, blind to nothing they claim to see."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from appliance.triton.faults import Kind
from appliance.triton.goldens import APART, GOLDENS, Goldens
from appliance.triton.region import BatchSlot, Region

MODEL = Path(__file__).resolve().parents[3] / "models" / "tile-defects.onnx"


@pytest.fixture(scope="module")
def goldens() -> Goldens:
    return Goldens(MODEL)


@pytest.fixture
def slot(goldens: Goldens) -> Iterator[BatchSlot]:
    region = Region("00000000", 0, 1, 16, goldens.facts.picture_bytes)
    yield region.slots[0]
    region.unlink()


def answered(goldens: Goldens, slot: BatchSlot, chosen: list[int]) -> None:
    """As a server that is right."""
    slot.scores[: len(chosen)] = goldens._scores[chosen]
    slot.echoes[: len(chosen)] = slot.nonces[: len(chosen)]


def test_their_scores_tell_them_apart(goldens: Goldens) -> None:
    assert goldens.apart >= 8
    ordered = sorted(float(score) for score in goldens._scores)
    assert sum(b - a >= APART * 0.99 for a, b in pairwise(ordered)) >= goldens.apart - 1


def test_rows_are_different_and_their_order_changes(goldens: Goldens, slot: BatchSlot) -> None:
    orders = [tuple(goldens.fill(slot, GOLDENS)) for _ in range(20)]
    assert all(sorted(order) == list(range(GOLDENS)) for order in orders)
    assert len(set(orders)) == 20
    sixteen = goldens.fill(slot, 16)
    assert len(set(sixteen[:GOLDENS])) == GOLDENS
    assert {goldens.fill(slot, 1)[0] for _ in range(200)} == set(range(GOLDENS))


def test_right_answers_are_right(goldens: Goldens, slot: BatchSlot) -> None:
    chosen = goldens.fill(slot, 5)
    answered(goldens, slot, chosen)
    assert goldens.mistake(slot, chosen) is None


def swap(slot: BatchSlot) -> None:
    slot.scores[[0, 1]] = slot.scores[[1, 0]]


def repeat_first(slot: BatchSlot) -> None:
    slot.scores[:8] = slot.scores[0]


def nan(slot: BatchSlot) -> None:
    slot.scores[7] = np.nan


def shift(slot: BatchSlot) -> None:
    slot.scores[3] += 0.005


@pytest.mark.parametrize("harm", [swap, repeat_first, nan, shift])
def test_a_wrong_row_is_found_wherever_it_is(
    goldens: Goldens, slot: BatchSlot, harm: Callable[[BatchSlot], None]
) -> None:
    found = 0
    for _ in range(50):
        chosen = goldens.fill(slot, 8)
        answered(goldens, slot, chosen)
        harm(slot)
        mistake = goldens.mistake(slot, chosen)
        found += mistake is not None and mistake.kind is Kind.WRONG
    assert found >= 45, "two of the few that are alike may be swapped unseen"


def test_an_unwritten_or_foreign_row_is_told_from_a_wrong_one(
    goldens: Goldens, slot: BatchSlot
) -> None:
    chosen = goldens.fill(slot, 3)
    mistake = goldens.mistake(slot, chosen)
    assert mistake is not None and mistake.kind is Kind.UNWRITTEN
    answered(goldens, slot, chosen)
    slot.echoes[[0, 1]] = slot.echoes[[1, 0]]
    mistake = goldens.mistake(slot, chosen)
    assert mistake is not None and mistake.kind is Kind.UNWRITTEN
