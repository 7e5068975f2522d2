"""The pool as the scheduler sees it: one table of states, one batch in flight a GPU.

Rules for editing: every (state, event) pair stands in TRANSITIONS; a missing pair is a bug and
raises. `READY` alone may be given work.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from deadline_batcher.messages import RunBatch


class GpuState(Enum):
    """Where a GPU stands."""

    WARMING = "WARMING"
    READY = "READY"
    SUSPECT = "SUSPECT"
    LOST = "LOST"
    DRAINING = "DRAINING"


class GpuEvent(Enum):
    """What may happen to a GPU."""

    READY = "ready"
    LOST = "lost"
    DOUBT = "doubt"
    DRAIN = "drain"


S, E = GpuState, GpuEvent
TRANSITIONS: dict[tuple[GpuState, GpuEvent], GpuState] = {
    (S.WARMING, E.READY): S.READY,
    (S.WARMING, E.LOST): S.LOST,
    (S.WARMING, E.DOUBT): S.WARMING,
    (S.WARMING, E.DRAIN): S.DRAINING,
    (S.READY, E.READY): S.READY,
    (S.READY, E.LOST): S.LOST,
    (S.READY, E.DOUBT): S.SUSPECT,
    (S.READY, E.DRAIN): S.DRAINING,
    (S.SUSPECT, E.READY): S.READY,
    (S.SUSPECT, E.LOST): S.LOST,
    (S.SUSPECT, E.DOUBT): S.SUSPECT,
    (S.SUSPECT, E.DRAIN): S.DRAINING,
    (S.LOST, E.READY): S.READY,
    (S.LOST, E.LOST): S.LOST,
    (S.LOST, E.DOUBT): S.LOST,
    (S.LOST, E.DRAIN): S.DRAINING,
    (S.DRAINING, E.READY): S.READY,
    (S.DRAINING, E.LOST): S.LOST,
    (S.DRAINING, E.DOUBT): S.DRAINING,
    (S.DRAINING, E.DRAIN): S.DRAINING,
}


@dataclass(slots=True)
class Gpu:
    """One GPU: its state and the batch it was given, with the instant it becomes overdue."""

    number: int
    state: GpuState = GpuState.WARMING
    batch: RunBatch | None = None
    overdue_at_ns: int = 0  # 0: nothing to watch
    is_golden_wanted: bool = False
    golden: tuple[int, int] = (0, 1)  # category and rows of the one that is wanted
    is_golden_out: bool = False

    @property
    def is_free(self) -> bool:
        """Whether it may be given a batch now."""
        return self.state is GpuState.READY and self.batch is None and not self.is_golden_out

    def step(self, event: GpuEvent) -> bool:
        """Follow the table; returns whether the state changed."""
        after = TRANSITIONS[self.state, event]
        changed = after is not self.state
        self.state = after
        return changed
