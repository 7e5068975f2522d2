"""The batcher process: the real-time driver of the pure scheduler, and the pool it orders.

Events come from lines, endpoints and the timer; each goes through `_feed`, which writes the event
journal, obeys the commands and arms the timer. Keys, never pixels, cross the sockets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import zmq

from appliance.event_journal import EventJournal
from appliance.line_admission import LineAdmission
from appliance.line_links import LineLinks, Offer
from appliance.triton.endpoint import (
    Endpoint,
    Live,
    Lost,
    News,
    Proved,
    Ready,
    ServedModel,
    Watched,
)
from deadline_batcher import link
from deadline_batcher import messages as m
from deadline_batcher.plan import Plan
from deadline_batcher.shedding import ShedPlan
from deadline_batcher.timer import Signal, Timer
from fallback.session import identity
from lines.journal_link import JournalSender

POLL_MS = 50
BEAT_EVERY_NS = 250_000_000
LATENESS_EVERY_NS = 10_000_000_000
JOURNAL_ROWS_MAX = 20_000
MESSAGES_PER_TURN = 256


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    """What the batcher is told. `lines` and `models` are in the plan's order."""

    plan: Plan
    shed: ShedPlan
    plant_tag: str
    lines: tuple[str, ...]
    models: tuple[ServedModel, ...]
    endpoints: tuple[str, ...]
    link_endpoint: str
    journal_endpoint: str
    journal_backlog_s: float
    event_journal: Path
    event_journal_bytes_max: int


@dataclass(slots=True)
class _Run:
    """A batch (or golden, `batch` None) that is with a server."""

    batch: m.RunBatch | None
    gpu: int
    live: Live
    slot: int
    sent_at_ns: int
    dispatched_at_ns: int
    rows: list[tuple[m.BatchPart, Offer]]
    golden: list[int]
    error: str | None = None
    answered_at_ns: int = 0


