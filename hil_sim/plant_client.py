"""What simulated cameras and actuators share: an encrypted DEALER with its monitor, and a log."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import zmq
import zmq.utils.monitor

from lines.keys import load_public, load_secret

SEND_HWM: Final = 8
RECEIVE_HWM: Final = 64
HEARTBEAT_MS: Final = 250
HEARTBEAT_DEAD_MS: Final = 1000
HANDSHAKE_MS: Final = 2000
RECONNECT_MS: Final = 100
RECONNECT_MAX_MS: Final = 1000
LEAVE_MS: Final = 100
"""How long a last message may take to leave when a socket closes."""

LOOK_AT_LINK: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_LINK_WORDS: Final = {
    int(zmq.EVENT_HANDSHAKE_SUCCEEDED): "up",
    int(zmq.EVENT_DISCONNECTED): "down",
}


class Link:
    """One DEALER to a line. A wrong key looks like silence, so the link's events are watched."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        server_key: Path,
        secret_key: Path,
    ) -> None:
        """Connect. Raises KeyFileError."""
        public, secret = load_secret(secret_key)
        socket = context.socket(zmq.DEALER)
        for option, value in (
            (zmq.SNDHWM, SEND_HWM),
            (zmq.RCVHWM, RECEIVE_HWM),
            (zmq.IMMEDIATE, 1),
            (zmq.LINGER, 0),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_DEAD_MS),
            (zmq.HANDSHAKE_IVL, HANDSHAKE_MS),
            (zmq.RECONNECT_IVL, RECONNECT_MS),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS),
        ):
            socket.set(option, value)
        socket.curve_publickey, socket.curve_secretkey = public, secret
        socket.curve_serverkey = load_public(server_key)
        self.socket = socket
        self.monitor = socket.get_monitor_socket(LOOK_AT_LINK)
        socket.connect(endpoint)

    def send(self, frames: list[bytes]) -> bool:
        """Send without waiting; False where the line is not there or does not take it."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK, copy=True)
        except zmq.Again:
            return False
        return True

    def receive(self) -> list[bytes] | None:
        """The next message, or None."""
        try:
            return self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def link_events(self) -> list[str]:
        """What happened to the connection since the last look: up, down, refused."""
        words = []
        while self.monitor.poll(0):
            event = zmq.utils.monitor.recv_monitor_message(self.monitor)
            words.append(_LINK_WORDS.get(int(event["event"]), "refused"))
        return words

    def close(self) -> None:
        """Let a last message leave, then close."""
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(LEAVE_MS)


class JsonLines:
    """A log of one JSON object a line, written out at least at every `flush`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8", buffering=1 << 16)

    def write(self, event: str, **fields: Any) -> None:
        """One line: `event`, then the fields."""
        self._file.write(json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n")

    def flush(self) -> None:
        """Hand what is buffered to the system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


def sleep_until(instant_ns: int) -> None:
    """Sleep to an instant of the monotonic clock.

    `time.sleep` is clock_nanosleep to an absolute instant of CLOCK_MONOTONIC (Python 3.11 on).
    """
    left_ns = instant_ns - time.monotonic_ns()
    if left_ns > 0:
        time.sleep(left_ns / 1e9)
