"""The warm ONNX Runtime session of a line. It executes; it never decides.

Threads are fixed and do not spin (an idle session must cost nothing), the provider is asserted
(a session that silently runs elsewhere would miss every deadline: onnxruntime#23372).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

# It writes a session file into the temporary folder and would call home: a plant has no such way.
ort.disable_telemetry_events()

Pictures = npt.NDArray[np.uint8]
Nonces = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]


WARM_RUNS = 5


def identity(name: str, sha256: str) -> str:
    """How every record names a model: the plant file's name, and its file's hash in short."""
    return f"{name}@{sha256[:12]}"


class SessionError(Exception):
    """The model cannot be used; the text says why."""


@dataclass(frozen=True)
class ModelFacts:
    """What a model file says of itself."""

    name: str
    sha256: str
    shape: tuple[int, int, int]  # height, width, channels of one uint8 picture
    threshold: float  # FAIL at or above
    labels: tuple[str, ...]

    @property
    def picture_bytes(self) -> int:
        """Bytes of one picture."""
        height, width, channels = self.shape
        return height * width * channels


class Session:
    """One model on the CPU."""

    def __init__(self, path: Path, threads: int) -> None:
        """Load and check. Raises SessionError."""
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        try:
            content = path.read_bytes()
            self._session = ort.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except FileNotFoundError:
            raise SessionError(f"{path}: no such model") from None
        except Exception as error:  # onnxruntime's own classes share no public base
            raise SessionError(f"{path}: not a model ONNX Runtime can load: {error}") from None
        self._session.disable_fallback()
        if self._session.get_providers() != ["CPUExecutionProvider"]:
            raise SessionError(f"{path}: runs on {self._session.get_providers()}, not on the CPU")
        self.facts = self._read_facts(path, hashlib.sha256(content).hexdigest())

    def _read_facts(self, path: Path, sha256: str) -> ModelFacts:
        inputs = {item.name: item for item in self._session.get_inputs()}
        outputs = {item.name for item in self._session.get_outputs()}
        if set(inputs) != {"image", "nonce"} or not {"score", "nonce_echo"} <= outputs:
            raise SessionError(
                f"{path}: needs inputs image and nonce, outputs score and nonce_echo; "
                f"has {sorted(inputs)} and {sorted(outputs)}"
            )
        image = inputs["image"]
        shape = tuple(image.shape[1:])
        if (
            image.type != "tensor(uint8)"
            or len(shape) != 3
            or not all(isinstance(size, int) for size in shape)
        ):
            raise SessionError(f"{path}: image must be uint8 [batch, height, width, channels]")
        properties = self._session.get_modelmeta().custom_metadata_map
        try:
            threshold = float(properties["takt.threshold"])
            labels = tuple(json.loads(properties.get("takt.labels", '["defect"]')))
        except (KeyError, ValueError) as error:
            raise SessionError(f"{path}: its metadata lacks a usable {error}") from None
        if not 0.0 <= threshold <= 1.0:
            raise SessionError(f"{path}: takt.threshold {threshold} is not from 0 to 1")
        name = properties.get("takt.name", path.stem)
        height, width, channels = shape
        return ModelFacts(name, sha256, (height, width, channels), threshold, labels)

    def warm_up(self, picture: Pictures) -> None:
        """Run one picture [height, width, channels] a few times. Raises SessionError."""
        for nonce in range(WARM_RUNS):
            _, echo = self.run(picture[np.newaxis], np.array([nonce], np.int64))
            if int(echo[0]) != nonce:
                raise SessionError("the model does not echo its nonce")

    def run(self, pictures: Pictures, nonces: Nonces) -> tuple[Scores, Nonces]:
        """Scores [n] and echoed nonces [n] of pictures [n, height, width, channels]."""
        score, echo = self._session.run(
            ["score", "nonce_echo"], {"image": pictures, "nonce": nonces.reshape(-1, 1)}
        )
        return score.reshape(-1), echo.reshape(-1)
