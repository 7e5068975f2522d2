"""The gate passes the committed models and finds every wrong model that is planted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fallback.gate import main, project_folder
from fallback.gate_set import read_gate_set
from fallback.parity import Tolerance, batch_plan

MODELS = project_folder() / "models"
FILES = {"pool": MODELS / "tile-defects.onnx", "fallback": MODELS / "tile-defects-int8.onnx"}
Edit = Callable[[Any], None]


def _constant(graph: Any, name: str, value: np.ndarray[Any, Any]) -> str:
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def _renamed(graph: Any, output: str) -> str:
    """Free the name of an output for a node that spoils it; gives the honest value's new name."""
    honest = f"honest_{output}"
    for node in graph.node:
        node.output[:] = [honest if name == output else name for name in node.output]
        node.input[:] = [honest if name == output else name for name in node.input]
    return honest


def _scaled(graph: Any) -> None:
    factor = _constant(graph, "factor", np.array([0.8], np.float32))
    graph.node.append(helper.make_node("Mul", [_renamed(graph, "score"), factor], ["score"]))


def _not_a_number(graph: Any) -> None:
    nothing = _constant(graph, "nothing", np.array([np.nan], np.float32))
    graph.node.append(helper.make_node("Mul", [_renamed(graph, "score"), nothing], ["score"]))


def _upside_down(graph: Any) -> None:
    one = _constant(graph, "one", np.array([1.0], np.float32))
    graph.node.append(helper.make_node("Sub", [one, _renamed(graph, "score")], ["score"]))


def _reversed_rows(graph: Any) -> None:
    ends = {"starts": -1, "ends": -(2**62), "axes": 0, "steps": -1}
    names = [_constant(graph, name, np.array([value], np.int64)) for name, value in ends.items()]
    graph.node.append(helper.make_node("Slice", [_renamed(graph, "score"), *names], ["score"]))


def _company_matters(graph: Any) -> None:
    honest = _renamed(graph, "score")
    graph.node.append(helper.make_node("ReduceMean", [honest], ["mean"], axes=[0], keepdims=1))
    graph.node.append(helper.make_node("Add", [honest, "mean"], ["sum"]))
    half = _constant(graph, "half", np.array([0.5], np.float32))
    graph.node.append(helper.make_node("Mul", ["sum", half], ["score"]))


def _zero_nonce(graph: Any) -> None:
    zero = _constant(graph, "zero", np.array([0], np.int64))
    graph.node.append(
        helper.make_node("Mul", [_renamed(graph, "nonce_echo"), zero], ["nonce_echo"])
    )


def _narrow_nonce(graph: Any) -> None:
    honest = _renamed(graph, "nonce_echo")
    graph.node.append(helper.make_node("Cast", [honest], ["narrow"], to=TensorProto.INT32))
    graph.node.append(helper.make_node("Cast", ["narrow"], ["nonce_echo"], to=TensorProto.INT64))


def _planted(folder: Path, role: str, edit: Edit) -> Path:
    model = onnx.load(str(FILES[role]))
    edit(model.graph)
    path = folder / f"{role}.onnx"
    onnx.save(model, str(path))
    return path


