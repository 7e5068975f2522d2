"""A line's two CURVE sockets and the authenticator that lets in whom the allow-lists name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator

from lines.keys import AllowList, load_secret

FRAMES_HIGH_WATER = 8
VERDICTS_HIGH_WATER = 64
HEARTBEAT_EVERY_MS = 250
HEARTBEAT_LOST_MS = 1000
HANDSHAKE_MS = 2000


WATCH_EVERY_NS = 1_000_000_000

Tell = Callable[[str, str, str], None]
"""An event for the journal: kind, subject, detail."""


class KeyWatch:
    """Tells of refused keys and unusable key files, once a second at most."""

    def __init__(self, lists: Mapping[str, AllowList], tell: Tell) -> None:
        self._lists = lists
        self._tell = tell
        self._refused = dict.fromkeys(lists, 0)
        self._problems: dict[str, tuple[str, ...]] = dict.fromkeys(lists, ())
        self._look_at_ns = 0

    def look(self, now_ns: int) -> None:
        """Compare with what was told last."""
        if now_ns < self._look_at_ns:
            return
        self._look_at_ns = now_ns + WATCH_EVERY_NS
        for role, allowed in self._lists.items():
            more = allowed.refused_count - self._refused[role]
            if more:
                self._refused[role] += more
                keys = ", ".join(list(allowed.refused())[-3:])
                self._tell(f"{role}.refused", role, f"{more} handshakes; last keys: {keys}")
            if allowed.problems != self._problems[role]:
                self._problems[role] = allowed.problems
                for problem in allowed.problems:
                    self._tell(f"{role}.key_unusable", role, problem)


def start_authenticator(
    context: zmq.Context[zmq.Socket[bytes]], cameras: AllowList, actuators: AllowList
) -> ThreadAuthenticator:
    """Start ZAP for the two roles. It must be up before a socket is bound."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("cameras", cameras)
    authenticator.configure_curve_callback("actuators", actuators)
    return authenticator


def bind_router(
    context: zmq.Context[zmq.Socket[bytes]],
    endpoint: str,
    domain: str,
    server_secret: Path,
    message_bytes_max: int,
    high_water: int,
) -> zmq.Socket[bytes]:
    """A CURVE server socket for one role. Raises zmq.ZMQError if the port is in use."""
    public, secret = load_secret(server_secret)
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.CURVE_SERVER, 1)
    socket.set(zmq.CURVE_PUBLICKEY, public)
    socket.set(zmq.CURVE_SECRETKEY, secret)
    socket.set_string(zmq.ZAP_DOMAIN, domain)
    # Without this an authenticator that has died lets every key in.
    socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.ROUTER_HANDOVER, 0)
    socket.set(zmq.SNDHWM, high_water)
    socket.set(zmq.RCVHWM, high_water)
    socket.set(zmq.IMMEDIATE, 1)
    socket.set(zmq.MAXMSGSIZE, message_bytes_max)
    socket.set(zmq.HEARTBEAT_IVL, HEARTBEAT_EVERY_MS)
    socket.set(zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_LOST_MS)
    socket.set(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
    socket.bind(endpoint)
    return socket
