"""The batcher process: the real-time driver of the pure scheduler, and the pool it orders.

Events come from lines, endpoints and the timer; each goes through `_feed`, which writes the event
journal, obeys the commands and arms the timer. Keys, never pixels, cross the sockets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zmq

from appliance.event_journal import EventJournal
from appliance.triton.endpoint import Endpoint, Live, Lost, News, Ready, ServedModel, Watched
from deadline_batcher import link
from deadline_batcher import messages as m
from deadline_batcher.plan import Plan
from deadline_batcher.shm import Segment, SharedMemoryError
from deadline_batcher.timer import Signal, Timer
from fallback.session import identity
from lines.journal_link import JournalSender
from lines.slots import SlotReader, slot_stride

POLL_MS = 50
BEAT_EVERY_NS = 250_000_000
WHO_EVERY_NS = 100_000_000
JOURNAL_ROWS_MAX = 20_000
MESSAGES_PER_TURN = 256
LINK_HIGH_WATER = 4096


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    """What the batcher is told. `lines` and `models` are in the plan's order."""

    plan: Plan
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
class _Line:
    """A line that said hello. `keys`: its number of a part → the scheduler's key."""

    number: int
    category: int
    reader: SlotReader
    keys: dict[int, m.PartKey] = field(default_factory=dict)


@dataclass(slots=True)
class _Offer:
    line_id: str
    part: link.Part


