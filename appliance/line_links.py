"""The batcher's side of the link: which lines are there, what they offered, what they are told.

Parts get a key of the batcher's own counting, so that a line that starts anew cannot be given the
answers of its former self.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import zmq

from deadline_batcher import link
from deadline_batcher import messages as m
from deadline_batcher.shm import Segment, SharedMemoryError
from lines.slots import Picture, SlotReader, slot_stride

WHO_EVERY_NS = 100_000_000
HIGH_WATER_MESSAGES = 4096

Tell = Callable[[str, str, str], None]


@dataclass(slots=True)
class _Line:
    """A line that said hello. `keys`: its number of a part → the scheduler's key."""

    number: int
    category: int
    reader: SlotReader
    keys: dict[int, m.PartKey] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offer:
    """A part as its line offered it."""

    line_id: str
    part: link.Part


class LineLinks:
    """The ipc socket and everything known of the lines behind it.

    loads: (a line's number, its parts since its start) as they came. greeted: lines that said
    hello. Both are for the admission to take.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        lines: Sequence[str],
        models: Sequence[str],
        gpus: int,
        epoch: int,
        tell: Tell,
    ) -> None:
        self._line_ids = lines
        self._gpus = gpus
        self._models = models
        self._epoch = epoch
        self._tell = tell
        self._lines: dict[str, _Line] = {}
        self._offers: dict[m.PartKey, Offer] = {}
        self._next_key = 1
        self._ask_at_ns: dict[str, int] = {}
        self.loads: deque[tuple[int, int]] = deque(maxlen=HIGH_WATER_MESSAGES)
        self.greeted: deque[int] = deque(maxlen=HIGH_WATER_MESSAGES)
        self.socket = context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        # Within the service's own folder a line that started anew takes its address over.
        self.socket.set(zmq.ROUTER_HANDOVER, 1)
        self.socket.set(zmq.SNDHWM, HIGH_WATER_MESSAGES)
        self.socket.set(zmq.RCVHWM, HIGH_WATER_MESSAGES)
        self.socket.bind(endpoint)

    # --- in ---------------------------------------------------------------------------------

    def received(self, clock_ns: Callable[[], int], messages_max: int) -> Iterator[m.Event]:
        """The scheduler's events in at most `messages_max` messages."""
        for _ in range(messages_max):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            line_id = frames[0].decode("utf-8", "replace")
            try:
                message = link.unpack(frames[-1])
            except link.LinkError as error:
                self._tell("link.garbled", line_id, str(error))
                continue
            yield from self._events(line_id, message, clock_ns())

    def _events(
        self, line_id: str, message: link.Message | link.Hello, now_ns: int
    ) -> Iterator[m.Event]:
        if isinstance(message, link.Hello):
            yield from self._hello(line_id, message)
            return
        if line_id == link.MONITOR:
            if isinstance(message, link.GpuDoubt) and message.gpu < self._gpus:
                yield m.GpuDoubted(message.gpu, message.is_fault)
            return
        line = self._lines.get(line_id)
        if line is None:
            if now_ns >= self._ask_at_ns.get(line_id, 0):
                self._ask_at_ns[line_id] = now_ns + WHO_EVERY_NS
                self._send(line_id, link.Who(self._epoch))
            return
        if isinstance(message, link.Part):
            if message.part in line.keys:
                return
            key = m.PartKey(line.number, self._next_key)
            self._next_key += 1
            line.keys[message.part] = key
            self._offers[key] = Offer(line_id, message)
            ready_at_ns = min(message.ready_at_ns, now_ns)
            yield m.PartReady(key, line.category, ready_at_ns, message.pool_due_at_ns)
        elif isinstance(message, link.OfferedLoad):
            self.loads.append((line.number, message.parts))
        elif isinstance(message, link.PoolDue) and message.part in line.keys:
            yield m.PoolDueMoved(line.keys[message.part], message.pool_due_at_ns)
        elif isinstance(message, link.Withdrawn) and message.part in line.keys:
            key = line.keys.pop(message.part)
            self._offers.pop(key, None)
            yield m.PartWithdrawn(key)

    def _hello(self, line_id: str, hello: link.Hello) -> Iterator[m.Event]:
        if line_id not in self._line_ids or hello.model not in self._models:
            self._tell("link.unknown", line_id, f"model {hello.model}: not in the plant file")
            return
        try:
            size = hello.slot_count * slot_stride(hello.slot_bytes)
            segment = Segment.attach(hello.segment, size)
        except SharedMemoryError as error:
            self._tell("link.unknown", line_id, str(error))
            return
        former = self._lines.get(line_id)
        self._lines[line_id] = _Line(
            self._line_ids.index(line_id),
            self._models.index(hello.model),
            SlotReader(segment, hello.slot_count, hello.slot_bytes),
        )
        self._tell("line.connected", line_id, hello.segment)
        self.greeted.append(self._lines[line_id].number)
        for key in former.keys.values() if former else ():
            self._offers.pop(key, None)
            yield m.PartWithdrawn(key)

    # --- looking up -------------------------------------------------------------------------

    def offer(self, key: m.PartKey) -> Offer | None:
        """The part as it was offered; None once it was answered, refused or withdrawn."""
        return self._offers.get(key)

    def copy_picture(self, offer: Offer, row: Picture) -> bool:
        """Copy the part's picture out of its line's slot; False if it is not whole and its own."""
        line = self._lines.get(offer.line_id)
        part = offer.part
        return line is not None and line.reader.copy(part.slot, part.generation, part.nonce, row)

    # --- out --------------------------------------------------------------------------------

    def answer(self, key: m.PartKey, result: link.Result) -> None:
        """Give the line the pool's answer, unless the part is over."""
        offer = self._take(key)
        if offer is not None:
            self._send(offer.line_id, result)

    def refuse(self, key: m.PartKey, reason: str) -> None:
        """Tell the line that the pool will not answer; `reason` is one of link.REFUSALS."""
        offer = self._take(key)
        if offer is not None:
            refused = link.Refused(offer.part.part, link.REFUSALS.index(reason))
            self._send(offer.line_id, refused)

    def beat(self, gpus_ready: int) -> None:
        """Tell every line that the batcher lives."""
        for line_id in list(self._lines):
            self._send(line_id, link.BatcherBeat(self._epoch, gpus_ready))

    def admit(self, line: int, carried: link.Carried, gpus_ready: int) -> None:
        """Tell one line, by its number, whether the pool carries it."""
        line_id = self._line_ids[line]
        if line_id in self._lines:
            self._send(line_id, carried)
        if line_id in self._lines:  # the route goes by both
            self._send(line_id, link.BatcherBeat(self._epoch, gpus_ready))

    def _take(self, key: m.PartKey) -> Offer | None:
        offer = self._offers.pop(key, None)
        line = self._lines.get(offer.line_id) if offer is not None else None
        if offer is None or line is None:
            return None
        line.keys.pop(offer.part.part, None)
        return offer

    def _send(self, line_id: str, message: link.Message) -> None:
        try:
            self.socket.send_multipart([line_id.encode(), link.pack(message)], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # the line is away: its guard answers the part itself
            self._tell("link.unreachable", line_id, error.strerror or "")
            self._lines.pop(line_id, None)
