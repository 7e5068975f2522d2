"""What nvidia-smi says, read; and what is not an answer, not taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.gpu_facts import GpuFacts, gpu_facts, parsed


def test_one_line_of_its_answer() -> None:
    assert parsed("NVIDIA L4, 550.54.15, 2040, 2040, 1231, 23034\n") == GpuFacts(
        "NVIDIA L4", "550.54.15", "max 2040 MHz, applications 2040 MHz", 1231, 23034
    )


@pytest.mark.parametrize("line", ["", "No devices were found", "L4, 1, 2, 3, [N/A], 5"])
def test_no_answer_is_no_gpu(line: str) -> None:
    assert parsed(line) is None


def test_without_the_tool_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_facts(0) is None
