"""Every reject of docs/protocol.md, sent over a real CURVE socket to a real line.

Each case: the named answer comes; a part that is owed gets one `UNINSPECTED(reason)` in time and
the journal agrees; one that is not gets none, which a later verdict on the same socket shows.
Meanwhile a second line works and must not notice.
"""

from __future__ import annotations

import dataclasses
import json
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import crc32c
import numpy as np
import pytest
from plant_rig import Rig, agree, all_in_time
from plant_wire import Actuator, Camera, Header, Load, encoded, picture

pytestmark = pytest.mark.real

OWED = {"session", "size", "format", "checksum", "decode", "late", "overload"}
PIXELS = picture(1)
JPEG, PNG, RAW = encoded("jpeg", PIXELS), encoded("png", PIXELS), PIXELS.tobytes()
DEADLINE_MS = 500
SLOTS = 6
BYTES_MAX, PIXELS_MAX = 200_000, 1_000_000
LIMITS = f"""[limits]
slots_per_line = {SLOTS}
picture_bytes_max = {BYTES_MAX}
picture_pixels_max = {PIXELS_MAX}

[[model]]"""


@dataclasses.dataclass
class Bench:
    """Two lines; the first one is tried, the second one only works."""

    rig: Rig
    camera: Camera
    actuator: Actuator
    bystander: Load
    gate: Actuator

    def fence(self) -> None:
        """A part whose verdict comes after those of everything sent before."""
        header = self.camera.header(b"")
        self.camera.send(header, b"")
        while self.camera.answer().get("seq") != header["seq"]:
            pass
        assert self.actuator.one(header["part_id"])["reason"] == "format"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    def change(text: str) -> str:
        return text.replace("[[model]]", LIMITS)

    with Rig(tmp_path_factory.mktemp("rejects"), deadline_ms=DEADLINE_MS, change=change) as rig:
        rig.start("journal")
        rig.start("line-line01", "line-line02")
        tried, gate = rig.actuator("line01"), rig.actuator("line02")
        made = Bench(rig, rig.camera("line01"), tried, rig.load("line02", 5), gate)
        assert made.camera.hello()["type"] == "ready"
        yield made


# --- one frame each -------------------------------------------------------------------------

Change = Callable[[Header, bytes], tuple[list[bytes], bytes]]
"""A good frame → (the frames to send, the payload)."""


def said(payload: bytes = JPEG, *, crc: bool = True, **changes: Any) -> Change:
    """Another payload (its checksum with it) and other header fields; `...` leaves a field out."""

    def make(header: Header, _: bytes) -> tuple[list[bytes], bytes]:
        fields = {**header, **({"crc32c": crc32c.crc32c(payload)} if crc else {}), **changes}
        fields = {name: value for name, value in fields.items() if value is not ...}
        return [b"T1", json.dumps(fields).encode(), payload], payload

    return make


def written(text: Callable[[str], bytes]) -> Change:
    """A header made from the good one's JSON."""
    return lambda header, payload: ([b"T1", text(json.dumps(header)), payload], payload)


def framed(frames: Callable[[bytes, bytes], list[bytes]]) -> Change:
    """Other frames, made from the good header and payload."""
    return lambda header, payload: (frames(json.dumps(header).encode(), payload), payload)


def png_that_says(width: int, height: int) -> bytes:
    return PNG[:16] + struct.pack(">II", width, height) + PNG[24:]


def flipped(seed: int) -> bytes:
    draw = random.Random(seed)
    raw = bytearray(JPEG)
    raw[draw.randrange(len(raw))] ^= 1 << draw.randrange(8)
    return bytes(raw)


def zeroed(raw: bytes, at: int, count: int) -> bytes:
    return raw[:at] + bytes(count) + raw[at + count :]


