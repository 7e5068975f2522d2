"""A whole plant in virtual time: many seeds, every protocol step, kept failures, planted bugs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from planted import BUGS

from hil_sim.fuzz.case import KINDS, Case, Fault, case_of
from hil_sim.fuzz.command import command_of, main
from hil_sim.fuzz.exhaustive import cases as step_cases
from hil_sim.fuzz.minimise import minimised
from hil_sim.fuzz.run import Result, play
from hil_sim.fuzz.steps import STEPS, owner_of

SEEDS = 500
KEPT = sorted((Path(__file__).parents[1] / "fuzz_seeds").glob("*.json"))
PLANTED = Path(__file__).parents[1] / "fuzz_seeds" / "planted"
"""For each planted bug a small case that finds it."""


def finding(name: str) -> Case:
    """The case that finds a planted bug."""
    return Case.from_json((PLANTED / f"{name}.json").read_text())


def told(result: Result) -> str:
    """What a person needs of a failing run."""
    return "\n".join([command_of(result.case), *result.mistakes[:3], *result.story[-30:]])


@pytest.mark.slow
def test_the_promise_holds_for_every_seed() -> None:
    counts: Counter[str] = Counter()
    kinds: set[str] = set()
    for seed in range(SEEDS):
        result = play(case_of(seed))
        assert result.is_good, told(result)
        counts.update(result.counts)
        kinds |= {fault.kind for fault in result.case.faults}
    # Not vacuous: all kinds of faults happened, and every kind of answer was given.
    assert kinds == set(KINDS)
    assert counts["pool"] > 5000 and counts["fallback"] > 1000
    for reason in ("lost", "checksum", "deadline", "overload", "engine", "in_doubt"):
        assert counts[reason], reason


@pytest.mark.slow
def test_a_kill_at_every_protocol_step_costs_nobody_a_verdict() -> None:
    reached = set()
    for case in step_cases():
        result = play(case)
        assert result.is_good, told(result)
        reached.update(result.steps_reached)
    assert reached == {f"{when} {step}" for step in STEPS for when in ("before", "after")}


def test_every_step_is_a_method_of_the_shipped_code() -> None:
    for step in STEPS:
        owner, method = owner_of(step)
        assert callable(getattr(owner, method)), step


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_case_that_failed_once_holds(path: Path) -> None:
    result = play(Case.from_json(path.read_text()))
    assert result.is_good, told(result)


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_every_process() -> None:
    program = (
        "from hil_sim.fuzz.case import case_of; from hil_sim.fuzz.run import play\n"
        "print([play(case_of(seed)).trace for seed in range(3, 9)])"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "77")
    }  # fmt: skip
    assert len(traces) == 1
    assert traces == {f"{[play(case_of(seed)).trace for seed in range(3, 9)]}\n"}


@pytest.mark.slow
def test_a_step_of_the_wall_clock_changes_no_verdict() -> None:
    for seed in range(40):
        case = case_of(seed)
        quiet = dataclasses.replace(
            case, faults=tuple(f for f in case.faults if f.kind != "wall-step")
        )
        stepped = dataclasses.replace(
            quiet,
            faults=(
                Fault("wall-step", 0, detail="-3600000"), *quiet.faults,
                Fault("wall-step", case.load_ms // 2, detail="37000"),
            ),
        )  # fmt: skip
        assert play(quiet).verdict_trace == play(stepped).verdict_trace, seed


@pytest.mark.parametrize("name", list(BUGS))
def test_a_planted_bug_is_found(name: str) -> None:
    case = finding(name)
    without, with_it = play(case), play(case, [BUGS[name]])
    assert without.is_good, told(without)
    assert not with_it.is_good


def test_a_failing_case_is_made_smaller_and_stays_bad() -> None:
    kill = finding("forgets_its_former_self")
    more = (Fault("gpu-slow", 20, 100, 0, "2"), Fault("actuator-silent", 40, 200))
    case = dataclasses.replace(kill, load_ms=900, faults=(*more, *kill.faults))
    plant = [BUGS["forgets_its_former_self"]]
    small = minimised(case, lambda smaller: not play(smaller, plant).is_good)
    assert not play(small, plant).is_good
    assert small.load_ms < case.load_ms
    assert all(fault.kind.startswith("kill-") for fault in small.faults)
    assert Case.from_json(small.as_json()) == small


def test_a_minimiser_that_never_finds_less_gives_the_case_back() -> None:
    case = case_of(9)
    tries = []
    assert minimised(case, lambda smaller: bool(tries.append(smaller))) == case
    assert tries


def test_the_command_says_what_it_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"
    assert main(["--seeds", "3", "--json", str(found)]) == 0
    assert "3 runs" in capsys.readouterr().out
    assert '"failures": []' in found.read_text()


def test_a_failing_seed_is_printed_as_its_command_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name, value in BUGS["offers_are_kept"]():
        monkeypatch.setattr(owner, name, value)
    seed = 0
    assert main(["--from", str(seed), "--seeds", "1", "--keep", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert f"takt sim fuzz --from {seed} --seeds 1" in printed
    kept = list(tmp_path.glob("*.json"))
    assert kept and not play(Case.from_json(kept[0].read_text())).is_good
    assert main(["--case", str(kept[0]), "--keep", str(tmp_path)]) == 1


@pytest.mark.parametrize("wrong", ["{}", "[", '{"version": 1, "faults": [{"kind": "rain"}]}'])
def test_a_file_that_is_no_case_is_wrong_use(wrong: str, tmp_path: Path) -> None:
    path = tmp_path / "case.json"
    path.write_text(wrong)
    assert main(["--case", str(path)]) == 2
    assert main(["--seeds", "0"]) == 2
