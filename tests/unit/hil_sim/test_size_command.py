"""`takt size` on small plants: what fits, what is refused and by how much."""

from __future__ import annotations

import hashlib
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from hil_sim import size_command
from hil_sim.size_evidence import Effort

WCET_MS = [3.0, 4.0, 5.0, 6.0]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_command, "effort_for", lambda lines: Effort(5, 3, 60))
    monkeypatch.setattr(size_command, "PLOT_POINTS", 3)


def profile(
    model: str, engine: str, file: Path, wcet_ms: list[float], **more: Any
) -> dict[str, Any]:
    provenance = {
        "model_sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "device": more.pop("device", "L4"),
        "cores": 16,
        "sessions_busy": more.pop("sessions_busy", 12),
    }
    times = {str(size): round(ms * 1e6) for size, ms in enumerate(wcet_ms, start=1)}
    return {
        "model": model, "engine": engine, "origin": "published", "margin": 1.0, "rule": "x",
        "wcet_ns": times, "provenance": provenance, **more,
    }  # fmt: skip


def make(
    folder: Path,
    *,
    gpus: int = 3,
    cycle_ms: float = 100,
    deadline_ms: float = 120,
    fallback_ms: float = 20,
    lines: int = 4,
    more: str = "",
) -> Path:
    """A plant of one model."""
    (folder / "m.onnx").write_text("pool")
    (folder / "m-int8.onnx").write_text("fallback")
    pool = profile("m", "pool", folder / "m.onnx", WCET_MS)
    fallback = profile("m", "fallback", folder / "m-int8.onnx", [fallback_ms])
    (folder / "m.json").write_text(json.dumps(pool))
    (folder / "m-fallback.json").write_text(json.dumps(fallback))
    endpoints = ", ".join(f'"grpc://127.0.0.1:{8001 + gpu}"' for gpu in range(gpus))
    text = f"""
[plant]
name = "hall"
gpus_lost_tolerated = 1
[pool]
endpoints = [{endpoints}]
[paths]
runtime = "/tmp/takt-size"
[[model]]
name = "m"
pool = "m.onnx"
fallback = "m-int8.onnx"
profile = "m.json"
batch_max = 4
"""
    for number in range(lines):
        text += f"""
[[line]]
id = "line{number + 1}"
model = "m"
frames = "tcp://127.0.0.1:{5601 + number}"
verdicts = "tcp://127.0.0.1:{5701 + number}"
cycle_time_ms = {cycle_ms}
deadline_ms = {deadline_ms}
actuation_ms = 10
transport_max_ms = 10
{more}
"""
    file = folder / "plant.toml"
    file.write_text(text)
    return file


def run(file: Path, *words: str) -> tuple[int, dict[str, Any]]:
    told = file.with_name("size.json")
    code = size_command.main([str(file), "--json", str(told), *words])
    return code, json.loads(told.read_text())


def test_a_light_plant_fits_and_is_certified(tmp_path: Path) -> None:
    code, found = run(make(tmp_path), "--plot", str(tmp_path / "size.svg"), "--policy", "eager")
    assert (code, found["fits"]) == (0, True)
    assert [row["gpus"] for row in found["gpus"]] == [3, 2, 1]
    assert found["gpus"][0]["how"] == "certified"
    # 10 + 5 + 20 + 5 + 5 + 5 + 10 = 60 of 120 beside wait and execution. Three GPUs: four parts at
    # once, so the two longest that run are of 4 and of 2 parts, 6 + 4; a golden 3; four parts that
    # come meanwhile at 3 each; less the part itself, 3: (10 + 3 + 12 - 3) / 3 = 7.333 ms of wait.
    proof = next(one for one in found["gpus"][0]["certified"] if one["test"] == "work-conserving")
    terms = dict(proof["binding"]["terms"])
    used_ms = terms.pop("wait and execution on the pool")
    assert sum(terms.values()) == 60
    assert proof["binding"]["total_ms"] == pytest.approx(60 + used_ms)
    assert proof["binding"]["spare_ms"] == pytest.approx(60 - used_ms)
    assert [ms for _, ms in proof["wait_terms_ms"]] == [10, 3, 12, -3]
    assert proof["wait_ms"] == pytest.approx(22 / 3, abs=0.001)
    assert used_ms == pytest.approx(22 / 3 + 3.0, abs=0.002)
    assert found["triton"][0]["holds"] is True
    helps = {one["what"]: one for one in found["helps"]}
    assert set(helps) == {
        "one more GPU", "half the batch caps", "a quarter of the batch caps",
        "deadlines a tenth longer", "deadlines could be",
    }  # fmt: skip
    # One picture alone needs 63 of 120 ms: not more than 57 can be spared, and not much less.
    assert -57 <= helps["deadlines could be"]["value"] < -40
    assert ET.parse(tmp_path / "size.svg").getroot().tag.endswith("svg")


@pytest.mark.parametrize(("rule", "how"), [("takt", "evidence"), ("window", "certified")])
def test_only_the_rule_that_a_proof_covers_is_certified(
    tmp_path: Path, rule: str, how: str
) -> None:
    code, found = run(make(tmp_path), "--policy", rule)
    assert (code, found["gpus"][0]["how"]) == (0, how)
    assert (f"no proof covers the policy {rule}" in found["claims"][0]) == (how == "evidence")
    assert found["gpus"][0]["certified"] != []


