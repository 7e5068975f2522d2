"""The nemesis in short: three kinds of death in one small plant under load, judged by the promise.

Latency is the machine's of the day and is not judged here; `takt sim nemesis` is the long version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hil_sim.nemesis.faults import FAULTS

pytestmark = pytest.mark.real

KINDS = ("kill-line", "kill-batcher", "kill-stub")
CREDIT_MAX = 4
"""Frames that a camera may have under way: a killed line's own in doubt are no more."""


def test_death_of_any_kind_costs_no_verdict(tmp_path: Path) -> None:
    told = tmp_path / "nemesis.json"
    words = [word for kind in KINDS for word in ("--fault", kind)]
    # The lines and the rate of test_demo's plant: its measured profiles serve this one too.
    plant = ("--lines", 3, "--rate", 8, "--gpus", 2, "--deadline-ms", 500)
    numbers = ("--injections", 3, *plant)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "appliance.cli", "sim", "nemesis", "--mixed", *words),
            *map(str, numbers),
            *("--json", str(told)),
        ],
        capture_output=True, text=True, check=False, timeout=280,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert told.exists(), done.stdout + done.stderr
    (entry,) = json.loads(told.read_text())["faults"].values()
    (run,) = entry["runs"]
    assert run["error"] == "", done.stdout
    assert [one["fault"] for one in entry["injections"]] == list(KINDS)
    assert all(one["back_at_ns"] > one["at_ns"] for one in entry["injections"])
    cost = run["cost"]
    for name in ("missing", "duplicate", "wrong", "late_answers"):
        assert cost[name] == 0, (name, cost)
    assert cost["in_doubt"] <= CREDIT_MAX
    assert cost["pool"] > 0
    assert run["left"] == []
    # `.ses` is left by ONNX Runtime wherever it runs.
    left = {path.name for path in tmp_path.iterdir()} - {".ses"}
    assert left == {told.name}, "and leaves nothing behind"


def test_every_kind_of_fault_is_listed_with_what_this_host_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "appliance.cli", "sim", "nemesis", "--list"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(FAULTS)
