"""The wire: what is accepted, what is refused and what of a refused header can still be named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lines import doc_tables, wire

FRAME: dict[str, Any] = {
    "type": "frame", "line": "line01", "camera": "cam01", "session": "5e551017", "seq": 5,
    "part_id": "p5", "captured_ns": 1_764_493_200_000_000_000, "clock": "utc", "encoding": "jpeg",
    "pixel_format": "Mono8", "width": 640, "height": 480, "crc32c": 0xFFFF_FFFF,
}  # fmt: skip
VERDICT: dict[str, Any] = {
    "line": "line01", "part_id": "p5", "seq": 5, "session": "5e551017", "verdict": "PASS",
    "reason": "", "action": "pass", "score": 0.25, "labels": [], "answered_by": "pool",
    "model": "m@0123456789ab", "captured_ns": 1, "deadline_ns": 3, "sent_ns": 2, "margin_ns": 1,
    "simulated": False,
}  # fmt: skip


def header(**changes: Any) -> bytes:
    fields = {**FRAME, **changes}
    return json.dumps({k: v for k, v in fields.items() if v is not ...}).encode()


def refused(frames: list[Any]) -> wire.WireError:
    with pytest.raises(wire.WireError) as caught:
        wire.parse_camera(frames)
    return caught.value


def test_a_frame_is_read_from_any_kind_of_buffer() -> None:
    for kind in (bytes, bytearray, memoryview):
        frame = wire.parse_camera([kind(b"T1"), kind(header()), kind(b"payload")])
        assert isinstance(frame, wire.Frame)
        assert (frame.seq, frame.part_id, frame.stride) == (5, "p5", None)


def test_a_frame_without_payload_still_names_its_part() -> None:
    assert wire.parse_camera([b"T1", header()]).seq == 5  # type: ignore[union-attr]


@pytest.mark.parametrize("changes", [{"encoding": "webp"}, {"pixel_format": "Mono12"}])
def test_an_unknown_format_parses_so_that_the_part_is_known(changes: dict[str, str]) -> None:
    frame = wire.parse_camera([b"T1", header(**changes), b""])
    assert isinstance(frame, wire.Frame)
    assert not frame.is_known_format


@pytest.mark.parametrize("first", [b"T2", b"", b"t1", b"T1\0"])
def test_another_first_frame_is_a_version(first: bytes) -> None:
    assert refused([first, header()]).reason == "version"
    assert refused([]).reason == "version"


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": -1}, {"seq": 2**63}, {"seq": 10**400}, {"seq": 5.0}, {"seq": True}, {"seq": "5"},
        {"seq": None}, {"seq": ...}, {"part_id": ""}, {"part_id": "ä" * 33}, {"part_id": "\ud800"},
        {"part_id": 5}, {"crc32c": 2**32}, {"width": -1}, {"clock": "gps"}, {"captured_ns": 2**63},
        {"session": ""}, {"session": "a b"}, {"line": ...}, {"type": "picture"}, {"type": ...},
        {"seq": float("nan")}, {"other": float("nan")}, {"other": float("inf")},
    ],
)  # fmt: skip
def test_a_wrong_field_is_a_header(changes: dict[str, Any]) -> None:
    error = refused([b"T1", header(**changes), b"x"])
    assert error.reason == "header"
    assert "\n" not in error.detail and len(error.detail) <= 300


@pytest.mark.parametrize(
    "text",
    [
        b"", b"[]", b"5", b"null", b"\xff\xfe", b'{"type": "fra', b"[" * 4096, b'{"a":' * 800,
        b'{"type": "frame", "x": ' + b"[" * 1900 + b"]" * 1900 + b"}",
    ],
)  # fmt: skip
def test_what_is_no_object_is_a_header(text: bytes) -> None:
    assert refused([b"T1", text]).reason == "header"


def test_header_size_limit() -> None:
    pad = 4096 - len(header(pad=""))
    assert wire.parse_camera([b"T1", header(pad="x" * pad), b""])
    assert refused([b"T1", header(pad="x" * (pad + 1)), b""]).reason == "header"


def test_a_malformed_frame_is_named_as_far_as_it_can_be_read() -> None:
    error = refused([b"T1", header(width="wide")])
    assert (error.seq, error.part_id, error.session, error.line) == (5, "p5", "5e551017", "line01")
    error = refused([b"T1", header(seq=True, part_id="x" * 65, width="wide")])
    assert (error.seq, error.part_id) == (None, None)


def test_only_a_frame_has_a_payload() -> None:
    eos = b'{"type": "eos", "session": "s"}'
    assert isinstance(wire.parse_camera([b"T1", eos]), wire.Eos)
    assert refused([b"T1", eos, b""]).reason == "header"
    assert refused([b"T1", header(), b"", b""]).reason == "header"


@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=3))
def test_garbage_never_raises_anything_else(text: bytes, rest: list[bytes]) -> None:
    for parse in (wire.parse_camera, wire.parse_actuator, wire.parse_to_camera):
        with pytest.raises(wire.WireError):
            parse([b"T1", text, *rest])


@pytest.mark.parametrize(("bit", "beat"), [(1, True), (0, False), (True, True), (False, False)])
def test_a_beat_is_a_bit(bit: int, beat: bool) -> None:
    frames = [b"T1", json.dumps({"type": "heartbeat", "beat": bit}).encode()]
    assert wire.parse_actuator(frames) == wire.ActuatorHeartbeat(type="heartbeat", beat=beat)


def test_what_is_built_is_what_the_models_say() -> None:
    assert wire.parse_to_camera(wire.ready("line01", 8, 150.0)) == wire.Ready(
        type="ready", line="line01", credit=8, deadline_ms=150.0
    )
    assert wire.parse_to_camera(wire.ack("s", 3)).seq == 3  # type: ignore[union-attr]
    refusal = wire.parse_to_camera(wire.reject(None, "session", "x" * 500))
    assert isinstance(refusal, wire.Reject)
    assert (refusal.seq, refusal.reason, len(refusal.detail)) == (None, "session", 200)
    verdict = wire.parse_to_actuator(wire.verdict(**VERDICT))
    assert verdict.model_dump() == {"type": "verdict", **VERDICT, "resent": False}
    assert wire.parse_to_actuator(wire.heartbeat(beat=True)).type == "heartbeat"


@pytest.mark.parametrize("score", [float("nan"), float("inf"), None])
def test_a_verdict_always_leaves(score: float | None) -> None:
    verdict = wire.parse_to_actuator(wire.verdict(**{**VERDICT, "score": score}))
    assert isinstance(verdict, wire.Verdict)
    assert verdict.score is None


def test_reasons() -> None:
    assert set(wire.REASONS) - set(wire.UNINSPECTED_REASONS) == {
        "duplicate", "version", "header", "line",
    }  # fmt: skip
    assert set(doc_tables.REASONS) == set(wire.REASONS)


def test_the_tables_of_the_protocol_page_are_current() -> None:
    assert doc_tables.main(["--check"]) == 0
