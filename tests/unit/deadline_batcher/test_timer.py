"""The timer and the bell that wake a poll loop. Instants are literal: 1 is past, 2**62 far away."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from deadline_batcher.timer import Signal, Timer

FAR_NS = 2**62


@pytest.fixture
def timer() -> Iterator[Timer]:
    timer = Timer()
    yield timer
    timer.close()


def is_readable(source: Timer | Signal, wait_s: float = 0) -> bool:
    return bool(select.select([source], [], [], wait_s)[0])


def test_an_instant_that_is_past_fires_at_once_and_once(timer: Timer) -> None:
    timer.arm(1)
    assert is_readable(timer, 1)
    assert timer.read(now_ns=5) == 1
    assert timer.read(now_ns=6) is None
    assert not is_readable(timer)
    assert timer.lateness_ns == [4]


def test_zero_and_before_fire_too_where_the_kernel_would_disarm(timer: Timer) -> None:
    timer.arm(-7)
    assert is_readable(timer, 1)
    assert timer.read(now_ns=0) == -7


def test_a_far_instant_does_not_fire_and_a_nearer_one_replaces_it(timer: Timer) -> None:
    timer.arm(FAR_NS)
    assert not is_readable(timer)
    assert timer.read(now_ns=5) is None
    timer.arm(2)
    assert is_readable(timer, 1)
    timer.arm(FAR_NS)
    assert not is_readable(timer)


def test_no_instant_disarms(timer: Timer) -> None:
    timer.arm(1)
    timer.arm(None)
    assert not is_readable(timer)
    assert timer.read(now_ns=5) is None


def test_the_same_instant_fires_again_after_it_was_read(timer: Timer) -> None:
    for _ in range(2):
        timer.arm(1)
        assert is_readable(timer, 1)
        assert timer.read(now_ns=1) == 1


def test_lateness_is_kept_for_a_limited_number_of_instants(timer: Timer) -> None:
    timer.lateness_ns = [0] * Timer.LATENESS_KEPT
    timer.arm(1)
    assert is_readable(timer, 1)
    timer.read(now_ns=10)
    assert len(timer.lateness_ns) == Timer.LATENESS_KEPT // 2 + 1
    assert timer.lateness_ns[-1] == 9


def test_a_bell_rung_twice_is_cleared_once() -> None:
    signal = Signal()
    assert not is_readable(signal)
    signal.clear()
    signal.ring()
    signal.ring()
    assert is_readable(signal, 1)
    signal.clear()
    assert not is_readable(signal)
