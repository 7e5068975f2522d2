"""A line's socket lets in whom the allow-list names, keeps others out, and says whom."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from lines.keys import AllowList, load_public, load_secret, make_client_key, make_plant_keys
from lines.sockets import KeyWatch, bind_router, start_authenticator

LIMIT_MS = 10_000
QUIET_MS = 1500
"""How long nothing must come; a handshake on the loopback takes a few milliseconds."""


class Door:
    """A bound camera socket with its allow-lists, and clients that knock."""

    def __init__(self, folder: Path) -> None:
        self.keys, self.secrets = folder / "keys", folder / "secrets"
        make_plant_keys(self.keys)
        make_client_key("cameras", "camera-line01", self.keys, self.secrets)
        make_client_key("actuators", "line01", self.keys, self.secrets)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.cameras = AllowList(self.keys / "cameras")
        self.actuators = AllowList(self.keys / "actuators")
        self.authenticator = start_authenticator(self.context, self.cameras, self.actuators)
        self.endpoint = f"ipc://{folder}/frames"
        secret = self.keys / "server.key_secret"
        self._clients: list[zmq.Socket[bytes]] = []
        self.router = bind_router(self.context, self.endpoint, "cameras", secret, 1 << 16, 8)

    def knock(self, pair: tuple[bytes, bytes]) -> None:
        """Connect with this key pair and send one message."""
        socket = self.context.socket(zmq.DEALER)
        socket.set(zmq.LINGER, 0)
        socket.curve_publickey, socket.curve_secretkey = pair
        socket.curve_serverkey = load_public(self.keys / "server.key")
        socket.connect(self.endpoint)
        socket.send(b"frame")
        self._clients.append(socket)

    def close(self) -> None:
        for socket in (*self._clients, self.router):
            socket.close(0)
        self.authenticator.stop()
        self.context.destroy(linger=0)


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    made = Door(tmp_path)
    yield made
    made.close()


def test_a_camera_whose_key_is_allowed_is_heard_and_known_by_its_key(door: Door) -> None:
    path = door.secrets / "cameras" / "camera-line01.key_secret"
    door.knock(load_secret(path))
    assert door.router.poll(LIMIT_MS)
    frames = door.router.recv_multipart(copy=False)
    assert bytes(frames[-1].buffer) == b"frame"
    assert door.cameras.name_of(str(frames[-1].get("User-Id"))) == "camera-line01"


def test_a_stranger_is_never_heard_and_is_told_of(door: Door) -> None:
    """CURVE alone lets any key in; only the authenticator keeps strangers out."""
    pair = zmq.curve_keypair()
    door.knock(pair)
    assert not door.router.poll(QUIET_MS), "a key that nobody allowed was let in"
    end_s = time.monotonic() + LIMIT_MS / 1e3
    while not door.cameras.refused_count and time.monotonic() < end_s:
        time.sleep(0.01)
    told: list[tuple[str, str, str]] = []
    watch = KeyWatch({"camera": door.cameras}, lambda *event: told.append(event))
    watch.look(time.monotonic_ns())
    assert [kind for kind, _, _ in told] == ["camera.refused"]
    assert pair[0].decode() in told[0][2]


def test_a_dead_authenticator_lets_nobody_in(door: Door) -> None:
    """ZeroMQ's default is the open door: encrypted, and anybody's."""
    path = door.secrets / "cameras" / "camera-line01.key_secret"
    door.knock(load_secret(path))
    assert door.router.poll(LIMIT_MS), "a camera that is allowed, as long as it lives"
    door.router.recv_multipart()
    door.authenticator.stop()
    door.knock(zmq.curve_keypair())
    assert not door.router.poll(QUIET_MS), "a key that nobody allowed was let in"


def test_the_key_of_another_role_opens_no_door(door: Door) -> None:
    door.knock(load_secret(door.secrets / "actuators" / "line01.key_secret"))
    assert not door.router.poll(QUIET_MS)
