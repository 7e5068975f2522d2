"""A plant's outside world in plain pyzmq: cameras and actuators that speak docs/protocol.md.

They build every byte themselves, without `lines.wire`, so that the wire itself is tested.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import crc32c
import cv2
import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

Header = dict[str, Any]


def until(condition: Callable[[], Any], seconds: float = 10.0, what: str = "") -> Any:
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds:g} s: {what or condition}"
        time.sleep(0.01)
    return value


def picture(seed: int = 0, width: int = 160, height: int = 120) -> Any:
    """A grey picture [height, width]."""
    noise = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8), np.uint8)
    return cv2.resize(noise, (width, height), interpolation=cv2.INTER_LINEAR)


def encoded(kind: str, pixels: Any) -> bytes:
    """The picture as `jpeg` or `png`."""
    _, raw = cv2.imencode({"jpeg": ".jpg", "png": ".png"}[kind], pixels)
    return bytes(raw.tobytes())


class Client:
    """A CURVE DEALER as docs/protocol.md wants it; for one thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        server: bytes,
        keys: tuple[bytes, bytes],
    ) -> None:
        self.socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.SNDHWM, 8),
            (zmq.RCVHWM, 8),
            (zmq.IMMEDIATE, 1),
            (zmq.LINGER, 0),
            (zmq.HEARTBEAT_IVL, 250),
            (zmq.HEARTBEAT_TIMEOUT, 1000),
        ):
            self.socket.set(option, value)
        self.socket.curve_serverkey = server
        self.socket.curve_publickey, self.socket.curve_secretkey = keys
        self.monitor = self.socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH
        )
        self.socket.connect(endpoint)

    def is_let_in(self) -> bool:
        """How the handshake ended; waits for it."""
        assert self.monitor.poll(10_000), "no handshake at all"
        return int(recv_monitor_message(self.monitor)["event"]) == zmq.EVENT_HANDSHAKE_SUCCEEDED

    def send(self, *frames: bytes) -> None:
        """Send once the line is there."""
        assert self.socket.poll(10_000, zmq.POLLOUT), "no line takes this"
        self.socket.send_multipart(frames)

    def receive(self, seconds: float = 10.0) -> Header | None:
        """The next message's header, checked to be of version 1 and without more frames."""
        if not self.socket.poll(seconds * 1000):
            return None
        version, header = self.socket.recv_multipart()
        assert version == b"T1"
        return dict(json.loads(header))

    def close(self) -> None:
        """Leave."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.socket.close(0)


class Camera:
    """One camera session. `seq` is that of the next frame."""

    def __init__(self, client: Client, line: str, name: str) -> None:
        self.client, self.line, self.name = client, line, name
        self.session, self.seq = str(uuid.uuid4()), 0

    def tell(self, **header: Any) -> None:
        """Send a message without a payload."""
        self.client.send(b"T1", json.dumps(header).encode())

    def hello(self, **changes: Any) -> Header:
        """Say hello; the answer."""
        fields = {"line": self.line, "camera": self.name, "session": self.session}
        size = {"pixel_format": "Mono8", "width": 640, "height": 480}
        self.tell(**{"type": "hello", **fields, **size, **changes})
        return self.answer()

    def header(self, payload: bytes, **changes: Any) -> Header:
        """A good frame's header, but for the changes."""
        fields: Header = {
            "type": "frame",
            "line": self.line,
            "camera": self.name,
            "session": self.session,
            "seq": self.seq,
            "part_id": f"{self.session[:8]}/{self.seq}",
            "captured_ns": time.monotonic_ns(),
            "clock": "none",
            "encoding": "jpeg",
            "pixel_format": "Mono8",
            "width": 160,
            "height": 120,
            "crc32c": crc32c.crc32c(payload),
        }
        return {**fields, **changes}

    def send(self, header: Header, payload: bytes) -> None:
        """Send a frame and count on."""
        self.client.send(b"T1", json.dumps(header).encode(), payload)
        self.seq += 1

    def answer(self, seconds: float = 10.0) -> Header:
        """What the line says next."""
        header = self.client.receive(seconds)
        assert header is not None, "the line does not answer"
        return header


