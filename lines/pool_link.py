"""The line's end of the link to the batcher. Never blocks; a batcher away is a refusal."""

from __future__ import annotations

import zmq

from deadline_batcher import link
from deadline_batcher.link import Hello, LineBeat, Message, OfferedLoad

BEAT_EVERY_NS = 250_000_000
HIGH_WATER_MESSAGES = 256


class PoolLink:
    """Sends parts, receives answers. The line's id is its address at the batcher."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, hello: Hello
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.ROUTING_ID, hello.line.encode())
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.SNDHWM, HIGH_WATER_MESSAGES)
        self.socket.set(zmq.RCVHWM, HIGH_WATER_MESSAGES)
        self.socket.set(zmq.IMMEDIATE, 1)
        self.socket.set(zmq.RECONNECT_IVL, 20)
        self.socket.set(zmq.RECONNECT_IVL_MAX, 500)
        self.socket.connect(endpoint)
        self._hello = link.pack_hello(hello)
        self._owes_hello = False
        self._beat_at_ns = 0

    def say_hello(self) -> None:
        """Introduce the line and its slots: the first thing that leaves, once anything can."""
        # A batcher that still knows the line's former self would look in its slots for our parts.
        self._owes_hello = True
        self._greet()

    def _greet(self) -> None:
        try:
            self.socket.send(self._hello, zmq.NOBLOCK)
        except zmq.Again:
            return
        self._owes_hello = False

    def tell(self, message: Message) -> bool:
        """Send one message; False if the batcher is away or full."""
        return self._send(link.pack(message))

    def beat(self, now_ns: int, parts: int, route: int) -> int:
        """Send a beat and the line's load if one is due; returns when the next one is."""
        if now_ns >= self._beat_at_ns:
            self._beat_at_ns = now_ns + BEAT_EVERY_NS
            self._send(link.pack(LineBeat(now_ns)))
            self._send(link.pack(OfferedLoad(now_ns, parts, route)))
        return self._beat_at_ns

    def received(self) -> list[Message | Hello]:
        """What has come, without waiting. Raises LinkError for a message that is none of ours."""
        messages: list[Message | Hello] = []
        while True:
            try:
                raw = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            messages.append(link.unpack(raw))

    def _send(self, raw: bytes) -> bool:
        if self._owes_hello:
            self._greet()
        if self._owes_hello:
            return False
        try:
            self.socket.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True
