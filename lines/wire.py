"""The wire: messages of docs/protocol.md in and out; the models are in `lines/wire_models.py`.

Builders return the frames after the routing id.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from lines.wire_models import (
    ENCODINGS,
    HEADER_BYTES_MAX,
    INT64_MAX,
    NO_FRAME_SENT,
    NOT_OWED_REASONS,
    PART_ID_BYTES_MAX,
    PIXEL_FORMATS,
    REASONS,
    UINT32_MAX,
    UNINSPECTED_REASONS,
    VERSION,
    Ack,
    ActuatorHeartbeat,
    ActuatorHello,
    ActuatorMessage,
    AnswerToCamera,
    Bytes,
    CameraMessage,
    Eos,
    Frame,
    FrameAck,
    Heartbeat,
    Hello,
    Message,
    MessageToActuator,
    Ready,
    Reject,
    Resend,
    Verdict,
)

__all__ = [
    "ENCODINGS",
    "HEADER_BYTES_MAX",
    "INT64_MAX",
    "NOT_OWED_REASONS",
    "NO_FRAME_SENT",
    "PART_ID_BYTES_MAX",
    "PIXEL_FORMATS",
    "REASONS",
    "UINT32_MAX",
    "UNINSPECTED_REASONS",
    "VERSION",
    "Ack",
    "ActuatorHeartbeat",
    "ActuatorHello",
    "ActuatorMessage",
    "AnswerToCamera",
    "Bytes",
    "CameraMessage",
    "Eos",
    "Frame",
    "FrameAck",
    "Heartbeat",
    "Hello",
    "Message",
    "MessageToActuator",
    "Ready",
    "Reject",
    "Resend",
    "Verdict",
    "WireError",
    "ack",
    "heartbeat",
    "parse_actuator",
    "parse_camera",
    "parse_to_actuator",
    "parse_to_camera",
    "ready",
    "reject",
    "verdict",
]

MessageT = TypeVar("MessageT")

_BY_TYPE = Field(discriminator="type")
_CAMERA: TypeAdapter[CameraMessage] = TypeAdapter(Annotated[CameraMessage, _BY_TYPE])
_ACTUATOR: TypeAdapter[ActuatorMessage] = TypeAdapter(Annotated[ActuatorMessage, _BY_TYPE])
_TO_CAMERA: TypeAdapter[AnswerToCamera] = TypeAdapter(Annotated[AnswerToCamera, _BY_TYPE])
_TO_ACTUATOR: TypeAdapter[MessageToActuator] = TypeAdapter(Annotated[MessageToActuator, _BY_TYPE])


class WireError(Exception):
    """A message that the protocol does not allow, with whatever of it could be read.

    `reason` is `version` or `header`; the other fields are None where they could not be read.
    """

    def __init__(
        self,
        reason: str,
        detail: str,
        *,
        seq: int | None = None,
        part_id: str | None = None,
        session: str | None = None,
        line: str | None = None,
    ) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
        self.seq = seq
        self.part_id = part_id
        self.session = session
        self.line = line


def parse_camera(frames: Sequence[Bytes]) -> CameraMessage:
    """A camera's message, without its routing id. Raises WireError.

    Only a `frame` may have a third frame, its payload; one without is parsed all the same, so that
    the line can name its part when it refuses it.
    """
    message = _parse(_CAMERA, frames, frames_max=3)
    if len(frames) == 3 and not isinstance(message, Frame):
        raise WireError("header", f"a {message.type} has no payload")
    return message


def parse_actuator(frames: Sequence[Bytes]) -> ActuatorMessage:
    """An actuator's message, without its routing id. Raises WireError."""
    return _parse(_ACTUATOR, frames, frames_max=2)


def parse_to_camera(frames: Sequence[Bytes]) -> AnswerToCamera:
    """What a line sent to its camera. Raises WireError."""
    return _parse(_TO_CAMERA, frames, frames_max=2)


def parse_to_actuator(frames: Sequence[Bytes]) -> MessageToActuator:
    """What a line sent to its actuator. Raises WireError."""
    return _parse(_TO_ACTUATOR, frames, frames_max=2)


