"""When a batch must close: the derived window, never a configured one.

Two rules, whichever comes first:
- DeepRT (Yang et al., SEC 2021): a window is half of the shortest relative deadline of the
  category, so that what gathered in one window can run in the next.
- slack (LazyBatching, Choi et al., HPCA 2021): the head may wait while its deadline still leaves
  the worst-case execution of the batch that would run.
"""

from __future__ import annotations

from collections.abc import Iterable


def deeprt_window_ns(relative_deadlines_ns: Iterable[int]) -> int:
    """Half of the shortest relative deadline of a category (DeepRT section 4)."""
    return min(relative_deadlines_ns) // 2


def close_at_ns(
    wcet_ns: tuple[int, ...],
    window_ns: int,
    head_ready_at_ns: int,
    head_due_at_ns: int,
    waiting: int,
    reserve_ns: int,
) -> int:
    """The latest instant the batch of the `waiting` parts may still wait for more.

    head_ready_at_ns: when the longest-waiting part became ready; head_due_at_ns: the earliest
    `pool_due`. One more part may join at the last moment, so the slack is that of the next size.
    reserve_ns: handing the answer over, and the lateness of the timer that will close the batch.
    """
    size = min(waiting + 1, len(wcet_ns))
    last_start_ns = head_due_at_ns - reserve_ns - wcet_ns[size - 1]
    return min(head_ready_at_ns + window_ns, last_start_ns)
