"""How `takt` sees the parts that came back from a lost GPU.

A part that was in a batch of a lost GPU has its line's fallback, and may be left to it. The other
parts have lost nothing, and are to lose nothing: so a returned part never decides how large a
batch is or who goes first (docs/batching.md).
"""

from __future__ import annotations

from deadline_batcher.board import Board


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
