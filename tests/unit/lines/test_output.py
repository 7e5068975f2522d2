"""Verdicts out, at literal instants over a socket of lists; the real socket has its own test."""

from __future__ import annotations

import json
from typing import Any

import pytest
import zmq

from lines.output import (
    BEAT_EVERY_NS,
    BEAT_LOST_NS,
    RESEND_AT_ONCE,
    RESEND_EVERY_NS,
    RESEND_MAX,
    UNACKED_MAX,
    VerdictOutput,
)

MS = 1_000_000


class Part:
    """One frame of a received message."""

    def __init__(self, raw: bytes) -> None:
        self.buffer = memoryview(raw)

    def get(self, what: str) -> str:
        assert what == "User-Id"
        return "key-of-plc01"


class Socket:
    """Holds what came and what was sent; `errno` makes sending fail."""

    def __init__(self) -> None:
        self.came: list[list[bytes]] = []
        self.sent: list[tuple[bytes, dict[str, Any]]] = []
        self.errno: int | None = None

    def recv_multipart(self, flags: int, copy: bool) -> list[Part]:
        assert flags == zmq.NOBLOCK and not copy
        if not self.came:
            raise zmq.Again
        return [Part(raw) for raw in self.came.pop(0)]

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        assert flags == zmq.NOBLOCK and frames[1] == b"T1"
        if self.errno is not None:
            raise zmq.ZMQError(self.errno)
        self.sent.append((frames[0], json.loads(frames[2])))


class Rig:
    """An output, its socket, and what it told."""

    def __init__(self) -> None:
        self.socket = Socket()
        self.told: list[tuple[str, str, str]] = []
        self.name: str | None = "plc01"
        self.output = VerdictOutput(
            self.socket,  # type: ignore[arg-type]
            "line01",
            lambda _: self.name,
            lambda *event: self.told.append(event),
        )

    def say(self, now_ns: int, route: bytes = b"r1", **header: Any) -> list[dict[str, Any]]:
        """The actuator sends; what it is answered."""
        before = len(self.socket.sent)
        self.socket.came.append([route, b"T1", json.dumps(header).encode()])
        self.output.on_readable(now_ns)
        assert all(to == route for to, _ in self.socket.sent[before:])
        return [fields for _, fields in self.socket.sent[before:]]

    def hello(self, now_ns: int = 0, route: bytes = b"r1") -> list[dict[str, Any]]:
        return self.say(now_ns, route, type="hello", line="line01", actuator=str(self.name))

    def beats(self, now_ns: int) -> list[dict[str, Any]]:
        before = len(self.socket.sent)
        self.output.beat(now_ns)
        return [fields for _, fields in self.socket.sent[before:]]

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.told]


def verdict(seq: int, session: str = "s") -> dict[str, Any]:
    return {
        "line": "line01", "part_id": f"p{seq}", "seq": seq, "session": session, "verdict": "PASS",
        "reason": "", "action": "pass", "score": 0.1, "labels": [], "answered_by": "pool",
        "model": "m", "captured_ns": 1, "deadline_ns": 9, "sent_ns": 5, "margin_ns": 1,
        "simulated": False, "resent": False,
    }  # fmt: skip


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    assert rig.hello() == [{"type": "ready", "line": "line01"}]
    assert rig.kinds() == ["actuator.connected"]
    return rig


def test_a_verdict_goes_to_the_actuator_and_waits_for_its_ack(rig: Rig) -> None:
    assert rig.output.send(verdict(1))
    assert rig.socket.sent[-1] == (b"r1", {"type": "verdict", **verdict(1)})
    assert rig.output.unacked_count == 1
    assert rig.say(1, type="ack", line="line01", session="s", seq=1) == []
    assert rig.output.unacked_count == 0


def test_without_an_actuator_a_verdict_is_kept_for_a_resend() -> None:
    rig = Rig()
    assert not rig.output.is_healthy
    assert not rig.output.send(verdict(1))
    assert rig.output.unacked_count == 0
    rig.hello()
    rig.say(1, type="resend", session="s", seq=1)
    again = rig.beats(2)
    assert [(f["seq"], f["resent"]) for f in again if f["type"] == "verdict"] == [(1, True)]


# --- hello ------------------------------------------------------------------------------------


def test_another_line_or_name_is_refused() -> None:
    rig = Rig()
    (answer,) = rig.say(0, type="hello", line="line02", actuator="plc01")
    assert (answer["type"], answer["reason"]) == ("reject", "line")
    (answer,) = rig.say(0, type="hello", line="line01", actuator="plc02")
    assert (answer["type"], answer["reason"]) == ("reject", "session")
    assert not rig.output.is_healthy


def test_a_second_actuator_waits_until_the_first_is_lost(rig: Rig) -> None:
    rig.name = "plc02"
    (answer,) = rig.hello(1, b"r2")
    assert answer["detail"] == "actuator plc01 is connected"
    rig.beats(BEAT_LOST_NS + 1)
    assert rig.hello(BEAT_LOST_NS + 2, b"r2")[0]["type"] == "ready"
    rig.output.send(verdict(1))
    assert rig.socket.sent[-1][0] == b"r2"


def test_the_same_actuator_may_come_back_at_once(rig: Rig) -> None:
    assert rig.hello(1, b"r2")[0]["type"] == "ready"
    rig.output.send(verdict(1))
    assert rig.socket.sent[-1][0] == b"r2"
    (answer,) = rig.say(2, b"r1", type="heartbeat", beat=True)
    assert answer["reason"] == "session"


