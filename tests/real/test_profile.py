"""`takt profile` on one embedded Triton with a tiny model: whole, cut short and gone on with."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from deadline_batcher.profile import Profile, Provenance, load_profile

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "trial" / "brightest.onnx"
MS = 1_000_000
HELD_NS = {1: 4 * MS, 2: 9 * MS, 3: 10 * MS}  # two together take longer than one by one
PLANT = """
[plant]
name = "bench"
[pool]
endpoints = ["grpc://127.0.0.1:{port}"]
embedded = true
emulate = "held.json"
[paths]
runtime = "{runtime}"
[[model]]
name = "tile"
pool = "{model}"
fallback = "{model}"
profile = "p.json"
batch_max = 3
[[line]]
id = "line01"
model = "tile"
frames = "tcp://127.0.0.1:1"
verdicts = "tcp://127.0.0.1:2"
cycle_time_ms = 50
deadline_ms = 150
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    Profile(
        model="tile",
        engine="pool",
        origin="published",
        margin=1.0,
        rule="by hand",
        wcet_ns=HELD_NS,
        provenance=Provenance(model_sha256="", device="test", cores=1),
    ).save(tmp_path / "held.json")
    text = PLANT.format(port=port, model=MODEL, runtime=tmp_path / "run")
    (tmp_path / "plant.toml").write_text(text)
    return tmp_path


def profile(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "appliance.cli", "profile", "--plant"]
    return subprocess.Popen(
        [*command, str(folder / "plant.toml"), *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_it_measures_every_condition_and_goes_on_after_a_stop(folder: Path) -> None:
    first = profile(folder, "--runs", "600")
    samples = folder / "p.json.samples"
    end = time.monotonic() + 15
    while not samples.is_file() or samples.stat().st_size < 1200:
        assert time.monotonic() < end, first.poll()
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=10)
    assert first.returncode == 130, said
    assert f"stopped; what is measured is kept in {samples}" in said
    assert not (folder / "p.json").exists()

    second = profile(folder, "--runs", "40")
    said, _ = second.communicate(timeout=20)
    assert second.returncode == 0, said
    assert "going on from" in said
    assert "tile: at least" in said  # the time it will take, before it is taken
    assert "busy: at least" in said  # and again when it is known what endpoints share
    assert "runs left out" in said  # warm-up is shown
    assert "(emulated)" in said
    found = load_profile(folder / "p.json")
    assert found.origin == "emulated"
    assert set(found.conditions) == {"alone", "together", "busy"}
    for condition in ("alone", "busy"):
        sizes = found.conditions[condition]["gpu0"]
        assert {size: one.samples >= 4 for size, one in sizes.items()} == {1: 1, 2: 1, 3: 1}
    for size, held_ns in HELD_NS.items():
        assert found.measured[size].p50_ns >= held_ns
        assert found.wcet_ns[size] >= found.measured[size].max_ns * 1.25 - 1
    assert 1 in found.used
    assert "GPU memory: not measured, there is no GPU to ask" in found.notes
    assert load_profile(folder / "p-fallback.json").measured[1].samples >= 40
    assert not samples.exists()


def test_a_profile_of_another_model_is_refused(folder: Path) -> None:
    for name, engine in (("p.json", "pool"), ("p-fallback.json", "fallback")):
        Profile(
            model="tile",
            engine=engine,
            origin="measured",
            margin=1.25,
            rule="x",
            wcet_ns=HELD_NS,
            provenance=Provenance(model_sha256="ab" * 32, device="test", cores=1),
        ).save(folder / name)
    checked = profile(folder, "--check")
    said, _ = checked.communicate(timeout=20)
    assert checked.returncode == 1
    assert "model_sha256: profile has 'abab" in said
    assert json.loads((folder / "p.json").read_text())["wcet_ns"]["1"] == 4 * MS
