"""The line's pool side: what is sent, what the core is told, how long a trial keeps its slot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from deadline_batcher import link
from fallback import guard as g
from fallback import route as r
from fallback.line_core import CoreEvent, LineCore, TrialCompared
from lines.clock import Capture
from lines.part_book import PartBook
from lines.parts import ModelIdentity, OpenPart
from lines.pool_link import PoolLink
from lines.route_link import RouteLink, shed_reason
from lines.threads import FallbackOutcome

MODELS = {
    "pool": ModelIdentity("m@0123456789ab", 0.5, ()),
    "fallback": ModelIdentity("m@ba9876543210", 0.25, ()),
}


class Pool:
    """The link: what was sent through it and what comes from it."""

    def __init__(self) -> None:
        self.sent: list[link.Message] = []
        self.comes: list[link.Message] = []
        self.hellos = 0
        self.is_away = self.is_garbled = False
        self.beats: list[tuple[int, int, int]] = []

    def tell(self, message: link.Message) -> bool:
        self.sent.append(message)
        return not self.is_away

    def say_hello(self) -> None:
        self.hellos += 1

    def beat(self, *told: int) -> int:
        self.beats.append(told)  # type: ignore[arg-type]
        return 7

    def received(self) -> list[link.Message]:
        if self.is_garbled:
            raise link.LinkError("3 bytes of kind b'?'")
        comes, self.comes = self.comes, []
        return comes


@dataclass
class Book:
    """The line's parts; `closed` gave their slots back."""

    parts: dict[int, OpenPart] = field(default_factory=dict)
    trials: set[int] = field(default_factory=set)
    closed: list[int] = field(default_factory=list)

    def __getitem__(self, number: int) -> OpenPart:
        return self.parts[number]

    def get(self, number: int) -> OpenPart | None:
        return self.parts.get(number)

    def trial_begins(self, part: OpenPart) -> None:
        self.trials.add(part.part)

    def trial_ended(self, number: int) -> None:
        self.trials.discard(number)

    def close(self, part: OpenPart) -> None:
        if part.part not in self.trials:
            self.closed.append(part.part)


@dataclass
class Core:
    """Which parts are open and which are trials."""

    open: set[int] = field(default_factory=set)
    trials: set[int] = field(default_factory=set)
    route: r.Route = r.Route.RETURNING

    def is_open(self, part: int) -> bool:
        return part in self.open

    def is_trial(self, part: int) -> bool:
        return part in self.trials


class Line:
    """A pool side with everything around it imitated."""

    def __init__(self) -> None:
        self.pool, self.book, self.core = Pool(), Book(), Core()
        self.fed: list[CoreEvent] = []
        self.events: list[tuple[str, str, str]] = []
        self.side = RouteLink(
            "line01",
            cast(PoolLink, self.pool),
            cast(PartBook, self.book),
            cast(LineCore, self.core),
            MODELS,
            (0.005, 0.05),
            lambda event, now_ns: self.fed.append(event),
            lambda *event: self.events.append(event),
        )

    def part(self, number: int, score: float | None = None) -> OpenPart:
        """A part with its picture, open; with a score, answered by the fallback."""
        part = OpenPart(number, b"", "s", number, "p", 0, Capture(1, "ptp", False), 2, 99, 100)
        part.slot, part.generation, part.nonce, part.ready_at_ns = 3, 4, 77, 5
        if score is not None:
            part.fallback = FallbackOutcome(number, True, score, 77, 6, 7, 8, "")
        self.book.parts[number] = part
        self.core.open.add(number)
        return part


def result(part: int, score: float = 0.1, **changes: Any) -> link.Result:
    told = {"generation": 4, "nonce_echo": 77, "gpu": 2} | changes
    zeros = dict.fromkeys(link.Result._fields, 0)
    return link.Result(**{**zeros, **told, "part": part, "score": score})


def test_a_trial_keeps_its_slot_after_the_verdict_until_it_was_compared() -> None:
    line = Line()
    part = line.part(1, score=0.1)
    line.side.offer(part, g.OfferToPool(1, 50, True))
    line.core.trials.add(1)
    assert line.pool.sent == [link.Part(1, 3, 4, 77, 5, 50, 99)]
    line.core.open.remove(1)
    line.side.decided(part, "fallback")
    line.book.close(part)  # as the line does once a part is decided
    assert (len(line.pool.sent), line.book.closed) == (1, [])
    line.pool.comes = [result(1)]
    line.side.take()
    assert line.fed == [g.PoolAnswered(1), r.ClockTicked()]
    line.side.compare(1)
    assert line.fed[2:] == [TrialCompared(1, True)]
    assert (line.book.closed, line.events) == ([1], [])


