"""The verdict socket of a real line: beats, acks, resends, one actuator, none, and rehearsal."""

from __future__ import annotations

import itertools
import statistics
import uuid
from collections.abc import Iterator

import pytest
from plant_rig import Rig, agree
from plant_wire import Actuator, Camera, Header, encoded, picture, until

pytestmark = pytest.mark.real

JPEG = encoded("jpeg", picture(5))
KEPT_MAX = 256


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with Rig(tmp_path_factory.mktemp("verdicts")) as made:
        made.start("journal")
        made.start("line-line01")
        yield made


@pytest.fixture
def gate(rig: Rig) -> Iterator[Actuator]:
    made = rig.actuator("line01")
    while made.answers[-1]["type"] != "ready":  # until another one of the test before is silent
        heard = len(made.answers)
        made.tell(type="hello", line="line01", actuator="line01")
        made.wait(lambda heard=heard: len(made.answers) > heard)
    made.answers = made.answers[-1:]
    yield made
    made.close()


@pytest.fixture
def camera(rig: Rig) -> Iterator[Camera]:
    made = rig.camera("line01")
    assert made.hello()["type"] == "ready"
    yield made
    made.client.close()


def shown(camera: Camera, payload: bytes = JPEG) -> Header:
    """The header of a part that the line has answered for; without payload it is refused."""
    header = camera.header(payload)
    camera.send(header, payload)
    assert camera.answer()["type"] == ("ack" if payload else "reject")
    return header


def test_beats_toggle_every_100_ms(gate: Actuator) -> None:
    gate.wait(lambda: len(gate.heard) >= 21)
    assert all(one != next_ for (_, one), (_, next_) in itertools.pairwise(gate.heard))
    gaps_ms = [(later - at) / 1e6 for (at, _), (later, _) in itertools.pairwise(gate.heard)]
    assert 90 <= statistics.median(gaps_ms) <= 130


def test_an_actuator_that_beats_is_not_called_silent(rig: Rig, gate: Actuator) -> None:
    before = len(rig.events("actuator.silent"))
    gate.wait(lambda: len(gate.heard) >= 10)
    assert len(rig.events("actuator.silent")) == before


@pytest.mark.parametrize("habit", ["no beat", "a beat that does not toggle"])
def test_a_beat_that_stops_is_an_alarm_and_verdicts_go_on(
    rig: Rig, gate: Actuator, camera: Camera, habit: str
) -> None:
    gate.wait(lambda: len(gate.heard) >= 3)
    before = len(rig.events("actuator.silent"))
    gate.beats = False

    def is_alarmed() -> bool:
        if habit != "no beat":
            gate.tell(type="heartbeat", beat=True)
        return len(rig.events("actuator.silent")) > before

    until(is_alarmed)
    header = shown(camera)
    agree(gate.one(header["part_id"]), rig.row("line01", camera.session, 0))
    assert len(rig.events("actuator.silent")) == before + 1, "one alarm a silence"


def test_a_beat_may_be_one_and_zero(rig: Rig, gate: Actuator) -> None:
    gate.beats = False
    before = len(rig.events("actuator.silent"))
    for beat in itertools.islice(itertools.cycle((1, 0)), 8):
        heard = len(gate.heard)
        gate.tell(type="heartbeat", beat=beat)
        gate.wait(lambda heard=heard: len(gate.heard) > heard)
    assert len(rig.events("actuator.silent")) == before
    assert [answer["type"] for answer in gate.answers] == ["ready"]


def test_a_verdict_without_ack_is_not_sent_twice(gate: Actuator, camera: Camera) -> None:
    gate.acks = False
    parts = [shown(camera)["part_id"] for _ in range(3)]
    for part_id in parts:
        gate.one(part_id)
    heard = len(gate.heard)
    gate.wait(lambda: len(gate.heard) > heard + 10)
    assert [len(gate.of(part_id)) for part_id in parts] == [1, 1, 1]


def test_a_resend_repeats_from_there_and_asks_for_no_second_action(
    rig: Rig, gate: Actuator, camera: Camera
) -> None:
    parts = [shown(camera) for _ in range(6)]
    first = [gate.one(part["part_id"]) for part in parts]
    rows = [rig.row("line01", camera.session, seq) for seq in range(6)]
    count = len(gate.verdicts)
    gate.tell(type="resend", session=camera.session, seq=2)
    gate.wait(lambda: len(gate.verdicts) >= count + 4)
    again = gate.verdicts[count:]
    sans = ("resent", "received_at_ns")
    assert all(verdict["resent"] for verdict in again)
    assert not any(verdict["resent"] for verdict in first)
    assert sorted(verdict["seq"] for verdict in again) == [2, 3, 4, 5]
    for verdict in again:
        same = first[verdict["seq"]]
        assert {k: v for k, v in verdict.items() if k not in sans} == {
            k: v for k, v in same.items() if k not in sans
        }
    later = gate.one(shown(camera)["part_id"])
    assert later["resent"] is False
    assert len(gate.verdicts) == count + 5
    rig.row("line01", camera.session, 6)
    assert rows == [rig.row("line01", camera.session, seq) for seq in range(6)]
    assert len(rig.query("select 1 from parts where session = ?", camera.session)) == 7


