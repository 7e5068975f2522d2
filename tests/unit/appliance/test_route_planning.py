"""From the plant file's `[route]` to what routes and shedding are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from appliance.planning import ModelProfiles, make_plan, route_plan
from appliance.plant import (
    LineSection,
    ModelSection,
    Plant,
    PlantSection,
    PoolSection,
    RouteSection,
    Section,
)
from appliance.plant_errors import load_plant
from appliance.shed_planning import shed_plan
from deadline_batcher.plan import PolicySpec
from deadline_batcher.profile import Profile, Provenance
from deadline_batcher.shedding import SHARE_ONE

MS = 1_000_000
EXAMPLE = Path(__file__).resolve().parents[3] / "configs" / "plant.example.toml"


def line(number: int = 1, **changes: Any) -> LineSection:
    fields: dict[str, Any] = {
        "id": f"line{number}",
        "model": "tile",
        "frames": "tcp://127.0.0.1:1",
        "verdicts": "tcp://127.0.0.1:2",
        "cycle_time_ms": 200,
        "deadline_ms": 150,
        "actuation_ms": 10,
        "slo_p99_ms": 120,
        "transport_max_ms": 20,
        "criticality": number,
    }
    return LineSection(**{**fields, **changes})


def plant(*lines: LineSection, route: RouteSection | None = None) -> Plant:
    return Plant(
        plant=PlantSection(name="bench", gpus_lost_tolerated=1),
        pool=PoolSection(endpoints=[f"grpc://127.0.0.1:{port}" for port in (7, 8, 9)]),
        model=[ModelSection(name="tile", pool="", fallback="", profile="", batch_max=2)],
        line=list(lines) or [line()],
        route=route or RouteSection(),
    )


def profiles() -> dict[str, ModelProfiles]:
    """A picture takes 10 ms, two take 16; the fallback 25."""
    made = []
    for engine, wcet_ns in (("pool", {1: 10 * MS, 2: 16 * MS}), ("fallback", {1: 25 * MS})):
        provenance = Provenance(model_sha256="", device="", cores=1)
        made.append(
            Profile(
                model="tile",
                engine=engine,  # type: ignore[arg-type]
                origin="published",
                margin=1,
                rule="",
                wcet_ns=wcet_ns,
                provenance=provenance,
            )
        )
    return {"tile": ModelProfiles(*made)}


def test_thresholds_follow_from_the_lines_objectives() -> None:
    told = route_plan(plant(), line())
    assert told.latency_ns == 114 * MS  # 0.95 of 120
    assert (told.late_permille, told.hedge_permille) == (100, 200)  # ten times 1 - 0.99
    assert (told.window_ns, told.return_after_ns, told.beat_lost_ns) == (
        10_000 * MS, 2_000 * MS, 1_000 * MS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("share", "late", "hedge"),
    [(1.0, 100, 200), (0.98, 200, 400), (0.95, 500, 500), (0.0, 500, 500)],
)
def test_a_line_that_may_use_its_fallback_more_often_leaves_later(
    share: float, late: int, hedge: int
) -> None:
    told = route_plan(plant(), line(slo_pool_share=share))
    assert (told.late_permille, told.hedge_permille) == (late, hedge)


def test_a_share_in_the_file_is_taken_as_it_is_and_no_slo_is_the_time_until_due() -> None:
    route = RouteSection(late_share=0.03, hedge_share=0.04)
    told = route_plan(plant(route=route), line(slo_p99_ms=None))
    assert (told.late_permille, told.hedge_permille) == (30, 40)
    assert told.latency_ns == round(0.95 * 135 * MS)  # 150 - 10 - 5


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"return_after_ms": 3000, "return_after_max_ms": 2000}, "return_after_ms 3000 is more"),
        ({"trial_latency_share": 0.9, "latency_share": 0.8}, "only to leave again"),
        ({"trial_frames": 0}, "greater than or equal to 1"),
        ({"window": 5}, "Extra inputs"),
    ],
)
def test_routes_that_make_no_sense_are_refused(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        RouteSection(**wrong)


def test_the_batcher_is_told_every_lines_need_and_what_gpus_are_said_to_carry() -> None:
    asked = plant(line(1), line(2, cycle_time_ms=100), line(3))
    told = shed_plan(asked, make_plan(asked, profiles()), profiles())
    # 150 - 10 - 5 until due, less timer 5, start 5 and fallback 25, transport 20, result 5
    assert {stream.needed_ns for stream in told.load.streams} == {75 * MS}
    assert [stream.cycle_ns // MS for stream in told.load.streams] == [200, 100, 200]
    assert [stream.criticality for stream in told.load.streams] == [1, 2, 3]
    whole = 8 * SHARE_ONE * (1 + 2 + 1) // 200  # 8 ms a part in batches of two
    assert told.capacity == (0, whole // 2, whole, 3 * whole // 2)  # all of them fit two GPUs
    assert told.tests == ()
    eager = make_plan(asked, profiles(), PolicySpec("eager"))
    assert shed_plan(asked, eager, profiles()).tests == ("work-conserving",)


def test_a_best_effort_line_may_use_the_pool_until_it_is_due() -> None:
    asked = plant(line(deadline_ms=75, slo_p99_ms=None, takeover="best-effort"))
    told = shed_plan(asked, make_plan(asked, profiles()), profiles())
    assert told.load.streams[0].needed_ns == (75 - 10 - 5 - 20 - 5) * MS


def test_the_example_has_every_key_of_the_route_with_its_default() -> None:
    text = EXAMPLE.read_text()
    assert load_plant(EXAMPLE).route == RouteSection()
    for name in RouteSection.model_fields:
        assert f"\n{name} = " in text or f"\n# {name} = " in text, name
    assert issubclass(RouteSection, Section)
