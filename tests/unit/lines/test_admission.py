"""Which frames are let in, what a refused one is told, and which check speaks first."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from lines import admission as a
from lines.admission import Admission, Admitted, Limits, Refusal, is_owed

S = 1_000_000_000
LIMITS = Limits(picture_bytes_max=1000, picture_pixels_max=64 * 48)


@dataclass(frozen=True)
class Hello:
    line: str = "line01"
    camera: str = "cam01"
    session: str = "s1"
    pixel_format: str = "Mono8"
    width: int = 64
    height: int = 48


@dataclass(frozen=True)
class Frame:
    line: str = "line01"
    camera: str = "cam01"
    session: str = "s1"
    seq: int = 0
    part_id: str = "p0"
    encoding: str = "jpeg"
    pixel_format: str = "Mono8"
    width: int = 64
    height: int = 48


def number(seq: int, **changes: object) -> Frame:
    return replace(Frame(seq=seq, part_id=f"p{seq}"), **changes)  # type: ignore[arg-type]


def line(camera: str | None = None) -> Admission:
    admission = Admission("line01", camera, LIMITS)
    assert admission.hello(b"r1", "cam01", Hello(), 0) is None
    return admission


def send(
    admission: Admission,
    frame: Frame,
    now_ns: int = 1,
    route: bytes = b"r1",
    key_name: str = "cam01",
    payload_bytes: int | None = 500,
    has_room: bool = True,
) -> Admitted:
    return admission.frame(route, key_name, frame, payload_bytes, has_room, now_ns)


def reason(admitted: Admitted) -> str | None:
    return admitted.refusal.reason if admitted.refusal else None


def test_a_frame_of_the_lines_camera_is_let_in() -> None:
    admission = line()
    assert admission.session == "s1"
    assert send(admission, number(0)) == Admitted(None, (), 0)
    assert send(admission, number(1)) == Admitted(None, (), 0)


# --- hello ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "key_name", "refused"),
    [
        (Hello(line="line02"), "cam01", "line"),
        (Hello(camera="cam02"), "cam01", "session"),  # another's name
        (Hello(camera="cam02"), "cam02", "session"),  # not this line's camera
        (Hello(width=64, height=49), "cam01", "size"),
        (Hello(line="line02", camera="cam02", width=999), "cam01", "line"),
        (Hello(camera="cam02", width=999), "cam01", "session"),
    ],
)
def test_a_hello_is_refused_for_the_first_thing_wrong(
    hello: Hello, key_name: str, refused: str
) -> None:
    admission = Admission("line01", "cam01", LIMITS)
    refusal = admission.hello(b"r1", key_name, hello, 0)
    assert refusal is not None and refusal.reason == refused
    assert admission.session is None
    assert reason(send(admission, Frame())) == "session"


def test_a_line_without_a_named_camera_takes_any_key_under_its_own_name() -> None:
    admission = Admission("line01", None, LIMITS)
    assert admission.hello(b"r1", "cam07", Hello(camera="cam07"), 0) is None
    assert admission.hello(b"r1", "cam07", Hello(camera="cam08"), 5 * S) is not None


def test_a_second_camera_waits_until_the_first_is_silent_for_two_seconds() -> None:
    admission = line()
    send(admission, number(0), now_ns=1 * S)
    second = Hello(camera="cam02", session="s2")
    early = admission.hello(b"r2", "cam02", second, 3 * S - 1)
    assert early == Refusal("session", "camera cam01 is connected")
    assert reason(send(admission, number(1), now_ns=3 * S - 1)) is None
    assert admission.hello(b"r2", "cam02", second, 5 * S - 1) is None
    assert reason(send(admission, number(2), now_ns=5 * S)) == "session"
    assert admission.session == "s2"


def test_the_same_camera_may_come_back_at_once_with_a_new_session() -> None:
    admission = line()
    send(admission, number(0))
    send(admission, number(1))
    assert admission.hello(b"r2", "cam01", Hello(session="s2"), 2) is None
    assert reason(send(admission, number(2), route=b"r1")) == "session"
    fresh = Frame(session="s2", seq=0, part_id="q0")
    assert send(admission, fresh, route=b"r2") == Admitted(None, (), 0)


def test_the_same_session_goes_on_where_it_was_after_a_reconnect() -> None:
    admission = line()
    send(admission, number(0))
    assert admission.hello(b"r2", "cam01", Hello(), 2) is None
    assert reason(send(admission, number(0, part_id="x"), route=b"r2")) == "duplicate"
    assert send(admission, number(2), route=b"r2") == Admitted(None, (1,), 1)


# --- frames -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "route"), [({"session": "s0"}, b"r1"), ({}, b"r9")])
def test_a_frame_of_no_session_is_refused_and_its_part_remembered(
    changes: dict[str, object], route: bytes
) -> None:
    admission = line()
    assert reason(send(admission, number(0, **changes), route=route)) == "session"
    # its part gets one verdict, so a second frame of it gets none
    assert reason(send(admission, number(0))) == "duplicate"


@pytest.mark.parametrize(
    ("camera", "key_name"), [("cam02", "cam01"), ("cam01", "cam02"), ("cam02", "cam02")]
)
def test_a_frame_under_another_name_or_key_is_refused_but_has_come(
    camera: str, key_name: str
) -> None:
    admission = line()
    admitted = send(admission, number(1, camera=camera), key_name=key_name)
    assert (reason(admitted), admitted.lost) == ("session", (0,))
    assert send(admission, number(2)) == Admitted(None, (), 0)  # 1 is not lost as well


@pytest.mark.parametrize(
    ("frame", "payload_bytes", "refused"),
    [
        (number(0), None, "format"),
        (number(0), 0, "format"),
        (number(0), 1001, "size"),
        (number(0, width=64, height=49), 500, "size"),
        (number(0, encoding="webp"), 500, "format"),
        (number(0, pixel_format="Mono12"), 500, "format"),
        (number(0, pixel_format="Mono16"), 500, "format"),  # not as JPEG
        (number(0, encoding="png", pixel_format="BayerRG8"), 500, "format"),
    ],
)
def test_a_frame_that_does_not_fit_is_refused_once_and_owed(
    frame: Frame, payload_bytes: int | None, refused: str
) -> None:
    admission = line()
    admitted = send(admission, frame, payload_bytes=payload_bytes)
    assert reason(admitted) == refused
    assert is_owed(refused)
    assert reason(send(admission, number(1, part_id="p0"))) == "duplicate"


def test_limits_are_met_exactly() -> None:
    admission = line()
    assert reason(send(admission, number(0), payload_bytes=1000)) is None
    assert reason(send(admission, number(1, width=64, height=48))) is None
    assert reason(send(admission, number(2, width=65, height=1))) == "size"  # than its hello said
    assert reason(send(admission, number(3, width=1, height=49))) == "size"


def test_without_a_free_slot_a_frame_is_overload_last_of_all_checks() -> None:
    admission = line()
    assert reason(send(admission, number(0), has_room=False)) == "overload"
    assert reason(send(admission, number(1), payload_bytes=None, has_room=False)) == "format"


def test_the_order_of_checks_is_line_part_sequence_session_sizes() -> None:
    admission = line()
    send(admission, number(5))
    everything = number(5, line="x", session="x", width=9999)
    assert reason(send(admission, everything, payload_bytes=None)) == "line"
    seen = replace(everything, line="line01")
    assert reason(send(admission, seen, payload_bytes=None)) == "duplicate"
    new_part = replace(seen, part_id="new")
    assert reason(send(admission, new_part, payload_bytes=None)) == "session"
    in_session = replace(seen, part_id="newer", session="s1")
    old = send(admission, in_session, payload_bytes=None)
    assert old.refusal == Refusal("duplicate", "seq 5 has its verdict")
    assert send(admission, in_session, route=b"r9").refusal == old.refusal
    assert reason(send(admission, replace(in_session, seq=6), payload_bytes=10**6)) == "size"


def test_who_is_refused_for_these_reasons_is_owed_nothing() -> None:
    assert {r for r in ("duplicate", "version", "header", "line") if is_owed(r)} == set()
    assert all(is_owed(r) for r in ("session", "size", "format", "checksum", "overload", "late"))


# --- parts seen -------------------------------------------------------------------------------


def test_a_part_is_a_duplicate_for_sixty_seconds() -> None:
    admission = line()
    send(admission, number(0), now_ns=1)
    assert reason(send(admission, number(1, part_id="p0"), now_ns=60 * S)) == "duplicate"
    assert reason(send(admission, number(2, part_id="p0"), now_ns=60 * S + 1)) is None


def test_a_part_of_the_process_before_is_a_duplicate() -> None:
    admission = line()
    admission.remember_part("p4", "s1", 4, 5)
    assert reason(send(admission, number(5, part_id="p4"), now_ns=6)) == "duplicate"
    assert reason(send(admission, number(4, part_id="new"), now_ns=6)) == "duplicate"
    assert send(admission, number(6), now_ns=7) == Admitted(None, (), 0)


def test_a_duplicate_part_still_counts_in_the_sequence() -> None:
    admission = line()
    send(admission, number(0))
    repeated = send(admission, number(3, part_id="p0"))
    assert (reason(repeated), repeated.lost) == ("duplicate", (1, 2))
    assert send(admission, number(4)) == Admitted(None, (), 0)


def test_no_more_parts_are_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(a, "PARTS_REMEMBERED_MAX", 2)
    admission = line()
    for seq in range(3):
        send(admission, number(seq))
    assert reason(send(admission, number(3, part_id="p2"))) == "duplicate"
    assert reason(send(admission, number(4, part_id="p1"))) == "duplicate"
    assert reason(send(admission, number(5, part_id="p0"))) is None


# --- sequence ---------------------------------------------------------------------------------


def test_a_gap_names_what_was_lost() -> None:
    admission = line()
    assert send(admission, number(2)) == Admitted(None, (0, 1), 2)
    assert send(admission, number(3)) == Admitted(None, (), 0)
    assert send(admission, number(5)) == Admitted(None, (4,), 1)


def test_of_a_large_gap_the_last_ones_are_named_and_all_counted() -> None:
    admission = line()
    admitted = send(admission, number(1000))
    assert admitted.lost == tuple(range(1000 - a.LOST_MAX, 1000))
    assert admitted.lost_count == 1000
    huge = send(admission, number(2**63 - 1))
    assert (len(huge.lost), huge.lost_count) == (a.LOST_MAX, 2**63 - 1 - 1001)


def test_a_heartbeat_tells_of_frames_that_never_came() -> None:
    admission = line()
    assert admission.heartbeat(b"r1", "s1", None, 1) == Admitted(None, (), 0)
    send(admission, number(0))
    assert admission.heartbeat(b"r1", "s1", 0, 2) == Admitted(None, (), 0)
    assert admission.heartbeat(b"r1", "s1", 2, 3) == Admitted(None, (1, 2), 2)
    assert reason(send(admission, number(2))) == "duplicate"
    assert send(admission, number(3)) == Admitted(None, (), 0)


@pytest.mark.parametrize(("route", "session"), [(b"r9", "s1"), (b"r1", "s9")])
def test_a_heartbeat_of_no_session_is_refused_and_counts_nothing(
    route: bytes, session: str
) -> None:
    admission = line()
    assert reason(admission.heartbeat(route, session, 7, 1 * S)) == "session"
    assert admission.is_silent(2 * S)
    assert not admission.eos(route, session)
    assert send(admission, number(0)) == Admitted(None, (), 0)


def test_a_camera_is_silent_after_two_seconds_without_a_word() -> None:
    admission = line()
    assert not admission.is_silent(2 * S - 1)
    assert admission.is_silent(2 * S)
    admission.heartbeat(b"r1", "s1", None, 2 * S)
    assert not admission.is_silent(4 * S - 1)
    send(admission, number(0), now_ns=4 * S)
    assert not admission.is_silent(6 * S - 1)
    assert admission.is_silent(6 * S)


def test_a_camera_that_stops_on_purpose_is_not_silent_but_gone() -> None:
    admission = line()
    assert admission.eos(b"r1", "s1")
    assert not admission.is_silent(99 * S)
    assert admission.session is None
    assert reason(send(admission, number(0))) == "session"
    assert admission.hello(b"r2", "cam02", Hello(camera="cam02"), 1) is None


def test_another_connections_frames_do_not_use_up_the_sequence_of_a_session() -> None:
    admission = line()
    assert reason(send(admission, number(7, part_id="x"), route=b"other")) == "session"
    assert reason(send(admission, number(7, part_id="y"), route=b"other")) == "duplicate"
    assert send(admission, number(0)) == Admitted(None, (), 0)
    # Seq 7 has its verdict already: when it is passed over it is not said to be lost as well.
    assert send(admission, number(8)) == Admitted(None, (1, 2, 3, 4, 5, 6), 6)
