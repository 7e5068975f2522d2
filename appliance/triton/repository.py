"""A slot's model repository, generated from the plant file: what one embedded Triton serves.

Everything a server reads is a verified copy under the plant's own folder, so that a model swapped
in place changes nothing that runs. The whole tree is built aside and renamed into place.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Literal

import onnxruntime as ort

from appliance.plant import ModelSection, Plant
from deadline_batcher.profile import ProfileError, load_profile

Kind = Literal["KIND_CPU", "KIND_GPU"]
_PROVIDER: dict[Kind, str] = {
    "KIND_CPU": "CPUExecutionProvider",
    "KIND_GPU": "CUDAExecutionProvider",
}
_PROGRAM = Path(__file__).with_name("model.py")
# Tensor name → element type as ONNX Runtime spells it, and the shape after the batch dimension;
# None is "whatever the file says".
_CONTRACT_IN: dict[str, tuple[str, list[int] | None]] = {
    "image": ("tensor(uint8)", None),
    "nonce": ("tensor(int64)", [1]),
}
_CONTRACT_OUT: dict[str, tuple[str, list[int] | None]] = {
    "score": ("tensor(float)", [1]),
    "nonce_echo": ("tensor(int64)", [1]),
}


class RepositoryError(Exception):
    """A model repository cannot be made; the text says which file, what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as the server has it."""

    name: str
    sha256: str
    image_shape: tuple[int, int, int]
    batch_max: int


@dataclass(frozen=True, slots=True)
class OwnBatcher:
    """One model under Triton's own dynamic batcher: for trials only, the appliance never has it.

    preferred, delay_us: as in `config.pbtxt`.
    levels: priority levels within the model, 0 for none; among_models: the model's priority in
    Triton's rate limiter (1 is the highest), 0 to leave the rate limiter off. queue_max: Triton's
    max_queue_size; setting it also ends the batcher's habit of forming two batches ahead. emulate:
    the model's own profile, in place of the plant's.
    """

    preferred: tuple[int, ...] = ()
    delay_us: int = 0
    levels: int = 0
    among_models: int = 0
    queue_max: int = 0
    emulate: Path | None = None

    def lines(self) -> list[str]:
        """What stands in `config.pbtxt`."""
        told = []
        if self.preferred:
            told.append(f"preferred_batch_size: [ {', '.join(map(str, self.preferred))} ]")
        if self.delay_us:
            told.append(f"max_queue_delay_microseconds: {self.delay_us}")
        if self.levels:
            told.append(f"priority_levels: {self.levels} default_priority_level: {self.levels}")
        if self.queue_max:
            told.append(f"default_queue_policy {{ max_queue_size: {self.queue_max} }}")
        return [f"dynamic_batching {{ {' '.join(told)} }}"]


OwnBatchers = Mapping[str, OwnBatcher]
"""Model name → its batcher in Triton."""


def write_repository(
    plant: Plant,
    slot: int,
    *,
    threads: int = 1,
    kind: Kind = "KIND_CPU",
    own_batchers: OwnBatchers | None = None,
) -> tuple[Path, list[ServedModel]]:
    """Make `DIR/triton/slotN/models` anew; returns it and what it holds.

    `threads` is the ONNX Runtime's intra-op count of each model. Raises RepositoryError.
    """
    own = own_batchers or {}
    folder = plant.path(plant.paths.triton) / f"slot{slot}"
    partial = folder / f"models.partial-{os.getpid()}"
    try:
        for abandoned in folder.glob("models.partial-*"):
            shutil.rmtree(abandoned)
        served = [
            _write_model(
                plant, model, partial / model.name, threads, kind, own.get(model.name), folder
            )
            for model in plant.model
        ]
        models = folder / "models"
        if models.exists():
            shutil.rmtree(models)
        partial.rename(models)
    except OSError as error:
        raise RepositoryError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return models, served


def _write_model(
    plant: Plant,
    model: ModelSection,
    folder: Path,
    threads: int,
    kind: Kind,
    own: OwnBatcher | None,
    slot_folder: Path,
) -> ServedModel:
    version = folder / "1"
    version.mkdir(parents=True)
    sha256 = _copy_verified(plant.path(model.pool), version / "model.onnx")
    _copy_verified(_PROGRAM, version / "model.py")
    parameters = {
        "model_file": "model.onnx",
        "sha256": sha256,
        "threads": str(threads),
        "provider": _PROVIDER[kind],
    }
    emulate = own.emulate if own is not None else None
    if emulate is None and plant.pool.emulate is not None:
        emulate = plant.path(plant.pool.emulate)
    if emulate is not None:
        _check_emulation(emulate, model)
        _copy_verified(emulate, version / "emulate.json")
        parameters["emulate"] = "emulate.json"
        if len(plant.model) > 1:
            # Every model has a process of its own; they stand for one GPU, which runs one batch.
            parameters["gpu_lock"] = str(slot_folder / "gpu.lock")
    if own is not None:
        parameters["held_log"] = str(slot_folder / f"held-{model.name}.bin")
    shape = image_shape(version / "model.onnx", model.pool)
    (folder / "config.pbtxt").write_text(
        config_text(model.name, model.batch_max, shape, parameters, kind, own)
    )
    return ServedModel(model.name, sha256, shape, model.batch_max)


def _check_emulation(path: Path, model: ModelSection) -> None:
    try:
        profile = load_profile(path)
    except ProfileError as error:
        raise RepositoryError(f"[pool] emulate: {error}") from None
    if profile.batch_max < model.batch_max:
        raise RepositoryError(
            f"[pool] emulate: {path} ends at batch size {profile.batch_max}, but model "
            f"{model.name} has batch_max = {model.batch_max}"
        )


def _copy_verified(source: Path, target: Path) -> str:
    """Copy a file and compare both ends; returns its sha256."""
    with source.open("rb") as file:
        before = file_digest(file, "sha256").hexdigest()
    shutil.copyfile(source, target)
    with target.open("rb") as file:
        after = file_digest(file, "sha256").hexdigest()
    if before != after:
        raise RepositoryError(f"{source} changed while it was copied; start again")
    return after


def image_shape(path: Path, said: str) -> tuple[int, int, int]:
    """Height, width and channels of a model that keeps the contract. Raises RepositoryError."""
    try:
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime's own exceptions share no public base.
        raise RepositoryError(f"{said} is not a usable ONNX model: {error}") from None
    faults = _differences("input", session.get_inputs(), _CONTRACT_IN)
    faults += _differences("output", session.get_outputs(), _CONTRACT_OUT)
    if faults:
        raise RepositoryError(f"{said} does not keep the model contract: {'; '.join(faults)}")
    shapes = {tensor.name: tensor.shape for tensor in session.get_inputs()}
    _, height, width, channels = shapes["image"]
    return int(height), int(width), int(channels)


def _differences(
    end: str, tensors: list[ort.NodeArg], contract: dict[str, tuple[str, list[int] | None]]
) -> list[str]:
    found = {tensor.name: tensor for tensor in tensors}
    faults = [f"{end} {name} is not in the contract" for name in sorted(found.keys() - contract)]
    for name, (element, rest) in contract.items():
        tensor = found.get(name)
        if tensor is None:
            faults.append(f"{end} {name} is missing")
            continue
        batch, *dims = tensor.shape or [1]
        spoken = f"{end} {name} is [{', '.join(map(str, [batch, *dims]))}]"
        if tensor.type != element:
            faults.append(f"{end} {name} is {tensor.type}, must be {element}")
        if isinstance(batch, int):
            faults.append(f"{end} {name} has a fixed batch of {batch}, must be dynamic")
        if rest is None and not (len(dims) == 3 and all(isinstance(size, int) for size in dims)):
            faults.append(f"{spoken}, must be [batch, height, width, colours] with fixed sizes")
        if rest is not None and dims != rest:
            faults.append(f"{spoken}, must be [batch, {', '.join(map(str, rest))}]")
    return faults


def config_text(
    name: str,
    batch_max: int,
    shape: tuple[int, int, int],
    parameters: dict[str, str],
    kind: Kind,
    own: OwnBatcher | None = None,
) -> str:
    """The model's `config.pbtxt`: one instance, no dynamic batching, nothing left to guess."""
    sizes = ", ".join(map(str, shape))
    limit = ""
    if own is not None and own.among_models:
        limit = (
            ' rate_limiter { resources [{ name: "gpu" count: 1 }] '
            f"priority: {own.among_models} }}"
        )
    lines = [
        f"name: {json.dumps(name)}",
        'backend: "python"',
        f"max_batch_size: {batch_max}",
        f'input [{{ name: "image" data_type: TYPE_UINT8 dims: [ {sizes} ] }},',
        '       { name: "nonce" data_type: TYPE_INT64 dims: [ 1 ] }]',
        'output [{ name: "score" data_type: TYPE_FP32 dims: [ 1 ] },',
        '        { name: "nonce_echo" data_type: TYPE_INT64 dims: [ 1 ] }]',
        f"instance_group [{{ count: 1 kind: {kind}{limit} }}]",
        *(own.lines() if own is not None else ()),
    ]
    lines += [
        f"parameters {{ key: {json.dumps(key)} value: {{ string_value: {json.dumps(value)} }} }}"
        for key, value in parameters.items()
    ]
    return "\n".join(lines) + "\n"
