"""The ledger: wherever its process is killed, one true row is left for the journal."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest

from deadline_batcher.shm import SHM_FOLDER, Segment, SharedMemoryError
from lines.ledger import ENTRIES, ROW_BYTES, EntryState, Ledger, ledger_name, remove_settled
from lines.record import PartRow

TAG = f"{os.getpid() & 0xFFFFFFFF:08x}"
IN_DOUBT = {"part": 1, "verdict": "UNINSPECTED", "reason": "restart"}
FINAL = {"part": 1, "verdict": "PASS", "reason": "", "padding": "x" * 300}


class KilledError(Exception):
    """Stands for the end of the process at this instant."""


class Mortal(Ledger):
    """A ledger whose process dies before its n-th change of a state, or within a row."""

    changes_left = 10**6
    row_bytes_left = 10**6

    def _set(self, part: int, state: EntryState) -> None:
        if not self.changes_left:
            raise KilledError
        self.changes_left -= 1
        super()._set(part, state)

    def _write_row(self, part: int, which: int, raw: bytes) -> None:
        if self.row_bytes_left >= 10**6:
            super()._write_row(part, which, raw)
            return
        before = bytes(self._segment.mapping)
        super()._write_row(part, which, raw)
        after = bytes(self._segment.mapping)
        changed = [place for place in range(len(before)) if before[place] != after[place]]
        for place in changed[self.row_bytes_left :]:
            self._segment.mapping[place] = before[place]
        raise KilledError


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for path in SHM_FOLDER.glob(f"takt-{TAG}-ledger-*"):
        path.unlink()


def left_over() -> list[dict[str, Any]]:
    """What the next process of the line finds."""
    return Ledger(TAG, "line01").left_over()


def test_a_new_ledger_is_empty() -> None:
    assert left_over() == []


def test_each_step_leaves_the_row_that_is_true_then() -> None:
    ledger = Ledger(TAG, "line01")
    ledger.accept(1, IN_DOUBT)
    assert left_over() == [IN_DOUBT]
    assert Ledger(TAG, "line01").leaving() == []
    ledger.sending(1)
    assert left_over() == [IN_DOUBT]  # not surely sent
    assert Ledger(TAG, "line01").leaving() == [IN_DOUBT]
    ledger.sent(1, FINAL)
    assert left_over() == [FINAL]
    assert Ledger(TAG, "line01").leaving() == []
    ledger.settle()
    assert left_over() == []


def remembered() -> list[int]:
    """The parts that the next process of the line knows."""
    return [row["part"] for row in Ledger(TAG, "line01").remembered()]


def test_settled_parts_are_journalled_no_more_and_remembered_until_their_place_is_needed() -> None:
    ledger = Ledger(TAG, "line01")
    for part in (2, 1, 3):
        ledger.accept(part, {"part": part, "received_at_ns": part})
        ledger.sent(part, {"part": part, "received_at_ns": part, "verdict": "PASS"})
    ledger.settle()
    ledger.settle()
    assert left_over() == []
    assert remembered() == [1, 2, 3]
    new = {"part": 1 + ENTRIES, "received_at_ns": 9}
    ledger.accept(1 + ENTRIES, new)
    assert left_over() == [new]
    assert remembered() == [2, 3, 1 + ENTRIES]


def test_the_next_process_takes_the_place_of_the_oldest_part() -> None:
    assert Ledger(TAG, "line01").next_number() == 1
    ledger = Ledger(TAG, "line01")
    for part in (ENTRIES - 1, ENTRIES, ENTRIES + 1):
        ledger.accept(part, {"part": part, "received_at_ns": part})
    assert Ledger(TAG, "line01").next_number() == 2
    ledger.settle()
    assert Ledger(TAG, "line01").next_number() == 2, "settled ones stay as long as they can"


@pytest.mark.parametrize("written", [0, 1, 3, 20, 10**6])
def test_a_kill_within_the_row_over_a_settled_part_leaves_neither(written: int) -> None:
    ledger = Mortal(TAG, "line01")
    ledger.accept(1, {"part": 1, "received_at_ns": 1})
    ledger.settle()
    ledger.changes_left, ledger.row_bytes_left = 1, written
    with pytest.raises(KilledError):
        ledger.accept(1 + ENTRIES, {"part": 1 + ENTRIES, "received_at_ns": 2})
    assert left_over() == remembered() == []


def test_the_last_lost_frame_that_was_named_is_known_to_the_next_process() -> None:
    ledger = Ledger(TAG, "line01")
    assert ledger.lost_up_to() is None
    for seq in (4, 5, 9):
        ledger.mark_lost("first", seq)
        assert Ledger(TAG, "line01").lost_up_to() == ("first", seq)
    ledger.mark_lost("ä" * 64, 0)
    assert Ledger(TAG, "line01").lost_up_to() == ("ä" * 64, 0)
    assert left_over() == []


def test_a_ledger_of_settled_parts_is_removed_and_another_is_kept() -> None:
    ledger = Ledger(TAG, "line01")
    ledger.accept(1, IN_DOUBT)
    assert remove_settled(TAG) == []
    ledger.settle()
    assert remove_settled(TAG) == [ledger_name(TAG, "line01")]


@pytest.mark.parametrize(
    ("changes", "expected"), [(0, []), (1, [IN_DOUBT]), (2, [IN_DOUBT]), (3, [FINAL])]
)
def test_a_kill_before_a_change_of_state_leaves_the_row_before(
    changes: int, expected: list[dict[str, Any]]
) -> None:
    ledger = Mortal(TAG, "line01")
    ledger.changes_left = changes
    try:
        ledger.accept(1, IN_DOUBT)
        ledger.sending(1)
        ledger.sent(1, FINAL)
    except KilledError:
        assert changes < 3
    assert left_over() == expected


@pytest.mark.parametrize("written", [0, 1, 2, 3, 60, 200])
def test_a_kill_within_the_final_row_leaves_the_first_one(written: int) -> None:
    ledger = Mortal(TAG, "line01")
    ledger.accept(1, IN_DOUBT)
    ledger.sending(1)
    ledger.row_bytes_left = written
    with pytest.raises(KilledError):
        ledger.sent(1, FINAL)
    assert left_over() == [IN_DOUBT]


@pytest.mark.parametrize("written", [0, 1, 2, 3, 20])
def test_a_kill_within_the_first_row_leaves_what_the_ring_held_before(written: int) -> None:
    ledger = Mortal(TAG, "line01")
    ledger.accept(1, IN_DOUBT)
    ledger.sending(1)
    ledger.sent(1, FINAL)
    ledger.row_bytes_left = written
    with pytest.raises(KilledError):
        ledger.accept(1 + ENTRIES, {**IN_DOUBT, "part": 1 + ENTRIES})
    assert left_over() == [FINAL]


def test_the_ring_keeps_the_last_parts_in_their_places() -> None:
    ledger = Ledger(TAG, "line01")
    for part in range(ENTRIES + 3):
        ledger.accept(part, {"part": part})
    found = sorted(row["part"] for row in left_over())
    assert found == list(range(3, ENTRIES + 3))


def test_a_shorter_row_after_a_longer_one_is_read_alone() -> None:
    ledger = Ledger(TAG, "line01")
    ledger.accept(1, {"part": 1, "padding": "y" * 500})
    ledger.accept(1 + ENTRIES, {"part": 2})
    assert left_over() == [{"part": 2}]


def test_a_row_that_cannot_be_read_is_left_out() -> None:
    ledger = Ledger(TAG, "line01")
    ledger.accept(1, IN_DOUBT)
    ledger.accept(2, {"part": 2})
    raw = SHM_FOLDER / ledger_name(TAG, "line01")
    raw.write_bytes(raw.read_bytes().replace(b'"restart"', b'"restart\n'))
    assert left_over() == [{"part": 2}]


def test_lines_do_not_share_a_ledger() -> None:
    Ledger(TAG, "line01").accept(1, IN_DOUBT)
    assert Ledger(TAG, "line02").left_over() == []


def test_a_ledger_of_another_version_is_replaced() -> None:
    name = ledger_name(TAG, "line01")
    Segment.create(name, 4096)
    assert left_over() == []
    with pytest.raises(SharedMemoryError):
        Segment.attach(name, 4096)


def longest_row() -> dict[str, Any]:
    """Every field as long as it can be: 64 bytes that JSON writes as six characters each."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(PartRow):
        kind = str(field.type)
        if kind == "int":
            fields[field.name] = -(2**63)
        elif kind == "bool":
            fields[field.name] = False
        elif kind.startswith("float"):
            fields[field.name] = 0.12345678901234567
        else:
            fields[field.name] = "UNINSPECTED"
    fields["part_id"] = "\x01" * 64
    fields["session"] = '"' * 64
    fields["line"] = "l" * 32
    fields["model"] = "m" * 64 + "@0123456789ab"
    return PartRow(**fields).as_dict()


def test_the_longest_row_that_a_camera_can_cause_fits() -> None:
    ledger = Ledger(TAG, "line01")
    row = longest_row()
    ledger.accept(1, row)
    ledger.sent(1, row)
    assert left_over() == [row]


def test_a_row_that_does_not_fit_is_refused_before_anything_is_written() -> None:
    ledger = Ledger(TAG, "line01")
    ledger.accept(1, IN_DOUBT)
    with pytest.raises(ValueError, match=f"at most {ROW_BYTES}"):
        ledger.accept(1 + ENTRIES, {"part": "z" * ROW_BYTES})
    assert left_over() == [IN_DOUBT]