def _parse(adapter: TypeAdapter[MessageT], frames: Sequence[Bytes], frames_max: int) -> MessageT:
    if not frames or bytes(frames[0]) != VERSION:
        first = bytes(frames[0][:16]) if frames else b""
        raise WireError("version", f"the first frame is {first!r}, not {VERSION!r}")
    if not 2 <= len(frames) <= frames_max:
        raise WireError("header", f"{len(frames)} frames where 2 to {frames_max} are allowed")
    size = len(frames[1])
    if size > HEADER_BYTES_MAX:
        raise WireError("header", f"{size} bytes of header; at most {HEADER_BYTES_MAX}")
    header = bytes(frames[1])
    try:
        message = adapter.validate_json(header)
    except ValidationError as error:
        _refuse(header, _first_mistake(error))
    except RecursionError:
        _refuse(header, "nested too deep")
    # The parser takes NaN and Infinity, which JSON does not have; only these rare headers pay.
    if b"NaN" in header or b"Infinity" in header:
        try:
            json.loads(header, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            _refuse(header, str(error))
    return message


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _first_mistake(error: ValidationError) -> str:
    """One line for a person: the first mistake, without what the sender wrote."""
    mistakes = error.errors(include_url=False, include_input=False, include_context=False)
    first = mistakes[0]
    # The first element of the place is the tag of the union.
    where = ".".join(str(part) for part in first["loc"][1:])
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    return f"{where}: {first['msg']}{more}"[:300] if where else f"{first['msg']}{more}"[:300]


def _refuse(header: bytes, detail: str) -> NoReturn:
    """Raise WireError("header") with whatever of the header can be read."""
    try:
        fields = json.loads(header)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise WireError("header", detail) from None
    seq, part_id = fields.get("seq"), fields.get("part_id")
    session, line = fields.get("session"), fields.get("line")
    raise WireError(
        "header",
        detail,
        seq=seq if type(seq) is int and 0 <= seq <= INT64_MAX else None,
        part_id=part_id if _is_text(part_id) else None,
        session=session if _is_text(session) else None,
        line=line if _is_text(line) else None,
    ) from None


def _is_text(value: object) -> bool:
    """Whether it is text that can be stored and sent on: short enough, no half of a surrogate."""
    if not isinstance(value, str):
        return False
    try:
        return 0 < len(value.encode()) <= PART_ID_BYTES_MAX
    except UnicodeEncodeError:
        return False


def _frames(header: dict[str, Any]) -> list[bytes]:
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return [VERSION, text.encode(errors="replace")]


def ready(line: str, credit: int | None = None, deadline_ms: float | None = None) -> list[bytes]:
    """`ready`: to a camera with its credit (frames) and the line's deadline, else bare."""
    header: dict[str, Any] = {"type": "ready", "line": line}
    if credit is not None:
        header["credit"] = credit
    if deadline_ms is not None:
        header["deadline_ms"] = deadline_ms
    return _frames(header)


def ack(session: str, seq: int) -> list[bytes]:
    """`ack` of a frame."""
    return _frames({"type": "ack", "session": session, "seq": seq})


def reject(seq: int | None, reason: str, detail: str, session: str | None = None) -> list[bytes]:
    """`reject` of a frame, or of a hello (no `seq`). `detail` is cut at 200 characters."""
    return _frames(
        {
            "type": "reject",
            "session": session,
            "seq": seq,
            "reason": reason,
            "detail": detail[:200],
        }
    )


def heartbeat(beat: bool) -> list[bytes]:
    """`heartbeat` to or from an actuator."""
    return _frames({"type": "heartbeat", "beat": beat})


def verdict(
    *,
    line: str,
    part_id: str,
    seq: int,
    session: str,
    verdict: str,
    reason: str,
    action: str,
    score: float | None,
    labels: Sequence[str],
    answered_by: str,
    model: str,
    captured_ns: int,
    deadline_ns: int,
    sent_ns: int,
    margin_ns: int,
    simulated: bool,
    resent: bool = False,
) -> list[bytes]:
    """`verdict`. A score that is no finite number goes as null: a verdict always leaves."""
    return _frames(
        {
            "type": "verdict",
            "line": line,
            "part_id": part_id,
            "seq": seq,
            "session": session,
            "verdict": verdict,
            "reason": reason,
            "action": action,
            "score": score if score is not None and math.isfinite(score) else None,
            "labels": list(labels),
            "answered_by": answered_by,
            "model": model,
            "captured_ns": captured_ns,
            "deadline_ns": deadline_ns,
            "sent_ns": sent_ns,
            "margin_ns": margin_ns,
            "simulated": simulated,
            "resent": resent,
        }
    )
