"""A line's two CURVE sockets and the authenticator that lets in whom the allow-lists name."""

from __future__ import annotations

from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator

from lines.keys import AllowList, load_secret

FRAMES_HIGH_WATER = 8
VERDICTS_HIGH_WATER = 64
HEARTBEAT_EVERY_MS = 250
HEARTBEAT_LOST_MS = 1000
HANDSHAKE_MS = 2000


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
