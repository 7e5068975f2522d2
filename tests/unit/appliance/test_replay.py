"""`takt replay` on what is no event journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.replay import main


@pytest.mark.parametrize(
    "content", [b"\xff\x00\xfe", b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40]
)
def test_a_binary_file_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(content)
    assert main([str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"takt replay: {path}: no event journal: not UTF-8")
    assert told.count("\n") == 1
