"""The table of what so many GPUs carry: searched, written, read, and refused for another plant."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.capacity import CapacityError, CapacityTable, asked_sha256, load_table
from appliance.planning import ModelProfiles, make_plan
from appliance.plant import (
    LineSection,
    ModelSection,
    Plant,
    PlantSection,
    PoolSection,
    RouteSection,
)
from appliance.shed_planning import offered_load, shed_plan
from deadline_batcher.profile import Profile, Provenance
from deadline_batcher.shedding import SHARE_ONE, share_of
from deadline_batcher.sizing.load import Load
from hil_sim.capacity_command import row_of, table_of

MS = 1_000_000


def profiles() -> dict[str, ModelProfiles]:
    """No gain from batching: 40 ms a picture; so that shares can be counted by hand."""
    made = []
    for engine, wcet_ns in (("pool", {1: 40 * MS, 2: 80 * MS}), ("fallback", {1: 20 * MS})):
        made.append(
            Profile(
                model="tile", engine=engine, origin="published", margin=1, rule="",  # type: ignore[arg-type]
                wcet_ns=wcet_ns, provenance=Provenance(model_sha256="", device="", cores=1),
            )
        )  # fmt: skip
    return {"tile": ModelProfiles(*made)}


def plant(folder: Path, cycles_ms: tuple[float, ...], capacity: str | None = None) -> Plant:
    lines = [
        LineSection(
            id=f"line{number}", model="tile", frames="tcp://127.0.0.1:1",
            verdicts="tcp://127.0.0.1:2", cycle_time_ms=cycle_ms, deadline_ms=300,
            criticality=len(cycles_ms) - number, transport_max_ms=10,
        )
        for number, cycle_ms in enumerate(cycles_ms)
    ]  # fmt: skip
    return Plant(
        plant=PlantSection(name="bench", gpus_lost_tolerated=0),
        pool=PoolSection(endpoints=["grpc://127.0.0.1:7", "grpc://127.0.0.1:8"]),
        model=[ModelSection(name="tile", pool="", fallback="", profile="", batch_max=2)],
        line=lines,
        route=RouteSection(capacity=capacity),
        folder=folder,
    )


def load_of(made: Plant) -> Load:
    return offered_load(made, make_plan(made, profiles()), profiles())


@pytest.mark.slow
def test_each_number_of_gpus_carries_what_was_seen_and_never_more_than_the_bound(
    tmp_path: Path,
) -> None:
    """Four lines of four tenths of a GPU each: two fit one GPU and all four fit two."""
    made = plant(tmp_path, (100, 100, 100, 100), "capacity.json")
    rows = []
    table = table_of(made, profiles(), on_row=rows.append)
    assert [(row.gpus, row.lines) for row in rows] == [(2, 4), (1, 2)]
    assert all(row.how == "evidence" and row.runs >= 8 for row in rows)
    assert table.capacity[0] == 0
    share = share_of(load_of(made), 0)
    assert share is not None and share == 4 * SHARE_ONE // 10
    for gpus, lines in ((1, 2), (2, 4)):
        assert lines * share <= table.capacity[gpus] <= gpus * SHARE_ONE
    table.save(tmp_path / "capacity.json")
    told = shed_plan(made, make_plan(made, profiles()), profiles())
    assert told.capacity == tuple(table.capacity)
    assert told.capacity_from == "the evidence in capacity.json"


def test_a_table_is_of_one_plant_alone(tmp_path: Path) -> None:
    made = plant(tmp_path, (100, 100), "capacity.json")
    load = load_of(made)
    CapacityTable(
        policy="takt", asked_sha256=asked_sha256(load, "takt"), capacity=[0, 5, 7], rows=[]
    ).save(tmp_path / "capacity.json")
    path = tmp_path / "capacity.json"
    assert load_table(path, load, "takt", 2).capacity == [0, 5, 7]
    other = plant(tmp_path, (100, 101), "capacity.json")
    for args in ((load_of(other), "takt", 2), (load, "eager", 2), (load, "takt", 3)):
        with pytest.raises(CapacityError, match="is of another plant or profile"):
            load_table(path, *args)
    told = shed_plan(other, make_plan(other, profiles()), profiles())
    assert told.capacity == (0, 398_020, 796_040)  # by the plant file's word: two GPUs, two lines
    assert "in proportion, because" in told.capacity_from


@pytest.mark.parametrize("capacity", [[0, 7, 5], [1, 5, 7]])
def test_capacities_that_make_no_sense_are_refused(tmp_path: Path, capacity: list[int]) -> None:
    load = load_of(plant(tmp_path, (100, 100)))
    CapacityTable(
        policy="takt", asked_sha256=asked_sha256(load, "takt"), capacity=capacity, rows=[]
    ).save(tmp_path / "c.json")
    with pytest.raises(CapacityError, match="must begin with 0 and not fall"):
        load_table(tmp_path / "c.json", load, "takt", 2)


@pytest.mark.parametrize("text", [None, "{}", "no JSON", '{"version": 2}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "c.json").write_text(text)
    with pytest.raises(CapacityError, match="takt capacity"):
        load_table(tmp_path / "c.json", load_of(plant(tmp_path, (100,))), "takt", 2)


def test_the_row_is_by_criticality(tmp_path: Path) -> None:
    assert row_of(load_of(plant(tmp_path, (100, 100, 100)))) == [2, 1, 0]
