"""A lost GPU: what `takt` keeps for it beforehand, and how it sees the parts that came back.

A part that was in a batch of a lost GPU has its line's fallback, and may be left to it. The other
parts have lost nothing, and are to lose nothing: so a returned part never decides how large a
batch is or who goes first (docs/batching.md).
"""

from __future__ import annotations

from deadline_batcher.board import Board
from deadline_batcher.plan import Plan

RESERVE_SHARE = 0.9
"""Up to this share of what the pool could do with one GPU less, the rest of it is kept free."""


class Reserve:
    """Whether the pool would carry the plan's load with one GPU less.

    Only then something is kept for the loss: above it a loss costs parts whatever was kept, and
    keeping would cost load.
    """

    def __init__(self, plan: Plan) -> None:
        self._gpus = plan.least_gpus() / RESERVE_SHARE + 1
        self._is_known = bool(plan.lines)

    def is_kept(self, board: Board) -> bool:
        """Whether the next batch must leave what a lost GPU would need; three free are enough."""
        return self._is_known and len(board.free) < 3 and len(board.ready) >= self._gpus


def less_one(board: Board) -> list[int]:
    """When the GPUs beside the one to be given work are free, if one of them were lost.

    The worst is the loss of the one that is free first.
    """
    return board.ends_ns if len(board.free) > 1 else board.ends_ns[1:]


def without_returned(board: Board) -> tuple[Board, list[int]]:
    """The board without the returned parts in front of each category; and how many those are.

    Returned parts further back ride along: a part before them is due sooner.
    """
    fresh = Board(board.plan, True)
    fresh.free, fresh.ready, fresh.ends_ns = board.free, board.ready, board.ends_ns
    fresh.wcet, fresh.wcet_on = board.wcet, board.wcet_on
    fronts = []
    for number, queue in enumerate(board.queues):
        entries = queue.entries
        front = next((n for n, entry in enumerate(entries) if not entry[2].runs), len(entries))
        fronts.append(front)
        if front < len(entries):
            fresh.queues[number].entries = entries[front:] if front else entries
            fresh.occupied[number] = None
    return fresh, fronts
