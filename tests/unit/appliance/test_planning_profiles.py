"""Profiles that are not of what runs here are refused at planning, and told by how much."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.planning import PlanningError, make_plan, profiles_of
from appliance.plant import LineSection, ModelSection, Plant, PlantSection, PoolSection
from appliance.profile_command import profile_lines
from appliance.profile_provenance import mismatches, provenance_of, scheduling_class
from appliance.start import line_settings
from deadline_batcher.profile import Profile, load_profile

MODEL = Path(__file__).resolve().parents[3] / "models" / "trial" / "brightest.onnx"


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    shutil.copy(MODEL, tmp_path / "m.onnx")
    return Plant(
        plant=PlantSection(name="bench"),
        pool=PoolSection(endpoints=["grpc://127.0.0.1:9"]),
        model=[
            ModelSection(
                name="tile", pool="m.onnx", fallback="m.onnx", profile="p.json", batch_max=3
            )
        ],
        line=[
            LineSection(
                id="l",
                model="tile",
                frames="tcp://127.0.0.1:1",
                verdicts="tcp://127.0.0.1:2",
                cycle_time_ms=100,
                deadline_ms=150,
            )
        ],
        folder=tmp_path,
    )


def save(plant: Plant, engine: Any = "pool", sizes: int = 3, **changes: str) -> None:
    model = plant.model[0]
    name = "p.json" if engine == "pool" else "p-fallback.json"
    Profile(
        model=changes.pop("model", "tile"),
        engine=engine,
        origin="measured",
        margin=1.25,
        rule="x",
        wcet_ns={size: size for size in range(1, sizes + 1)},
        provenance=provenance_of(plant, model, engine).model_copy(update=changes),
    ).save(plant.path(name))


def test_profiles_of_what_runs_here_are_taken(plant: Plant) -> None:
    save(plant)
    save(plant, "fallback", sizes=1)
    assert profiles_of(plant)["tile"].pool.wcet_ns == {1: 1, 2: 2, 3: 3}
    assert mismatches(plant, plant.model[0]) == []


@pytest.mark.parametrize(
    ("wcet_ms", "marked", "used"),
    [
        ((6.28, 14.5, 16.0, 18.0), [], (1, 3)),  # super-additive at 2; 4 is beyond batch_max
        ((10, 20, 30, 40), [], (1, 2, 3)),  # no gain: as dear as two smaller ones, not dearer
        ((6, 7, 8, 9), [1, 3, 4], (1, 3)),  # the profile's own word: 2 was measured in passing
    ],
)
def test_the_scheduler_is_told_which_sizes_the_profile_uses(
    plant: Plant, wcet_ms: tuple[float, ...], marked: list[int], used: tuple[int, ...]
) -> None:
    save(plant)
    save(plant, "fallback", sizes=1)
    found = profiles_of(plant)
    changed = {
        "wcet_ns": {size: round(ms * 1e6) for size, ms in enumerate(wcet_ms, start=1)},
        "used": marked,
    }
    pool = found["tile"].pool.model_copy(update=changed)
    (category,) = make_plan(plant, {"tile": replace(found["tile"], pool=pool)}).categories
    assert category.used == used
    assert len(category.wcet_ns) == 3


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_sha256": "ab" * 32}, r"p\.json: model_sha256: profile has 'abab.*measure again"),
        ({"device": "L4"}, "device: profile has 'L4', this machine has"),
        ({"gpu": "NVIDIA L4"}, "gpu: profile has 'NVIDIA L4', this machine has ''"),
        ({"driver": "550"}, "driver: profile has '550'"),
        ({"sizes": 2}, "batch sizes up to 2, 1 short of the plant file's batch_max 3"),
        ({"model": "other"}, "is of other on the pool, not of tile on the pool"),
    ],
)
def test_profiles_of_something_else_are_refused(
    plant: Plant, changes: dict[str, Any], says: str
) -> None:
    save(plant, **changes)
    save(plant, "fallback", sizes=1)
    with pytest.raises(PlanningError, match=says):
        profiles_of(plant)


def test_a_published_profile_never_passes_for_one_of_this_machine(plant: Plant) -> None:
    save(plant)
    save(plant, "fallback", sizes=1)
    path = plant.path("p.json")
    path.write_text(path.read_text().replace('"measured",', '"published",'))
    (said,) = mismatches(plant, plant.model[0])
    assert "published figures" in said


def test_lines_share_the_core_groups_in_turn(plant: Plant) -> None:
    save(plant)
    save(plant, "fallback", sizes=1)
    lines = [plant.line[0].model_copy(update={"id": f"l{number}"}) for number in range(5)]
    many = plant.model_copy(update={"line": lines})
    cores = [line_settings(many, line.id).fallback_core for line in lines]
    assert cores == [0, 1, 2, 3, 4]


def test_the_scheduling_class_is_stated_and_not_asked_of_a_shell(plant: Plant) -> None:
    save(plant, scheduling="SCHED_FIFO 10")
    save(plant, "fallback", sizes=1)
    assert mismatches(plant, plant.model[0]) == []
    profile = load_profile(plant.path("p.json"))
    assert profile.provenance.scheduling == "SCHED_FIFO 10"
    assert any("measured under SCHED_FIFO 10" in text for text in profile_lines(profile))
    other = load_profile(plant.path("p-fallback.json"))
    assert other.provenance.scheduling == scheduling_class()
