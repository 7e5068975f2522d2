"""The model that runs inside Triton, with Triton's own module imitated: time held, errors apart."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

PROGRAM = Path(__file__).resolve().parents[3] / "appliance/triton/model.py"
SHAPE = (4, 5, 1)
MS = 1_000_000


def tiny_model(path: Path, *, echo: str = "Identity") -> str:
    """A model of the contract: score is the first pixel; returns the file's sha256."""
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["pixels", "axes"], ["largest"], keepdims=0),
        helper.make_node("Unsqueeze", ["largest", "one"], ["score"]),
        helper.make_node(echo, ["nonce"], ["nonce_echo"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [
            helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", *SHAPE]),
            helper.make_tensor_value_info("nonce", TensorProto.INT64, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1]),
            helper.make_tensor_value_info("nonce_echo", TensorProto.INT64, ["batch", 1]),
        ],
        [
            helper.make_tensor("axes", TensorProto.INT64, [3], [1, 2, 3]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Tensor:
    """The stub's tensor as it is beside numpy 2: only what crosses by DLPack is right."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value = name, value

    @classmethod
    def from_dlpack(cls, name: str, value: Any) -> Tensor:
        return cls(name, np.from_dlpack(value))

    def __dlpack__(self, **told: Any) -> Any:
        return self.value.__dlpack__(**told)

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


class Response:
    def __init__(self, output_tensors: Any = None, error: Any = None) -> None:
        self.tensors = {one.name: one.value for one in output_tensors or ()}
        self.error = error


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    pb = types.ModuleType("triton_python_backend_utils")
    vars(pb).update(
        Tensor=Tensor,
        InferenceResponse=Response,
        TritonError=str,
        get_input_tensor_by_name=lambda batch, name: batch[name],
    )
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb)
    spec = importlib.util.spec_from_file_location("model_in_triton", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Make = Callable[..., Any]


@pytest.fixture
def make(program: Any, tmp_path: Path) -> Make:
    def made(
        wcet_ns: dict[int, int] | None = None,
        *,
        echo: str = "Identity",
        dynamic: bool = False,
        **told: str,
    ) -> Any:
        version = tmp_path / "1"
        version.mkdir(exist_ok=True)
        parameters = {
            "model_file": "model.onnx",
            "sha256": tiny_model(version / "model.onnx", echo=echo),
            "threads": "1",
            "provider": "CPUExecutionProvider",
        }
        if wcet_ns is not None:
            (version / "emulate.json").write_text(json.dumps({"wcet_ns": wcet_ns}))
            parameters["emulate"] = "emulate.json"
        config = {
            "max_batch_size": 4,
            "input": [{"dims": list(SHAPE)}, {"dims": [1]}],
            "parameters": {k: {"string_value": v} for k, v in (parameters | told).items()},
        }
        if dynamic:
            config["dynamic_batching"] = {}
        model = program.TritonPythonModel()
        model.initialize(
            {
                "model_config": json.dumps(config),
                "model_repository": str(tmp_path),
                "model_version": "1",
            }
        )
        return model

    return made


def batch(*scores: int, nonces: list[int] | None = None) -> dict[str, Tensor]:
    image = np.zeros([len(scores), *SHAPE], np.uint8)
    image[:, 2, 3, 0] = scores
    nonce = np.array(nonces or range(70, 70 + len(scores)), np.int64).reshape(-1, 1)
    return {"image": Tensor("image", image), "nonce": Tensor("nonce", nonce)}


def test_every_row_has_its_own_score_and_nonce(make: Make) -> None:
    (response,) = make().execute([batch(9, 250, 31)])
    assert response.error is None
    assert response.tensors["score"].tolist() == [[9.0], [250.0], [31.0]]
    assert response.tensors["nonce_echo"].tolist() == [[70], [71], [72]]


def test_a_batch_is_held_to_the_profile_and_never_shorter(make: Make) -> None:
    model = make({1: 20 * MS, 2: 30 * MS, 3: 40 * MS, 4: 50 * MS})
    for rows in (1, 4, 2):
        took = []
        for _ in range(5):
            began = time.monotonic_ns()
            model.execute([batch(*range(rows))])
            took.append(time.monotonic_ns() - began)
        assert min(took) >= (10 + 10 * rows) * MS
        assert sorted(took)[2] < (10 + 10 * rows) * MS + 15 * MS


def test_several_batches_in_one_call_are_held_one_after_another(make: Make) -> None:
    model = make({1: 20 * MS, 2: 30 * MS, 3: 40 * MS, 4: 50 * MS})
    began = time.monotonic_ns()
    responses = model.execute([batch(1), batch(2, 3), batch(4)])
    took = time.monotonic_ns() - began
    assert [len(one.tensors["score"]) for one in responses] == [1, 2, 1]
    assert 70 * MS <= took < 100 * MS


def test_under_triton_s_own_batcher_single_parts_are_one_batch(make: Make, tmp_path: Path) -> None:
    model = make(
        {1: 20 * MS, 2: 30 * MS, 3: 40 * MS, 4: 50 * MS},
        dynamic=True,
        gpu_lock=str(tmp_path / "gpu.lock"),
        held_log=str(tmp_path / "held.bin"),
    )
    began = time.monotonic_ns()
    responses = model.execute([batch(9, nonces=[1]), batch(250, nonces=[2]), batch(31, nonces=[3])])
    took = time.monotonic_ns() - began
    assert 40 * MS <= took < 40 * MS + 15 * MS
    assert [one.tensors["score"].tolist() for one in responses] == [[[9.0]], [[250.0]], [[31.0]]]
    assert [one.tensors["nonce_echo"].tolist() for one in responses] == [[[1]], [[2]], [[3]]]
    asked, taken, freed, emulated, rows = struct.unpack(
        "<qqqqq", (tmp_path / "held.bin").read_bytes()
    )
    assert (emulated, rows) == (40 * MS, 3)
    assert began <= asked <= taken <= freed - emulated


def test_a_bad_part_fails_the_batch_that_triton_made_of_it(make: Make) -> None:
    bad = batch(1)
    bad["image"].value = np.zeros([1, 9, 9, 1], np.uint8)
    responses = make(dynamic=True).execute([batch(5), bad])
    assert all(one.error for one in responses)


def test_models_of_one_gpu_do_not_run_at_once(make: Make, tmp_path: Path) -> None:
    told = {"gpu_lock": str(tmp_path / "gpu.lock")}
    held = dict.fromkeys(range(1, 5), 30 * MS)
    first, second = make(held, **told), make(held, **told)
    began = time.monotonic_ns()
    threads = [
        threading.Thread(target=model.execute, args=([batch(1)],)) for model in (first, second)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic_ns() - began >= 60 * MS


def test_without_a_profile_nothing_is_held(make: Make) -> None:
    model = make()
    began = time.monotonic_ns()
    model.execute([batch(1)] * 5)
    assert time.monotonic_ns() - began < 50 * MS


def test_a_bad_batch_fails_alone_and_says_why(make: Make) -> None:
    bad = batch(1)
    bad["image"].value = np.zeros([1, 9, 9, 1], np.uint8)
    first, second, third = make().execute([batch(5), bad, batch(6)])
    assert first.error is None
    assert "image" in second.error
    assert third.tensors["score"].tolist() == [[6.0]]


def test_a_file_that_is_not_the_one_meant_does_not_start(make: Make) -> None:
    with pytest.raises(ValueError, match="the repository was made with 0000"):
        make(sha256="0" * 64)


def test_a_session_on_another_provider_does_not_start(
    program: Any, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ONNX Runtime does where CUDA does not work: it goes on, on the CPU."""
    monkeypatch.setattr(
        program.ort.InferenceSession, "get_providers", lambda _self: ["OtherExecutionProvider"]
    )
    with pytest.raises(ValueError, match=r"'Other.*, not on CPUExecutionProvider"):
        make()


def test_a_model_that_does_not_echo_does_not_start(make: Make) -> None:
    with pytest.raises(ValueError, match="does not echo the nonces of a batch of 4"):
        make(echo="Neg")


def test_a_profile_must_hold_every_batch_size(make: Make) -> None:
    with pytest.raises(ValueError, match="no positive time for batch size 3"):
        make({1: 20 * MS, 2: 30 * MS, 4: 50 * MS})
