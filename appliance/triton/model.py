"""One model inside Triton's Python backend: a fixed ONNX Runtime session, honest about its time.

`repository.py` copies this file into the model repository, so it imports nothing of the project.
With an emulation profile it holds each batch until the profile's time is up, so that a laptop
behaves like the GPUs it stands for.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import triton_python_backend_utils as pb

ort.disable_telemetry_events()
INPUTS = ("image", "nonce")
OUTPUTS = ("score", "nonce_echo")
WARM_RUNS = 3


# Tensors cross between the stub and numpy by DLPack alone. The stub's own `as_numpy` and
# `Tensor(name, array)` were built for numpy 1: with numpy 2 they take the size of an element for 0,
# so that every row reads as the first one and every output leaves empty, without any error.
def array_of(tensor: Any) -> Any:
    """The stub's tensor as an array on the same memory; read-only."""
    return np.from_dlpack(tensor)


_python = ctypes.pythonapi
_python.PyCapsule_GetPointer.restype = ctypes.c_void_p
_python.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
_python.PyCapsule_New.restype = ctypes.py_object
_python.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_OFFERED, _TAKEN = b"dltensor", b"used_dltensor"  # the capsules keep these, not copies


class _Lent:
    """An array's DLPack capsule as the stub can take it.

    The stub takes the tensor over but gives the capsule a name of its own, which numpy's capsule
    does not know: it would print an exception for every tensor. So numpy's capsule is marked as
    taken here, and the stub gets one that does nothing when it goes.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **_: Any) -> Any:
        capsule = self._array.__dlpack__()
        pointer = _python.PyCapsule_GetPointer(capsule, _OFFERED)
        _python.PyCapsule_SetName(capsule, _TAKEN)
        return _python.PyCapsule_New(pointer, _OFFERED, None)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def tensor_of(name: str, array: Any) -> Any:
    """An array as the stub's tensor on the same memory."""
    return pb.Tensor.from_dlpack(name, _Lent(array))


