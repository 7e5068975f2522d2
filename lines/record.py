"""What the journal keeps of one part: one row, every stage's time.

The stages add up to `sent_at_ns - captured_at_ns`; `STAGES` is their order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

STAGES = ("transport", "decode", "queue", "window", "gather", "model", "post", "output")


@dataclass(slots=True)
class PartRow:
    """One part of one line. Instants (`_at_ns`) are on the host's monotonic clock.

    transport: captured → received; decode: received → picture in its slot; queue: ready while no
    engine was free; window: the wait the batcher (or the guard) chose; gather: dispatch → call;
    model: call → answer; post: answer → verdict decided; output: decided → sent.
    """

    line: str
    session: str
    seq: int
    part_id: str
    verdict: str  # PASS, FAIL, UNINSPECTED
    reason: str  # empty for PASS and FAIL
    action: str
    answered_by: str  # pool, fallback, failsafe
    owed: bool  # acknowledged, or refused with its part named
    acked: bool
    score: float | None
    model: str  # name@first 12 hex digits of the model file's sha256; empty for failsafe
    threshold: float | None
    engine: str  # gpu0…, fallback, or empty
    endpoint_epoch: int  # which start of that engine answered; 0 without one
    batch_id: int  # 0 without a batch
    batch_size: int
    slot: int
    generation: int
    nonce: int
    nonce_ok: bool
    crc32c: int
    clock: str  # quality of the capture time: ptp, utc, none
    captured_ns: int  # the camera's own stamp: data, not time
    captured_at_ns: int
    received_at_ns: int
    ready_at_ns: int
    decided_at_ns: int
    sent_at_ns: int  # 0: no actuator connected
    due_at_ns: int
    deadline_at_ns: int
    transport_ns: int
    decode_ns: int
    queue_ns: int
    window_ns: int
    gather_ns: int
    model_ns: int
    post_ns: int
    output_ns: int
    picture_bytes: int
    simulated: bool
    fallback_started: bool

    def as_dict(self) -> dict[str, Any]:
        """Column name → value, for the journal."""
        return {name: getattr(self, name) for name in self.__slots__}
