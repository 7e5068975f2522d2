"""The batcher process: the real-time driver of the pure scheduler, and the pool it orders.

Events come from lines, endpoints and the timer; each goes through `_feed`, which writes the event
journal, obeys the commands and arms the timer. Keys, never pixels, cross the sockets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq

from appliance.batcher_settings import BatcherSettings
from appliance.event_journal import EventJournal
from appliance.line_admission import LineAdmission
from appliance.line_links import LineLinks, Offer
from appliance.pool_records import PoolRecords
from appliance.rescore_link import Answer, Job, RescoreLink
from appliance.triton.endpoint import Endpoint
from appliance.triton.faults import Failure, Kind
from appliance.triton.golden_turns import GoldenTurns
from appliance.triton.goldens import not_a_score, unwritten_rows
from appliance.triton.news import Live, Lost, News, Noted, Proved, Ready, ServedModel, Watched
from deadline_batcher import link
from deadline_batcher import messages as m
from deadline_batcher.overrun import DRAIN_WITHIN_NS
from deadline_batcher.timer import Signal, Timer
from lines.journal_link import JournalSender

POLL_MS = 50
BEAT_EVERY_NS = 250_000_000
LATENESS_EVERY_NS = 10_000_000_000
JOURNAL_ROWS_MAX = 20_000
MESSAGES_PER_TURN = 256


@dataclass(slots=True)
class _Run:
    """A batch (or golden, `batch` None) that is with a server; `failure` once it ended in one."""

    batch: m.RunBatch | None
    gpu: int
    category: int
    live: Live
    slot: int
    sent_at_ns: int
    dispatched_at_ns: int
    rows: list[tuple[m.BatchPart, Offer]]
    golden: list[int]
    failure: Failure | None = None
    ended_at_ns: int = 0
    is_answered: bool = False

    @property
    def answer_at_ns(self) -> int:
        """When the server answered, right or wrong; 0 if it did not."""
        return self.ended_at_ns if self.is_answered else 0


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
        self._turns = [
            GoldenTurns([model.batch_max for model in settings.models]) for _ in settings.servers
        ]
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
        pool = (settings.plant_tag, settings.models, self._news, self._signal, settings.patience)
        self._endpoints = [
            Endpoint(gpu, server, *pool) for gpu, server in enumerate(settings.servers)
        ]
        self._records = PoolRecords(
            self._journal,
            self._epoch,
            settings.models,
            settings.plan,
            [server.url for server in settings.servers],
        )
        again = settings.rescore
        self._rescore = RescoreLink(
            self._context, again.endpoint, again.permille, again.band, self._disagreed
        )
        self._lines = LineLinks(
            self._context,
            settings.link_endpoint,
            settings.lines,
            [model.name for model in settings.models],
            len(settings.servers),
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
        poller.register(self._rescore.socket, zmq.POLLIN)
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
                self._take_doubt(event)
                self._feed(event, time.monotonic_ns())
            self._journal.on_readable()
            self._rescore.on_readable()
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
        self._rescore.close()
        self._context.destroy(linger=0)
        Path(self.settings.link_endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def _tell_lateness(self) -> None:
        detail = self._timer.take_lateness()
        if detail:
            self._tell("timer.lateness", "batcher", detail)
        tally = self._rescore.take_tally()
        if tally:
            kind = "rescore.tally" if "dropped=0" in tally else "limit.rescore"
            self._tell(kind, "batcher", tally)

    # --- endpoints --------------------------------------------------------------------------

    def _take_news(self) -> None:
        while self._news:
            news = self._news.popleft()
            now_ns = time.monotonic_ns()
            subject = f"gpu{news.gpu}"
            match news:
                case Ready() if news.readmissions < self._endpoints[news.gpu].readmissions:
                    pass  # drained since: this proof is not the one that brings it back
                case Ready():
                    self._tell("gpu.ready", subject, f"epoch {news.epoch}: {news.detail}")
                    self._feed(m.GpuReady(news.gpu), now_ns)
                case Lost():
                    self._tell("gpu.lost", subject, f"epoch {news.epoch}: {news.detail}")
                    self._feed(m.GpuLost(news.gpu), now_ns)
                case Noted():
                    self._tell(news.kind, subject, news.detail)
                case Proved():
                    self._records.proved(news)
                case Watched():
                    self._records.watched(news, now_ns)
                    turn = self._turns[news.gpu].next()
                    self._feed(m.GoldenWanted(news.gpu, *turn), now_ns)

    def _take_answers(self) -> None:
        while self._answers:
            run = self._answers.popleft()
            now_ns = time.monotonic_ns()
            run.is_answered = run.failure is None
            run.failure = run.failure or self._mistake(run)
            if run.failure is not None:  # the keeper must know before the scheduler's doubt does
                self._endpoints[run.gpu].failed(run.live, run.failure)
            if run.batch is None:
                self._golden_ended(run, now_ns)
            else:
                self._batch_ended(run, run.batch, now_ns)
            run.live.region.settle(run.slot, run.failure)

    def _mistake(self, run: _Run) -> Failure | None:
        """What is wrong with an answer."""
        slot, size = run.live.region.slots[run.slot], len(run.rows)
        if run.batch is None:
            return self.settings.models[run.category].goldens.mistake(slot, run.golden)
        if run.batch.batch_id in self._void:
            self._void -= {run.batch.batch_id, 0}  # 0: nothing was out
            return Failure(Kind.SERVER, "its GPU was found faulty while it ran")
        return unwritten_rows(slot, size) or not_a_score(slot, size)

    def _golden_ended(self, run: _Run, now_ns: int) -> None:
        self._records.golden(
            run.gpu, run.category, len(run.golden), run.sent_at_ns, run.answer_at_ns, run.failure
        )
        if self._endpoints[run.gpu].live is run.live:  # else of a server that was lost meanwhile
            is_ok = run.failure is None or not run.failure.consequence.is_gpu_fault
            self._feed(m.GoldenDone(run.gpu, is_ok), now_ns)

    def _batch_ended(self, run: _Run, batch: m.RunBatch, now_ns: int) -> None:
        slot, size = run.live.region.slots[run.slot], len(run.rows)
        ready_at_ns = min(offer.part.ready_at_ns for _, offer in run.rows)
        times = (ready_at_ns, run.dispatched_at_ns, run.sent_at_ns, run.answer_at_ns)
        self._records.batch(batch, run.rows, times, run.failure)
        if run.failure is not None:
            self._tell("batch.failed", f"gpu{run.gpu}", run.failure.text)
            is_gpu_fault = run.failure.consequence.is_gpu_fault
            self._feed(m.BatchFailed(batch.batch_id, batch.gpu, is_gpu_fault), now_ns)
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
                    run.ended_at_ns,
                ),
            )
        self._feed(m.BatchDone(batch.batch_id, batch.gpu, run.ended_at_ns), now_ns)
        self._ask_again(run, batch)

    def _ask_again(self, run: _Run, batch: m.RunBatch) -> None:
        """Have some of the answered parts scored on the CPU, while the slot is still ours."""
        slot = run.live.region.slots[run.slot]
        picture_bytes = self.settings.models[batch.category].goldens.facts.picture_bytes
        pictures = slot.pictures(len(run.rows), picture_bytes)
        for row, (_, offer) in enumerate(run.rows):
            if self._rescore.is_chosen(offer.part.nonce):
                where = (batch.batch_id, batch.gpu, run.live.epoch, batch.category)
                self._rescore.offer(Job(*where, float(slot.scores[row])), pictures[row])

    def _disagreed(self, answer: Answer) -> None:
        """The CPU says something else about a part: the GPU lies, whatever its goldens say."""
        text = (
            f"batch {answer.batch_id}: score {answer.score:.5f}, the CPU says "
            f"{answer.cpu_score:.5f}"
        )
        self._tell("gpu.disagreed", f"gpu{answer.gpu}", text)
        live = self._endpoints[answer.gpu].live
        if live is not None and live.epoch == answer.epoch:
            self._endpoints[answer.gpu].disagreed(answer.epoch, text)
            doubt = m.GpuDoubted(answer.gpu, is_fault=True)
            self._take_doubt(doubt)
            self._feed(doubt, time.monotonic_ns())

    def _take_doubt(self, event: m.Event) -> None:
        """What is out on a GPU that is found faulty will not be believed."""
        if isinstance(event, m.GpuDoubted) and event.is_fault:
            self._void.add(self._core.snapshot().gpu_batches[event.gpu])

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
                self._run_golden(command, now_ns)
            case m.SuspectGpu():
                why = "fault" if command.is_fault else "overdue"
                self._tell("gpu.suspect", f"gpu{command.gpu}", f"{command.batch_id}: {why}")
                self._endpoints[command.gpu].doubt(command.is_fault)
            case m.Overrun():
                late_ms, times = command.late_ns / 1e6, 1 + command.inflation_permille / 1000
                detail = f"{command.batch_id}: {late_ms:.1f} ms late; counted {times:.3f} times"
                self._tell("gpu.overrun", f"gpu{command.gpu}", detail)
            case m.DrainGpu():
                detail = f"{command.overruns} overruns in {DRAIN_WITHIN_NS / 1e9:g} s"
                self._tell("gpu.drained", f"gpu{command.gpu}", detail)
                self._endpoints[command.gpu].readmit()

    def _run_batch(self, batch: m.RunBatch, now_ns: int) -> None:
        live = self._endpoints[batch.gpu].live
        number = live.region.take() if live else None
        if live is None or number is None:
            detail = "server gone" if live is None else "every slot is with the server"
            self._tell("batch.failed", f"gpu{batch.gpu}", detail)
            self._feed(m.BatchFailed(batch.batch_id, batch.gpu, is_gpu_fault=True), now_ns)
            if live is not None:
                self._endpoints[batch.gpu].failed(live, Failure(Kind.UNANSWERED, detail))
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
        run = _Run(batch, batch.gpu, batch.category, live, number, 0, now_ns, rows, [])
        self._infer(run, self.settings.models[batch.category], len(rows))

    def _run_golden(self, golden: m.RunGolden, now_ns: int) -> None:
        gpu, category, rows = golden
        live = self._endpoints[gpu].live
        number = live.region.take() if live else None
        if live is None or number is None:
            self._feed(m.GoldenDone(gpu, ok=False), now_ns)
            return
        self._turns[gpu].ran(category, rows)
        model = self.settings.models[category]
        chosen = model.goldens.fill(live.region.slots[number], rows)
        self._infer(_Run(None, gpu, category, live, number, 0, now_ns, [], chosen), model, rows)

    def _infer(self, run: _Run, model: ServedModel, rows: int) -> None:
        def on_answer(failure: Failure | None) -> None:
            run.ended_at_ns = time.monotonic_ns()
            run.failure = failure
            self._answers.append(run)
            self._signal.ring()

        run.sent_at_ns = time.monotonic_ns()
        run.live.client.infer(
            model.name, run.live.region, run.slot, rows, model.goldens.facts.shape, on_answer
        )

    def _tell(self, kind: str, subject: str, detail: str) -> None:
        self._journal.event(time.monotonic_ns(), kind, subject, detail[:500])
