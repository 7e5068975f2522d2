"""Which frames of a line are let in. Pure: sessions, sequence numbers, duplicates, limits.

One camera session a line. The order of the checks decides what a frame is told, and is this:
line, part seen within 60 s, sequence seen, session, sizes and formats. A frame that names a part
and is refused for a reason outside `NOT_OWED` still gets its `UNINSPECTED` verdict, once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

NS_PER_S = 1_000_000_000
DUPLICATE_WINDOW_NS = 60 * NS_PER_S
SESSION_SILENCE_NS = 2 * NS_PER_S
LOST_MAX = 256
"""Of one gap in the sequence, at most this many frames are named one by one."""
PARTS_REMEMBERED_MAX = 100_000
SESSIONS_REMEMBERED_MAX = 64
REFUSED_REMEMBERED_MAX = 4096

NOT_OWED = frozenset({"duplicate", "version", "header", "line"})


def is_owed(reason: str) -> bool:
    """Whether a named part refused for this reason is owed a verdict."""
    return reason not in NOT_OWED


class HelloHeader(Protocol):
    """What admission needs of a camera's hello."""

    @property
    def line(self) -> str: ...
    @property
    def camera(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


class FrameHeader(Protocol):
    """What admission needs of a frame."""

    @property
    def line(self) -> str: ...
    @property
    def camera(self) -> str: ...
    @property
    def session(self) -> str: ...
    @property
    def seq(self) -> int: ...
    @property
    def part_id(self) -> str: ...
    @property
    def encoding(self) -> str: ...
    @property
    def pixel_format(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...


class Refusal(NamedTuple):
    """Why a message is not let in."""

    reason: str
    detail: str


class Admitted(NamedTuple):
    """What became of a frame: `refusal` is None when it is let in.

    lost: sequence numbers that never came, at most LOST_MAX of them named; lost_count: all.
    """

    refusal: Refusal | None
    lost: tuple[int, ...]
    lost_count: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The line's limits on what a camera may send."""

    picture_bytes_max: int
    picture_pixels_max: int


@dataclass(slots=True)
class _Session:
    routing_id: bytes
    camera: str
    session: str
    width: int
    height: int
    heard_at_ns: int


ENCODINGS = {
    "jpeg": {"Mono8", "RGB8", "BGR8"},
    "png": {"Mono8", "Mono16", "RGB8", "BGR8"},
    "raw": {"Mono8", "Mono16", "BayerRG8", "RGB8", "BGR8"},
}


class Admission:
    """The camera side of one line."""

    def __init__(self, line_id: str, camera: str | None, limits: Limits) -> None:
        self._line_id = line_id
        self._camera = camera
        self._limits = limits
        self._session: _Session | None = None
        self._parts_seen: dict[str, int] = {}
        # Of sessions, not of connections: a (session, seq) gets one verdict whatever comes between.
        self._next_seq: dict[str, int] = {}
        # Refused outside their session, one by one: another's frames must not use up a sequence.
        self._refused: dict[tuple[str, int], None] = {}

    @property
    def session(self) -> str | None:
        """The session that may send frames now."""
        return self._session.session if self._session else None

    def remember_part(self, part_id: str, session: str, seq: int, now_ns: int) -> None:
        """A part a former process of this line accepted: its like is a duplicate."""
        self._parts_seen[part_id] = now_ns
        self._came(session, seq)

    def remember_seq(self, session: str, seq: int) -> None:
        """A former process of this line had frames up to `seq`, or said that they were lost."""
        self._came(session, seq)

    def hello(
        self, routing_id: bytes, key_name: str, header: HelloHeader, now_ns: int
    ) -> Refusal | None:
        """A camera introduces itself; None if it is the line's camera from now on."""
        if header.line != self._line_id:
            return Refusal("line", f"this is {self._line_id}")
        if header.camera != key_name or self._camera not in (None, header.camera):
            return Refusal("session", f"key {key_name} is not camera {header.camera} of this line")
        if header.width * header.height > self._limits.picture_pixels_max:
            return Refusal("size", f"more than {self._limits.picture_pixels_max} pixels")
        present = self._session
        if (
            present is not None
            and present.camera != header.camera
            and now_ns - present.heard_at_ns < SESSION_SILENCE_NS
        ):
            return Refusal("session", f"camera {present.camera} is connected")
        self._session = _Session(
            routing_id, header.camera, header.session, header.width, header.height, now_ns
        )
        return None

    def frame(
        self,
        routing_id: bytes,
        key_name: str,
        header: FrameHeader,
        payload_bytes: int | None,
        has_room: bool,
        now_ns: int,
    ) -> Admitted:
        """A frame arrived, under the key `key_name`; `payload_bytes` is None without a payload."""
        if header.line != self._line_id:
            return Admitted(Refusal("line", f"this is {self._line_id}"), (), 0)
        if self._is_part_seen(header.part_id, now_ns):
            lost = self._advance(routing_id, header.session, header.seq, now_ns)
            return Admitted(Refusal("duplicate", "part_id seen within 60 s"), *lost)
        next_seq = self._next_seq.get(header.session, 0)
        if header.seq < next_seq or (header.session, header.seq) in self._refused:
            return Admitted(Refusal("duplicate", f"seq {header.seq} has its verdict"), (), 0)
        present = self._session
        if present is None or present.routing_id != routing_id or present.session != header.session:
            self._refused[header.session, header.seq] = None
            if len(self._refused) > REFUSED_REMEMBERED_MAX:
                del self._refused[next(iter(self._refused))]
            self._remember(header.part_id, now_ns)
            return Admitted(Refusal("session", "no hello for this session; send hello"), (), 0)
        lost = self._advance(routing_id, header.session, header.seq, now_ns)
        self._remember(header.part_id, now_ns)
        # Its seq has come all the same: else it would be lost later, a second verdict.
        if not present.camera == header.camera == key_name:
            detail = f"key {key_name} is not camera {header.camera} of this session"
            return Admitted(Refusal("session", detail), *lost)
        if header.width > present.width or header.height > present.height:
            detail = f"larger than the {present.width}x{present.height} of the hello"
            return Admitted(Refusal("size", detail), *lost)
        return Admitted(self._misfit(header, payload_bytes, has_room), *lost)

    def heartbeat(self, routing_id: bytes, session: str, seq: int | None, now_ns: int) -> Admitted:
        """The camera lives and has sent frames up to `seq` (None: none yet)."""
        present = self._session
        if present is None or present.routing_id != routing_id or present.session != session:
            return Admitted(Refusal("session", "no hello for this session; send hello"), (), 0)
        present.heard_at_ns = now_ns
        if seq is None:
            return Admitted(None, (), 0)
        return Admitted(None, *self._advance(routing_id, session, seq, now_ns, came=False))

    def eos(self, routing_id: bytes, session: str) -> bool:
        """The camera stops on purpose; whether it was the line's."""
        present = self._session
        if present is None or present.routing_id != routing_id or present.session != session:
            return False
        self._session = None
        return True

    def is_silent(self, now_ns: int) -> bool:
        """Whether a camera that said hello has not been heard for SESSION_SILENCE_NS."""
        present = self._session
        return present is not None and now_ns - present.heard_at_ns >= SESSION_SILENCE_NS

    # --- inside -----------------------------------------------------------------------------

    def _misfit(
        self, header: FrameHeader, payload_bytes: int | None, has_room: bool
    ) -> Refusal | None:
        limits = self._limits
        if not payload_bytes:
            return Refusal("format", "no payload")
        if payload_bytes > limits.picture_bytes_max:
            return Refusal("size", f"more than {limits.picture_bytes_max} bytes")
        if header.width * header.height > limits.picture_pixels_max:
            return Refusal("size", f"more than {limits.picture_pixels_max} pixels")
        if header.pixel_format not in ENCODINGS.get(header.encoding, set()):
            return Refusal("format", f"{header.pixel_format} cannot come as {header.encoding}")
        if not has_room:
            return Refusal("overload", "no credit left; wait for ack")
        return None

    def _advance(
        self, routing_id: bytes, session: str, seq: int, now_ns: int, came: bool = True
    ) -> tuple[tuple[int, ...], int]:
        """Move the sequence past `seq`; what was skipped (and `seq` itself, unless it came)."""
        present = self._session
        if present is None or present.routing_id != routing_id or present.session != session:
            return (), 0
        present.heard_at_ns = now_ns
        next_seq = self._next_seq.get(session, 0)
        if seq < next_seq:
            return (), 0
        end = seq if came else seq + 1
        named = tuple(
            lost
            for lost in range(max(next_seq, end - LOST_MAX), end)
            if (session, lost) not in self._refused
        )
        self._came(session, seq)
        return named, len(named) + max(0, end - next_seq - LOST_MAX)

    def _came(self, session: str, seq: int) -> None:
        self._next_seq[session] = max(self._next_seq.pop(session, 0), seq + 1)
        if len(self._next_seq) > SESSIONS_REMEMBERED_MAX:
            del self._next_seq[next(iter(self._next_seq))]

    def _is_part_seen(self, part_id: str, now_ns: int) -> bool:
        seen_at_ns = self._parts_seen.get(part_id)
        return seen_at_ns is not None and now_ns - seen_at_ns < DUPLICATE_WINDOW_NS

    def _remember(self, part_id: str, now_ns: int) -> None:
        self._parts_seen.pop(part_id, None)
        self._parts_seen[part_id] = now_ns
        while self._parts_seen:
            oldest, seen_at_ns = next(iter(self._parts_seen.items()))
            is_old = now_ns - seen_at_ns >= DUPLICATE_WINDOW_NS
            if not is_old and len(self._parts_seen) <= PARTS_REMEMBERED_MAX:
                return
            del self._parts_seen[oldest]