DEEP = "[" * 1500 + "]" * 1500
MONO = {"encoding": "raw", "pixel_format": "Mono8"}
CASES: list[tuple[str, str, Change]] = [
    ("version", "T2", framed(lambda head, body: [b"T2", head, body])),
    ("version", "empty first frame", framed(lambda head, body: [b"", head, body])),
    ("version", "T1 with a tail", framed(lambda head, body: [b"T1\0", head, body])),
    ("version", "no first frame", framed(lambda head, body: [head, body])),
    ("version", "long first frame", framed(lambda head, body: [b"T" * 5000, head, body])),
    ("header", "T1 alone", framed(lambda *_: [b"T1"])),
    ("header", "four frames", framed(lambda head, body: [b"T1", head, body, b""])),
    ("header", "5 KiB", said(note="x" * 5000)),
    ("header", "empty", written(lambda _: b"")),
    ("header", "no JSON", written(lambda _: b"part 7")),
    ("header", "cut short", written(lambda text: text[:-5].encode())),
    ("header", "deep arrays", written(lambda _: b"[" * 2000 + b"]" * 2000)),
    ("header", "deep field", written(lambda t: (t[:-1] + ',"x":' + DEEP + "}").encode())),
    ("header", "an array", written(lambda text: f"[{text}]".encode())),
    ("header", "Latin-1", written(lambda t: f'{t[:-1]},"x":"\xe4"}}'.encode("l1"))),
    ("header", "NaN", written(lambda text: f'{text[:-1]}, "x": NaN}}'.encode())),
    ("header", "half a surrogate", written(lambda t: t.replace("bad/", "\\ud800").encode())),
    ("header", "unknown type", said(type="picture")),
    *[("header", f"no {name}", said(**{name: ...})) for name in (
        "type", "line", "camera", "session", "seq", "part_id", "captured_ns", "clock",
        "encoding", "pixel_format", "width", "height", "crc32c",
    )],
    ("header", "part_id of 65 bytes", said(part_id="p" * 65)),
    ("header", "part_id of 33 umlauts", said(part_id="ä" * 33)),
    ("header", "empty part_id", said(part_id="")),
    ("header", "part_id a number", said(part_id=7)),
    ("header", "seq text", said(seq="7")),
    ("header", "seq negative", said(seq=-1)),
    ("header", "seq beyond 63 bits", said(seq=2**63)),
    ("header", "seq a float", said(seq=7.0)),
    ("header", "captured_ns null", said(captured_ns=None)),
    ("header", "captured_ns beyond 63 bits", said(captured_ns=2**63)),
    ("header", "clock gps", said(clock="gps")),
    ("header", "width negative", said(width=-160)),
    ("header", "width true", said(width=True)),
    ("header", "crc32c of 33 bits", said(crc=False, crc32c=2**32)),
    ("header", "stride text", said(stride="160")),
    ("header", "a session with a space", said(session="a b")),
    ("line", "another line", said(line="line02")),
    ("line", "no such line", said(line="line99")),
    ("session", "another session", said(session="00000000-0000-0000-0000-000000000000")),
    ("session", "another camera", said(camera="camera-line02")),
    ("size", "wider than said", said(width=161)),
    ("size", "transposed", said(width=120, height=160)),
    ("size", "JPEG said 0x0", said(width=0, height=0)),
    ("size", "PNG of another size", said(PNG, encoding="png", width=64)),
    ("size", "PNG bomb, said small", said(png_that_says(30_000, 30_000), encoding="png")),
    ("size", "PNG bomb, said so", said(png_that_says(30_000, 30_000), encoding="png",
                                       width=30_000, height=30_000)),
    ("size", "most pixels", said(width=2**32 - 1, height=2**32 - 1)),
    ("size", "too many bytes", said(JPEG + bytes(BYTES_MAX))),
    ("size", "raw a byte short", said(RAW[:-1], **MONO)),
    ("size", "raw a byte long", said(RAW + b"\0", **MONO)),
    ("size", "raw of other depth", said(RAW, encoding="raw", pixel_format="Mono16")),
    ("size", "stride below a row", said(RAW, **MONO, stride=159)),
    ("size", "stride too large", said(RAW, **MONO, stride=2**32 - 1)),
    ("size", "raw without width", said(b"12345", **MONO, width=0, height=1, stride=10)),
    ("size", "raw without height", said(b"12345", **MONO, width=4, height=0)),
    ("format", "no payload", framed(lambda head, _: [b"T1", head])),
    ("format", "empty payload", said(b"")),
    ("format", "WebP", said(encoding="webp")),
    ("format", "unknown pixels", said(pixel_format="YUV422")),
    ("format", "Bayer JPEG", said(pixel_format="BayerRG8")),
    ("format", "grey JPEG said RGB", said(pixel_format="RGB8")),
    ("format", "PNG said JPEG", said(PNG)),
    ("format", "JPEG said PNG", said(encoding="png")),
    ("format", "grey PNG said 16 bits", said(PNG, encoding="png", pixel_format="Mono16")),
    ("checksum", "of another payload", said(crc=False, crc32c=0)),
    ("checksum", "a bit of it", lambda h, p: said(crc=False, crc32c=h["crc32c"] ^ 1 << 31)(h, p)),
    *[("checksum", f"flip {seed}", said(flipped(seed), crc=False)) for seed in range(8)],
    ("checksum", "50 zeroed bytes", said(zeroed(JPEG, len(JPEG) // 2, 50), crc=False)),
    ("checksum", "truncated", said(JPEG[:-7], crc=False)),
    *[("decode", f"JPEG cut at {at}", said(JPEG[:at])) for at in
      (4, 20, 200, len(JPEG) // 2, len(JPEG) - 2, len(JPEG) - 1)],
    ("decode", "JPEG that ends early", said(JPEG[: len(JPEG) // 2] + b"\xff\xd9" + JPEG[-500:])),
    *[("decode", f"PNG cut at {at}", said(PNG[:at], encoding="png")) for at in
      (26, 40, len(PNG) // 2, len(PNG) - 13)],
    ("decode", "PNG with a hole", said(zeroed(PNG, len(PNG) // 2, 8), encoding="png")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "change"), [pytest.param(r, c, id=f"{r}: {name}") for r, name, c in CASES]
)
def test_a_bad_frame_gets_the_named_answer(bench: Bench, reason: str, change: Change) -> None:
    camera = bench.camera
    header = camera.header(JPEG)
    part_id = header["part_id"] = f"bad/{random.getrandbits(64):x}"
    frames, _ = change(header, JPEG)
    camera.client.send(*frames)
    answer = camera.answer()
    assert (answer["type"], answer["reason"]) == ("reject", reason), answer
    assert answer["detail"]
    if reason in OWED:
        assert answer["seq"] == header["seq"]
        verdict = bench.actuator.one(part_id)
        assert (verdict["verdict"], verdict["reason"]) == ("UNINSPECTED", reason)
        assert (verdict["action"], verdict["answered_by"]) == ("reject", "failsafe")
        row = bench.rig.row("line01", verdict["session"], header["seq"])
        assert (row["owed"], row["acked"], row["score"]) == (1, 0, None)
        agree(verdict, row)
    # A seq counts as come only in a message that the line took as one of this session.
    camera.seq += reason in OWED and verdict["session"] == camera.session
    bench.fence()
    assert len(bench.actuator.of(part_id)) == (reason in OWED)


def test_a_frame_before_any_hello_is_refused_and_owed(bench: Bench) -> None:
    early = bench.rig.camera("line01")
    header = early.header(JPEG)
    early.send(header, JPEG)
    assert early.answer()["reason"] == "session"
    verdict = bench.actuator.one(header["part_id"])
    assert verdict["reason"] == "session"
    agree(verdict, bench.rig.row("line01", early.session, 0))


def test_a_duplicate_gets_no_second_verdict(bench: Bench) -> None:
    camera = bench.camera
    first = camera.header(JPEG)
    camera.send(first, JPEG)
    assert camera.answer()["type"] == "ack"
    again = {
        "the same seq and part": first,
        "the same seq, another part": {**first, "part_id": "another"},
        "an older seq": {**first, "seq": 0, "part_id": "older"},
        "the same part with a new seq": {**first, "seq": camera.seq},
    }
    for what, header in again.items():
        camera.client.send(b"T1", json.dumps(header).encode(), JPEG)
        answer = camera.answer()
        assert (answer["type"], answer.get("reason")) == ("reject", "duplicate"), what
    camera.seq += 1  # the last one was a new seq, and came
    bench.fence()
    agree(
        bench.actuator.one(first["part_id"]), bench.rig.row("line01", camera.session, first["seq"])
    )
    assert bench.actuator.of("another") == bench.actuator.of("older") == []
    assert [v for v in bench.actuator.verdicts if v["reason"] == "lost"] == []


@pytest.mark.parametrize("late_ms", [60, 200, 800])
def test_a_frame_captured_too_long_ago_is_late(bench: Bench, late_ms: int) -> None:
    camera = bench.camera
    base_ns = 10**18 + late_ms * 10**12  # a clock of its own, far from ours
    camera.session = f"late-{late_ms}"
    camera.seq = 0
    assert camera.hello()["type"] == "ready"
    start_ns = time.monotonic_ns()
    answers = []
    for _ in range(12):  # the clock map wants some frames before it judges
        captured_ns = base_ns + time.monotonic_ns() - start_ns
        camera.send(camera.header(JPEG, clock="utc", captured_ns=captured_ns), JPEG)
        answers.append(camera.answer())
    assert answers[0]["type"] == "ack"
    seq = camera.seq
    captured_ns = base_ns + time.monotonic_ns() - start_ns
    held_ns = time.monotonic_ns() + late_ms * 1_000_000
    while time.monotonic_ns() < held_ns:
        bench.actuator.client.socket.closed  # noqa: B018 - a busy wait: the delay is the input
    header = camera.header(JPEG, clock="utc", captured_ns=captured_ns)
    camera.send(header, JPEG)
    answer = camera.answer()
    assert (answer["type"], answer.get("reason"), answer["seq"]) == ("reject", "late", seq)
    verdict = bench.actuator.one(header["part_id"])
    assert (verdict["verdict"], verdict["reason"]) == ("UNINSPECTED", "late")
    row = bench.rig.row("line01", camera.session, seq)
    assert (row["clock"], row["reason"]) == ("utc", "late")
    if late_ms < DEADLINE_MS / 2:  # one whose time was over when it came keeps its reason
        agree(verdict, row)


def test_more_frames_than_credit_are_an_overload_and_every_part_is_answered(bench: Bench) -> None:
    camera = bench.camera
    assert camera.hello()["type"] == "ready"  # for pictures of 640x480
    # Takes so long to decode that the credit runs out.
    large = encoded("jpeg", np.kron(PIXELS, np.ones((4, 4), np.uint8)))
    sent = []
    for _ in range(4 * SLOTS):
        header = camera.header(large, width=640, height=480)
        camera.send(header, large)
        sent.append(header)
    # Beyond its credit a camera has no right to every answer; every part has one to a verdict.
    assert "overload" in [camera.answer().get("reason") for _ in range(2 * SLOTS)]
    for header in sent:
        verdict = bench.actuator.one(header["part_id"])
        assert verdict["reason"] in ("", "overload")
        assert (verdict["answered_by"] == "failsafe") == (verdict["reason"] == "overload")
        agree(verdict, bench.rig.row("line01", camera.session, header["seq"]))
    while camera.client.receive(0.3):
        pass


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"line": "line02"}, "line"),
        ({"camera": "camera-line02"}, "session"),
        ({"width": 2000, "height": 2000}, "size"),
        ({"pixel_format": "YUV422"}, "format"),
        ({"session": ""}, "header"),
        ({"width": None}, "header"),
    ],
)
def test_a_bad_hello_is_refused(bench: Bench, changes: Header, reason: str) -> None:
    stranger = bench.rig.camera("line01")
    answer = stranger.hello(**changes)
    assert (answer["type"], answer["reason"], answer["seq"]) == ("reject", reason, None)
    bench.fence()  # the camera that was there is still the line's


def test_a_skipped_seq_is_a_lost_frame(bench: Bench) -> None:
    camera, gate = bench.camera, bench.actuator

    def lost(seq: int) -> list[Header]:
        return [v for v in gate.verdicts if (v["session"], v["seq"]) == (camera.session, seq)]

    missing = camera.seq
    camera.seq += 1
    bench.fence()  # the frame that shows the gap goes first: the lost one is said after it
    gate.wait(lambda: lost(missing), what="verdict on the skipped frame")
    (verdict,) = lost(missing)
    assert (verdict["verdict"], verdict["reason"], verdict["part_id"]) == (
        "UNINSPECTED",
        "lost",
        "",
    )
    camera.tell(type="heartbeat", session=camera.session, seq=camera.seq)
    camera.seq += 1
    gate.wait(lambda: lost(camera.seq - 1), what="verdict on the frame the heartbeat speaks of")
    assert lost(camera.seq - 1)[0]["reason"] == "lost"
    bench.fence()


def test_the_most_awkward_names_are_carried_unchanged(bench: Bench) -> None:
    camera = bench.camera
    camera.session, camera.seq = '"' * 64, 2**63 - 2
    assert camera.hello()["type"] == "ready"
    for part_id in ("\x01" * 64, "𝄞" * 16):
        header = camera.header(JPEG, part_id=part_id, captured_ns=-(2**63), x={"y": [None]})
        camera.send(header, JPEG)
        assert camera.answer()["type"] == "ack"
        verdict = bench.actuator.one(part_id)
        assert (verdict["session"], verdict["seq"]) == (camera.session, header["seq"])
        agree(verdict, bench.rig.row("line01", camera.session, header["seq"]))


def test_a_message_beyond_every_limit_costs_only_its_connection(bench: Bench) -> None:
    flooder = bench.rig.camera("line01")
    flooder.client.send(b"T1", b"{}", bytes(8 * BYTES_MAX))
    assert flooder.client.receive(0.5) is None
    camera = bench.rig.camera("line01")
    assert camera.hello()["type"] == "ready"
    camera.send(header := camera.header(JPEG), JPEG)
    assert camera.answer()["type"] == "ack"
    assert bench.actuator.one(header["part_id"])["answered_by"] == "fallback"


def test_the_other_line_has_noticed_nothing(bench: Bench) -> None:
    bench.bystander.grown(2)
    rows = all_in_time(bench.rig, bench.bystander, bench.gate)
    assert len(rows) > 20
    assert {row["answered_by"] for row in rows} == {"fallback"}
    assert bench.bystander.rejects == []
    assert bench.rig.events("reject", "line-line02") == []
    assert len(bench.rig.events("reject", "line-line01")) > len(CASES)
    assert bench.rig.events("journal.conflict") == []
