"""The trial's smallest case on real servers: every part answered, counted, batched and timed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hil_sim.trial_plants import Part, TrialLines, TrialModel, TrialPlant, arrivals
from hil_sim.trial_pool import TrialPool
from hil_sim.triton_model import Setting

pytestmark = pytest.mark.real

MS = 1_000_000
PLANT = TrialPlant(
    "smallest",
    (TrialModel("detector", 20.0, 10.0, 4), TrialModel("classifier", 10.0, 5.0, 4)),
    (
        TrialLines("detector", 2, 200, 5_000, 0.05, 2),
        TrialLines("classifier", 2, 100, 5_000, 0.05, 1),
    ),
    gpus=2,
    stretch=1.0,
)


def test_a_small_plant_under_triton_s_own_batcher(tmp_path: Path) -> None:
    with TrialPool(PLANT, Setting(4, 0.0), tmp_path) as pool:
        parts = arrivals(PLANT, 1.0, 1_500, 1)
        run = pool.load(parts, 2, "shortest")
        assert (run.sent, run.missed, run.errors) == (len(parts), 0, 0)
        assert 0 < run.busy < 1
        emulated_ns = run.overhead.emulated_ns
        # Single batches at most, fewer where Triton batched: 30 and 15 ms alone.
        assert (
            0 < emulated_ns <= sum(30 * MS if one.model == "detector" else 15 * MS for one in parts)
        )
        assert run.overhead.held_ns >= 0  # never shorter than emulated

        # Twelve at one instant on one GPU: Triton makes batches, and no two run at once.
        burst = [Part(0, 5_000 * MS, "detector", 2) for _ in range(12)]
        crowd = pool.load(burst, 1, "round-robin")
        assert crowd.missed == 0
        assert 3 <= crowd.batches < 12
        assert crowd.busy <= 1

        # A deadline that nobody can keep is a miss, and the run stops at it.
        late = [Part(turn * 200 * MS, MS, "detector", 2) for turn in range(20)]
        stopped = pool.load(late, 1, "shortest")
        assert 0 < stopped.missed <= stopped.sent < 20
        assert stopped.latest_ns > 0
