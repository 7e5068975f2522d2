"""Cold starts by stage: the sums, and one real start of a fallback session in a fresh process."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance import cold_start
from appliance.cold_start import FALLBACK_STAGES, ColdError, as_stages, fallback_cold_start

MODELS = Path(__file__).resolve().parents[3] / "models"


def test_stages_have_the_median_and_the_largest_of_each_and_of_the_sums() -> None:
    starts = [{"a": 1, "b": 20}, {"a": 3, "b": 10}, {"a": 2, "b": 12}]
    a, b, whole = as_stages(starts)
    assert (a.name, a.median_ns, a.max_ns, a.n) == ("a", 2, 3, 3)
    assert (b.median_ns, b.max_ns) == (12, 20)
    assert (whole.name, whole.median_ns, whole.max_ns) == ("all", 14, 21)


def test_a_real_cold_start_has_every_stage_in_order_and_costs_more_than_a_warm_run() -> None:
    stages, warm_ns = fallback_cold_start(MODELS / "tile-defects-int8.onnx", threads=1)
    assert list(stages) == list(FALLBACK_STAGES)
    assert all(length_ns > 0 for length_ns in stages.values())
    assert sum(stages.values()) > warm_ns


def test_a_model_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    with pytest.raises(ColdError, match=r"broken\.onnx"):
        fallback_cold_start(broken, threads=1)


def test_cold_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cold_start.main(["fallback", "--plant", "plant.toml"])
    assert ended.value.code == 2
    assert "--cold" in capsys.readouterr().err
