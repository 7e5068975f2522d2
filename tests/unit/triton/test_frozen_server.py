"""A frozen, a lying and a silent server, as goldens see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.triton.goldens import GOLDENS, Goldens
from appliance.triton.region import BatchSlot, Region

MODEL = Path(__file__).resolve().parents[3] / "models" / "tile-defects.onnx"
ROWS = 4
TURNS = 8
Server = Callable[[BatchSlot, list[int]], None]


@pytest.fixture(scope="module")
def goldens() -> Goldens:
    return Goldens(MODEL)


@pytest.fixture
def slot(goldens: Goldens) -> Iterator[BatchSlot]:
    region = Region("00000000", 0, 1, ROWS, goldens.facts.picture_bytes)
    yield region.slots[0]
    region.unlink()


def honest(goldens: Goldens) -> Server:
    """Runs the very pictures that lie in the slot."""
    from fallback.session import Session

    session = Session(MODEL, threads=1)

    def answer(slot: BatchSlot, chosen: list[int]) -> None:
        rows = len(chosen)
        pictures = slot.pictures(rows, goldens.facts.picture_bytes)
        scores, echoes = session.run(
            pictures.reshape(rows, *goldens.facts.shape).copy(), slot.nonces[:rows].copy()
        )
        slot.scores[:rows], slot.echoes[:rows] = scores, echoes

    return answer


def found(goldens: Goldens, slot: BatchSlot, server: Server, rows: int = 1) -> list[str]:
    """What goldens of `rows` say of a server in a few turns."""
    said = []
    for _ in range(TURNS):
        chosen = goldens.fill(slot, rows)
        server(slot, chosen)
        mistake = goldens.mistake(slot, chosen)
        if mistake is not None:
            said.append(str(mistake))
    return said


def test_an_honest_server_makes_no_mistake(goldens: Goldens, slot: BatchSlot) -> None:
    server = honest(goldens)
    for rows in range(1, ROWS + 1):
        assert found(goldens, slot, server, rows) == []


def test_a_path_that_is_frozen_on_its_first_picture_is_found(
    goldens: Goldens, slot: BatchSlot
) -> None:
    """A CUDA graph replayed on its first image: one golden, repeated, could never see it."""
    server, first = honest(goldens), []

    def frozen(slot: BatchSlot, chosen: list[int]) -> None:
        server(slot, chosen)
        first.append(slot.scores[: len(chosen)].copy())
        slot.scores[: len(chosen)] = first[0]

    assert found(goldens, slot, frozen), "a constant answer passed every golden"


def test_at_least_eight_goldens_take_turns(goldens: Goldens, slot: BatchSlot) -> None:
    seen = {goldens.fill(slot, 1)[0] for _ in range(8 * GOLDENS)}
    assert len(seen) >= 8
    assert len(set(goldens.fill(slot, ROWS))) == ROWS, "rows of one batch differ"


def test_an_answer_that_nobody_wrote_is_no_answer(goldens: Goldens, slot: BatchSlot) -> None:
    """OK without a byte written: what lay there was right for the last batch, or is poison."""
    server = honest(goldens)
    chosen = goldens.fill(slot, ROWS)
    server(slot, chosen)
    assert goldens.mistake(slot, chosen) is None
    again = goldens.fill(slot, ROWS)
    assert np.isnan(slot.scores).all(), "a slot is poisoned before it is sent"
    assert not (slot.echoes == slot.nonces).any()
    assert str(goldens.mistake(slot, again)) == "a row was not written, or is another's"


def test_rows_that_changed_places_are_found(goldens: Goldens, slot: BatchSlot) -> None:
    server = honest(goldens)

    def swapped(slot: BatchSlot, chosen: list[int]) -> None:
        server(slot, chosen)
        slot.scores[[0, 1]] = slot.scores[[1, 0]]

    assert found(goldens, slot, swapped, 2)
