"""Every message of docs/protocol.md as a frozen pydantic model; `lines/wire.py` uses them.

What is missing, ill-typed or out of range is refused, unknown fields are ignored. All times are
integer nanoseconds.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
)

VERSION: Final = b"T1"
HEADER_BYTES_MAX: Final = 4096
PART_ID_BYTES_MAX: Final = 64

REASONS: Final = (
    "version",
    "header",
    "line",
    "session",
    "duplicate",
    "size",
    "format",
    "checksum",
    "decode",
    "late",
    "overload",
)
"""Every `reason` of a reject."""

NOT_OWED_REASONS: Final = frozenset({"duplicate", "version", "header", "line"})
UNINSPECTED_REASONS: Final = tuple(r for r in REASONS if r not in NOT_OWED_REASONS)
"""A part that is named and refused for one of these gets the verdict `UNINSPECTED(reason)`."""

ENCODINGS: Final = ("jpeg", "png", "raw")
PIXEL_FORMATS: Final = ("Mono8", "BayerRG8", "RGB8", "BGR8", "Mono16")
NO_FRAME_SENT: Final = -1
"""`seq` of a heartbeat before the first frame of its session."""

INT64_MAX: Final = 2**63 - 1
UINT32_MAX: Final = 2**32 - 1

Bytes: TypeAlias = bytes | bytearray | memoryview
"""One frame of a multipart message (`zmq.Frame.buffer` is a memoryview)."""


def _short_enough(text: str) -> str:
    if len(text.encode()) > PART_ID_BYTES_MAX:
        raise ValueError(f"must be at most {PART_ID_BYTES_MAX} bytes of UTF-8")
    return text


def _as_bit(value: Any) -> Any:
    """JSON has true and false, most PLC libraries 1 and 0: both are a bit."""
    return bool(value) if type(value) is int and value in (0, 1) else value


Int64 = Annotated[int, Field(ge=-(2**63), le=INT64_MAX)]
Instant = Annotated[int, Field(ge=0, le=INT64_MAX)]
Seq = Annotated[int, Field(ge=0, le=INT64_MAX)]
UInt32 = Annotated[int, Field(ge=0, le=UINT32_MAX)]
Word = Annotated[str, Field(min_length=1, max_length=64)]
Session = Annotated[str, Field(pattern=r"^[!-~]{1,64}$")]
PartId = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_short_enough)]
PartIdOrEmpty = Annotated[str, Field(max_length=64), AfterValidator(_short_enough)]
Bit = Annotated[bool, BeforeValidator(_as_bit)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Message(BaseModel):
    """One header. Field descriptions go into the tables of docs/protocol.md."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, allow_inf_nan=False)


class Hello(Message):
    """The camera opens a session; answered `ready` or `reject`."""

    type: Literal["hello"]
    line: Word = Field(description="the line it wants to send to")
    camera: Word = Field(description="its own name, that of its key file")
    session: Session = Field(description="a new UUID at each start")
    pixel_format: Word = Field(description="PFNC: `Mono8`, `BayerRG8`, `RGB8`, `BGR8`, `Mono16`")
    width: UInt32 = Field(description="the largest width it will send, pixels")
    height: UInt32 = Field(description="the largest height it will send, pixels")


class Frame(Message):
    """One image of one part; its payload is the third frame of the message.

    An encoding or pixel format outside the lists parses, so that the part is known and gets its
    `UNINSPECTED(format)`: see `is_known_format`.
    """

    type: Literal["frame"]
    line: Word = Field(description="the line of the session")
    camera: Word = Field(description="the camera of the session")
    session: Session = Field(description="that of the `hello`")
    seq: Seq = Field(description="from 0, +1 for each frame, dropped ones included")
    part_id: PartId = Field(description="the part's name: text, 1 to 64 bytes of UTF-8")
    captured_ns: Int64 = Field(description="when it was exposed, by the camera's clock, ns")
    clock: Literal["ptp", "utc", "none"] = Field(description="what that clock is worth")
    encoding: Word = Field(description="`jpeg`, `png` or `raw`; another is refused as `format`")
    pixel_format: Word = Field(description="as in `hello`; another is refused as `format`")
    width: UInt32 = Field(description="pixels; what the payload holds")
    height: UInt32 = Field(description="pixels; what the payload holds")
    stride: UInt32 | None = Field(
        default=None, description="raw only: bytes from row to row; left out: rows packed"
    )
    crc32c: UInt32 = Field(description="CRC-32C of the payload")

    @property
    def is_known_format(self) -> bool:
        """Whether encoding and pixel format are ones that a line may decode."""
        return self.encoding in ENCODINGS and self.pixel_format in PIXEL_FORMATS


