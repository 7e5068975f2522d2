"""Around the plant: cameras with their bad habits, and actuators that write down what they get."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import crc32c
import zmq

from hil_sim.fuzz.engines import FACTS
from hil_sim.fuzz.host import MS, World
from hil_sim.fuzz.wires import Network, Socket
from lines import wire

HEARTBEAT_NS = 250 * MS
BEAT_NS = 100 * MS
HELLO_AGAIN_NS = 300 * MS

Key = tuple[str, str, int]
"""Line, session, seq."""


@dataclass(slots=True)
class Sent:
    """A frame that a camera handed over."""

    key: Key
    part_id: str
    picture: bytes
    is_good: bool
    sent_at_ns: int
    answer: str = ""
    """ack, or the reason of its reject."""


@dataclass(slots=True)
class Habits:
    """How one camera behaves. Lengths in ns; chances from 0 to 1.

    keeps_session: after a lost connection or a reject it goes on with the same session, as the
    protocol allows; else it begins a new one, as the imitated cameras do.
    """

    cycle_ns: int
    jitter_ns: int
    clock: str
    skew_ppm: int
    transport_ns: int
    keeps_session: bool
    bad_share: float


@dataclass(slots=True)
class CameraTroubles:
    """What is wrong with a camera now."""

    dead_until_ns: int = 0
    burst: int = 0
    twice_until_ns: int = 0
    swap_until_ns: int = 0
    corrupt_until_ns: int = 0


class Camera:
    """One camera: open loop, credit, heartbeats."""

    def __init__(self, network: Network, line: str, endpoint: str, habits: Habits) -> None:
        self.line = line
        self.habits = habits
        self.troubles = CameraTroubles()
        self.sent: dict[Key, Sent] = {}
        self.highest: dict[tuple[str, str], int] = {}
        """The highest seq used in each (line, session), dropped frames included."""
        self.slower = 1
        self.clock_step_ns = 0
        self._world = network.world
        self._random: Random = network.world.stream(f"camera {line}")
        self._socket = Socket(network, network.world.process(f"camera-{line}", "outside"),
                              zmq.DEALER)  # fmt: skip
        self._socket.options[zmq.SNDHWM] = self._socket.options[zmq.RCVHWM] = 8
        self._socket.user_id = f"camera-{line}"
        self._socket.on_message = self._answered
        self._socket.on_link = self._link
        self._parts = 0
        self._sessions = 0
        self._held: list[bytes] | None = None
        self._ends = False
        self._begin_session()
        self._socket.connect(endpoint)
        self._world.after(self._random.randrange(HEARTBEAT_NS), self._beat)

    def begin(self, at_ns: int) -> None:
        """Send the first frame then."""
        self._world.at(at_ns, self._cycle)

    def end(self) -> None:
        """Send no more frames; heartbeats go on."""
        self._ends = True

    def restart(self) -> None:
        """A new session, as after a power cycle of the camera."""
        self._begin_session()
        self._hello()

    # --- sending ----------------------------------------------------------------------------

    def _begin_session(self) -> None:
        self._sessions += 1
        self._session = f"{self.line}-s{self._sessions}"
        self._seq = 0
        self._credit: int | None = None
        self._open: set[int] = set()
        self._hello_at_ns = 0

    def _put(self, header: dict[str, Any], *payload: bytes) -> bool:
        try:
            self._socket.send_multipart(
                [wire.VERSION, json.dumps(header, separators=(",", ":")).encode(), *payload]
            )
        except zmq.Again:
            return False
        return True

    def _hello(self) -> None:
        self._hello_at_ns = self._world.now_ns + HELLO_AGAIN_NS
        self._put(
            {
                "type": "hello",
                "line": self.line,
                "camera": f"camera-{self.line}",
                "session": self._session,
                "pixel_format": "Mono8",
                "width": FACTS.shape[1],
                "height": FACTS.shape[0],
            }
        )

    def _beat(self) -> None:
        self._world.after(HEARTBEAT_NS, self._beat)
        if self.troubles.dead_until_ns > self._world.now_ns:
            return
        if self._credit is None:
            if self._world.now_ns >= self._hello_at_ns:
                self._hello()
        else:
            self._put({"type": "heartbeat", "session": self._session, "seq": self._seq - 1})

    def _link(self, is_up: bool) -> None:
        if is_up:
            self._world.after(0, self._hello)
        elif self.habits.keeps_session:
            self._credit, self._open = None, set()
        else:
            self._begin_session()

    def _cycle(self) -> None:
        if self._ends:
            return
        habits, troubles = self.habits, self.troubles
        cycle_ns = habits.cycle_ns * self.slower
        if troubles.burst:
            troubles.burst -= 1
            cycle_ns = MS
        jitter_ns = self._random.randrange(habits.jitter_ns) if habits.jitter_ns else 0
        self._world.after(max(MS // 2, cycle_ns + jitter_ns - habits.jitter_ns // 2), self._cycle)
        if troubles.dead_until_ns > self._world.now_ns:
            return
        exposed_ns = self._world.now_ns
        in_ns = habits.transport_ns + self._random.randrange(MS)
        self._world.after(in_ns, lambda: self._frame(exposed_ns))

    def _stamp(self, exposed_ns: int) -> int:
        skew_ns = exposed_ns * self.habits.skew_ppm // 1_000_000
        return exposed_ns + 5_000_000_000_000 + skew_ns + self.clock_step_ns

    def _frame(self, exposed_ns: int) -> None:
        troubles, now_ns = self.troubles, self._world.now_ns
        seq, self._seq = self._seq, self._seq + 1
        self.highest[self.line, self._session] = seq
        self._parts += 1
        part_id = f"{self.line}-p{self._parts}"
        picture = self._random.getrandbits(64).to_bytes(8, "little")
        if self._credit is None or len(self._open) >= self._credit:
            return
        checksum = crc32c.crc32c(picture)
        is_bad = self._random.random() < self.habits.bad_share or troubles.corrupt_until_ns > now_ns
        payload = bytes([picture[0] ^ 1, *picture[1:]]) if is_bad else picture
        header = {
            "type": "frame",
            "line": self.line,
            "camera": f"camera-{self.line}",
            "session": self._session,
            "seq": seq,
            "part_id": part_id,
            "captured_ns": self._stamp(exposed_ns),
            "clock": self.habits.clock,
            "encoding": "raw",
            "pixel_format": "Mono8",
            "width": FACTS.shape[1],
            "height": FACTS.shape[0],
            "crc32c": checksum,
        }
        key = (self.line, self._session, seq)
        self.sent[key] = Sent(key, part_id, picture, not is_bad, now_ns)
        if not self._put(header, payload):
            del self.sent[key]
            return
        self._open.add(seq)
        if troubles.twice_until_ns > now_ns:
            self._world.after(
                self._random.randrange(40 * MS), partial(self._again, header, payload)
            )

    def _again(self, header: dict[str, Any], payload: bytes) -> None:
        self._put(header, payload)

    # --- answers ----------------------------------------------------------------------------

    def _answered(self, frames: list[bytes]) -> None:
        answer = wire.parse_to_camera(frames)
        if isinstance(answer, wire.Ready):
            self._credit = answer.credit or 0
            return
        session = answer.session or self._session
        what = "ack" if isinstance(answer, wire.FrameAck) else answer.reason
        if answer.seq is not None:
            sent = self.sent.get((self.line, session, answer.seq))
            if sent is not None and (not sent.answer or sent.answer == "duplicate"):
                sent.answer = what
        if session != self._session:
            return
        if answer.seq is not None:
            self._open.discard(answer.seq)
        if what == "session":
            if self.habits.keeps_session:
                self._credit = None
            else:
                self._begin_session()
            self._hello()


@dataclass(slots=True)
class Got:
    """One verdict as an actuator got it."""

    fields: dict[str, Any]
    at_ns: int


class Actuator:
    """One line's PLC gateway."""

    def __init__(
        self, network: Network, line: str, endpoint: str, on_verdict: Callable[[str, Got], None]
    ) -> None:
        self.line = line
        self.got: list[Got] = []
        self.silent_until_ns = 0
        self._world: World = network.world
        self._on_verdict = on_verdict
        self._socket = Socket(network, network.world.process(f"actuator-{line}", "outside"),
                              zmq.DEALER)  # fmt: skip
        self._socket.options[zmq.SNDHWM] = self._socket.options[zmq.RCVHWM] = 64
        self._socket.user_id = f"actuator-{line}"
        self._socket.on_message = self._message
        self._socket.on_link = self._link
        self._bit = False
        self._is_welcome = False
        self._socket.connect(endpoint)
        self._world.after(BEAT_NS, self._beat)

    def ask_again(self) -> None:
        """`resend` from some verdict it has, as a gateway does that has restarted."""
        if self.got:
            fields = self.got[max(0, len(self.got) - 5)].fields
            asked = {"type": "resend", "session": fields["session"], "seq": fields["seq"]}
            self._put(asked)

    def _put(self, header: dict[str, Any]) -> None:
        try:
            self._socket.send_multipart([wire.VERSION, json.dumps(header).encode()])
        except zmq.Again:
            return

    def _link(self, is_up: bool) -> None:
        self._is_welcome = False
        if is_up:
            self._world.after(0, self._hello)

    def _hello(self) -> None:
        self._put({"type": "hello", "line": self.line, "actuator": f"actuator-{self.line}"})

    def _beat(self) -> None:
        self._world.after(BEAT_NS, self._beat)
        if self.silent_until_ns > self._world.now_ns:
            return
        if self._is_welcome:
            self._bit = not self._bit
            self._put({"type": "heartbeat", "beat": self._bit})
        else:
            self._hello()

    def _message(self, frames: list[bytes]) -> None:
        header = json.loads(frames[1])
        match header["type"]:
            case "ready":
                self._is_welcome = True
            case "reject":
                self._is_welcome = False
            case "verdict":
                got = Got(header, self._world.now_ns)
                if not header["resent"]:
                    self.got.append(got)
                self._on_verdict(self.line, got)
                if self.silent_until_ns <= self._world.now_ns:
                    key = {"session": header["session"], "seq": header["seq"]}
                    self._put({"type": "ack", "line": self.line, **key})
