"""When a batch closes: half the shortest deadline or the last slack, whichever is first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deadline_batcher.plan import Category
from deadline_batcher.window import close_at_ns, deeprt_window_ns

MS = 1_000_000
MODEL = Category("m", (4 * MS, 5 * MS, 7 * MS), window_ns=10 * MS)


def test_the_window_is_half_of_the_shortest_relative_deadline() -> None:
    assert deeprt_window_ns([60 * MS, 25 * MS, 40 * MS]) == 12_500_000
    assert deeprt_window_ns([7]) == 3


@pytest.mark.parametrize(
    ("ready_ms", "due_ms", "waiting", "close_ms"),
    [
        (100, 200, 1, 110),  # plenty of slack: the window closes it
        (100, 116, 1, 109),  # 116 − 2 reserve − 5 for two: one more may join at the last moment
        (100, 116, 2, 107),  # … − 7 for three
        (100, 116, 3, 107),  # no size above the largest
        (100, 117, 1, 110),  # both rules meet
        (100, 101, 1, 94),  # already too late to wait: the past
    ],
)
def test_a_batch_closes_at(ready_ms: int, due_ms: int, waiting: int, close_ms: int) -> None:
    close_ns = close_at_ns(
        MODEL.wcet_ns, MODEL.window_ns, ready_ms * MS, due_ms * MS, waiting, reserve_ns=2 * MS
    )
    assert close_ns == close_ms * MS


@given(
    ready=st.integers(0, 100),
    due=st.integers(0, 200),
    waiting=st.integers(1, 5),
    reserve=st.integers(0, 9),
)
def test_no_later_fact_closes_a_batch_later(
    ready: int, due: int, waiting: int, reserve: int
) -> None:
    close = close_at_ns(MODEL.wcet_ns, MODEL.window_ns, ready * MS, due * MS, waiting, reserve * MS)
    assert close <= ready * MS + MODEL.window_ns
    assert close + MODEL.wcet_ns[min(waiting, 2)] + reserve * MS <= due * MS
    assert (
        close_at_ns(MODEL.wcet_ns, MODEL.window_ns, ready * MS, due * MS, waiting + 1, reserve * MS)
        <= close
    )
    assert (
        close_at_ns(
            MODEL.wcet_ns, MODEL.window_ns, ready * MS, (due + 1) * MS, waiting, reserve * MS
        )
        >= close
    )
