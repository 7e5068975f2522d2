"""Verdicts out: one actuator a line, heartbeats both ways, the last verdicts kept for a resend."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import zmq

from lines import wire

BEAT_EVERY_NS = 100_000_000
BEAT_LOST_NS = 300_000_000
RESEND_MAX = 256
RESEND_AT_ONCE = 8
RESEND_EVERY_NS = 5_000_000
"""A resend goes out in portions, so that the socket always has room for a fresh verdict."""
UNACKED_MAX = 4096
UNACKED_NS = 1_000_000_000

Tell = Callable[[str, str, str], None]
"""An event for the journal: kind, subject, detail."""


@dataclass(slots=True)
class _Actuator:
    routing_id: bytes
    name: str
    beat_at_ns: int
    beat: bool | None = None
    is_lost: bool = False


class VerdictOutput:
    """The line's verdict socket, seen from the loop. `is_allowed` judges a User-Id's key."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        line_id: str,
        name_of: Callable[[str], str | None],
        tell: Tell,
    ) -> None:
        self.socket = socket
        self._line_id = line_id
        self._name_of = name_of
        self._tell = tell
        self._actuator: _Actuator | None = None
        self._kept: deque[dict[str, Any]] = deque(maxlen=RESEND_MAX)
        self._unacked: dict[tuple[str, int], int] = {}
        self._resending: deque[dict[str, Any]] = deque()
        self._next_resend_at_ns = 0
        self._next_beat_at_ns = 0
        self._unacked_told_at_ns = 0
        self._beat = False

    @property
    def is_healthy(self) -> bool:
        """Whether an actuator is connected and its beat toggles."""
        return self._actuator is not None and not self._actuator.is_lost

    def send(self, fields: dict[str, Any]) -> bool:
        """Send one verdict; False if no actuator took it (the journal has it all the same)."""
        self._kept.append(fields)
        if self._actuator is None:
            return False
        if not self._send(wire.verdict(**fields)):
            return False
        self._unacked[fields["session"], fields["seq"]] = fields["sent_ns"]
        if len(self._unacked) > UNACKED_MAX:
            self._unacked.pop(next(iter(self._unacked)))
            self._tell("limit.unacked", self._line_id, f"{UNACKED_MAX} verdicts without ack")
        return True

    def on_readable(self, now_ns: int) -> None:
        """Take everything the socket holds."""
        while True:
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._on_message(frames, now_ns)

    def beat(self, now_ns: int) -> int:
        """Send what is due: heartbeat, resends; notice a silent actuator. The next instant."""
        self._send_again(now_ns)
        next_at_ns = self._beat_if_due(now_ns)
        return min(next_at_ns, self._next_resend_at_ns) if self._resending else next_at_ns

    def settle(self, wait_ms: int = 200) -> None:
        """Before an end: wait for the acks of what was sent, so that it does leave the socket."""
        end_ns = time.monotonic_ns() + wait_ms * 1_000_000
        while self._unacked and self.is_healthy and time.monotonic_ns() < end_ns:
            self.socket.poll(10)
            self.on_readable(time.monotonic_ns())

    @property
    def unacked_count(self) -> int:
        """Verdicts sent that the actuator has not acknowledged."""
        return len(self._unacked)

    # --- inside -----------------------------------------------------------------------------

    def _beat_if_due(self, now_ns: int) -> int:
        if now_ns < self._next_beat_at_ns:
            return self._next_beat_at_ns
        self._next_beat_at_ns = now_ns + BEAT_EVERY_NS
        self._beat = not self._beat
        self._tell_unacked(now_ns)
        actuator = self._actuator
        if actuator is not None:
            self._send(wire.heartbeat(beat=self._beat))
            is_lost = now_ns - actuator.beat_at_ns > BEAT_LOST_NS
            if is_lost and not actuator.is_lost:
                self._tell("actuator.silent", actuator.name, "no toggle for 300 ms")
            actuator.is_lost = is_lost
        return self._next_beat_at_ns

    def _tell_unacked(self, now_ns: int) -> None:
        """A verdict that nobody acknowledged may not have reached the gate: told once a second."""
        oldest_ns = next(iter(self._unacked.values()), now_ns)
        is_old = now_ns - oldest_ns >= UNACKED_NS
        if is_old and now_ns - self._unacked_told_at_ns >= UNACKED_NS:
            self._unacked_told_at_ns = now_ns
            detail = (
                f"{len(self._unacked)} verdicts, the oldest for {(now_ns - oldest_ns) / 1e9:.1f} s"
            )
            self._tell("verdict.unacked", self._line_id, detail)

    def _on_message(self, frames: list[zmq.Frame], now_ns: int) -> None:
        routing_id = bytes(frames[0].buffer)
        name = self._name_of(str(frames[-1].get("User-Id")))
        if name is None:
            self._tell("actuator.denied", self._line_id, "its key is no longer allowed")
            return
        try:
            message = wire.parse_actuator([frame.buffer for frame in frames[1:]])
        except wire.WireError as error:
            self._answer(routing_id, wire.reject(None, error.reason, error.detail))
            return
        if isinstance(message, wire.ActuatorHello):
            self._hello(routing_id, name, message, now_ns)
            return
        actuator = self._actuator
        if actuator is None or actuator.routing_id != routing_id:
            self._answer(routing_id, wire.reject(None, "session", "send hello first"))
        elif isinstance(message, wire.Ack):
            self._unacked.pop((message.session, message.seq), None)
        elif isinstance(message, wire.Resend):
            self._resend(message)
        elif actuator.beat != message.beat:
            actuator.beat, actuator.beat_at_ns = message.beat, now_ns

    def _hello(
        self, routing_id: bytes, name: str, message: wire.ActuatorHello, now_ns: int
    ) -> None:
        if message.line != self._line_id:
            self._answer(routing_id, wire.reject(None, "line", f"this is {self._line_id}"))
            return
        present = self._actuator
        if message.actuator != name:
            detail = f"key {name} is not actuator {message.actuator}"
            self._answer(routing_id, wire.reject(None, "session", detail))
            return
        if present is not None and present.name != name and not present.is_lost:
            detail = f"actuator {present.name} is connected"
            self._answer(routing_id, wire.reject(None, "session", detail))
            return
        self._actuator = _Actuator(routing_id, name, now_ns)
        self._resending.clear()
        self._send(wire.ready(self._line_id))
        self._tell("actuator.connected", name, "")

    def _resend(self, message: wire.Resend) -> None:
        kept = list(self._kept)
        wanted = (message.session, message.seq)
        first = next(
            (k for k, fields in enumerate(kept) if (fields["session"], fields["seq"]) == wanted),
            None,
        )
        if first is None:  # the first one wanted is no longer kept: all later ones of its session
            first = next(
                (
                    k
                    for k, fields in enumerate(kept)
                    if fields["session"] == message.session and fields["seq"] >= message.seq
                ),
                len(kept),
            )
        self._resending = deque(kept[first:])

    def _send_again(self, now_ns: int) -> None:
        if not self._resending or now_ns < self._next_resend_at_ns:
            return
        self._next_resend_at_ns = now_ns + RESEND_EVERY_NS
        for _ in range(min(RESEND_AT_ONCE, len(self._resending))):
            if not self._send(wire.verdict(**{**self._resending.popleft(), "resent": True})):
                self._resending.clear()  # it left or does not read; it may ask again
                return

    def _send(self, frames: list[bytes]) -> bool:
        return self._actuator is not None and self._answer(self._actuator.routing_id, frames)

    def _answer(self, routing_id: bytes, frames: list[bytes]) -> bool:
        try:
            self.socket.send_multipart([routing_id, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # EHOSTUNREACH: it left; EAGAIN: it does not read
            if self._actuator is not None and self._actuator.routing_id == routing_id:
                self._tell("actuator.unreachable", self._actuator.name, error.strerror or "")
                if error.errno == zmq.EHOSTUNREACH:
                    self._actuator = None
            return False
        return True
