"""One inference of the fake: the server's checks in the server's words, the model, the writing."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime as ort

from fake_triton.behaviour import Rule
from fake_triton.memory import Manager, Refused, Region

C = grpc.StatusCode
ort.disable_telemetry_events()
_TYPES = {"image": "UINT8", "nonce": "INT64"}
_WIDTHS = {"image": 1, "nonce": 8, "score": 4, "nonce_echo": 8}


class Model:
    """The ONNX model behind the one name that the fake serves."""

    def __init__(self, name: str, path: Path, batch_max: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        self._session = ort.InferenceSession(path.read_bytes(), options, providers=providers)
        shapes = {item.name: item.shape for item in self._session.get_inputs()}
        self.name, self.batch_max = name, batch_max
        self.shape: list[int] = shapes["image"][1:]
        self.executions = self.inferences = 0
        self.first: Any = None

    def run(self, image: Any, nonce: Any) -> tuple[Any, Any]:
        """Scores and echoes [n, 1]."""
        score, echo = self._session.run(["score", "nonce_echo"], {"image": image, "nonce": nonce})
        return score, echo


@dataclass
class Job:
    """One call: where its tensors lie, and what was read from there when it began to execute."""

    model: Model
    rows: int
    places: dict[str, tuple[Region, int]] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    inline: dict[str, bytes] = field(default_factory=dict)
    image: Any = None
    nonce: Any = None

    @property
    def regions(self) -> list[Region]:
        """Every region that the call uses, once a tensor."""
        return [region for region, _ in self.places.values()]

    def read(self) -> None:
        """Copy the inputs out of shared memory, as an execution's start does."""
        self.image = self._array("image", np.uint8).reshape(self.rows, *self.model.shape)
        self.nonce = self._array("nonce", np.int64).reshape(self.rows, 1)

    def _array(self, name: str, kind: Any) -> Any:
        if name in self.inline:
            return np.frombuffer(self.inline[name], kind).copy()
        region, offset = self.places[name]
        count = self.sizes[name] // np.dtype(kind).itemsize
        return np.frombuffer(region.mapping, kind, count, offset).copy()

    def compute(self, rule: Rule | None) -> tuple[Any, Any]:
        """Scores and echoes, right or as the rule says."""
        score, echo = self.model.run(self.image, self.nonce)
        if self.model.first is None:
            self.model.first = score[:1].copy()
        score, echo = score.copy(), echo.copy()
        fault = rule.fault if rule is not None else ""
        if fault == "swapped" and self.rows > 1:
            score[[0, 1]] = score[[1, 0]]
        elif fault == "swapped_rows" and self.rows > 1:
            score[[0, 1]], echo[[0, 1]] = score[[1, 0]], echo[[1, 0]]
        elif fault == "wrong" and rule is not None:
            for row in range(self.rows):
                if zlib.crc32(self.image[row].tobytes()) not in rule.spare:
                    moved = score[row] + rule.by
                    score[row] = np.where((moved < 0) | (moved > 1), score[row] - rule.by, moved)
        elif fault == "nan":
            score[:] = np.nan
        elif fault == "one_row":
            score[1:], echo[1:] = score[0], echo[0]
        elif fault == "first_answer":
            score[:] = self.model.first
        return score, echo

    def write(self, outputs: tuple[Any, Any]) -> None:
        """Put the outputs where the call wants them."""
        for name, array in zip(("score", "nonce_echo"), outputs, strict=True):
            if name not in self.places:
                continue
            raw = np.ascontiguousarray(array).tobytes()
            region, offset = self.places[name]
            if self.sizes[name] < len(raw):
                raise Refused(
                    C.INTERNAL,
                    f"shared memory size specified with the request for output '{name}' "
                    f"({self.sizes[name]} bytes) should be at least {len(raw)} bytes to hold the "
                    "results",
                )
            region.mapping[offset : offset + len(raw)] = raw


def job_of(call: Any, model: Model, memory: Manager) -> Job:
    """Check one ModelInfer message as the server does. Raises Refused."""
    if call.model_name != model.name:
        text = f"Request for unknown model: '{call.model_name}' is not found"
        raise Refused(C.NOT_FOUND, text)
    job = Job(model, 0)
    raw = iter(call.raw_input_contents)
    shapes: dict[str, list[int]] = {}
    for tensor in (*call.inputs, *call.outputs):
        is_input = hasattr(tensor, "shape")
        if not is_input and tensor.name not in ("score", "nonce_echo"):
            text = f"unexpected inference output '{tensor.name}' for model '{model.name}'"
            raise Refused(C.INVALID_ARGUMENT, text)
        if is_input:
            shapes[tensor.name] = list(tensor.shape)
        where = tensor.parameters
        if "shared_memory_region" in where:
            size = where["shared_memory_byte_size"].int64_param
            offset = where["shared_memory_offset"].int64_param
            region = where["shared_memory_region"].string_param
            job.places[tensor.name] = memory.find(region, offset, size)
            job.sizes[tensor.name] = size
        elif is_input:
            job.inline[tensor.name] = next(raw)
            job.sizes[tensor.name] = len(job.inline[tensor.name])
    _check(call, model, job, shapes)
    job.rows = shapes["image"][0]
    return job


def _check(call: Any, model: Model, job: Job, shapes: dict[str, list[int]]) -> None:
    said = f"[request id: {call.id}] " if call.id else "[request id: <id_unknown>] "

    def refuse(text: str) -> None:
        raise Refused(C.INVALID_ARGUMENT, said + text)

    missing = [name for name in _TYPES if name not in shapes]
    if missing or len(shapes) != len(_TYPES):
        refuse(
            f"expected 2 inputs but got {len(shapes)} inputs for model '{model.name}'. "
            f"Got input(s) ['{chr(39).join(shapes)}'], but missing required input(s) "
            f"['{chr(39).join(missing)}']. Please provide all required input(s)."
        )
    kinds = {tensor.name: tensor.datatype for tensor in call.inputs}
    for name, kind in _TYPES.items():
        if kinds[name] != kind:
            refuse(
                f"inference input '{name}' data-type is '{kinds[name]}', but model "
                f"'{model.name}' expects '{kind}'"
            )
    wanted = {"image": model.shape, "nonce": [1]}
    rows = shapes["image"][0]
    if rows > model.batch_max:
        refuse(f"inference request batch-size must be <= {model.batch_max} for '{model.name}'")
    for name, dims in wanted.items():
        if shapes[name][1:] != dims:
            expected = ",".join(map(str, [-1, *dims]))
            found = ",".join(map(str, shapes[name]))
            refuse(
                f"unexpected shape for input '{name}' for model '{model.name}'. Expected "
                f"[{expected}], got [{found}]. NOTE: Setting a non-zero max_batch_size"
            )
    if shapes["nonce"][0] != rows:
        refuse(f"input 'image' batch size does not match other inputs for '{model.name}'")
    for name, shape in shapes.items():
        bytes_wanted = int(np.prod(shape)) * _WIDTHS[name]
        if job.sizes[name] != bytes_wanted:
            refuse(
                f"input byte size mismatch for input '{name}' for model '{model.name}'. "
                f"Expected {bytes_wanted}, got {job.sizes[name]}"
            )
