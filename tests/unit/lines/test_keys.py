"""Keys: permissions, allow-lists that change under a running line, files that are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from lines.keys import (
    OTHER_KEYS,
    REFUSED_KEYS_MAX,
    AllowList,
    KeyFileError,
    load_secret,
    make_client_key,
    make_plant_keys,
)

MS = 1_000_000


def make(folder: Path, name: str) -> bytes:
    """The new client's public key."""
    return load_secret(make_client_key("cameras", name, folder / "keys", folder / "secrets"))[0]


def test_keys_are_private_from_the_first_byte(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        secret = make_plant_keys(tmp_path / "keys")
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o700
    assert {p.name for p in (tmp_path / "keys").iterdir()} == {
        "server.key", "server.key_secret", "cameras", "actuators", "operators", "viewers",
    }  # fmt: skip
    with pytest.raises(KeyFileError, match="exists already"):
        make_plant_keys(tmp_path / "keys")


def test_a_loose_secret_is_refused_with_its_repair(tmp_path: Path) -> None:
    secret = make_plant_keys(tmp_path)
    secret.chmod(0o640)
    with pytest.raises(KeyFileError, match=f"mode 0640 .* chmod 600 {secret}"):
        load_secret(secret)


@pytest.mark.parametrize("text", ["", "public-key = 'short'", "public-key", "public-key = \xff"])
def test_a_malformed_secret_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.key_secret"
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    with pytest.raises(KeyFileError):
        load_secret(path)


def test_key_files_with_crlf_are_read(tmp_path: Path) -> None:
    secret = make_plant_keys(tmp_path)
    keys = load_secret(secret)
    secret.write_bytes(secret.read_bytes().replace(b"\n", b"\r\n"))
    assert load_secret(secret) == keys


def test_the_list_follows_its_folder_within_250_ms(tmp_path: Path) -> None:
    first = make(tmp_path, "cam01")
    allowed = AllowList(tmp_path / "keys" / "cameras")
    assert allowed.name_of(first, 0) == "cam01"
    assert allowed.name_of(first.decode(), 1) == "cam01"
    assert allowed.name_of(z85.decode(first), 2) == "cam01"

    second = make(tmp_path, "cam02")
    assert allowed.name_of(second, 249 * MS) is None
    assert allowed.name_of(second, 250 * MS) == "cam02"

    (tmp_path / "keys" / "cameras" / "cam01.key").unlink()
    assert allowed.name_of(first, 500 * MS) is None
    assert allowed.reads == 3
    assert allowed.name_of(second, 1000 * MS) == "cam02"
    assert allowed.reads == 3


def test_a_key_that_is_replaced_in_place(tmp_path: Path) -> None:
    old = make(tmp_path, "cam01")
    allowed = AllowList(tmp_path / "keys" / "cameras", only="cam01")
    assert allowed.name_of(old, 0) == "cam01"
    new = zmq.curve_keypair()[0]
    path = tmp_path / "keys" / "cameras" / "cam01.key"
    path.write_bytes(path.read_bytes().replace(old, new))
    assert (allowed.name_of(old, 300 * MS), allowed.name_of(new, 300 * MS)) == (None, "cam01")


def test_only_names_the_one_client(tmp_path: Path) -> None:
    first, second = make(tmp_path, "cam01"), make(tmp_path, "cam02")
    allowed = AllowList(tmp_path / "keys" / "cameras", only="cam02")
    assert (allowed.name_of(first, 0), allowed.name_of(second, 0)) == (None, "cam02")


def test_a_malformed_file_is_reported_and_stops_nobody(tmp_path: Path) -> None:
    key = make(tmp_path, "cam02")
    folder = tmp_path / "keys" / "cameras"
    (folder / "bad.key").write_text("public-key = 'nonsense'")
    (folder / "copy.key").write_bytes((folder / "cam02.key").read_bytes())
    allowed = AllowList(folder)
    assert allowed.name_of(key, 0) == "cam02"
    assert [Path(text.split(":")[0]).name for text in allowed.problems] == ["bad.key", "copy.key"]


def test_a_missing_folder_allows_nobody(tmp_path: Path) -> None:
    allowed = AllowList(tmp_path / "nowhere")
    assert allowed.name_of(zmq.curve_keypair()[0], 0) is None
    assert "nowhere" in allowed.problems[0]


def test_refusals_are_counted_within_a_limit(tmp_path: Path) -> None:
    key = make(tmp_path, "cam01")
    allowed = AllowList(tmp_path / "keys" / "cameras", clock=lambda: 0)
    assert allowed.callback("cameras", key)
    for number in range(REFUSED_KEYS_MAX + 5):
        assert not allowed.callback("cameras", b"%040d" % number)
    assert allowed.refused_count == REFUSED_KEYS_MAX + 5
    assert allowed.refused()[OTHER_KEYS] == 5