def test_a_key_that_is_no_longer_allowed_is_not_answered(rig: Rig) -> None:
    rig.name = None
    assert rig.hello(1) == []
    assert rig.kinds()[-1] == "actuator.denied"


def test_before_hello_and_for_what_is_no_message_there_is_a_reject() -> None:
    rig = Rig()
    (answer,) = rig.say(0, type="ack", line="line01", session="s", seq=1)
    assert (answer["reason"], answer["detail"]) == ("session", "send hello first")
    (answer,) = rig.say(0, type="open")
    assert answer["reason"] == "header"


# --- beats ------------------------------------------------------------------------------------


def test_the_beat_toggles_every_hundred_milliseconds(rig: Rig) -> None:
    assert [f["beat"] for f in rig.beats(0)] == [True]
    assert rig.beats(BEAT_EVERY_NS - 1) == []
    assert rig.output.beat(BEAT_EVERY_NS - 1) == BEAT_EVERY_NS
    assert [f["beat"] for f in rig.beats(BEAT_EVERY_NS)] == [False]
    assert rig.output.beat(BEAT_EVERY_NS + 1) == 2 * BEAT_EVERY_NS


def test_an_actuator_whose_beat_does_not_toggle_is_lost_once_and_comes_back(rig: Rig) -> None:
    rig.say(50 * MS, type="heartbeat", beat=True)
    rig.say(300 * MS, type="heartbeat", beat=True)  # the same again is no toggle
    rig.beats(350 * MS)
    assert rig.output.is_healthy
    rig.beats(450 * MS)
    rig.beats(550 * MS)
    assert not rig.output.is_healthy
    assert rig.kinds().count("actuator.silent") == 1
    assert rig.output.send(verdict(1))  # it gets its verdicts all the same
    rig.say(560 * MS, type="heartbeat", beat=0)
    rig.beats(650 * MS)
    assert rig.output.is_healthy


# --- resend -----------------------------------------------------------------------------------


def resent(rig: Rig, count: int) -> list[int]:
    """The sequence numbers of `count` portions, each sent when it is due."""
    seqs = []
    for portion in range(count):
        now_ns = 10 * MS + portion * RESEND_EVERY_NS
        seqs += [f["seq"] for f in rig.beats(now_ns) if f["type"] == "verdict"]
    return seqs


def test_a_resend_repeats_from_the_wanted_one_on_in_portions(rig: Rig) -> None:
    for seq in range(30):
        rig.output.send(verdict(seq))
    rig.beats(9 * MS)
    rig.say(10 * MS, type="resend", session="s", seq=10)
    first = rig.beats(10 * MS)
    assert [f["seq"] for f in first] == list(range(10, 10 + RESEND_AT_ONCE))
    assert all(f["resent"] for f in first)
    assert rig.beats(10 * MS + RESEND_EVERY_NS - 1) == []
    assert rig.output.beat(10 * MS + 1) == 10 * MS + RESEND_EVERY_NS
    assert resent(rig, 4) == list(range(10 + RESEND_AT_ONCE, 30))
    assert rig.output.unacked_count == 30  # a repeat is not owed a second ack


def test_a_resend_of_one_no_longer_kept_begins_with_the_next_of_its_session(rig: Rig) -> None:
    rig.output.send(verdict(7, "before"))
    for seq in (2, 3, 5):
        rig.output.send(verdict(seq))
    rig.say(9 * MS, type="resend", session="s", seq=4)
    assert resent(rig, 2) == [5]
    rig.say(60 * MS, type="resend", session="s", seq=6)
    assert resent(rig, 2) == []
    rig.say(60 * MS, type="resend", session="none", seq=0)
    assert [f for f in rig.beats(70 * MS) if f["type"] == "verdict"] == []


def test_no_more_than_the_last_verdicts_are_kept(rig: Rig) -> None:
    for seq in range(RESEND_MAX + 5):
        rig.output.send(verdict(seq))
    rig.say(9 * MS, type="resend", session="s", seq=0)
    assert resent(rig, 40) == list(range(5, RESEND_MAX + 5))


def test_a_new_hello_ends_a_resend(rig: Rig) -> None:
    for seq in range(20):
        rig.output.send(verdict(seq))
    rig.say(9 * MS, type="resend", session="s", seq=0)
    rig.hello(9 * MS)
    assert resent(rig, 3) == []


# --- limits and trouble -----------------------------------------------------------------------


def test_verdicts_without_ack_have_a_limit_that_is_told(rig: Rig) -> None:
    for seq in range(UNACKED_MAX):
        rig.output.send(verdict(seq))
    assert "limit.unacked" not in rig.kinds()
    rig.output.send(verdict(UNACKED_MAX))
    assert rig.output.unacked_count == UNACKED_MAX
    assert rig.kinds()[-1] == "limit.unacked"


@pytest.mark.parametrize(("errno", "stays"), [(zmq.EAGAIN, True), (zmq.EHOSTUNREACH, False)])
def test_an_actuator_that_left_or_does_not_read_costs_no_more_than_its_verdict(
    rig: Rig, errno: int, stays: bool
) -> None:
    rig.socket.errno = errno
    assert not rig.output.send(verdict(1))
    assert rig.output.unacked_count == 0
    assert rig.kinds()[-1] == "actuator.unreachable"
    assert rig.output.is_healthy is stays
    rig.socket.errno = None
    assert rig.output.send(verdict(2)) is stays
    rig.hello(1)
    rig.say(2, type="resend", session="s", seq=1)
    assert resent(rig, 2) == [1, 2]
