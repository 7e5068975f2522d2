"""The one interface between the scheduler and a batching rule.

The scheduler keeps what is common to all rules: events, GPU states, requeue after a loss, refusal
of what is late, goldens, overdue batches. A policy answers one question: with these parts waiting
and these GPUs free, what runs now? It is pure, like the scheduler.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from deadline_batcher.board import Board, Part
from deadline_batcher.plan import Plan


class Choice(NamedTuple):
    """Run `size` parts of a category's queue, from place `first` on, on this GPU.

    is_dropping: those in front of them are refused; else they wait on.
    """

    gpu: int
    category: int
    size: int
    first: int = 0
    is_dropping: bool = False


class Hold(NamedTuple):
    """Start nothing now. `until_ns`: when to ask again if nothing happens first."""

    until_ns: int | None = None


class Policy(Protocol):
    """A batching rule.

    Worst cases are the board's (`board.wcet`, `board.cap_for`): they are of the GPU offered first
    and change while the pool runs. The plan's are of a GPU that never overran.

    is_by_due: queues are kept by `pool_due` (else by arrival). may_end_late: the published rule
    starts batches without looking at deadlines, so that the scheduler's promise does not hold.
    """

    is_by_due: bool
    may_end_late: bool

    def waits(self, part: Part) -> None:
        """A part has begun to wait."""

    def missed(self, part: Part, now_ns: int) -> None:
        """A part that waited was refused: not even a batch of one could answer it in time."""

    def choose(self, board: Board, now_ns: int) -> Choice | Hold:
        """What to start; asked only while a GPU is free and a part waits, until it holds."""


class Rule:
    """What most rules share: they keep the plan, remember nothing and learn nothing."""

    is_by_due = True
    may_end_late = False

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def waits(self, part: Part) -> None:
        """Nothing to remember."""

    def missed(self, part: Part, now_ns: int) -> None:
        """Nothing to learn from it."""
