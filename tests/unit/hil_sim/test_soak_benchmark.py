"""What grows is seen, one jump is not called growth, and processes are counted to their unit."""

from __future__ import annotations

from hil_sim.soak_benchmark import Look, growth, slope, unit_of


def test_the_slope_is_the_median_of_all_pairs() -> None:
    assert slope([(0, 1), (1, 3), (2, 5)]) == 2
    assert slope([(0.0, 7.0)]) == 0


def test_one_jump_does_not_move_the_slope() -> None:
    points = [(float(x), 100.0) for x in range(50)]
    points[20] = (20.0, 10_000.0)
    assert slope(points) == 0


def test_growth_leaves_the_settling_out_and_counts_by_hour() -> None:
    looks = [
        {"lines": Look(10.0 * k, 5_000 if k < 20 else 1000 + 2 * k, 7, 3, 0)} for k in range(100)
    ]
    told = growth(looks)["lines"]
    assert told["n"] == 80
    assert told["rss_bytes"] == {"per_hour": 720.0, "first": 1040, "last": 1198}
    assert told["descriptors"]["per_hour"] == 0


def test_processes_belong_to_units_of_this_plant_only() -> None:
    folder = "/tmp/takt-soak-1/plant"
    line = ["python", "-m", "appliance.cli", "line", "line01", "--plant", f"{folder}/plant.toml"]
    assert unit_of(line, folder) == "lines"
    assert unit_of([*line[:3], "batcher", *line[5:]], folder) == "batcher"
    assert unit_of(line, "/tmp/other") == ""
    assert unit_of(["camera", f"{folder}/keys"], folder) == "camera and other clients"
