"""A wrong plant file: every mistake at once, each with its line and what is allowed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from appliance.plant_errors import PlantError, load_plant, main

MODELS = Path(__file__).parents[3] / "models"
GOOD = """\
[plant]
name = "hall-3"
[pool]
endpoints = ["grpc://127.0.0.1:8001", "grpc://127.0.0.1:8011"]
embedded = true
[[model]]
name = "tile-defects"
pool = "m.onnx"
fallback = "m8.onnx"
profile = "p.json"
[[line]]
id = "line01"
model = "tile-defects"
frames = "tcp://127.0.0.1:5601"
verdicts = "tcp://127.0.0.1:5701"
cycle_time_ms = 200
deadline_ms = 150
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("m.onnx", "m8.onnx"):
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.fixture
def whole(folder: Path) -> Path:
    """A folder that `takt check` finds nothing in."""
    shutil.copy(MODELS / "tile-defects.onnx", folder / "m.onnx")
    shutil.copy(MODELS / "tile-defects-int8.onnx", folder / "m8.onnx")
    (folder / "plant.toml").write_text(GOOD)
    return folder


def mistakes(folder: Path, text: str) -> list[str]:
    path = folder / "plant.toml"
    path.write_text(text)
    with pytest.raises(PlantError) as caught:
        load_plant(path)
    return [told.removeprefix(f"{folder}/") for told in caught.value.mistakes]


def test_a_right_file(whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = whole / "plant.toml"
    plant = load_plant(path)
    assert plant.path("m.onnx") == whole / "m.onnx"
    assert main([str(path)]) == 0
    assert "1 lines, 2 endpoints, 1 models" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("deadline_ms = 150", "deadline_ms = -1",
         "plant.toml:17: line[0].deadline_ms: "),
        ("deadline_ms = 150", "deadlin_ms = 150",
         "plant.toml:17: line[0].deadlin_ms: unknown key (did you mean deadline_ms?); allowed: id"),
        ("deadline_ms = 150", "",
         "plant.toml:11: line[0].deadline_ms: is missing; allowed: a number, more than 0, at most"),
        ("deadline_ms = 150", "deadline_ms = 25",
         "plant.toml:17: line[0].deadline_ms: 25 leaves nothing after actuation_ms 0, transport"),
        ("deadline_ms = 150", 'deadline_ms = 150\nfail_safe = "pass"',
         'plant.toml:18: line[0].fail_safe: "pass": input should be'),
        ('model = "tile-defects"', 'model = "tile-defect"',
         'plant.toml:13: line[0].model: no model is called "tile-defect" (did you mean tile-defe'),
        (":5701", ":5601", "plant.toml:15: line[0].verdicts: tcp://127.0.0.1:5601: port 5601 is "),
        ("127.0.0.1:5701", "0.0.0.0:8011", "plant.toml:15: line[0].verdicts: tcp://0.0.0.0:8011"),
        (":8011", ":8001", "plant.toml:4: pool.endpoints[1]: grpc://127.0.0.1:8001: port 8001"),
        (":8011", ":99999", "plant.toml:4: pool.endpoints[1]: must look like grpc://HOST:PORT"),
        ("embedded = true", 'emulate = "m.onnx"', "plant.toml:5: pool.emulate: needs embedded"),
        ('pool = "m.onnx"', 'pool = "n.onnx"', 'plant.toml:8: model[0].pool: "n.onnx": there is'),
        ('name = "hall-3"', 'name = "hall-3"\ngpus_lost_tolerated = 2',
         "plant.toml:3: plant.gpus_lost_tolerated: 2 of 2 endpoints; allowed: 0 to 1"),
        ("embedded = true", "embedded = true\nrestart_backoff_min_ms = 20000",
         "plant.toml:6: pool.restart_backoff_min_ms: 20000 is more than restart_backoff_max_ms"),
        ("[plant]", 'folder = "/"\n[plant]', "plant.toml:1: folder: unknown key; allowed: plant, "),
        ("[pool]", "[pool", "plant.toml:3: Expected ']'"),
        ("[plant]\n", "", "plant.toml:1: "),
        ("[pool]", '[paths]\nruntime = "a\\u0000b"\n[pool]',
         "plant.toml:4: paths.runtime: 'a\\x00b' has a NUL"),
        ("m.onnx", "m\\u0000.onnx", "plant.toml:8: model[0].pool: 'm\\x00.onnx' has a NUL"),
    ],
)  # fmt: skip
def test_one_mistake(folder: Path, old: str, new: str, told: str) -> None:
    found = mistakes(folder, GOOD.replace(old, new, 1))
    assert any(one.startswith(told) for one in found), found