def test_a_trial_that_disagrees_is_told_with_both_scores() -> None:
    line = Line()
    part = line.part(1, score=0.1)
    part.result = result(1, score=0.9)
    line.side.compare(1)
    assert line.fed == [TrialCompared(1, False)]
    assert line.events == [("trial.disagreed", "gpu2", "seq 1: pool 0.9000, fallback 0.1000")]


def test_a_trial_that_ends_is_withdrawn_once_its_part_is_decided_and_not_before() -> None:
    line = Line()
    part = line.part(1)
    line.side.offer(part, g.OfferToPool(1, 50, True))
    line.side.end_trial(1)  # the fallback failed: the pool may still save it
    assert (line.pool.sent[1:], line.book.closed, line.book.trials) == ([], [], set())
    line.side.offer(part, g.OfferToPool(1, 50, True))
    line.core.open.remove(1)
    line.side.end_trial(1)
    assert line.pool.sent[2:] == [link.Withdrawn(1)]
    assert line.book.closed == [1]
    line.side.end_trial(9)  # of a part that is no more
    assert line.pool.sent[3:] == []


def test_a_part_that_is_no_trial_is_withdrawn_when_another_has_answered() -> None:
    line = Line()
    part = line.part(1)
    line.side.offer(part, g.OfferToPool(1, 50))
    assert line.book.trials == set()
    line.side.decided(part, "pool")
    assert len(line.pool.sent) == 1
    line.side.decided(part, "fallback")
    assert line.pool.sent[1:] == [link.Withdrawn(1)]


def test_a_batcher_that_is_away_is_a_refusal() -> None:
    line = Line()
    line.pool.is_away = True
    line.side.offer(line.part(1), g.OfferToPool(1, 50))
    assert line.fed == [g.PoolRefused(1)]


@pytest.mark.parametrize("wrong", [{"nonce_echo": 78}, {"generation": 5}, {"score": 1.5}])
def test_an_answer_that_does_not_match_is_a_refusal_and_an_event(wrong: dict[str, Any]) -> None:
    line = Line()
    line.part(1)
    line.pool.comes = [result(1, **wrong)]
    line.side.take()
    assert line.fed[0] == g.PoolRefused(1)
    assert line.events == [("answer.mismatch", "gpu2", "seq 1")]


def test_answers_that_nobody_waits_for_are_counted() -> None:
    line = Line()
    line.part(1)
    line.core.open.clear()
    line.pool.comes = [result(1), result(2)]
    line.side.take()
    assert line.fed == [r.ClockTicked()]
    line.side.tell_late()
    line.side.tell_late()
    assert line.events == [("answers.late", "line01", "2")]


def test_what_the_batcher_says_of_itself_goes_to_the_route_and_then_the_clock() -> None:
    line = Line()
    line.pool.comes = [
        link.BatcherBeat(1, 3),
        link.Carried(False, 1, 2, 7, 12),
        link.Carried(True, 0, 4, 12, 12),
        link.Refused(5, 0),
        link.Who(1),
    ]
    line.side.take()
    assert line.fed == [
        r.PoolBeat(3),
        r.LineShed("gpus: 2 GPUs carry 7 of 12 lines"),
        r.LineUnshed(),
        g.PoolRefused(5),
        g.PoolBack(),
        r.ClockTicked(),
    ]
    assert line.pool.hellos == 1
    assert shed_reason(link.Carried(False, 200, 2, 7, 12)).startswith("reason 200: ")
    line.pool.is_garbled = True
    line.side.take()
    assert line.events == [("link.garbled", "batcher", "3 bytes of kind b'?'")]


def test_the_load_is_every_part_with_a_picture_whoever_answers_it() -> None:
    line = Line()
    line.side.ready()
    line.side.ready()
    assert line.side.beat(100) == 7
    assert line.pool.beats == [(100, 2, link.ROUTES.index("RETURNING"))]


def test_a_change_of_route_is_written_down_in_one_form() -> None:
    line = Line()
    line.side.changed(r.ChangeRoute(r.Route.POOL, r.Route.FALLBACK, "late"))
    assert line.events == [("route.changed", "line01", "POOL → FALLBACK: late")]