class Heartbeat(Message):
    """The camera is alive; every 250 ms."""

    type: Literal["heartbeat"]
    session: Session = Field(description="that of the `hello`")
    seq: Annotated[int, Field(ge=NO_FRAME_SENT, le=INT64_MAX)] = Field(
        description="of the last frame, dropped ones included; −1 before the first"
    )


class Eos(Message):
    """The camera stops on purpose."""

    type: Literal["eos"]
    session: Session = Field(description="that of the `hello`")


class Ready(Message):
    """The line accepts a camera (with its credit) or an actuator."""

    type: Literal["ready"]
    line: Word = Field(description="the line that answers")
    credit: UInt32 | None = Field(
        default=None, description="cameras only: frames that may be without `ack` or `reject`"
    )
    deadline_ms: Finite | None = Field(
        default=None, description="cameras only: from exposure to the gate, ms"
    )


class FrameAck(Message):
    """The frame is accepted: from here on its part gets a verdict. Gives one credit back."""

    type: Literal["ack"]
    session: Session = Field(description="that of the frame")
    seq: Seq = Field(description="that of the frame")


class Reject(Message):
    """A `hello` or a frame is refused. A frame's gives one credit back."""

    type: Literal["reject"]
    session: Session | None = Field(default=None, description="where it could be read")
    seq: Seq | None = Field(default=None, description="the frame's, where it could be read")
    reason: Word = Field(description="one of the reasons below")
    detail: str = Field(description="for a person")


class ActuatorHello(Message):
    """The actuator opens its connection; answered `ready`."""

    type: Literal["hello"]
    line: Word = Field(description="the line whose gate it drives")
    actuator: Word = Field(description="its own name, that of its key file")


class Ack(Message):
    """The actuator has this verdict."""

    type: Literal["ack"]
    line: Word = Field(description="that of the verdict")
    session: Session = Field(description="that of the verdict")
    seq: Seq = Field(description="that of the verdict")


class Resend(Message):
    """The actuator asks for verdicts again, at most the last 256."""

    type: Literal["resend"]
    session: Session = Field(description="the camera session of the verdicts")
    seq: Seq = Field(description="the first that is wanted")


class ActuatorHeartbeat(Message):
    """Alive, in both directions, every 100 ms."""

    type: Literal["heartbeat"]
    beat: Bit = Field(description="toggles with every beat; `true`/`false` or 1/0")


class Verdict(Message):
    """The verdict on one part."""

    type: Literal["verdict"]
    line: Word = Field(description="the line")
    part_id: PartIdOrEmpty = Field(description="the part; empty for a lost frame")
    seq: Seq = Field(description="that of the frame")
    session: Session = Field(description="that of the camera")
    verdict: Literal["PASS", "FAIL", "UNINSPECTED"] = Field(description="what is known of the part")
    reason: str = Field(description="why it is `UNINSPECTED`; else empty")
    action: Literal["pass", "reject", "divert", "stop", "none"] = Field(
        description="what the gate is to do"
    )
    score: Finite | None = Field(description="the model's, if it answered")
    labels: list[str] = Field(description="what the model found")
    answered_by: Literal["pool", "fallback", "failsafe"] = Field(description="who decided")
    model: str = Field(description="name@first 12 hex digits of its sha256; empty without one")
    captured_ns: Int64 = Field(description="as in the frame")
    deadline_ns: Int64 = Field(description="when the gate acts, the line's monotonic clock")
    sent_ns: Int64 = Field(description="when this left, the line's monotonic clock")
    margin_ns: Int64 = Field(description="how long before it had to leave; negative: late")
    simulated: bool = Field(description="true: do not act on it")
    resent: bool = Field(description="true: repeated at your `resend`")


CameraMessage: TypeAlias = Hello | Frame | Heartbeat | Eos
ActuatorMessage: TypeAlias = ActuatorHello | Ack | Resend | ActuatorHeartbeat
AnswerToCamera: TypeAlias = Ready | FrameAck | Reject
MessageToActuator: TypeAlias = Ready | Verdict | ActuatorHeartbeat
