"""A plant whose fallbacks cannot carry it with every GPU gone: which line, and by how much."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.planning import ModelProfiles
from appliance.plant import FallbackSection, LineSection, ModelSection, Plant, PlantSection
from appliance.plant import PoolSection as Pool
from deadline_batcher.profile import Profile, Provenance
from hil_sim.size_fallback import cores_faults, group_faults, own_faults, runs_of

MS = 1_000_000


def plant(lines: int = 6, concurrent_max: int = 2, **changes: Any) -> Plant:
    """Deadline 150: 150 - 10 actuation - 5 output - 10 transport - 5 timer - 5 start = 115 left."""
    told: dict[str, Any] = {"cycle_time_ms": 100.0, "deadline_ms": 150.0, **changes}
    told |= {"frames": "tcp://127.0.0.1:1", "verdicts": "tcp://127.0.0.1:2"}
    return Plant(
        plant=PlantSection(name="hall"),
        pool=Pool(endpoints=["grpc://127.0.0.1:9"]),
        fallback=FallbackSection(concurrent_max=concurrent_max),
        model=[ModelSection(name="m", pool="m", fallback="f", profile="p.json")],
        line=[
            LineSection(id=f"line{n}", model="m", actuation_ms=10, transport_max_ms=10, **told)
            for n in range(1, lines + 1)
        ],
    )


def profiles(wcet_ms: float, busy: int, concurrent_max: int = 0) -> dict[str, ModelProfiles]:
    seen = Provenance(model_sha256="", device="x", cores=4, sessions_busy=busy,
                      concurrent_max=concurrent_max)  # fmt: skip
    one = Profile(model="m", engine="fallback", origin="measured", margin=1.25, rule="x",
                  wcet_ns={1: round(wcet_ms * MS)}, provenance=seen)  # fmt: skip
    return {"m": ModelProfiles(one, one)}


def test_three_lines_of_a_core_group_one_after_the_other() -> None:
    # 6 lines, 2 groups of 3; 3 x 32 = 96 > 100 - 5 start by 1 ms; a wait that was not measured.
    refused, notes = cores_faults(plant(), profiles(32.0, busy=1))
    assert notes == []
    assert (
        "lines line1, line3, line5: with all GPUs gone all 3 lines of its core group (1 of 2)"
        in (refused[0])
    )
    assert (
        "96.0 ms at worst, 1.0 ms more than the cycle time of 100 ms less start_ms 5" in refused[0]
    )
    assert "line2, line4, line6" in refused[1]
    assert "concurrent_max 3 would carry it" in refused[2]


def test_the_same_fits_by_a_hair_and_says_what_is_not_known() -> None:
    refused, (note,) = cores_faults(plant(), profiles(31.6, busy=1))
    assert refused == []
    assert "the lines of each of 2 core groups fit one after the other" in note


def test_the_deadline_may_bind_before_the_cycle() -> None:
    # 3 x 40 = 120 of 115 left; the cycle of 200 has room.
    runs = runs_of(one := plant(cycle_time_ms=200.0), {"m": 40 * MS})
    (first, _) = group_faults(one, runs, 2)
    assert "120.0 ms at worst, 5.0 ms more than the 115.0 ms left of its deadline_ms" in first
    assert group_faults(one, runs, 3) == []
    runs = runs_of(one := plant(cycle_time_ms=200.0, takeover="best-effort"), {"m": 40 * MS})
    assert group_faults(one, runs, 2) == []


def test_uneven_groups_are_the_plant_s() -> None:
    # 5 lines in 2 groups: line1, line3, line5 wait for each other, line2 and line4 do not.
    one = plant(lines=5)
    (told,) = group_faults(one, runs_of(one, {"m": 40 * MS}), 2)
    assert told.startswith("lines line1, line3, line5:")


def test_a_wait_that_was_measured_is_not_added_again() -> None:
    assert cores_faults(plant(), profiles(90.0, busy=6, concurrent_max=2)) == ([], [])


@pytest.mark.parametrize(("measured", "is_refused"), [(4, True), (1, False)])
def test_measured_with_other_cores(measured: int, is_refused: bool) -> None:
    refused, notes = cores_faults(plant(), profiles(20.0, busy=6, concurrent_max=measured))
    told = refused if is_refused else notes
    assert f"measured with {measured} runs at once, the plant has concurrent_max 2" in told[0]
    assert (notes if is_refused else refused) == []


def test_a_line_of_its_own_names_what_is_needed() -> None:
    one = plant(lines=13)
    (slow, late) = own_faults(one, runs_of(one, {"m": 120 * MS}))
    assert "line12 and 1 more: with all GPUs gone its fallback takes 125.0 ms a part" in slow
    assert "25.0 ms more than its cycle time of 100 ms: 1.25 parts come while it does one" in slow
    assert "ends 5.0 ms late: 120.0 ms at worst, 115.0 ms left of deadline_ms 150" in late
    assert "needed is deadline_ms 155.0" in late
