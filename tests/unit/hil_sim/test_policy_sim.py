"""Scenarios, the virtual-time driver, largest loads and lost GPUs, on a plant of two models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deadline_batcher.plan import PolicySpec
from deadline_batcher.policies import POLICIES
from hil_sim.policy_load import (
    Bench,
    Cell,
    Effort,
    arrival_limited_bound,
    lose_gpus,
    loss_load,
    measure,
)
from hil_sim.policy_run import PolicyRun
from hil_sim.scenario import Arrival, ScenarioError, arrivals_of, load_scenario
from hil_sim.sim_command import sim_main

MS = 1_000_000
TEXT = """
name = "two"
gpus = [3, 2]
phase = "random"
arrivals = "periodic"
horizon_s = 2
seeds = [1, 2]

[[model]]
name = "long"
wcet_ms = [18.0, 24.0, 30.0, 36.0, 42.0, 48.0, 54.0, 60.0]

[[model]]
name = "short"
wcet_ms = [3.8, 4.6, 5.4, 6.2]
"""
LINE = """
[[line]]
id = "line{number}"
model = "{model}"
cycle_time_ms = {cycle}
deadline_ms = {deadline}
jitter = 0.05
"""
EFFORT = Effort(1.5, (1, 2))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    lines = [("long", 60, 120)] * 4 + [("short", 20, 40)] * 4
    text = TEXT + "".join(
        LINE.format(number=n, model=model, cycle=cycle, deadline=deadline)
        for n, (model, cycle, deadline) in enumerate(lines)
    )
    path = tmp_path / "two.toml"
    path.write_text(text)
    return path


def test_the_bound_is_gpus_over_least_work(file: Path) -> None:
    # long: 60 / 8 = 7.5 ms a part, 4 lines a 60 ms; short: 6.2 / 4 = 1.55 ms, 4 lines a 20 ms
    scenario = load_scenario(file)
    assert scenario.bound(3) == pytest.approx(3 / (4 * 7.5 / 60 + 4 * 1.55 / 20))
    limited = arrival_limited_bound(scenario, 3)
    assert 0.7 * scenario.bound(3) < limited <= scenario.bound(3)


def test_arrivals_are_seeded_ordered_and_stretched_by_load(file: Path) -> None:
    scenario = load_scenario(file)
    arrivals = arrivals_of(scenario, 1.0, 1, 6.0)
    assert arrivals == arrivals_of(scenario, 1.0, 1, 6.0)
    assert arrivals != arrivals_of(scenario, 1.0, 2, 6.0)
    assert [a.at_ns for a in arrivals] == sorted(a.at_ns for a in arrivals)
    counts = [sum(a.line == line for a in arrivals) for line in (0, 7)]
    assert counts == pytest.approx([100, 300], abs=2)
    twice = arrivals_of(scenario, 2.0, 1, 3.0)
    assert [a.line for a in twice][:50] == [a.line for a in arrivals][:50]
    assert twice[0].at_ns == pytest.approx(arrivals[0].at_ns / 2, abs=1)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("deadline_ms = 40", "deadline_ms = 3", "0.8 ms shorter than the smallest batch of short"),
        ('model = "short"', 'model = "shrot"', "no model 'shrot'"),
        ("gpus = [3, 2]", "gpus = []", "gpus"),
        ("gpus = [3, 2]", "gpus = [3, 0]", "gpus.1: Input should be greater than or equal to 1"),
        ("3.8, 4.6", "3.8, 2.6", "model short: wcet_ms falls by 1.2 ms from size 1 to 2"),
        ("18.0, 24.0", "0.0, 24.0", "model long: wcet_ms of size 1 is 0, not > 0"),
        ("18.0, 24.0", "18.0, nan", "model.0.wcet_ms.1: Input should be a finite number"),
        ('id = "line7"', 'id = "line6"', "two lines are called line6"),
        ("horizon_s = 2", "horizon_s = nan", "horizon_s"),
        ("horizon_s = 2", "horizon = 2", "horizon"),
        ("horizon_s = 2", "horizon_s", "Expected"),
    ],
)
def test_a_wrong_scenario_is_refused_by_name(file: Path, old: str, new: str, says: str) -> None:
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(ScenarioError, match=says):
        load_scenario(file)


def test_at_one_instant_arrivals_come_before_ends(file: Path) -> None:
    plan = load_scenario(file).plan(1, 1.0, PolicySpec("eager"))
    arrivals = [
        Arrival(0, 0, 0, 120 * MS),
        Arrival(18 * MS, 1, 0, 138 * MS),
        Arrival(18 * MS, 2, 0, 138 * MS),
    ]
    outcome = PolicyRun(plan, arrivals).play()
    assert outcome.batches == 2
    assert outcome.on_time == [0, 1, 2]
    assert outcome.missed == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_more_gpus_never_lower_the_largest_load(file: Path, policy: str) -> None:
    scenario = load_scenario(file)
    spec = PolicySpec(policy, 4, 5 * MS)
    loads = [
        Bench(scenario, gpus, EFFORT).largest(spec, Cell("two", gpus, policy, 0.0))
        for gpus in (1, 2, 3, 4)
    ]
    assert loads == sorted(loads)
    assert loads[0] < loads[-1]


def test_takt_is_no_worse_than_the_rest_and_saves_work_at_overload(file: Path) -> None:
    scenario = load_scenario(file)
    cells = {name: measure(scenario, 3, name, EFFORT) for name in ("takt", "eager", "deferred")}
    best = max(cell.largest_load for cell in cells.values())
    assert cells["takt"].largest_load >= 0.98 * best
    assert 1.5 * cells["takt"].overload > 0.9
    assert min(cells["takt"].overload_by_model.values()) > 0.4


def test_a_lost_gpu_costs_no_part_of_another_batch(file: Path) -> None:
    scenario = load_scenario(file)
    fewer = Bench(scenario, 2, EFFORT).largest(PolicySpec("takt"), Cell("two", 2, "takt", 0.0))
    ticks: list[None] = []
    lost = lose_gpus(scenario, 0.85 * fewer, 20, "takt", lambda: ticks.append(None))
    assert len(ticks) == lost.runs == 20
    assert lost.with_batch > 5
    assert lost.caught == lost.rerun + lost.to_fallback
    assert lost.rerun > 0
    assert lost.others_missed == 0


def test_the_load_of_losses_is_one_that_fewer_gpus_carry_in_each_of_their_phases(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holds(bench: Bench, load: float, policy: PolicySpec, cell: Cell) -> bool:
        assert bench.gpus == 2
        return load <= (1.0 if bench.effort == Effort(1.5, tuple(range(1, 31))) else 2.0)

    monkeypatch.setattr(Bench, "holds", holds)
    load = loss_load(load_scenario(file), "takt", 30, EFFORT)
    assert load == pytest.approx(0.85, rel=0.02) and load <= 0.85


def test_what_is_missed_without_any_loss_is_told_apart(file: Path) -> None:
    scenario = load_scenario(file)
    lost = lose_gpus(scenario, 1.2 * scenario.bound(2), 3, "takt", lambda: None)
    assert lost.missed_anyway == lost.others_missed > 0


def test_the_command_prints_and_writes_json(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    words = ["policies", str(file), "--policies", "eager,takt", "--gpus", "2", "--json", str(out)]
    assert sim_main(words) == 0
    told = json.loads(out.read_text())
    (row,) = told["scenarios"]
    assert row["name"] == "two" and row["gpus"] == 2
    assert set(row["largest_load"]) == {"eager", "takt"} == set(row["overload"])
    assert "mean share of the bound" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["policies", "nowhere.toml"], ["polices"], []])
def test_wrong_use_is_2(words: list[str]) -> None:
    assert sim_main(words) == 2


def test_an_unknown_policy_is_refused(file: Path) -> None:
    assert sim_main(["policies", str(file), "--policies", "best"]) == 2
