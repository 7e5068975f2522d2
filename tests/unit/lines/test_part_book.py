"""Open parts and their slots: a slot is another part's only once nobody reads it any more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deadline_batcher.shm import SHM_FOLDER, Segment, new_name
from fallback.route import RoutePlan
from lines.admission import Admission, Limits
from lines.ledger import Ledger
from lines.part_book import PartBook
from lines.parts import OpenPart
from lines.settings import LineSettings, ModelIdentity
from lines.slots import SlotWriter, slot_stride
from lines.wire import Frame

TAG = f"{(os.getpid() ^ 0xB00C) & 0xFFFFFFFF:08x}"
MS = 1_000_000
SLOTS = 2
NOWHERE = Path("/nowhere")
SETTINGS = LineSettings(
    line_id="line01", plant_tag=TAG, camera=None, frames_endpoint="", verdicts_endpoint="",
    batcher_endpoint="", journal_endpoint="", keys_folder=NOWHERE, runtime_folder=NOWHERE,
    model_name="m", pool_model=ModelIdentity("", 0.5, ()), fallback_path=NOWHERE,
    fallback_threads=1, fallback_concurrent_max=1, fallback_core=0,
    wcet_fallback_ns=1, warm_every_ns=1,
    deadline_ns=100 * MS, actuation_ns=20 * MS, output_ns=3 * MS, timer_ns=1, start_ns=1,
    transport_min_ns=0, transport_max_ns=0, fail_safe="reject", inhibit_outputs=False,
    slots=SLOTS, limits=Limits(1, 1), journal_backlog_s=1.0,
    route_plan=RoutePlan(1, 1, 90, 1, 0, 0, 1, 1, 1, 1, 1), trial_latency_ns=1,
    trial_bands=(0.0, 0.0),
)  # fmt: skip


class Kept:
    """In place of the journal's sender."""

    def __init__(self) -> None:
        self.is_there = True
        self.rows: list[dict[str, Any]] = []
        self.events: list[tuple[int, str, str, str]] = []

    def event(self, *event: Any) -> None:
        self.events.append(event)

    def add(self, _: str, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def settle(self, _: int) -> int:
        return 0 if self.is_there else len(self.rows)


class Line:
    """A line's book, as its process has it."""

    def __init__(self) -> None:
        segment = Segment.create(new_name(TAG, "slots"), SLOTS * slot_stride(64))
        self.slots = SlotWriter(segment, SLOTS, 64)
        self.ledger = Ledger(TAG, "line01")
        self.book = PartBook(SETTINGS, self.slots, self.ledger)

    def open(self, seq: int) -> OpenPart:
        frame = Frame(
            type="frame", line="line01", camera="c", session="s", seq=seq, part_id=f"p{seq}",
            captured_ns=0, clock="none", encoding="raw", pixel_format="Mono8", width=8, height=8,
            crc32c=0,
        )  # fmt: skip
        part = self.book.open(b"r", frame, 64, 50 * MS)
        self.book.take_slot(part)
        return part


@pytest.fixture
def line() -> Iterator[Line]:
    yield Line()
    for path in SHM_FOLDER.glob(f"takt-{TAG}-*"):
        path.unlink()


def test_a_slot_that_the_fallback_still_reads_is_nobody_elses(line: Line) -> None:
    """The part has its verdict by the pool; the run beside it goes on reading the picture."""
    part = line.open(0)
    line.book.read_begins(part)
    line.book.close(part)
    other = line.open(1)
    assert other.slot != part.slot
    assert line.slots.free_count == 0, "the read slot was given back"
    line.book.read_ended(part.part)
    line.book.close(part)
    assert line.slots.free_count == 1
    assert line.slots.take() == part.slot


def test_a_slot_is_given_back_once(line: Line) -> None:
    part = line.open(0)
    line.book.close(part)
    line.book.close(part)
    assert line.slots.free_count == SLOTS


def test_a_restart_journals_what_was_open_once_and_repeats_are_known(line: Line) -> None:
    """A killed line's own: accepted, never surely sent."""
    for seq in range(2):
        part = line.open(seq)
    line.ledger.sending(part.part)  # killed while this one left
    again = PartBook(SETTINGS, line.slots, Ledger(TAG, "line01"))
    kept: Any = Kept()
    admission = Admission("line01", None, Limits(1, 1))
    assert again.take_over(kept, admission, 60 * MS) == 2
    assert [(row["part_id"], row["verdict"], row["reason"]) for row in kept.rows] == [
        ("p0", "UNINSPECTED", "restart"),
        ("p1", "UNINSPECTED", "restart"),
    ]
    assert all(row["sent_at_ns"] == 0 for row in kept.rows)
    assert [event[1:3] for event in kept.events] == [("restart.perhaps_sent", "line01/s/1")]
    assert again.take_over(kept, admission, 70 * MS) is None, "told once"


def test_a_second_death_before_the_journal_is_there_loses_nothing(line: Line) -> None:
    """The whole host comes up anew: the line is ready before the journal, and dies once more."""
    for seq in range(2):
        line.open(seq)
    away: Any = Kept()
    away.is_there = False
    admission = Admission("line01", None, Limits(1, 1))
    second = Line()
    assert second.book.take_over(away, admission, 60 * MS) == 2
    second.open(7)
    back: Any = Kept()
    third = Line()
    assert third.book.take_over(back, admission, 70 * MS) == 3
    assert {row["part_id"] for row in back.rows} == {"p0", "p1", "p7"}
    assert Line().book.take_over(back, admission, 80 * MS) is None, "told once it was there"
