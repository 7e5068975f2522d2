"""One line's process: owns its frames, their deadlines, their verdicts and its own fallback.

One loop owns all state: it feeds guard and route (pure) what came, and obeys them. Nothing in it
waits for the batcher, the journal or the pool.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from deadline_batcher import link
from deadline_batcher.shm import Segment, new_name
from deadline_batcher.timer import Signal, Timer
from fallback import guard as g
from fallback.line_core import CompareTrial, CoreCommand, CoreEvent, EndTrial, LineCore
from fallback.route import ChangeRoute
from fallback.session import Session, identity
from lines import wire
from lines.admission import Admission, Refusal
from lines.intake import Intake
from lines.journal_link import JournalSender
from lines.keys import AllowList
from lines.ledger import Ledger
from lines.output import VerdictOutput
from lines.part_book import PartBook
from lines.parts import OpenPart, judge, row_of, verdict_fields
from lines.pool_link import PoolLink
from lines.route_link import RouteLink
from lines.settings import LineSettings, ModelIdentity
from lines.slots import Picture, SlotWriter, slot_stride
from lines.sockets import (
    FRAMES_HIGH_WATER,
    VERDICTS_HIGH_WATER,
    KeyWatch,
    bind_router,
    start_authenticator,
)
from lines.threads import (
    CoreLocks,
    DecodeJob,
    FallbackJob,
    JobThread,
    answering,
    decoding,
)

POLL_MS = 50
"""The loop wakes at least this often, whatever the sockets say (pyzmq's edge-triggered traps)."""
CREDIT_MAX = 4
MESSAGES_PER_TURN = 4
LATENESS_EVERY_NS = 10_000_000_000
MESSAGE_BYTES_MARGIN = 8192
JOURNAL_ROWS_MAX = 20_000


class LineProcess:
    """Wiring and the loop. `settings` says everything; `run` returns after `stop`."""

    def __init__(self, settings: LineSettings) -> None:
        self.settings = settings
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._is_stopping = False
        self._timer = Timer()
        self._signal = Signal()
        self._session = Session(settings.fallback_path, settings.fallback_threads)
        facts = self._session.facts
        self._models = {
            "pool": settings.pool_model,
            "fallback": ModelIdentity(
                identity(settings.model_name, facts.sha256), facts.threshold, facts.labels
            ),
        }
        segment = Segment.create(
            new_name(settings.plant_tag, "slots"),
            settings.slots * slot_stride(facts.picture_bytes),
        )
        self._slots = SlotWriter(segment, settings.slots, facts.picture_bytes)
        self._warm_picture = np.full(facts.shape, 128, np.uint8)
        self._session.warm_up(self._warm_picture)
        self._decoder = JobThread("decode", decoding(self._slots, facts.shape), self._signal)
        locks = CoreLocks(
            settings.runtime_folder,
            settings.fallback_concurrent_max,
            settings.fallback_core,
            settings.wcet_fallback_ns / 1e9,
        )
        self._fallback = JobThread("fallback", answering(self._session, locks), self._signal)
        self._core = LineCore(settings.core_plan, time.monotonic_ns())
        self._events: deque[tuple[CoreEvent, int]] = deque()
        hello = link.Hello(
            line=settings.line_id,
            model=settings.model_name,
            segment=segment.name,
            slot_count=settings.slots,
            slot_bytes=facts.picture_bytes,
        )
        pool = PoolLink(self._context, settings.batcher_endpoint, hello)
        self._journal = JournalSender(
            self._context,
            settings.journal_endpoint,
            f"line-{settings.line_id}",
            settings.journal_backlog_s,
            JOURNAL_ROWS_MAX,
        )
        self._ledger = Ledger(settings.plant_tag, settings.line_id)
        self._book = PartBook(settings, self._slots, self._ledger)
        self._pool = RouteLink(
            settings.line_id,
            pool,
            self._book,
            self._core,
            self._models,
            settings.trial_bands,
            self._feed,
            self._tell,
        )
        self._admission = Admission(settings.line_id, settings.camera, settings.limits)
        try:
            self._bind()
        except BaseException:  # a line that cannot start leaves nothing behind
            self._slots.segment.unlink()
            raise

    # --- start ------------------------------------------------------------------------------

    def _bind(self) -> None:
        settings = self.settings
        keys = settings.keys_folder
        cameras = AllowList(keys / "cameras", settings.camera)
        actuators = AllowList(keys / "actuators", None)
        self._authenticator = start_authenticator(self._context, cameras, actuators)
        self._key_watch = KeyWatch({"camera": cameras, "actuator": actuators}, self._tell)
        secret = keys / "server.key_secret"
        message_bytes_max = 4 * settings.limits.picture_bytes_max + MESSAGE_BYTES_MARGIN
        verdicts = bind_router(
            self._context,
            settings.verdicts_endpoint,
            "actuators",
            secret,
            wire.HEADER_BYTES_MAX + MESSAGE_BYTES_MARGIN,
            VERDICTS_HIGH_WATER,
        )
        self._output = VerdictOutput(verdicts, settings.line_id, actuators.name_of, self._tell)
        in_doubt = self._book.take_over(self._journal, self._admission, time.monotonic_ns())
        if in_doubt is not None:
            self._tell("line.restarted", settings.line_id, f"{in_doubt} parts in doubt")
        frames = bind_router(
            self._context,
            settings.frames_endpoint,
            "cameras",
            secret,
            message_bytes_max,
            FRAMES_HIGH_WATER,
        )
        self._intake = Intake(
            frames,
            settings.line_id,
            settings.deadline_ns / 1e6,
            self._admission,
            cameras.name_of,
            self,
            self._tell,
        )

    # --- the loop ---------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`; `on_ready` is called once the sockets are served."""
        poller = zmq.Poller()
        for socket in (self._intake.socket, self._output.socket):
            poller.register(socket, zmq.POLLIN)
        poller.register(self._pool.socket, zmq.POLLIN)
        poller.register(self._journal.socket, zmq.POLLIN)
        poller.register(self._timer.fileno(), zmq.POLLIN)
        poller.register(self._signal.fileno(), zmq.POLLIN)
        self._pool.begin()
        on_ready()
        lateness_at_ns = time.monotonic_ns() + LATENESS_EVERY_NS
        while not self._is_stopping:
            poller.poll(POLL_MS)
            self._turn()
            if time.monotonic_ns() >= lateness_at_ns:
                lateness_at_ns += LATENESS_EVERY_NS
                self._tell_lateness()
            self._key_watch.look(time.monotonic_ns())
            self._check_threads()
        self._finish()

    def _check_threads(self) -> None:
        """Without its authenticator a line lets no camera back in."""
        threads = (self._decoder.is_alive, self._fallback.is_alive, self._authenticator.is_alive())
        if not all(threads):
            raise RuntimeError("a thread of this line has died; starting anew is the way out")

    def stop(self) -> None:
        """Leave the loop after the turn in progress. Safe in a signal handler."""
        self._is_stopping = True
        self._signal.ring()

    def _turn(self) -> None:
        now_ns = time.monotonic_ns()
        fired_at_ns = self._timer.read(now_ns)
        if fired_at_ns is not None:
            self._feed(g.TimeReached(), max(fired_at_ns, now_ns))
        self._signal.clear()
        self._take_outcomes()
        self._pool.take()
        self._output.on_readable(time.monotonic_ns())
        self._journal.on_readable()
        self._intake.on_readable(time.monotonic_ns, MESSAGES_PER_TURN)
        has_lost = self._intake.name_lost()
        now_ns = time.monotonic_ns()
        self._feed(g.TimeReached(), now_ns)
        self._journal.flush(now_ns)
        wakeups = [
            now_ns if has_lost else None,
            self._output.beat(now_ns),
            self._pool.beat(now_ns),
            self._journal.flush_due_at_ns(),
            self._core.wakeup_at_ns(),
        ]
        self._timer.arm(min((at for at in wakeups if at is not None), default=None))

    def _finish(self) -> None:
        """Answer what is open, hand the journal its rows, give everything back."""
        for number in self._book.numbers():
            if self._core.is_open(number):
                self._feed(g.PictureBad(number, "stop"), time.monotonic_ns())
        self._tell_lateness()
        self._output.settle()
        if self._journal.close() == 0:
            self._ledger.settle()
        self._slots.segment.unlink()
        self._authenticator.stop()
        self._context.destroy(linger=0)

    # --- what came in -----------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many frames may be let in now: the camera's credit."""
        return min(CREDIT_MAX - self._book.decoding_count, self._slots.free_count)

    def new_session(self) -> None:
        """A camera started: its clock is a new one."""
        self._book.new_clock()

    def accept(
        self, routing_id: bytes, frame: wire.Frame, payload: Any, arrived_at_ns: int
    ) -> None:
        """A frame was let in: from here on its part gets its one verdict."""
        part = self._book.open(routing_id, frame, len(payload), arrived_at_ns)
        if part.capture.is_late:
            detail = "captured longer ago than transport_max_ms"
            self._tell("reject", "late", f"seq {part.seq}: {detail}")
            self._intake.answer(routing_id, wire.reject(part.seq, "late", detail, part.session))
            self._decide(part, g.Decide(part.part, "failsafe", "late"))
            return
        self._feed(g.PartAccepted(part.part, part.due_at_ns), arrived_at_ns)
        if not self._core.is_open(part.part):
            self._reject_open(part, "late", "its verdict was due before it arrived")
            return
        slot = self._book.take_slot(part)
        self._decoder.put(DecodeJob(part.part, frame, payload, slot, part.nonce))

    def refuse_owed(
        self, routing_id: bytes, frame: wire.Frame, refusal: Refusal, arrived_at_ns: int
    ) -> None:
        """A frame that names its part was refused: the part is on the belt all the same."""
        part = self._book.open(routing_id, frame, 0, arrived_at_ns)
        # Not by way of the guard, which calls a part whose time is over `deadline`.
        self._decide(part, g.Decide(part.part, "failsafe", refusal.reason))

    def lose(self, session: str, seq: int, noticed_at_ns: int) -> None:
        """A frame never came: said at once, because nobody knows when its part is at the gate."""
        part = self._book.open_lost(session, seq, noticed_at_ns)
        self._feed(g.PartAccepted(part.part, part.due_at_ns), noticed_at_ns)
        self._feed(g.PictureBad(part.part, "lost"), noticed_at_ns)

    def _reject_open(self, part: OpenPart, reason: str, detail: str) -> None:
        self._tell("reject", reason, f"seq {part.seq}: {detail}")
        self._intake.answer(part.routing_id, wire.reject(part.seq, reason, detail, part.session))
        self._feed(g.PictureBad(part.part, reason), time.monotonic_ns())

    def _take_outcomes(self) -> None:
        while self._decoder.outcomes:
            decoded = self._decoder.outcomes.popleft()
            part = self._book.get(decoded.part)
            if part is None:
                continue
            if decoded.reason:
                self._reject_open(part, decoded.reason, decoded.detail)
                self._book.close(part)
                continue
            part.ready_at_ns, part.generation = decoded.done_at_ns, decoded.generation
            part.is_acked = True
            self._intake.answer(part.routing_id, wire.ack(part.session, part.seq))
            if part.slot is not None:
                self._warm_picture = self._slots.picture(part.slot).copy()
            self._pool.ready()
            self._feed(g.PictureReady(part.part), time.monotonic_ns())
            if not self._core.is_open(part.part):
                self._book.close(part)
        while self._fallback.outcomes:
            run = self._fallback.outcomes.popleft()
            if run.detail:
                self._tell("fallback.failed", self.settings.line_id, run.detail)
            if run.part is None:
                self._feed(g.WarmDone(), time.monotonic_ns())
                continue
            self._book.read_ended(run.part)
            part = self._book.get(run.part)
            if part is not None:
                part.fallback = run
            self._feed(g.FallbackDone(run.part, run.ok), time.monotonic_ns())
            if part is not None and not self._core.is_open(run.part):
                self._book.close(part)

    # --- obeying the core -------------------------------------------------------------------

    def _feed(self, event: CoreEvent, now_ns: int) -> None:
        """Give the core an event and obey it; what obeying brings about comes after, in order."""
        self._events.append((event, now_ns))
        if len(self._events) > 1:
            return
        while self._events:
            for command in self._core.handle(*self._events[0]):
                self._obey(command)
            self._events.popleft()

    def _obey(self, command: CoreCommand) -> None:
        match command:
            case g.OfferToPool():
                self._pool.offer(self._book[command.part], command)
            case g.MovePoolDue():
                self._pool.move(command)
            case g.StartFallback():
                part = self._book[command.part]
                assert part.slot is not None
                part.is_fallback_started = True
                self._book.read_begins(part)
                self._run_fallback(part.part, self._slots.picture(part.slot), part.nonce)
            case g.StartWarm():
                self._run_fallback(None, self._warm_picture, secrets.randbits(63))
            case g.Decide():
                self._decide(self._book[command.part], command)
            case CompareTrial():
                self._pool.compare(command.part)
            case EndTrial():
                self._pool.end_trial(command.part)
            case ChangeRoute():
                self._pool.changed(command)

    def _run_fallback(self, number: int | None, picture: Picture, nonce: int) -> None:
        self._fallback.put(FallbackJob(number, picture, nonce, time.monotonic_ns()))

    def _decide(self, part: OpenPart, command: g.Decide) -> None:
        settings = self.settings
        now_ns = time.monotonic_ns()
        decision = judge(part, command.answered_by, command.reason, self._models, now_ns)
        if part.is_owed:
            self._ledger.sending(part.part)
        fields = verdict_fields(settings, part, decision, time.monotonic_ns())
        is_sent = self._output.send(fields)
        sent_at_ns = fields["sent_ns"] if is_sent else 0
        row = row_of(settings, part, decision, fields["action"], sent_at_ns).as_dict()
        if part.is_owed:
            self._ledger.sent(part.part, row)
        self._journal.add("parts", row)
        self._pool.decided(part, decision.answered_by)
        if part.ready_at_ns or part.slot is None:
            self._book.close(part)

    # --- telling ----------------------------------------------------------------------------

    def _tell(self, kind: str, subject: str, detail: str) -> None:
        self._journal.event(time.monotonic_ns(), kind, subject, detail)

    def _tell_lateness(self) -> None:
        detail = self._timer.take_lateness()
        if detail:
            self._tell("timer.lateness", self.settings.line_id, detail)
        self._pool.tell_late()