def _report(folder: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    path = folder / "report.json"
    status = main(["--runs", "0", "--json", str(path), *flags])
    return status, json.loads(path.read_text(encoding="utf-8"))


def test_the_committed_models_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, report = _report(tmp_path)
    assert status == 0, report["findings"]
    assert report["passed"]
    assert report["figures"]["pool"]["same_file"] == report["figures"]["fallback"]["same_file"] == 1
    assert "PASS" in capsys.readouterr().out


def test_the_committed_pictures_include_borderline_ones() -> None:
    gate_set = read_gate_set(MODELS / "gate")
    assert gate_set.pictures.shape == (64, 224, 224, 1)
    assert (MODELS / "gate" / "inputs.npz").stat().st_size < 2_000_000
    for expected in gate_set.expected.values():
        fail = expected.scores >= expected.threshold
        assert 8 < fail.sum() < 56
        assert (np.abs(expected.scores - expected.threshold) < 0.1).sum() >= 8


@pytest.mark.parametrize("role", ["pool", "fallback"])
@pytest.mark.parametrize(
    ("edit", "check"),
    [
        (_scaled, "error"),
        (_not_a_number, "error"),
        (_upside_down, "flip"),
        (_reversed_rows, "batch"),
        (_company_matters, "batch"),
        (_zero_nonce, "nonce"),
        (_narrow_nonce, "nonce"),
    ],
)
def test_a_planted_wrong_model_is_found(tmp_path: Path, role: str, edit: Edit, check: str) -> None:
    status, report = _report(tmp_path, f"--{role}", str(_planted(tmp_path, role, edit)))
    assert status == 1
    assert (role, check) in {(f["role"], f["check"]) for f in report["findings"]}
    other = "fallback" if role == "pool" else "pool"
    assert other not in {f["role"] for f in report["findings"]}


def test_a_fallback_that_contradicts_the_pool_is_found_as_a_pair(tmp_path: Path) -> None:
    wrong = _planted(tmp_path, "fallback", _upside_down)
    _, report = _report(tmp_path, "--fallback", str(wrong))
    assert "pair" in {f["role"] for f in report["findings"]}


def test_a_moved_threshold_is_found_by_its_verdicts(tmp_path: Path) -> None:
    model = onnx.load(str(FILES["pool"]))
    entry = next(e for e in model.metadata_props if e.key == "takt.threshold")
    entry.value = "0.05"
    path = tmp_path / "moved.onnx"
    onnx.save(model, str(path))
    status, report = _report(tmp_path, "--pool", str(path))
    assert status == 1
    assert {f["check"] for f in report["findings"] if f["role"] == "pool"} == {"flip"}


def test_a_wider_tolerance_lets_a_small_error_pass(tmp_path: Path) -> None:
    def shifted(graph: Any) -> None:
        little = _constant(graph, "little", np.array([0.003], np.float32))
        graph.node.append(helper.make_node("Add", [_renamed(graph, "score"), little], ["score"]))

    path = str(_planted(tmp_path, "pool", shifted))
    flags = ["--pool", path, "--flips", "64"]
    assert _report(tmp_path, *flags)[0] == 1
    assert _report(tmp_path, *flags, "--atol", "score=0.01")[0] == 0
    assert _report(tmp_path, *flags, "--atol", "0.01", "--check-error-stat", "p95")[0] == 0


def test_findings_name_model_output_and_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = _planted(tmp_path, "pool", _scaled)
    assert main(["--runs", "0", "--pool", str(wrong)]) == 1
    line = next(x for x in capsys.readouterr().out.splitlines() if "(error)" in x)
    assert line.startswith("FINDING pool, output score")
    assert "row " in line


def test_latency_is_a_ratio_to_a_bare_session(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    never = ["--p50-ratio", "0.0001", "--p99-ratio", "1e9"]
    assert main(["--runs", "5", "--json", str(path), *never]) == 1
    report = json.loads(path.read_text(encoding="utf-8"))
    assert {f["check"] for f in report["findings"]} == {"latency"}
    assert 0 < report["figures"]["pool"]["p50_ratio"] < 100


@pytest.mark.parametrize(
    "flags",
    [
        ["--pool", "/no/such/model.onnx"],
        ["--baseline", "/no/such/folder"],
        ["--atol", "nonce_echo=1"],
        ["--atol", "much"],
        ["--int8-atol", "-1"],
        ["--check-error-stat", "score=mode"],
        ["--runs", "-1"],
    ],
)
def test_wrong_use_is_two_and_one_line(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--runs", "0", *flags]) == 2
    problem = capsys.readouterr().err
    assert problem.startswith("takt gate: ")
    assert "Traceback" not in problem


def test_a_baseline_of_other_pictures_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gate"
    shutil.copytree(MODELS / "gate", folder)
    pictures = read_gate_set(folder).pictures
    np.savez_compressed(folder / "inputs.npz", images=pictures[::-1])
    assert main(["--runs", "0", "--baseline", str(folder)]) == 2
    assert "other pictures" in capsys.readouterr().err


def test_a_baseline_made_from_pictures_is_passed_by_its_own_models(tmp_path: Path) -> None:
    gate_set = read_gate_set(MODELS / "gate")
    source, folder = tmp_path / "candidates.npz", tmp_path / "gate"
    np.savez(source, images=np.concatenate([gate_set.pictures, gate_set.pictures[:20, ::-1]]))
    assert main(["--make-baseline", str(source), "--baseline", str(folder)]) == 0
    assert main(["--runs", "0", "--baseline", str(folder)]) == 0
    assert "by" in read_gate_set(folder).made


def test_batches_run_big_small_big_with_every_size_and_distinct_rows() -> None:
    plan = batch_plan(64)
    sizes = [len(rows) for rows in plan]
    assert sizes == [*range(16, 0, -1), *range(2, 17)]
    assert all(len(set(rows.tolist())) == len(rows) for rows in plan)


def test_tolerance_adds_absolute_and_relative_parts() -> None:
    found, expected = np.array([0.52, 0.10]), np.array([0.50, 0.10])
    assert Tolerance(0.0, 0.0).excess(found, expected) == pytest.approx(0.02)
    assert Tolerance(0.0, 0.04).excess(found, expected) == pytest.approx(0.0)
    assert Tolerance(0.0, 0.0, "mean").excess(found, expected) == pytest.approx(0.01)