def test_a_resend_gives_the_last_256_without_a_gap(gate: Actuator, camera: Camera) -> None:
    total = KEPT_MAX + 44
    for _ in range(total):
        shown(camera, b"")
    gate.wait(lambda: len(gate.verdicts) >= total, 20)
    gate.tell(type="resend", session=camera.session, seq=0)
    gate.wait(lambda: len(gate.verdicts) >= total + KEPT_MAX, what="256 resent verdicts")
    resent = [verdict["seq"] for verdict in gate.verdicts[total:]]
    assert resent == list(range(total - KEPT_MAX, total))


def test_a_resend_of_an_unknown_session_gives_nothing(gate: Actuator, camera: Camera) -> None:
    part = shown(camera)
    gate.one(part["part_id"])
    gate.tell(type="resend", session=str(uuid.uuid4()), seq=0)
    later = shown(camera)
    gate.one(later["part_id"])
    assert [verdict["part_id"] for verdict in gate.verdicts] == [part["part_id"], later["part_id"]]


def test_a_second_actuator_is_refused_while_the_first_beats(
    rig: Rig, gate: Actuator, camera: Camera
) -> None:
    second = rig.actuator("line01", "line02")
    assert (second.answers[0]["type"], second.answers[0]["reason"]) == ("reject", "session")
    part = shown(camera)
    gate.one(part["part_id"])
    assert second.verdicts == []
    second.tell(type="resend", session=camera.session, seq=0)
    second.wait(lambda: len(second.answers) > 1)
    assert second.answers[-1]["reason"] == "session"
    gate.beats = False

    def takes_over() -> bool:
        second.tell(type="hello", line="line01", actuator="line02")
        return second.answers[-1]["type"] == "ready"

    until(takes_over)
    part = shown(camera)
    second.one(part["part_id"])
    assert gate.of(part["part_id"]) == []
    second.close()


def test_a_newer_connection_with_the_same_key_takes_over(
    rig: Rig, gate: Actuator, camera: Camera
) -> None:
    newer = rig.actuator("line01")
    assert newer.answers[0]["type"] == "ready"
    part = shown(camera)
    newer.one(part["part_id"])
    assert gate.of(part["part_id"]) == []
    newer.close()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"type": "hello", "line": "line02", "actuator": "line01"}, "line"),
        ({"type": "hello", "line": "line01", "actuator": "line02"}, "session"),
        ({"type": "hello", "line": "line01"}, "header"),
        ({"type": "heartbeat", "beat": "on"}, "header"),
        ({"type": "heartbeat", "beat": 2}, "header"),
        ({"type": "ack", "line": "line01", "session": "s", "seq": -1}, "header"),
        ({"type": "resend", "seq": 0}, "header"),
        ({"type": "verdict"}, "header"),
    ],
)
def test_a_bad_message_is_answered_and_costs_nothing(
    gate: Actuator, camera: Camera, message: Header, reason: str
) -> None:
    gate.tell(**message)
    gate.wait(lambda: len(gate.answers) > 1)
    assert (gate.answers[-1]["type"], gate.answers[-1]["reason"]) == ("reject", reason)
    gate.one(shown(camera)["part_id"])


def test_without_an_actuator_verdicts_are_journalled_and_can_be_asked_for(
    rig: Rig, gate: Actuator, camera: Camera
) -> None:
    gate.one(shown(camera)["part_id"])
    gate.close()
    until(
        lambda: rig.row("line01", camera.session, shown(camera)["seq"])["sent_at_ns"] == 0,
        what="the line has noticed that its actuator left",
    )
    missed = camera.seq - 1
    row = rig.row("line01", camera.session, missed)
    assert (row["answered_by"], row["owed"]) == ("fallback", 1)
    assert row["decided_at_ns"] <= row["due_at_ns"]
    assert rig.events("actuator.unreachable")
    later = rig.actuator("line01")
    later.tell(type="resend", session=camera.session, seq=missed)
    verdict = later.one(row["part_id"])
    assert (verdict["resent"], verdict["verdict"]) == (True, row["verdict"])
    agree(later.one(shown(camera)["part_id"]), rig.row("line01", camera.session, missed + 1))
    later.close()


def test_while_outputs_are_inhibited_nothing_asks_for_an_action(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    def change(text: str) -> str:
        return text.replace("[plant]", "[plant]\ninhibit_outputs = true")

    with Rig(tmp_path_factory.mktemp("inhibit"), lines=1, change=change) as rig:
        rig.start("journal")
        rig.start("line-line01")
        gate, camera = rig.actuator("line01"), rig.camera("line01")
        assert camera.hello()["type"] == "ready"
        for payload, by in ((JPEG, "fallback"), (b"", "failsafe")):
            header = shown(camera, payload)
            verdict = gate.one(header["part_id"])
            assert (verdict["action"], verdict["simulated"]) == ("none", True)
            assert verdict["answered_by"] == by
            agree(verdict, rig.row("line01", camera.session, header["seq"]))