def test_what_is_needed_is_found_and_then_fits(tmp_path: Path) -> None:
    # 44 - 40.1 = 3.9 ms leave single pictures only: 8 x 3 / 10 = 2.4 GPUs of the 2 that must do.
    # With longer deadlines batches of 4 do, 8 x 1.5 / 10 = 1.2. Ten ms of jitter bring up to two
    # parts of a line together, so that up to 16 GPUs are needed to run all of them at once.
    few = {"lines": 8, "cycle_ms": 10.0, "fallback_ms": 0.1}
    code, found = run(make(tmp_path, deadline_ms=44.0, **few))
    assert (code, found["refusals"]) == (1, [])
    helps = {one["what"]: one for one in found["helps"]}
    needed = helps["deadlines needed"]
    assert needed["fits"] and 4 < needed["value"] < 20
    gpus = round(helps["GPUs needed"]["value"])
    assert helps["GPUs needed"]["fits"] and 8 < gpus <= 16
    assert run(make(tmp_path, deadline_ms=44.0 + needed["value"], **few))[0] == 0
    assert run(make(tmp_path, deadline_ms=44.0, gpus=gpus + 1, **few))[0] == 0


def test_more_than_two_gpus_lost_are_looked_at(tmp_path: Path) -> None:
    file = make(tmp_path, gpus=5)
    file.write_text(file.read_text().replace("gpus_lost_tolerated = 1", "gpus_lost_tolerated = 3"))
    code, found = run(file)
    assert (code, [row["gpus"] for row in found["gpus"]]) == (0, [5, 4, 3, 2])


def test_too_much_load_is_refused_by_the_bound(tmp_path: Path) -> None:
    # 4 lines at 1.2 ms: 4 x 1.5 / 1.2 = 5 GPUs at least, of 3. The fallback is faster still.
    code, found = run(make(tmp_path, cycle_ms=1.2, fallback_ms=0.1, more=""))
    assert code == 1
    assert found["refusals"] != [] or "no rule can" in found["gpus"][0]["faults"][0]


def test_a_deadline_shorter_than_one_picture_says_by_how_much(tmp_path: Path) -> None:
    # 60 + 3 = 63 ms for one picture alone.
    code, found = run(make(tmp_path, deadline_ms=61))
    assert code == 1
    assert len(found["refusals"]) == 1
    told = "lines line1, line2, line3, line4: deadline_ms 61 is 2.0 ms shorter"
    assert told in found["refusals"][0]
    assert "= 63.0 ms" in found["refusals"][0]


def test_slo_p99_counts_too(tmp_path: Path) -> None:
    code, found = run(make(tmp_path, more="slo_p99_ms = 22"))
    # 10 + 3 + 5 + 5 = 23 ms.
    assert code == 1
    assert "slo_p99_ms 22 is 1.0 ms shorter" in found["refusals"][0]


def test_a_fallback_slower_than_its_line_names_line_and_shortfall(tmp_path: Path) -> None:
    code, found = run(make(tmp_path, cycle_ms=22, deadline_ms=120))
    assert code == 1
    assert any("line1" in text and "3.0 ms more than its cycle time" in text
               for text in found["refusals"])  # fmt: skip


def test_fallbacks_that_need_more_cores_than_there_are(tmp_path: Path) -> None:
    file = make(tmp_path, cycle_ms=30, lines=6, deadline_ms=150)
    unloaded = profile("m", "fallback", tmp_path / "m-int8.onnx", [20.0], sessions_busy=1)
    (tmp_path / "m-fallback.json").write_text(json.dumps(unloaded))
    code, found = run(file)
    # 6 x 20 / 30 = 4 cores of 2.
    assert code == 1
    assert any("4.00 cores at worst, 2.00 more" in text for text in found["refusals"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: one["wcet_ns"].pop("2"), "of batch sizes 1 to 4, 1 is missing: 2"),
        (lambda one: one["wcet_ns"].update({"3": 3_500_000}), "falls by 0.500 ms from size 2 to 3"),
        (lambda one: one["wcet_ns"].update({"4": float("inf")}), "size 4 is inf, not a finite"),
        (lambda one: one["wcet_ns"].pop("4"), "1 sizes short"),
        (lambda one: one.update(model="other"), "is of other on the pool"),
        (lambda one: one["provenance"].update(model_sha256="0" * 64), "is of another m"),
    ],
)
def test_profiles_that_do_not_match_are_refused(tmp_path: Path, change: Any, told: str) -> None:
    file = make(tmp_path)
    one = json.loads((tmp_path / "m.json").read_text())
    change(one)
    (tmp_path / "m.json").write_text(json.dumps(one))
    code, found = run(file)
    assert code == 1
    assert any(told in text for text in found["refusals"]), found["refusals"]


def test_wrong_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert size_command.main([str(tmp_path / "none.toml")]) == 2
    assert size_command.main([str(make(tmp_path)), "--plot", "size.gif"]) == 2
    assert "a plot is .svg or .png" in capsys.readouterr().err
