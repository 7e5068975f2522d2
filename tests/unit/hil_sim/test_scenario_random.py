"""Scenarios drawn at random: the same everywhere, plausible, and kept as files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from hil_sim.policies_command import worst_of
from hil_sim.scenario import Scenario, arrivals_of, load_scenario
from hil_sim.scenario_random import GPUS, LINES, MODELS_MAX, SHAPES, as_toml, random_scenario
from hil_sim.sim_command import sim_main

SEEDS = range(200)


def drawn() -> list[Scenario]:
    return [random_scenario(seed) for seed in SEEDS]


def test_a_seed_is_a_scenario_whatever_the_hash_seed() -> None:
    text = (
        "from hil_sim.scenario_random import *\nfor s in (1, 7): print(as_toml(random_scenario(s)))"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4242")
    }
    assert told == {as_toml(random_scenario(1)) + "\n" + as_toml(random_scenario(7)) + "\n"}
    assert random_scenario(1) != random_scenario(2)


def test_every_scenario_is_a_plausible_plant() -> None:
    for scenario in drawn():
        most, fewer = scenario.gpus
        assert GPUS[0] <= most <= GPUS[1] and fewer == most - 1
        assert 1 <= len(scenario.model) <= MODELS_MAX
        assert LINES[0] <= len(scenario.line) <= LINES[1]
        assert {line.model for line in scenario.line} == {model.name for model in scenario.model}
        alone_ms = {model.name: model.wcet_ms[0] for model in scenario.model}
        before_ms = max(alone_ms.values()) if fewer == 1 else 0.0
        for line in scenario.line:
            assert line.deadline_ms > alone_ms[line.model] + before_ms
        for model in scenario.model:
            assert list(model.wcet_ms) == sorted(model.wcet_ms) and model.wcet_ms[0] > 0
        assert 1.2 < scenario.bound(most) < 5.1
        parts = len(arrivals_of(scenario, scenario.bound(most), 1, scenario.horizon_s))
        assert 300 < parts < 40_000


def test_all_kinds_are_drawn() -> None:
    scenarios = drawn()
    assert {one.phase for one in scenarios} == {"random", "aligned"}
    assert {one.arrivals for one in scenarios} == {"periodic", "poisson"}
    assert {one.gpus[0] for one in scenarios} == set(range(GPUS[0], GPUS[1] + 1))
    assert any(len({line.deadline_ms for line in one.line}) > 3 for one in scenarios)
    shapes = set()
    for model in (model for one in scenarios for model in one.model):
        alone_ms, two_ms, *_ = model.wcet_ms
        rises = {round((b - a) / alone_ms, 1) for a, b in pairwise(model.wcet_ms)}
        if min(ms / size for size, ms in enumerate(model.wcet_ms, 1)) > 0.85 * alone_ms:
            shapes.add("no-gain")
        elif two_ms > 2 * alone_ms:
            shapes.add("superadditive")
        else:
            shapes.add("affine" if len(rises) < 3 else "stepped")
    assert shapes == set(SHAPES)


def test_a_saved_one_reads_back(tmp_path: Path) -> None:
    for scenario in drawn()[:50]:
        file = tmp_path / f"{scenario.name}.toml"
        file.write_text(as_toml(scenario))
        assert load_scenario(file) == scenario
    odd = random_scenario(3).model_copy(update={"name": 'a "b"\\\n\x7f\té 😀'})
    (tmp_path / "odd.toml").write_text(as_toml(odd), encoding="utf-8")
    assert load_scenario(tmp_path / "odd.toml") == odd


@pytest.mark.slow
def test_the_command_draws_saves_and_says_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ["policies", "--random", "2", "--seed", "3", "--policies", "takt,eager"]
    words += ["--gpus", "2", "--save", str(tmp_path / "kept"), "--json", str(out)]
    assert sim_main(words) == 0
    told = json.loads(out.read_text())
    assert [row["name"] for row in told["scenarios"]] == ["random-3", "random-4"]
    assert told["worst"]["policy"] == "takt" and told["worst"]["rows"] == 2
    assert "takt: at worst" in capsys.readouterr().out
    assert load_scenario(tmp_path / "kept" / "random-4.toml") == random_scenario(4)


def test_it_prints_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sim_main(["policies", "--random", "1", "--seed", "9", "--print"]) == 0
    file = tmp_path / "one.toml"
    file.write_text(capsys.readouterr().out)
    assert load_scenario(file) == random_scenario(9)


@pytest.mark.parametrize(
    "words", [["--random", "0"], ["--random", "-1"], [], ["--print"], ["--save", "x"]]
)
def test_nothing_to_draw_is_wrong_use(words: list[str]) -> None:
    assert sim_main(["policies", *words]) == 2


def test_a_folder_that_cannot_be_made_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    words = ["policies", "--random", "1", "--save", str(tmp_path / "file" / "x")]
    assert sim_main(words) == 2
    assert "Not a directory" in capsys.readouterr().err


def test_the_worst_row_is_against_the_best_other_rule() -> None:
    rows = [
        {"name": "a", "gpus": 3, "largest_load": {"takt": 2.0, "eager": 1.0, "window": 2.01}},
        {"name": "b", "gpus": 3, "largest_load": {"takt": 0.9, "eager": 1.0, "window": 0.5}},
        {"name": "c", "gpus": 3, "largest_load": {"takt": 0.0, "eager": 0.0, "window": 0.0}},
    ]
    assert worst_of(rows) == {
        "policy": "takt", "name": "b", "gpus": 3, "ratio": 0.9, "best": "eager",
        "rows": 2, "rows_as_good": 1,
    }  # fmt: skip
    assert worst_of([{"name": "a", "gpus": 3, "largest_load": {"eager": 1.0}}]) is None
