"""What the batcher tells its lines and the journal when GPUs and rates change."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import cast

from appliance.line_admission import LineAdmission
from appliance.line_links import LineLinks
from deadline_batcher import link
from deadline_batcher.shedding import ShedPlan, proportional
from deadline_batcher.sizing.load import Load, SizedCategory, Stream

MS = 1_000_000
S = 1000 * MS
LINES = ("line01", "line02", "line03")


def shed_plan() -> ShedPlan:
    """Three lines of a third of a GPU each; one GPU of the two is said to carry half of them."""
    streams = tuple(
        Stream(name, 0, 60 * MS, 50 * MS, 50 * MS, 0, n) for n, name in enumerate(LINES)
    )
    load = Load((SizedCategory("m", (20 * MS,)),), streams)
    capacity = proportional(load, 2, 0)
    return ShedPlan(load, (), capacity, 10 * S, 50, 60 * S, 500 * MS, 2 * S, 250 * MS)


@dataclass
class Links:
    """The line links as the admission sees them."""

    loads: deque[tuple[int, int]] = field(default_factory=deque)
    greeted: deque[int] = field(default_factory=deque)
    told: list[tuple[int, link.Carried, int]] = field(default_factory=list)

    def admit(self, line: int, carried: link.Carried, gpus_ready: int) -> None:
        self.told.append((line, carried, gpus_ready))


def made() -> tuple[LineAdmission, Links, list[tuple[str, str, str]]]:
    links = Links()
    events: list[tuple[str, str, str]] = []
    admission = LineAdmission(
        shed_plan(), LINES, cast(LineLinks, links), lambda *event: events.append(event)
    )
    assert events == [("capacity.from", "pool", "the plant file's word, in proportion")]
    events.clear()
    return admission, links, events


def test_a_line_that_says_hello_is_told_where_it_stands() -> None:
    admission, links, _ = made()
    links.greeted.append(1)
    assert not admission.turn(("WARMING", "WARMING"), 0)
    assert links.told == [(1, link.Carried(False, 4, 0, 0, 3), 0)]  # the pool only starts
    links.told.clear()
    assert admission.turn(("READY", "READY"), 1)
    assert [(line, carried.is_carried) for line, carried, _ in links.told] == [
        (0, True), (1, True), (2, True),
    ]  # fmt: skip
    links.told.clear()
    links.greeted.append(2)
    assert not admission.turn(("READY", "READY"), 2)
    assert links.told == [(2, link.Carried(True, 0, 2, 3, 3), 2)]
    assert admission.gpus_ready == 2


def test_a_lost_gpu_is_told_to_lines_and_journal_and_so_is_its_return() -> None:
    admission, links, events = made()
    admission.turn(("READY", "READY"), 0)
    links.told.clear()
    events.clear()
    assert admission.turn(("READY", "LOST"), 1 * S)
    carried = "1 GPUs carry 1 of 3 lines"
    assert events == [
        ("route.shed", "line03", f"gpus: {carried}"),
        ("route.shed", "line02", f"gpus: {carried}"),
        ("capacity.short", "pool", f"{carried}; all lines need 1.00 GPUs at least"),
    ]
    assert links.told == [
        (2, link.Carried(False, 1, 1, 1, 3), 1),
        (1, link.Carried(False, 1, 1, 1, 3), 1),
    ]
    events.clear()
    admission.turn(("READY", "READY"), 5 * S)
    assert admission.wakeup_at_ns() == 7 * S
    admission.turn(("READY", "READY"), 7 * S)
    admission.turn(("READY", "READY"), 7 * S + 250 * MS)
    assert [event[:2] for event in events] == [
        ("capacity.enough", "pool"),
        ("route.unshed", "line02"),
        ("route.unshed", "line03"),
    ]


def test_a_gpu_in_doubt_still_counts_for_a_while_for_the_lines_too() -> None:
    admission, _, events = made()
    admission.turn(("READY", "READY"), 0)
    events.clear()
    assert not admission.turn(("READY", "SUSPECT"), 1 * S)
    assert (admission.gpus_ready, events) == (2, [])
    assert admission.turn(("READY", "SUSPECT"), 1 * S + 500 * MS)
    assert admission.gpus_ready == 1
    assert [event[0] for event in events] == ["route.shed", "route.shed", "capacity.short"]


def test_a_line_that_runs_faster_than_the_plant_file_is_an_event_and_then_again_normal() -> None:
    admission, links, events = made()
    admission.turn(("READY", "READY"), 0)
    events.clear()
    for turn in range(400):
        now_ns = turn * 250 * MS
        fast = min(now_ns, 20 * S)
        links.loads.append((0, fast // (30 * MS) + (now_ns - fast) // (60 * MS)))
        admission.turn(("READY", "READY"), now_ns)
    told = [event for event in events if event[0].startswith("rate.")]
    assert [event[:2] for event in told] == [("rate.above", "line01"), ("rate.normal", "line01")]
    assert told[0][2].endswith("the plant file says every 60 ms")