def test_all_mistakes_are_told_at_once_in_the_order_of_the_lines(folder: Path) -> None:
    line2 = GOOD[GOOD.index("[[line]]") :].replace("150", "12")
    text = GOOD.replace("hall-3", "hall 3").replace("m8.onnx", "none.onnx") + line2
    found = mistakes(folder, text)
    places = [one.split(": ")[:2] for one in found]
    assert places == [
        ["plant.toml:2", "plant.name"],
        ["plant.toml:9", "model[0].fallback"],
        ["plant.toml:19", "line[1].id"],
        ["plant.toml:21", "line[1].frames"],
        ["plant.toml:22", "line[1].verdicts"],
        ["plant.toml:24", "line[1].deadline_ms"],
    ]


@pytest.mark.parametrize("content", [b"\xff", b"a = [" * 3000, b"a = 1\n" * 2, b"", b"x = {"])
def test_no_content_ends_in_a_traceback(folder: Path, content: bytes) -> None:
    path = folder / "plant.toml"
    path.write_bytes(content)
    assert main([str(path)]) == 1


def test_no_file_is_wrong_use(tmp_path: Path) -> None:
    assert main([str(tmp_path / "none.toml")]) == 2


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("m.onnx", "", "plant.toml:8: model[0].pool: "),
        ("m8.onnx", "no model", "plant.toml:9: model[0].fallback: "),
        ("p.json", "garbage", "plant.toml:10: model[0].profile: "),
        ("p.json", "{}", "plant.toml:10: model[0].profile: "),
        ("p-fallback.json", "", "plant.toml:6: model[0].fallback_profile: "),
        ("p.json/x", "", "plant.toml:10: model[0].profile: "),
        ("journal", "", "plant.toml:1: paths.journal: "),
        ("run", "", "plant.toml:1: paths.runtime: "),
        ("logs", "", "plant.toml:1: paths.logs: "),
        ("triton", "", "plant.toml:1: paths.triton: "),
        ("keys", "", "plant.toml:1: paths.keys: "),
    ],
)
def test_check_looks_into_files_and_folders(
    whole: Path, capsys: pytest.CaptureFixture[str], name: str, content: str, told: str
) -> None:
    (whole / name).parent.mkdir(exist_ok=True)
    (whole / name).write_text(content)
    assert main([str(whole / "plant.toml")]) == 1
    out = capsys.readouterr().out.splitlines()
    assert len(out) == 1
    assert out[0].startswith(f"{whole}/{told}")
    assert str(whole / name.split("/", maxsplit=1)[0]) in out[0].removeprefix(f"{whole}/{told}")


@pytest.mark.parametrize("place", ["/proc/takt", "/proc/self", "/dev/null/x"])
def test_check_tries_whether_a_folder_can_be_written(
    whole: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    path = whole / "plant.toml"
    path.write_text(f'{GOOD}[paths]\nruntime = "{place}"\n')
    assert main([str(path)]) == 1
    assert f"{path}:19: paths.runtime: " in capsys.readouterr().out
    assert sorted(p.name for p in whole.iterdir()) == ["m.onnx", "m8.onnx", "plant.toml"]


@pytest.mark.parametrize("name", ["with space", "q'uote", "dollar$x", "hälle"])
def test_an_embedded_plant_in_a_folder_that_tritons_stub_does_not_survive(
    folder: Path, name: str
) -> None:
    odd = folder / name
    odd.mkdir()
    for model in ("m.onnx", "m8.onnx"):
        (odd / model).write_text("")
    (told,) = mistakes(odd, GOOD)
    assert told.startswith("plant.toml:5: pool.embedded: ")
    assert f"{odd}/triton" in told
    assert "move the plant" in told
    # Elsewhere for Triton, or none of our own, is well.
    for text in (
        f'{GOOD}[paths]\ntriton = "{folder}/t"\n',
        GOOD.replace("embedded = true", "embedded = false"),
    ):
        (odd / "plant.toml").write_text(text)
        assert load_plant(odd / "plant.toml").plant.name == "hall-3"
