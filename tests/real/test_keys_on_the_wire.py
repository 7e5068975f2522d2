"""Who may speak to a line, tried with real CURVE keys on real sockets of a real line."""

from __future__ import annotations

import json
import re
import shlex
import stat
import subprocess
import time
import uuid
from collections.abc import Iterator

import pytest
import zmq
import zmq.auth
from plant_rig import Rig, agree
from plant_wire import Actuator, Camera, encoded, picture, until

pytestmark = pytest.mark.real

JPEG = encoded("jpeg", picture(3))
SILENCE_S = 2.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """line01 takes one camera, line02 any with a key, line03 is never started here."""

    def change(text: str) -> str:
        return text.replace('camera = "camera-line02"\n', "")

    with Rig(tmp_path_factory.mktemp("keys"), lines=3, change=change) as made:
        made.start("journal")
        made.start("line-line01", "line-line02")
        yield made


@pytest.fixture(scope="module")
def gate(rig: Rig) -> Actuator:
    return rig.actuator("line02")


@pytest.fixture
def camera(rig: Rig) -> Iterator[Camera]:
    """The present camera of line02; it leaves on purpose."""
    made = rig.camera("line02")
    assert made.hello()["type"] == "ready"
    yield made
    made.tell(type="eos", session=made.session)
    made.client.close()


def accepted(camera: Camera) -> str:
    """The camera's next frame is accepted; its part."""
    header = camera.header(JPEG)
    camera.send(header, JPEG)
    assert camera.answer()["type"] == "ack"
    return str(header["part_id"])


def refused(camera: Camera, gate: Actuator, rig: Rig) -> None:
    """The camera's next frame is refused for its session, and owed."""
    header = camera.header(JPEG)
    camera.send(header, JPEG)
    answer = camera.answer()
    assert (answer["type"], answer.get("reason")) == ("reject", "session")
    verdict = gate.one(header["part_id"])
    assert (verdict["verdict"], verdict["reason"]) == ("UNINSPECTED", "session")
    agree(verdict, rig.row("line02", camera.session, header["seq"]))


@pytest.mark.parametrize("socket", ["frames", "verdicts"])
def test_a_stranger_s_key_gets_nothing(rig: Rig, socket: str) -> None:
    for line in ("line01", "line02"):
        endpoint = getattr(rig.plant.line_named(line), socket)
        stranger = rig.client(endpoint, zmq.curve_keypair())
        assert not stranger.is_let_in()
        assert not stranger.socket.poll(0, zmq.POLLOUT)
        assert stranger.receive(0.1) is None
    kind = "camera.refused" if socket == "frames" else "actuator.refused"
    until(lambda: rig.events(kind, "line-line02"), what="the refusal is told")


def test_a_client_without_encryption_gets_nothing(rig: Rig) -> None:
    bare = rig.context.socket(zmq.DEALER)
    try:
        bare.linger = 0
        bare.connect(rig.plant.line_named("line02").frames)
        bare.send_multipart([b"T1", json.dumps({"type": "hello", "line": "line02"}).encode()])
        assert not bare.poll(300)
    finally:
        bare.close()


@pytest.mark.parametrize(
    ("socket", "role", "name"),
    [("frames", "actuators", "line02"), ("verdicts", "cameras", "camera-line02")],
)
def test_a_key_of_the_wrong_role_is_refused(rig: Rig, socket: str, role: str, name: str) -> None:
    endpoint = getattr(rig.plant.line_named("line02"), socket)
    assert not rig.client(endpoint, rig.secret(role, name)).is_let_in()


def test_the_server_s_wrong_key_is_noticed_by_the_client(rig: Rig, camera: Camera) -> None:
    """A client that knows another server key never finishes its handshake with this line."""
    other, _ = zmq.curve_keypair()
    fooled = rig.context.socket(zmq.DEALER)
    try:
        fooled.linger, fooled.immediate = 0, 1
        public, secret = rig.secret("cameras", "camera-line02")
        fooled.curve_serverkey, fooled.curve_publickey = other, public
        fooled.curve_secretkey = secret
        fooled.connect(rig.plant.line_named("line02").frames)
        assert not fooled.poll(300, zmq.POLLOUT)
    finally:
        fooled.close()
    accepted(camera)


def test_a_camera_that_the_plant_file_does_not_name_is_refused(rig: Rig) -> None:
    other = rig.client(
        rig.plant.line_named("line01").frames, rig.secret("cameras", "camera-line02")
    )
    assert not other.is_let_in()
    own = rig.camera("line01")
    assert own.client.is_let_in()
    assert own.hello()["type"] == "ready"


def test_a_key_says_only_its_own_name(rig: Rig, gate: Actuator) -> None:
    liar = rig.camera("line02", "camera-line01", says="camera-line02")
    answer = liar.hello()
    assert (answer["type"], answer["reason"]) == ("reject", "session")
    refused(liar, gate, rig)
    assert liar.hello(camera="camera-line01")["type"] == "ready"
    liar.tell(type="eos", session=liar.session)
    liar.client.close()


