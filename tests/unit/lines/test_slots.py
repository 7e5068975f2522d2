"""Picture slots: a reader gets the picture it was told of, whole, or nothing."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from deadline_batcher.shm import Segment, new_name
from lines.slots import HEADER_BYTES, SlotReader, SlotWriter, slot_stride

TAG = f"{os.getpid() & 0xFFFFFFFF:08x}"
BYTES, COUNT = 100, 3


class Pair:
    """A writer and a reader of one segment, and its raw headers."""

    def __init__(self) -> None:
        self.segment = Segment.create(new_name(TAG, "slots"), COUNT * slot_stride(BYTES))
        self.writer = SlotWriter(self.segment, COUNT, BYTES)
        other = Segment.attach(self.segment.name, self.segment.size)
        self.reader = SlotReader(other, COUNT, BYTES)

    def header(self, slot: int) -> tuple[int, int, int]:
        found: tuple[int, int, int] = struct.unpack_from(
            "<QqI", self.segment.mapping, slot * slot_stride(BYTES)
        )
        return found

    def copy(self, slot: int, generation: int, nonce: int) -> np.ndarray[Any, Any] | None:
        row = np.zeros(BYTES, np.uint8)
        return row if self.reader.copy(slot, generation, nonce, row) else None


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.segment.unlink()


def picture(value: int) -> np.ndarray[Any, Any]:
    return np.full((10, 10, 1), value, np.uint8)


def test_slots_lie_on_cache_lines_with_room_for_their_header() -> None:
    assert [slot_stride(size) for size in (1, 64, 65, 100)] == [128, 128, 192, 192]


def test_what_was_written_is_read_from_every_slot(pair: Pair) -> None:
    told = [pair.writer.write(slot, picture(slot + 1), 70 + slot) for slot in range(COUNT)]
    assert told == [2, 2, 2]
    for slot in range(COUNT):
        row = pair.copy(slot, 2, 70 + slot)
        assert row is not None and (row == slot + 1).all()
        assert (pair.writer.picture(slot) == slot + 1).all()


def test_a_slot_that_holds_a_newer_picture_is_not_read_as_the_old_one(pair: Pair) -> None:
    old = pair.writer.write(0, picture(1), 7)
    new = pair.writer.write(0, picture(2), 7)  # even with the same nonce
    assert (old, new) == (2, 4)
    assert pair.copy(0, old, 7) is None
    assert pair.copy(0, new, 7) is not None


def test_another_nonce_is_not_the_picture(pair: Pair) -> None:
    generation = pair.writer.write(0, picture(1), 7)
    assert pair.copy(0, generation, 8) is None
    assert pair.copy(0, generation, -7) is None


def test_another_picture_under_the_same_header_is_found_by_its_checksum(pair: Pair) -> None:
    generation = pair.writer.write(0, picture(1), 7)
    for place in range(BYTES):
        pair.segment.mapping[HEADER_BYTES + place] ^= 1
        assert pair.copy(0, generation, 7) is None
        pair.segment.mapping[HEADER_BYTES + place] ^= 1
    assert pair.copy(0, generation, 7) is not None


def test_the_generation_is_odd_and_the_nonce_gone_while_the_line_writes(pair: Pair) -> None:
    pair.writer.write(0, picture(1), 7)
    seen: list[tuple[int, int, int]] = []

    class Spy:
        def reshape(self, _: int) -> np.ndarray[Any, Any]:
            seen.append(pair.header(0))
            assert pair.copy(0, 2, 7) is None
            assert pair.copy(0, 3, 7) is None
            return picture(2).reshape(-1)

    assert pair.writer.write(0, Spy(), 8) == 4  # type: ignore[arg-type]
    assert seen == [(3, 0, 0)]


class Overwritten:
    """A row into which the reader copies while the line writes the next picture."""

    def __init__(self, pair: Pair, is_finished: bool) -> None:
        self.array = np.zeros(BYTES, np.uint8)
        self._pair = pair
        self._is_finished = is_finished

    def __setitem__(self, where: slice, value: np.ndarray[Any, Any]) -> None:
        self.array[where] = value
        if self._is_finished:
            self._pair.writer.write(0, picture(1), 7)
        else:
            struct.pack_into("<QqI", self._pair.segment.mapping, 0, 3, 0, 0)

    @property
    def data(self) -> memoryview:
        return self.array.data


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_picture_replaced_during_the_copy_is_not_used(pair: Pair, is_finished: bool) -> None:
    generation = pair.writer.write(0, picture(1), 7)
    # the copied bytes are whole and their checksum right: the generation alone tells
    row = Overwritten(pair, is_finished)
    assert not pair.reader.copy(0, generation, 7, row)  # type: ignore[arg-type]
    assert (row.array == 1).all()


def test_a_slot_never_written_or_out_of_range_gives_nothing(pair: Pair) -> None:
    assert pair.copy(1, 2, 0) is None
    assert pair.copy(COUNT, 2, 0) is None
    assert pair.copy(10**6, 0, 0) is None


def test_free_slots_are_taken_once_and_given_back(pair: Pair) -> None:
    taken = [pair.writer.take() for _ in range(COUNT)]
    assert sorted(slot for slot in taken if slot is not None) == [0, 1, 2]
    assert (pair.writer.take(), pair.writer.free_count) == (None, 0)
    pair.writer.release(1)
    assert (pair.writer.free_count, pair.writer.take()) == (1, 1)


def test_a_picture_of_another_size_is_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        pair.writer.write(0, np.zeros(BYTES + 1, np.uint8), 7)
    assert pair.header(0)[0] % 2 == 1  # and nobody takes what is there for a picture