def hold_until(end_ns: int) -> None:
    """Sleep to an absolute instant of the monotonic clock; never return before it."""
    while (left_ns := end_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


def emulated_times(profile: Path, batch_max: int) -> dict[int, int]:
    """`wcet_ns` of a profile file for every batch size to `batch_max`.

    Raises ValueError where a size is missing or not positive.
    """
    named = json.loads(profile.read_bytes())["wcet_ns"]
    held = {int(size): int(wcet_ns) for size, wcet_ns in named.items()}
    for size in range(1, batch_max + 1):
        if held.get(size, 0) <= 0:
            raise ValueError(f"{profile}: wcet_ns has no positive time for batch size {size}")
    return held


def open_session(path: Path, sha256: str, threads: int, provider: str) -> ort.InferenceSession:
    """A session of exactly this file on exactly this provider. Raises ValueError otherwise."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ValueError(f"{path} has sha256 {found}, the repository was made with {sha256}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # A spinning pool would take the core that the next line's decode needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    session = ort.InferenceSession(content, options, providers=[provider])
    session.disable_fallback()
    if session.get_providers()[0] != provider:
        raise ValueError(f"{path} runs on {session.get_providers()}, not on {provider}")
    return session


HELD = struct.Struct("<qqqqq")
"""One line of `held_log`: asked_at_ns, taken_at_ns, freed_at_ns, emulated_ns, rows."""


class EmulatedGpu:
    """One GPU that the models of a server share: one batch at a time, whoever's it is."""

    def __init__(self, lock: str | None, log: str | None) -> None:
        self._lock = None if lock is None else os.open(lock, os.O_CREAT | os.O_RDWR, 0o600)
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self._log = None if log is None else os.open(log, flags, 0o600)

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Hold the GPU; wait for it where another model has it."""
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def note(self, asked_at_ns: int, taken_at_ns: int, emulated_ns: int, rows: int) -> None:
        """Write down one batch, where a trial asked for it."""
        if self._log is not None:
            freed_at_ns = time.monotonic_ns()
            os.write(self._log, HELD.pack(asked_at_ns, taken_at_ns, freed_at_ns, emulated_ns, rows))


class TritonPythonModel:
    """What Triton's stub calls: `initialize` once, then `execute` for every batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session and run every batch size. Raising here makes the server refuse."""
        config = json.loads(args["model_config"])
        told = {name: entry["string_value"] for name, entry in config["parameters"].items()}
        folder = Path(args["model_repository"]) / args["model_version"]
        batch_max = int(config["max_batch_size"])
        self._hold_ns: dict[int, int] = {}
        if "emulate" in told:
            self._hold_ns = emulated_times(folder / told["emulate"], batch_max)
        self._gpu = EmulatedGpu(told.get("gpu_lock"), told.get("held_log"))
        self._is_merging = "dynamic_batching" in config
        self._session = open_session(
            folder / told["model_file"], told["sha256"], int(told["threads"]), told["provider"]
        )
        shape = [int(size) for size in config["input"][0]["dims"]]
        self._warm_up(shape, batch_max)
        # The first collection of a long-lived process would otherwise fall into a batch.
        gc.collect()
        gc.freeze()

    def _warm_up(self, shape: list[int], batch_max: int) -> None:
        # Down and up again: a size met for the first time after a larger one costs differently.
        for size in (*range(batch_max, 0, -1), *range(1, batch_max + 1)):
            image = np.zeros([size, *shape], np.uint8)
            nonce = np.arange(size, dtype=np.int64).reshape(size, 1)
            for _ in range(WARM_RUNS if size == 1 else 1):
                score, echo = self._run(image, nonce)
            crossed = array_of(tensor_of("nonce_echo", echo))
            if score.shape != (size, 1) or not np.array_equal(crossed, nonce):
                raise ValueError(f"the model does not echo the nonces of a batch of {size}")

    def _run(self, image: Any, nonce: Any) -> list[Any]:
        outputs: list[Any] = self._session.run(OUTPUTS, {"image": image, "nonce": nonce})
        return outputs

    # Triton's own word for one message is in its interface.
    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each batch in turn; a batch that fails fails alone."""
        asked_at_ns = time.monotonic_ns()
        with self._gpu.taken():
            if self._is_merging:
                return self._merged(requests, asked_at_ns)
            return self._in_turn(requests)

    def _in_turn(self, requests: list[Any]) -> list[Any]:
        responses = []
        start_ns = time.monotonic_ns()
        for batch in requests:
            response, rows = self._answer(batch)
            answered_ns = time.monotonic_ns()
            responses.append(response)
            end_ns = start_ns + self._hold_ns.get(rows, 0)
            hold_until(end_ns)
            # The next one is held from this one's absolute end, so that lateness does not add up;
            # only a batch that itself ran over moves it.
            start_ns = max(end_ns, answered_ns)
        return responses

    def _merged(self, requests: list[Any], asked_at_ns: int) -> list[Any]:
        # Triton's dynamic batcher hands over single parts that it wants run as one batch.
        taken_at_ns = time.monotonic_ns()
        try:
            parts = [
                [array_of(pb.get_input_tensor_by_name(one, name)) for name in INPUTS]
                for one in requests
            ]
            counts = [len(image) for image, _ in parts]
            image, nonce = (np.concatenate(column) for column in zip(*parts, strict=True))
            outputs = self._run(image, nonce)
        except Exception as error:
            failed = pb.TritonError(f"{type(error).__name__}: {error}")
            return [pb.InferenceResponse(error=failed) for _ in requests]
        responses, first = [], 0
        for count in counts:
            # Each answer gets memory of its own: a view of a part would cross with wrong strides.
            rows = [np.array(one[first : first + count]) for one in outputs]
            tensors = [tensor_of(name, one) for name, one in zip(OUTPUTS, rows, strict=True)]
            responses.append(pb.InferenceResponse(output_tensors=tensors))
            first += count
        emulated_ns = self._hold_ns.get(first, 0)
        hold_until(taken_at_ns + emulated_ns)
        self._gpu.note(asked_at_ns, taken_at_ns, emulated_ns, first)
        return responses

    def _answer(self, batch: Any) -> tuple[Any, int]:
        try:
            image, nonce = (array_of(pb.get_input_tensor_by_name(batch, name)) for name in INPUTS)
            # The message's bytes lie anywhere; integers of eight want their alignment.
            outputs = self._run(image, np.require(nonce, requirements="A"))
            tensors = [tensor_of(name, one) for name, one in zip(OUTPUTS, outputs, strict=True)]
        except Exception as error:
            failed = pb.TritonError(f"{type(error).__name__}: {error}")
            return pb.InferenceResponse(error=failed), 0
        return pb.InferenceResponse(output_tensors=tensors), len(image)

    def finalize(self) -> None:
        """Nothing to give back: the process ends with the server."""