def test_a_removed_key_is_refused_on_the_open_connection(
    rig: Rig, camera: Camera, gate: Actuator
) -> None:
    accepted(camera)
    key = rig.folder / "keys" / "cameras" / "camera-line02.key"
    away = key.with_suffix(".away")
    key.rename(away)
    try:

        def is_denied() -> bool:
            camera.tell(type="heartbeat", session=camera.session, seq=camera.seq - 1)
            return bool(rig.events("camera.denied", "line-line02"))

        until(is_denied)
        # Told, or its frames would hold its credit for ever; nothing of them is owed.
        said = camera.answer()
        assert (said["type"], said["reason"], said["seq"]) == ("reject", "session", None)
        assert "no longer allowed" in said["detail"]
        while camera.client.receive(0.1):
            pass
        denied = camera.header(JPEG)
        camera.client.send(b"T1", json.dumps(denied).encode(), JPEG)
        assert (camera.answer()["reason"], camera.client.receive(0.3)) == ("session", None)
    finally:
        away.rename(key)

    def is_back() -> bool:
        camera.session = str(uuid.uuid4())
        return bool(camera.hello()["type"] == "ready")

    until(is_back, what="the key is allowed again, on the same connection")
    camera.seq = 0
    part_id = accepted(camera)
    assert gate.one(part_id)["answered_by"] == "fallback"
    assert gate.of(denied["part_id"]) == [], "what was denied never came"


def test_an_added_key_is_allowed_without_a_restart(rig: Rig, gate: Actuator) -> None:
    folder = rig.folder / "secrets" / "cameras"
    public, _ = zmq.auth.create_certificates(folder, "new-camera")
    endpoint = rig.plant.line_named("line02").frames
    assert not rig.client(endpoint, rig.secret("cameras", "new-camera")).is_let_in()
    allowed = rig.folder / "keys" / "cameras" / "new-camera.key"
    allowed.write_bytes((folder / "new-camera.key").read_bytes())
    assert public.endswith("new-camera.key")

    def let_in() -> bool:
        return rig.client(endpoint, rig.secret("cameras", "new-camera")).is_let_in()

    until(let_in)
    added = rig.camera("line02", "new-camera")
    assert added.hello()["type"] == "ready"
    assert gate.one(accepted(added))["answered_by"] == "fallback"
    added.tell(type="eos", session=added.session)


def test_a_broken_key_file_stops_nobody_else(rig: Rig, camera: Camera) -> None:
    broken = rig.folder / "keys" / "cameras" / "broken.key"
    broken.write_text("not a key")
    try:
        accepted(camera)
        assert rig.camera("line02", "camera-line01").client.is_let_in()
    finally:
        broken.unlink()


def test_a_second_camera_waits_until_the_first_is_silent(
    rig: Rig, camera: Camera, gate: Actuator
) -> None:
    second = rig.camera("line02", "camera-line01")
    began = time.monotonic()
    while time.monotonic() < began + 1.25 * SILENCE_S:  # its beats keep the first one's place
        camera.tell(type="heartbeat", session=camera.session, seq=camera.seq - 1)
        answer = second.hello()
        assert (answer["type"], answer.get("reason")) == ("reject", "session")
        assert "camera-line02" in answer["detail"]
        assert camera.client.receive(0.25) is None
    gate.one(accepted(camera))
    until(lambda: second.hello()["type"] == "ready", 3 * SILENCE_S)
    gate.one(accepted(second))
    refused(camera, gate, rig)
    second.tell(type="eos", session=second.session)
    until(lambda: camera.hello()["type"] == "ready", 0.9 * SILENCE_S)


def test_a_newer_hello_with_the_same_key_replaces_the_session(
    rig: Rig, camera: Camera, gate: Actuator
) -> None:
    accepted(camera)
    newer = rig.camera("line02")
    assert newer.hello()["type"] == "ready"
    assert gate.one(accepted(newer))["session"] == newer.session
    refused(camera, gate, rig)
    camera.session, camera.seq = newer.session, 7
    refused(camera, gate, rig)  # the newer one's session is bound to its own connection
    assert gate.one(accepted(newer))["seq"] == 1


def test_a_loose_secret_key_is_refused_with_the_command_that_repairs_it(rig: Rig) -> None:
    secret = rig.folder / "keys" / "server.key_secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    secret.chmod(0o644)
    command = rig.commands["line-line03"]
    loose = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert loose.returncode == 1
    found = re.search(r"run: (chmod 600 .*)$", loose.stderr, re.MULTILINE)
    assert found, loose.stderr
    assert rig.orphans() == []
    subprocess.run(shlex.split(found[1]), check=True)
    rig.start("line-line03")
    rig.stop("line-line03")
