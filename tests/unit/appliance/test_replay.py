"""`takt replay` on what is no event journal."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.replay import main
from deadline_batcher.journal import encode_header
from deadline_batcher.plan import Category, Plan


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


def test_a_journal_of_another_version_is_wrong_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = encode_header(Plan((Category("m", (4, 5), 5),), 1, 1, 1, 2, 8), 1, 0)
    path = tmp_path / "events.jsonl"
    path.write_text(header + "\n")
    assert main([str(path)]) == 0
    path.write_text(header.replace('"version": 3', '"version": 2') + "\n")
    assert main([str(path)]) == 2
    assert "version 2, and this release writes and replays 3" in capsys.readouterr().err
