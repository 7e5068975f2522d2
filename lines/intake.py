"""The camera side of a line's loop: messages in, admission, answers out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import zmq

from lines import wire
from lines.admission import Admission, Refusal

Tell = Callable[[str, str, str], None]
LOST_PER_TURN = 8


class FrameSink(Protocol):
    """What the line does with what admission let in or refused."""

    @property
    def room(self) -> int: ...

    def accept(
        self, routing_id: bytes, frame: wire.Frame, payload: Any, arrived_at_ns: int
    ) -> None: ...

    def refuse_owed(
        self, routing_id: bytes, frame: wire.Frame, refusal: Refusal, arrived_at_ns: int
    ) -> None: ...

    def lose(self, session: str, seq: int, noticed_at_ns: int) -> None: ...

    def new_session(self) -> None: ...


class Intake:
    """Reads the frames socket."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        line_id: str,
        deadline_ms: float,
        admission: Admission,
        name_of: Callable[[str], str | None],
        sink: FrameSink,
        tell: Tell,
    ) -> None:
        self.socket = socket
        self._line_id = line_id
        self._deadline_ms = deadline_ms
        self._admission = admission
        self._name_of = name_of
        self._sink = sink
        self._lost_frames: deque[tuple[str, int, int]] = deque()
        self._tell = tell

    def on_readable(self, clock_ns: Callable[[], int], messages_max: int) -> None:
        """Take at most `messages_max` messages: the loop's other duties come round in between."""
        for _ in range(messages_max):
            try:
                frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._on_message(frames, clock_ns())

    def answer(self, routing_id: bytes, frames: list[bytes]) -> None:
        """Send to a camera; one that has left is an event, not an error."""
        try:
            self.socket.send_multipart([routing_id, *frames], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            self._tell("camera.unreachable", self._line_id, error.strerror or "")

    # --- inside -----------------------------------------------------------------------------

    def _on_message(self, frames: list[zmq.Frame], now_ns: int) -> None:
        routing_id = bytes(frames[0].buffer)
        key_name = self._name_of(str(frames[-1].get("User-Id")))
        if key_name is None:
            detail = "its key is no longer allowed"
            self._tell("camera.denied", self._line_id, detail)
            # Unsaid, its frames would hold its credit for ever, also once the key is back.
            self.answer(routing_id, wire.reject(None, "session", detail))
            return
        try:
            message = wire.parse_camera([frame.buffer for frame in frames[1:]])
        except wire.WireError as error:
            self._tell("reject", error.reason, error.detail)
            answer = wire.reject(error.seq, error.reason, error.detail, error.session)
            self.answer(routing_id, answer)
            return
        if isinstance(message, wire.Frame):
            payload = frames[3].buffer if len(frames) > 3 else None
            self._frame(routing_id, key_name, message, payload, now_ns)
        elif isinstance(message, wire.Hello):
            self._hello(routing_id, key_name, message, now_ns)
        elif isinstance(message, wire.Heartbeat):
            self._heartbeat(routing_id, message, now_ns)
        elif self._admission.eos(routing_id, message.session):
            self._tell("camera.eos", key_name, "")

    def _hello(self, routing_id: bytes, key_name: str, hello: wire.Hello, now_ns: int) -> None:
        former = self._admission.session
        # Before admission, which makes whom it does not refuse the line's camera.
        refusal: Refusal | None = None
        if hello.pixel_format not in wire.PIXEL_FORMATS:
            refusal = Refusal("format", f"{hello.pixel_format} is not one of PROTOCOL's")
        else:
            refusal = self._admission.hello(routing_id, key_name, hello, now_ns)
        if refusal is not None:
            self._tell("reject", refusal.reason, refusal.detail)
            answer = wire.reject(None, refusal.reason, refusal.detail, hello.session)
            self.answer(routing_id, answer)
            return
        if former != hello.session:
            self._sink.new_session()
            self._tell("camera.connected", key_name, hello.session)
        ready = wire.ready(self._line_id, self._sink.room, self._deadline_ms)
        self.answer(routing_id, ready)

    def _frame(
        self, routing_id: bytes, key_name: str, frame: wire.Frame, payload: Any, now_ns: int
    ) -> None:
        size = None if payload is None else len(payload)
        has_room = self._sink.room > 0
        admitted = self._admission.frame(routing_id, key_name, frame, size, has_room, now_ns)
        self._lost(frame.session, admitted.lost, admitted.lost_count, now_ns)
        refusal = admitted.refusal
        if refusal is None:
            self._sink.accept(routing_id, frame, payload, now_ns)
            return
        self._tell("reject", refusal.reason, f"seq {frame.seq}: {refusal.detail}")
        answer = wire.reject(frame.seq, refusal.reason, refusal.detail, frame.session)
        self.answer(routing_id, answer)
        if refusal.reason not in wire.NOT_OWED_REASONS:
            self._sink.refuse_owed(routing_id, frame, refusal, now_ns)

    def _heartbeat(self, routing_id: bytes, beat: wire.Heartbeat, now_ns: int) -> None:
        seq = None if beat.seq < 0 else beat.seq
        admitted = self._admission.heartbeat(routing_id, beat.session, seq, now_ns)
        if admitted.refusal is not None:
            reason, detail = admitted.refusal
            self.answer(routing_id, wire.reject(None, reason, detail, beat.session))
            return
        self._lost(beat.session, admitted.lost, admitted.lost_count, now_ns)

    def _lost(self, session: str, named: tuple[int, ...], count: int, now_ns: int) -> None:
        self._lost_frames.extend((session, seq, now_ns) for seq in named)
        if count > len(named):
            detail = f"{count - len(named)} more lost frames than are named one by one"
            self._tell("limit.lost", self._line_id, detail)

    def name_lost(self) -> bool:
        """Say of a few lost frames that they are lost; whether there are more.

        A long gap in one go would hold the loop up, and with it the parts that did come.
        """
        for _ in range(min(LOST_PER_TURN, len(self._lost_frames))):
            self._sink.lose(*self._lost_frames.popleft())
        return bool(self._lost_frames)