class Batcher:
    """Wiring and the loop; `run` returns after `stop`."""

    def __init__(self, settings: BatcherSettings) -> None:
        self.settings = settings
        self._epoch = time.time_ns()
        self._is_stopping = False
        self._timer = Timer()
        self._signal = Signal()
        self._news: deque[News] = deque()
        self._answers: deque[_Run] = deque()
        self._goldens_run = 0
        self._void: set[int] = set()  # batches out on a GPU that was found faulty meanwhile
        self._events: deque[tuple[m.Event, int]] = deque()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._journal = JournalSender(
            self._context,
            settings.journal_endpoint,
            "batcher",
            settings.journal_backlog_s,
            JOURNAL_ROWS_MAX,
        )
        self._core = EventJournal(
            settings.plan,
            self._epoch,
            settings.event_journal,
            settings.event_journal_bytes_max,
            self._tell,
        )
        self._endpoints = [
            Endpoint(gpu, url, settings.plant_tag, settings.models, self._news, self._signal)
            for gpu, url in enumerate(settings.endpoints)
        ]
        self._lines = LineLinks(
            self._context,
            settings.link_endpoint,
            settings.lines,
            [model.name for model in settings.models],
            len(settings.endpoints),
            self._epoch,
            self._tell,
        )
        self._admission = LineAdmission(settings.shed, settings.lines, self._lines, self._tell)

    # --- the loop ---------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`."""
        poller = zmq.Poller()
        poller.register(self._lines.socket, zmq.POLLIN)
        poller.register(self._journal.socket, zmq.POLLIN)
        poller.register(self._timer.fileno(), zmq.POLLIN)
        poller.register(self._signal.fileno(), zmq.POLLIN)
        for endpoint in self._endpoints:
            endpoint.start()
        on_ready()
        beat_at_ns = lateness_at_ns = 0
        while not self._is_stopping:
            poller.poll(POLL_MS)
            now_ns = time.monotonic_ns()
            fired_at_ns = self._timer.read(now_ns)
            if fired_at_ns is not None:
                self._feed(m.TimeReached(), max(fired_at_ns, now_ns))
            self._signal.clear()
            self._take_answers()
            self._take_news()
            for event in self._lines.received(time.monotonic_ns, MESSAGES_PER_TURN):
                if isinstance(event, m.GpuDoubted) and event.is_fault:
                    self._void.add(self._core.snapshot().gpu_batches[event.gpu])
                self._feed(event, time.monotonic_ns())
            self._journal.on_readable()
            now_ns = time.monotonic_ns()
            has_changed = self._admission.turn(self._core.snapshot().gpu_states, now_ns)
            if has_changed or now_ns >= beat_at_ns:
                beat_at_ns = now_ns + BEAT_EVERY_NS
                self._lines.beat(self._admission.gpus_ready)
            if now_ns >= lateness_at_ns:
                lateness_at_ns = now_ns + LATENESS_EVERY_NS
                self._tell_lateness()
            self._journal.flush(now_ns)
            wakeups = [
                beat_at_ns,
                self._admission.wakeup_at_ns(),
                self._core.wakeup_at_ns(),
                self._journal.flush_due_at_ns(),
            ]
            self._timer.arm(min(at for at in wakeups if at is not None))
        self._finish()

    def stop(self) -> None:
        """Leave the loop after the turn in progress. Safe in a signal handler."""
        self._is_stopping = True
        self._signal.ring()

    def _finish(self) -> None:
        self._take_answers()
        self._tell_lateness()
        for endpoint in self._endpoints:
            endpoint.stop()
        self._core.close()
        self._journal.close()
        self._context.destroy(linger=0)
        Path(self.settings.link_endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def _tell_lateness(self) -> None:
        detail = self._timer.take_lateness()
        if detail:
            self._tell("timer.lateness", "batcher", detail)

    # --- endpoints --------------------------------------------------------------------------

    def _take_news(self) -> None:
        while self._news:
            news = self._news.popleft()
            now_ns = time.monotonic_ns()
            subject = f"gpu{news.gpu}"
            match news:
                case Ready():
                    self._tell("gpu.ready", subject, f"epoch {news.epoch}: {news.detail}")
                    self._feed(m.GpuReady(news.gpu), now_ns)
                case Lost():
                    self._tell("gpu.lost", subject, f"epoch {news.epoch}: {news.detail}")
                    self._feed(m.GpuLost(news.gpu), now_ns)
                case Proved():
                    names = [model.name for model in self.settings.models]
                    _, _, name, rows, sent_at_ns, answered_at_ns, mistake = news
                    category = names.index(name)
                    self._note_golden(news.gpu, category, rows, sent_at_ns, answered_at_ns, mistake)
                case Watched():
                    self._watched(news, now_ns)
                    self._feed(m.GoldenWanted(news.gpu), now_ns)

    def _watched(self, news: Watched, now_ns: int) -> None:
        for _, counters in news.counters:
            row = {
                "at_ns": now_ns,
                "gpu": f"gpu{news.gpu}",
                "url": self.settings.endpoints[news.gpu],
                "version": news.live.version,
                "endpoint_epoch": news.live.epoch,
                **asdict(counters),
            }
            self._journal.add("triton", row)

    def _take_answers(self) -> None:
        while self._answers:
            run = self._answers.popleft()
            now_ns = time.monotonic_ns()
            if run.batch is None:
                self._golden_ended(run, now_ns)
            else:
                self._batch_ended(run, run.batch, now_ns)
            run.live.region.release(run.slot)

    def _golden_ended(self, run: _Run, now_ns: int) -> None:
        slot = run.live.region.slots[run.slot]
        model = self.settings.models[0]
        mistake = run.error or model.goldens.mistake(slot, run.golden)
        answered_at_ns = 0 if run.error else run.answered_at_ns
        self._note_golden(run.gpu, 0, 1, run.sent_at_ns, answered_at_ns, mistake)
        if self._endpoints[run.gpu].live is run.live:  # else of a server that was lost meanwhile
            self._feed(m.GoldenDone(run.gpu, not mistake), now_ns)

    def _batch_ended(self, run: _Run, batch: m.RunBatch, now_ns: int) -> None:
        slot = run.live.region.slots[run.slot]
        size = len(run.rows)
        outcome = run.error or "ok"
        if run.error is None and not np.array_equal(slot.echoes[:size], slot.nonces[:size]):
            outcome = "a row was not written, or is another's"
        if batch.batch_id in self._void:
            self._void -= {batch.batch_id, 0}  # 0: nothing was out
            outcome = "its GPU was found faulty while it ran"
        self._note_batch(run, batch, outcome)
        if outcome != "ok":
            self._tell("batch.failed", f"gpu{run.gpu}", outcome)
            self._feed(m.BatchFailed(batch.batch_id, batch.gpu, is_gpu_fault=True), now_ns)
            return
        for row, (member, offer) in enumerate(run.rows):
            self._lines.answer(
                member.key,
                link.Result(
                    offer.part.part,
                    offer.part.generation,
                    int(slot.echoes[row]),
                    float(slot.scores[row]),
                    batch.gpu,
                    run.live.epoch,
                    batch.batch_id,
                    size,
                    member.queue_ns,
                    member.window_ns,
                    run.dispatched_at_ns,
                    run.sent_at_ns,
                    run.answered_at_ns,
                ),
            )
        self._feed(m.BatchDone(batch.batch_id, batch.gpu), now_ns)

    def _note_batch(self, run: _Run, batch: m.RunBatch, outcome: str) -> None:
        at_ns = (
            min(offer.part.ready_at_ns for _, offer in run.rows),
            run.dispatched_at_ns,
            run.sent_at_ns,
            0 if run.error else run.answered_at_ns,
        )
        self._note(batch.batch_id, run.gpu, batch.category, len(run.rows), at_ns, outcome)

    def _note_golden(
        self, gpu: int, category: int, rows: int, sent_at_ns: int, answered_at_ns: int,
        mistake: str | None,
    ) -> None:  # fmt: skip
        self._goldens_run += 1
        if mistake:  # without an answer the server failed; with one it was wrong
            kind = "golden.wrong" if answered_at_ns else "golden.failed"
            self._tell(kind, f"gpu{gpu}", mistake)
        at_ns = (sent_at_ns, sent_at_ns, sent_at_ns, answered_at_ns)
        outcome = f"golden: {mistake}" if mistake else "golden"
        self._note(-self._goldens_run, gpu, category, rows, at_ns, outcome)

    def _note(
        self, batch_id: int, gpu: int, category: int, size: int,
        at_ns: tuple[int, int, int, int], outcome: str,
    ) -> None:  # fmt: skip
        """One row for what a server did. at_ns: ready, dispatched, sent, answered (0: never)."""
        model = self.settings.models[category]
        self._journal.add(
            "batches",
            {
                "batch_id": batch_id,
                "epoch": self._epoch,
                "gpu": f"gpu{gpu}",
                "model": identity(model.name, model.goldens.facts.sha256),
                "size": size,
                "worst_ns": self.settings.plan.categories[category].wcet_ns[size - 1],
                "queue_at_ns": at_ns[0],
                "dispatched_at_ns": at_ns[1],
                "sent_at_ns": at_ns[2],
                "answered_at_ns": at_ns[3],
                "outcome": outcome,
            },
        )

    # --- obeying the scheduler --------------------------------------------------------------

    def _feed(self, event: m.Event, now_ns: int) -> None:
        """Give the scheduler an event and obey it; what obeying brings about comes after."""
        self._events.append((event, now_ns))
        if len(self._events) > 1:
            return
        while self._events:
            told, at_ns = self._events[0]
            for command in self._core.handle(told, at_ns):
                self._obey(command, at_ns)
            self._events.popleft()

    def _obey(self, command: m.Command, now_ns: int) -> None:
        match command:
            case m.RunBatch():
                self._run_batch(command, now_ns)
            case m.RefusePart():
                self._lines.refuse(command.key, command.reason)
            case m.RunGolden():
                self._run_golden(command.gpu, now_ns)
            case m.SuspectGpu():
                why = "fault" if command.is_fault else "overdue"
                self._tell("gpu.suspect", f"gpu{command.gpu}", f"{command.batch_id}: {why}")
                self._endpoints[command.gpu].doubt(command.is_fault)

    def _run_batch(self, batch: m.RunBatch, now_ns: int) -> None:
        live = self._endpoints[batch.gpu].live
        number = live.region.take() if live else None
        if live is None or number is None:
            detail = "server gone" if live is None else "every slot is with the server"
            self._tell("batch.failed", f"gpu{batch.gpu}", detail)
            self._feed(m.BatchFailed(batch.batch_id, batch.gpu, is_gpu_fault=True), now_ns)
            return
        facts = self.settings.models[batch.category].goldens.facts
        slot = live.region.slots[number]
        pictures = slot.pictures(len(batch.parts), facts.picture_bytes)
        rows: list[tuple[m.BatchPart, Offer]] = []
        for member in batch.parts:
            offer = self._lines.offer(member.key)
            if offer is None:
                continue
            if self._lines.copy_picture(offer, pictures[len(rows)]):
                slot.nonces[len(rows)] = offer.part.nonce
                rows.append((member, offer))
            else:
                self._lines.refuse(member.key, "torn")
        if not rows:
            live.region.release(number)
            self._feed(m.BatchDone(batch.batch_id, batch.gpu), now_ns)
            return
        slot.poison(len(rows))
        run = _Run(batch, batch.gpu, live, number, 0, now_ns, rows, [])
        self._infer(run, self.settings.models[batch.category], len(rows))

    def _run_golden(self, gpu: int, now_ns: int) -> None:
        live = self._endpoints[gpu].live
        number = live.region.take() if live else None
        if live is None or number is None:
            self._feed(m.GoldenDone(gpu, ok=False), now_ns)
            return
        model = self.settings.models[0]
        chosen = model.goldens.fill(live.region.slots[number], 1)
        self._infer(_Run(None, gpu, live, number, 0, now_ns, [], chosen), model, 1)

    def _infer(self, run: _Run, model: ServedModel, rows: int) -> None:
        def on_answer(error: str | None) -> None:
            run.answered_at_ns = time.monotonic_ns()
            run.error = error
            self._answers.append(run)
            self._signal.ring()

        run.sent_at_ns = time.monotonic_ns()
        run.live.client.infer(
            model.name, run.live.region, run.slot, rows, model.goldens.facts.shape, on_answer
        )

    def _tell(self, kind: str, subject: str, detail: str) -> None:
        self._journal.event(time.monotonic_ns(), kind, subject, detail[:500])
