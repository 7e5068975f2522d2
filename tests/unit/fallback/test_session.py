"""The fallback's session: where it runs is asserted, never assumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from fallback.session import Session, SessionError

MODEL = Path(__file__).resolve().parents[3] / "models" / "tile-defects-int8.onnx"
Real = ort.InferenceSession


class Elsewhere:
    """A session that landed on another provider than it was asked for; it says so if asked."""

    asked: tuple[Any, ...] = ()
    providers = ("CUDAExecutionProvider", "CPUExecutionProvider")

    def __init__(self, content: bytes, options: Any, providers: Any) -> None:
        Elsewhere.asked = (options, list(providers))
        self._real = Real(content, options, providers=["CPUExecutionProvider"])
        self.may_fall_back = True

    def get_providers(self) -> list[str]:
        return list(self.providers)

    def disable_fallback(self) -> None:
        self.may_fall_back = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def test_a_session_that_runs_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would answer, ten to a hundred times slower, exactly when it is needed."""
    monkeypatch.setattr(ort, "InferenceSession", Elsewhere)
    with pytest.raises(SessionError, match=r"runs on .*CUDA.*, not on the CPU"):
        Session(MODEL, threads=1)


def test_a_failing_provider_never_rebuilds_the_session_inside_a_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Elsewhere, "providers", ("CPUExecutionProvider",))
    monkeypatch.setattr(ort, "InferenceSession", Elsewhere)
    session: Any = Session(MODEL, threads=1)
    assert session._session.may_fall_back is False


def test_threads_are_fixed_and_do_not_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Elsewhere, "providers", ("CPUExecutionProvider",))
    monkeypatch.setattr(ort, "InferenceSession", Elsewhere)
    Session(MODEL, threads=1)
    options, providers = Elsewhere.asked
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert providers == ["CPUExecutionProvider"]


def test_it_echoes_the_nonce_of_every_row() -> None:
    session = Session(MODEL, threads=1)
    pictures = np.zeros((3, *session.facts.shape), np.uint8)
    scores, echoes = session.run(pictures, np.array([5, 2**62, 7], np.int64))
    assert echoes.tolist() == [5, 2**62, 7]
    assert scores.shape == (3,)