@dataclass(slots=True)
class _Run:
    """A batch (or golden, `batch` None) that is with a server."""

    batch: m.RunBatch | None
    gpu: int
    live: Live
    slot: int
    sent_at_ns: int
    dispatched_at_ns: int
    rows: list[tuple[m.BatchPart, _Offer]]
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
        self._lines: dict[str, _Line] = {}
        self._offers: dict[m.PartKey, _Offer] = {}
        self._next_key = 1
        self._asked_at_ns: dict[str, int] = {}
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
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.ROUTER_MANDATORY, 1)
        # Within the service's own folder a line that started anew takes its address over.
        self._socket.set(zmq.ROUTER_HANDOVER, 1)
        self._socket.set(zmq.SNDHWM, LINK_HIGH_WATER)
        self._socket.set(zmq.RCVHWM, LINK_HIGH_WATER)
        self._socket.bind(settings.link_endpoint)

    # --- the loop ---------------------------------------------------------------------------

    def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._journal.socket, zmq.POLLIN)
        poller.register(self._timer.fileno(), zmq.POLLIN)
        poller.register(self._signal.fileno(), zmq.POLLIN)
        for endpoint in self._endpoints:
            endpoint.start()
        on_ready()
        beat_at_ns = 0
        while not self._is_stopping:
            poller.poll(POLL_MS)
            now_ns = time.monotonic_ns()
            fired_at_ns = self._timer.read(now_ns)
            if fired_at_ns is not None:
                self._feed(m.TimeReached(), max(fired_at_ns, now_ns))
            self._signal.clear()
            self._take_answers()
            self._take_news()
            has_more = self._take_messages()
            self._journal.on_readable()
            now_ns = time.monotonic_ns()
            if now_ns >= beat_at_ns:
                beat_at_ns = now_ns + BEAT_EVERY_NS
                self._beat()
                self._core.flush()
            self._journal.flush(now_ns)
            wakeups = [
                beat_at_ns,
                self._core.wakeup_at_ns(),
                self._journal.flush_due_at_ns(),
                now_ns if has_more else None,
            ]
            self._timer.arm(min(at for at in wakeups if at is not None))
        self._finish()

    def stop(self) -> None:
        """Leave the loop after the turn in progress. Safe in a signal handler."""
        self._is_stopping = True
        self._signal.ring()

    def _finish(self) -> None:
        self._take_answers()
        for endpoint in self._endpoints:
            endpoint.stop()
        self._core.close()
        self._journal.close()
        self._context.destroy(linger=0)

    # --- lines ------------------------------------------------------------------------------

    def _take_messages(self) -> bool:
        for _ in range(MESSAGES_PER_TURN):
            try:
                address, raw = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return False
            except ValueError:
                continue  # not two frames: none of ours
            line_id = address.decode("utf-8", "replace")
            try:
                message = link.unpack(raw)
            except link.LinkError as error:
                self._tell("link.garbled", line_id, str(error))
                continue
            self._on_message(line_id, message, time.monotonic_ns())
        return True

    def _on_message(self, line_id: str, message: link.Message | link.Hello, now_ns: int) -> None:
        if isinstance(message, link.Hello):
            self._hello(line_id, message, now_ns)
            return
        line = self._lines.get(line_id)
        if line is None:
            if now_ns >= self._asked_at_ns.get(line_id, 0):
                self._asked_at_ns[line_id] = now_ns + WHO_EVERY_NS
                self._send(line_id, link.pack(link.Who(self._epoch)))
            return
        if isinstance(message, link.Part):
            if message.part in line.keys:
                return
            key = m.PartKey(line.number, self._next_key)
            self._next_key += 1
            line.keys[message.part] = key
            self._offers[key] = _Offer(line_id, message)
            ready_at_ns = min(message.ready_at_ns, now_ns)
            event = m.PartReady(key, line.category, ready_at_ns, message.pool_due_at_ns)
            self._feed(event, now_ns)
        elif isinstance(message, link.PoolDue) and message.part in line.keys:
            self._feed(m.PoolDueMoved(line.keys[message.part], message.pool_due_at_ns), now_ns)
        elif isinstance(message, link.Withdrawn) and message.part in line.keys:
            key = line.keys.pop(message.part)
            self._offers.pop(key, None)
            self._feed(m.PartWithdrawn(key), now_ns)

    def _hello(self, line_id: str, hello: link.Hello, now_ns: int) -> None:
        names = [model.name for model in self.settings.models]
        if line_id not in self.settings.lines or hello.model not in names:
            self._tell("link.unknown", line_id, f"model {hello.model}: not in the plant file")
            return
        try:
            size = hello.slot_count * slot_stride(hello.slot_bytes)
            segment = Segment.attach(hello.segment, size)
        except SharedMemoryError as error:
            self._tell("link.unknown", line_id, str(error))
            return
        former = self._lines.get(line_id)
        if former is not None:
            for key in former.keys.values():
                self._offers.pop(key, None)
                self._feed(m.PartWithdrawn(key), now_ns)
        reader = SlotReader(segment, hello.slot_count, hello.slot_bytes)
        number = self.settings.lines.index(line_id)
        self._lines[line_id] = _Line(number, names.index(hello.model), reader)
        self._tell("line.connected", line_id, hello.segment)

    def _send(self, line_id: str, raw: bytes) -> None:
        try:
            self._socket.send_multipart([line_id.encode(), raw], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # the line is away: its guard answers the part itself
            self._tell("link.unreachable", line_id, error.strerror or "")
            self._lines.pop(line_id, None)

    def _beat(self) -> None:
        ready = sum(state == "READY" for state in self._core.snapshot().gpu_states)
        beat = link.pack(link.BatcherBeat(self._epoch, ready))
        for line_id in list(self._lines):
            self._send(line_id, beat)

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
                "inference_count": counters.inference_count,
                "execution_count": counters.execution_count,
                "queue_ns": counters.queue_ns,
                "compute_input_ns": counters.compute_input_ns,
                "compute_infer_ns": counters.compute_infer_ns,
                "compute_output_ns": counters.compute_output_ns,
                "success_ns": counters.success_ns,
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
        mistake = run.error or self.settings.models[0].goldens.mistake(slot, run.golden)
        if mistake:
            self._tell("golden.wrong", f"gpu{run.gpu}", mistake)
        self._feed(m.GoldenDone(run.gpu, not mistake), now_ns)

    def _batch_ended(self, run: _Run, batch: m.RunBatch, now_ns: int) -> None:
        slot = run.live.region.slots[run.slot]
        size = len(run.rows)
        outcome = run.error or "ok"
        if run.error is None and not np.array_equal(slot.echoes[:size], slot.nonces[:size]):
            outcome = "a row was not written, or is another's"
        self._note_batch(run, batch, outcome)
        if outcome != "ok":
            self._tell("batch.failed", f"gpu{run.gpu}", outcome)
            self._feed(m.BatchFailed(batch.batch_id, batch.gpu, is_gpu_fault=True), now_ns)
            return
        for row, (member, offer) in enumerate(run.rows):
            line = self._lines.get(offer.line_id)
            if line is None or self._offers.pop(member.key, None) is None:
                continue  # withdrawn, or answered by another run
            line.keys.pop(offer.part.part, None)
            self._send(
                offer.line_id,
                link.pack(
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
                    )
                ),
            )
        self._feed(m.BatchDone(batch.batch_id, batch.gpu), now_ns)

    def _note_batch(self, run: _Run, batch: m.RunBatch, outcome: str) -> None:
        model = self.settings.models[batch.category]
        self._journal.add(
            "batches",
            {
                "batch_id": batch.batch_id,
                "epoch": self._epoch,
                "gpu": f"gpu{batch.gpu}",
                "model": identity(model.name, model.goldens.facts.sha256),
                "size": len(run.rows),
                "worst_ns": self.settings.plan.categories[batch.category].wcet_ns[
                    len(run.rows) - 1
                ],
                "queue_at_ns": min(offer.part.ready_at_ns for _, offer in run.rows),
                "dispatched_at_ns": run.dispatched_at_ns,
                "sent_at_ns": run.sent_at_ns,
                "answered_at_ns": 0 if run.error else run.answered_at_ns,
                "outcome": outcome,
            },
        )

    # --- obeying the scheduler --------------------------------------------------------------

    def _feed(self, event: m.Event, now_ns: int) -> None:
        commands: Sequence[m.Command] = self._core.handle(event, now_ns)
        for command in commands:
            match command:
                case m.RunBatch():
                    self._run_batch(command, now_ns)
                case m.RefusePart():
                    self._refuse(command.key, command.reason)
                case m.RunGolden():
                    self._run_golden(command.gpu, now_ns)
                case m.SuspectGpu():
                    self._tell("gpu.suspect", f"gpu{command.gpu}", f"batch {command.batch_id}")
                    self._endpoints[command.gpu].doubt()

    def _refuse(self, key: m.PartKey, reason: str) -> None:
        offer = self._offers.pop(key, None)
        line = self._lines.get(offer.line_id) if offer else None
        if offer is None or line is None:
            return
        line.keys.pop(offer.part.part, None)
        code = link.REFUSALS.index(reason)
        self._send(offer.line_id, link.pack(link.Refused(offer.part.part, code)))

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
        rows: list[tuple[m.BatchPart, _Offer]] = []
        for member in batch.parts:
            offer = self._offers.get(member.key)
            line = self._lines.get(offer.line_id) if offer else None
            if offer is None or line is None:
                continue
            part = offer.part
            if line.reader.copy(part.slot, part.generation, part.nonce, pictures[len(rows)]):
                slot.nonces[len(rows)] = part.nonce
                rows.append((member, offer))
            else:
                self._refuse(member.key, "torn")
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
