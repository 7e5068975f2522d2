"""What `takt test` runs, in which order, and what it says last."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from appliance import testing


def names(*, quick: bool = False, only: str | None = None) -> list[str]:
    return [testing.spoken(step) for step in testing.steps(quick=quick, only=only, rest=[])]


def test_the_full_run_checks_everything_and_ends_with_pytest() -> None:
    assert names()[:4] == ["ruff check .", "ruff format --check .", "mypy", "lint-imports"]
    alone = "pytest -m real"
    assert names()[4:] == ["pytest -n auto --dist worksteal -m 'not real'", alone]


def test_the_quick_run_leaves_out_real_and_slow_tests() -> None:
    told = "pytest -n auto --dist worksteal -m 'not real and not slow'"
    assert names(quick=True)[-1] == told
    assert len(names(quick=True)) == 5


def test_chosen_tests_run_alone() -> None:
    assert names(only="guard") == ["pytest -k guard"]


def test_a_failed_step_fails_the_run_and_the_last_step_speaks_last(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = [sys.executable, "-c", "raise SystemExit(3)"]
    good = [sys.executable, "-c", "print('== 5 passed ==')"]
    assert len(testing.run_steps([bad, good], tmp_path)) == 1
    said = capfd.readouterr().out.splitlines()
    assert said[-1] == "== 5 passed =="
    assert any(line.startswith("── FAILED (exit 3) after ") for line in said)
    assert said[-3].startswith("── failed so far: ")
    assert testing.run_steps([good, good], tmp_path) == []


def test_an_installed_takt_says_that_it_has_no_tests(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(testing, "ROOT", tmp_path)
    assert testing.main([]) == 2
    assert "not a checkout" in capsys.readouterr().err
