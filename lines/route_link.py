"""A line's pool side: parts offered, answers taken, trials compared, and what its route is told.

Owns nothing: parts are the book's, decisions the core's. `feed` takes the core's events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

import zmq

from deadline_batcher import link
from fallback import guard as g
from fallback import route as r
from fallback.line_core import CoreEvent, LineCore, TrialCompared
from lines.part_book import PartBook
from lines.parts import OpenPart
from lines.pool_link import PoolLink
from lines.settings import ModelIdentity

ROUTE_NUMBERS: Final = {route: link.ROUTES.index(route.value) for route in r.Route}

Tell = Callable[[str, str, str], None]


def shed_reason(told: link.Carried) -> str:
    """What the batcher's admission says, for a person."""
    known = told.reason < len(link.SHED_REASONS)
    why = link.SHED_REASONS[told.reason] if known else f"reason {told.reason}"
    return f"{why}: {told.gpus} GPUs carry {told.carried} of {told.lines} lines"


class RouteLink:
    """The line's end of the pool. Nothing in it waits."""

    def __init__(
        self,
        line_id: str,
        pool: PoolLink,
        book: PartBook,
        core: LineCore,
        models: Mapping[str, ModelIdentity],
        bands: tuple[float, float],
        feed: Callable[[CoreEvent, int], None],
        tell: Tell,
    ) -> None:
        self._line_id = line_id
        self._pool = pool
        self._book = book
        self._core = core
        self._thresholds = (models["pool"].threshold, models["fallback"].threshold)
        self._bands = bands
        self._feed = feed
        self._tell = tell
        self._parts_ready = 0
        self._late_answers = 0

    # --- the link ---------------------------------------------------------------------------

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """To be polled for reading."""
        return self._pool.socket

    def begin(self) -> None:
        """Introduce the line, and write down the route it begins with."""
        route = self._core.line_route
        self._tell("route.started", self._line_id, f"{route.route.value}: {route.reason}")
        self._pool.say_hello()

    def beat(self, now_ns: int) -> int:
        """Beat if it is time; when it next is."""
        return self._pool.beat(now_ns, self._parts_ready, ROUTE_NUMBERS[self._core.route])

    def take(self) -> None:
        """Everything that has come from the batcher; then the route may look at the clock."""
        try:
            messages = self._pool.received()
        except link.LinkError as error:
            self._tell("link.garbled", "batcher", str(error))
            messages = []
        for message in messages:
            now_ns = time.monotonic_ns()
            match message:
                case link.Result():
                    self._take_result(message, now_ns)
                case link.Refused():
                    self._feed(g.PoolRefused(message.part), now_ns)
                case link.BatcherBeat():
                    self._feed(r.PoolBeat(message.gpus_ready), now_ns)
                case link.Carried() if message.is_carried:
                    self._feed(r.LineUnshed(), now_ns)
                case link.Carried():
                    self._feed(r.LineShed(shed_reason(message)), now_ns)
                case link.Who():
                    self._pool.say_hello()
                    self._feed(g.PoolBack(), now_ns)
        self._feed(r.ClockTicked(), time.monotonic_ns())

    def _take_result(self, result: link.Result, now_ns: int) -> None:
        part = self._book.get(result.part)
        is_wanted = self._core.is_open(result.part) or self._core.is_trial(result.part)
        if part is None or not is_wanted:
            self._late_answers += 1
            return
        matches = result.nonce_echo == part.nonce and result.generation == part.generation
        if matches and 0.0 <= result.score <= 1.0:
            part.result = result
            self._feed(g.PoolAnswered(result.part), now_ns)
        else:
            self._tell("answer.mismatch", f"gpu{result.gpu}", f"seq {part.seq}")
            self._feed(g.PoolRefused(result.part), now_ns)

    # --- obeying the core -------------------------------------------------------------------

    def ready(self) -> None:
        """One more part has its picture: load, whoever answers it."""
        self._parts_ready += 1

    def offer(self, part: OpenPart, command: g.OfferToPool) -> None:
        """Ask the pool; a batcher away is a refusal."""
        assert part.slot is not None
        if command.is_trial:
            self._book.trial_begins(part)
        is_told = self._pool.tell(
            link.Part(
                part.part,
                part.slot,
                part.generation,
                part.nonce,
                part.ready_at_ns,
                command.pool_due_at_ns,
                part.due_at_ns,
            )
        )
        if not is_told:
            self._feed(g.PoolRefused(part.part), time.monotonic_ns())

    def move(self, command: g.MovePoolDue) -> None:
        """The part's latest useful instant is another."""
        self._pool.tell(link.PoolDue(command.part, command.pool_due_at_ns))

    def decided(self, part: OpenPart, answered_by: str) -> None:
        """The part has its verdict: the pool need not answer it, unless as a trial."""
        if answered_by != "pool" and part.ready_at_ns and not self._core.is_trial(part.part):
            self._pool.tell(link.Withdrawn(part.part))

    def compare(self, number: int) -> None:
        """Both have answered a trial: say whether they agree, and give its slot back."""
        part = self._book[number]
        assert part.result is not None and part.fallback is not None
        scores = (part.result.score, part.fallback.score)
        agrees = r.agrees(*scores, self._thresholds, self._bands)
        if not agrees:
            told = f"seq {part.seq}: pool {scores[0]:.4f}, fallback {scores[1]:.4f}"
            self._tell("trial.disagreed", f"gpu{part.result.gpu}", told)
        self._close(number)
        self._feed(TrialCompared(number, agrees), time.monotonic_ns())

    def end_trial(self, number: int) -> None:
        """The pool's answer on a trial is wanted no more."""
        part = self._book.get(number)
        self._close(number)
        if part is not None and not self._core.is_open(number):
            self._pool.tell(link.Withdrawn(number))

    def _close(self, number: int) -> None:
        self._book.trial_ended(number)
        part = self._book.get(number)
        if part is not None and not self._core.is_open(number):
            self._book.close(part)

    # --- telling ----------------------------------------------------------------------------

    def changed(self, change: r.ChangeRoute) -> None:
        """Write a change of route down."""
        told = f"{change.before.value} → {change.after.value}: {change.reason}"
        self._tell("route.changed", self._line_id, told)

    def tell_late(self) -> None:
        """Write down how many answers came that nobody waited for any more."""
        if self._late_answers:
            self._tell("answers.late", self._line_id, str(self._late_answers))
            self._late_answers = 0