class _Threaded:
    """A client on a thread of its own; `changed` is notified whenever something came."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.changed = threading.Condition()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._trouble: BaseException | None = None

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._trouble = error

    def _run(self) -> None:
        raise NotImplementedError

    def wait(self, condition: Callable[[], Any], seconds: float = 10.0, what: str = "") -> Any:
        """The first true value of `condition`, looked at whenever something came."""
        with self.changed:
            value = self.changed.wait_for(condition, seconds)
        assert value, f"not within {seconds:g} s: {what or condition}"
        return value

    def close(self) -> None:
        """Leave; says what went wrong on the thread."""
        self._ending.set()
        self._thread.join(10)
        self.client.close()
        assert self._trouble is None, repr(self._trouble)


class Actuator(_Threaded):
    """Acknowledges verdicts and beats every 100 ms, if these are its habits."""

    def __init__(
        self, client: Client, line: str, name: str, *, acks: bool = True, beats: bool = True
    ) -> None:
        super().__init__(client)
        self.line, self.name, self.acks, self.beats = line, name, acks, beats
        self.verdicts: list[Header] = []  # as they came, with `received_at_ns`
        self.heard: list[tuple[int, bool]] = []
        self.answers: list[Header] = []  # ready and reject
        self._outbox: SimpleQueue[Header] = SimpleQueue()
        self.tell(type="hello", line=line, actuator=name)
        self._thread.start()
        self.wait(lambda: self.answers, what="ready")

    def tell(self, **header: Any) -> None:
        """Have the thread send a message."""
        self._outbox.put(header)

    def of(self, part_id: str) -> list[Header]:
        """The verdicts on a part."""
        return [verdict for verdict in list(self.verdicts) if verdict["part_id"] == part_id]

    def one(self, part_id: str) -> Header:
        """The verdict on a part; waits for it."""
        self.wait(lambda: self.of(part_id), what=f"verdict on {part_id}")
        (verdict,) = self.of(part_id)
        return verdict

    def _say(self, **header: Any) -> None:
        self.client.send(b"T1", json.dumps(header).encode())

    def _run(self) -> None:
        beat, beat_at = False, time.monotonic()
        while not self._ending.is_set():
            while not self._outbox.empty():
                self._say(**self._outbox.get())
            if self.beats and time.monotonic() >= beat_at:
                beat, beat_at = not beat, time.monotonic() + 0.1
                with contextlib.suppress(zmq.Again):
                    raw = json.dumps({"type": "heartbeat", "beat": beat}).encode()
                    self.client.socket.send_multipart([b"T1", raw], zmq.NOBLOCK)
            header = self.client.receive(0.01)
            if header is None:
                continue
            with self.changed:
                self._take(header, time.monotonic_ns())
                self.changed.notify_all()

    def _take(self, header: Header, now_ns: int) -> None:
        if header["type"] == "heartbeat":
            self.heard.append((now_ns, header["beat"]))
        elif header["type"] == "verdict":
            self.verdicts.append({**header, "received_at_ns": now_ns})
            if self.acks:
                known = {name: header[name] for name in ("line", "session", "seq")}
                self._say(type="ack", **known)
        else:
            self.answers.append(header)


class Load(_Threaded):
    """Good pictures on an open-loop schedule; says hello again when the line asks for it."""

    def __init__(self, camera: Camera, rate: float) -> None:
        super().__init__(camera.client)
        self.camera, self.rate = camera, rate
        self.sent: dict[tuple[str, int], str] = {}  # (session, seq) → part_id
        self.acked: set[tuple[str, int]] = set()
        self.rejects: list[Header] = []
        self._jpeg = encoded("jpeg", picture(7))
        self._thread.start()

    def _run(self) -> None:
        camera, socket_ = self.camera, self.client.socket
        self._hello()
        due = time.monotonic()
        while not self._ending.is_set():
            wait = due - time.monotonic()
            header = self.client.receive(max(0.0, min(wait, 0.05)))
            if header is not None:
                self._take(header)
            if time.monotonic() < due:
                continue
            due += 1 / self.rate
            frame = camera.header(self._jpeg)
            raw = [b"T1", json.dumps(frame).encode(), self._jpeg]
            with contextlib.suppress(zmq.Again):
                socket_.send_multipart(raw, zmq.NOBLOCK)
                self.sent[frame["session"], frame["seq"]] = frame["part_id"]
            camera.seq += 1

    def _hello(self) -> None:
        self.camera.session, self.camera.seq = str(uuid.uuid4()), 0
        fields = {"line": self.camera.line, "camera": self.camera.name}
        size = {"pixel_format": "Mono8", "width": 160, "height": 120}
        self.camera.tell(type="hello", session=self.camera.session, **fields, **size)

    def _take(self, header: Header) -> None:
        with self.changed:
            if header["type"] == "ack":
                self.acked.add((header["session"], header["seq"]))
            elif header["type"] == "reject":
                self.rejects.append(header)
                if header["session"] == self.camera.session and header["reason"] == "session":
                    self._hello()
            self.changed.notify_all()

    def grown(self, parts: int, seconds: float = 20.0) -> None:
        """Wait until so many more parts are accepted."""
        goal = len(self.acked) + parts
        self.wait(lambda: len(self.acked) >= goal, seconds, f"{parts} more parts accepted")
