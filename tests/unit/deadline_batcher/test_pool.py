"""The table of GPU states: every pair stands in it, and each leads where it is written here."""

from __future__ import annotations

from itertools import product

import pytest

from deadline_batcher.messages import RunBatch
from deadline_batcher.pool import TRANSITIONS, Gpu, GpuEvent, GpuState

# state → (on ready, on lost, on doubt, on drain), written out by hand from the design
EXPECTED = {
    "WARMING": ("READY", "LOST", "WARMING", "DRAINING"),
    "READY": ("READY", "LOST", "SUSPECT", "DRAINING"),
    "SUSPECT": ("READY", "LOST", "SUSPECT", "DRAINING"),
    "LOST": ("READY", "LOST", "LOST", "DRAINING"),
    "DRAINING": ("READY", "LOST", "DRAINING", "DRAINING"),
}
EVENTS = (GpuEvent.READY, GpuEvent.LOST, GpuEvent.DOUBT, GpuEvent.DRAIN)
PAIRS = [
    (GpuState(state), event, GpuState(after))
    for state, row in EXPECTED.items()
    for event, after in zip(EVENTS, row, strict=True)
]


def test_every_pair_of_state_and_event_is_in_the_table_and_here() -> None:
    assert set(TRANSITIONS) == set(product(GpuState, GpuEvent))
    assert {(state, event) for state, event, _ in PAIRS} == set(TRANSITIONS)


@pytest.mark.parametrize(("state", "event", "after"), PAIRS)
def test_a_gpu_follows_the_table(state: GpuState, event: GpuEvent, after: GpuState) -> None:
    gpu = Gpu(0, state)
    assert gpu.step(event) is (after is not state)
    assert gpu.state is after


@pytest.mark.parametrize("state", list(GpuState))
def test_only_a_ready_gpu_without_work_is_free(state: GpuState) -> None:
    assert Gpu(0, state).is_free is (state is GpuState.READY)
    assert not Gpu(0, state, batch=RunBatch(1, 0, 0, (), 5)).is_free
    assert not Gpu(0, state, is_golden_out=True).is_free
