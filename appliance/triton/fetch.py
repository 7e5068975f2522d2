"""The embedded Triton server: fetched once by name through pip, kept in the user's cache.

The `nvidia-pytriton` wheel carries a real `tritonserver` with its Python backend. The wheel is
unpacked apart and never installed, because its own pins ask for numpy 1. Two starts at once do not
fight (a lock), and a start cut short leaves nothing that looks finished (rename at the end).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path

from appliance.triton.libpython import SERIES, FetchError, library_folder

SAFE_PATH = re.compile(r"[A-Za-z0-9._/+,=@~-]+")
"""What a path may hold that Triton starts its Python part from."""
PROJECT = "nvidia-pytriton"
WHEEL_VERSION = "0.7.0"
SERVER_VERSION = "2.51"
_SHA256 = {
    "x86_64": "21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",
    "aarch64": "f99e07ee56fe065337453956afba17d2673e02ec6a632c3de26ce6e7b32a0898",
}
_STUBS = ("3.11", "3.12", "3.13")
_PARTS = ("nvidia_pytriton.libs/", "pytriton/tritonserver/", "nvidia_pytriton-0.7.0.dist-info/")
_EXECUTABLE = ("/bin/tritonserver", "/triton_python_backend_stub")


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """Where the unpacked server is, and what a process of it must be told."""

    folder: Path
    library_folder: Path

    @property
    def program(self) -> Path:
        """The `tritonserver` executable."""
        return self.folder / "pytriton/tritonserver/bin/tritonserver"

    @property
    def backends(self) -> Path:
        """The backend folder with the stub of this interpreter's series."""
        return self.folder / f"pytriton/tritonserver/backends-{SERIES}"

    def environment(self) -> dict[str, str]:
        """The whole environment of a server process: nothing of ours leaks in but what it needs."""
        here = os.environ
        libraries = [str(self.folder / "nvidia_pytriton.libs"), str(self.library_folder)]
        project = Path(__file__).resolve().parents[2]
        packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(project)]
        environment = {
            name: here[name]
            for name in ("HOME", "LANG", "TMPDIR", "CUDA_VISIBLE_DEVICES", "XDG_CACHE_HOME")
            if name in here
        }
        return environment | {
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PATH": f"{Path(sys.executable).parent}:{here.get('PATH', '/usr/bin:/bin')}",
            "PYTHONPATH": ":".join(dict.fromkeys(packages)),
            # The stub embeds the interpreter and would guess its prefix from what lies on PATH.
            "PYTHONHOME": f"{sys.base_prefix}:{sys.base_exec_prefix}",
            "PYTHONNOUSERSITE": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONUNBUFFERED": "1",
            # ONNX Runtime is told its threads itself; nothing else may start a pool per server.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/takt`, or `~/.cache/takt`. Raises FetchError on a path Triton breaks at."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "takt"
    if not SAFE_PATH.fullmatch(str(folder)):
        raise FetchError(
            f"{folder}: Triton 2.51 starts its Python part through an unquoted command line; set "
            f"XDG_CACHE_HOME to a path of letters, digits and . _ / + = @ ~ -"
        )
    return folder


def say_on_stderr(text: str) -> None:
    """Progress for the person who waits."""
    print(text, file=sys.stderr, flush=True)


def embedded_server(say: Callable[[str], None] = say_on_stderr) -> EmbeddedServer:
    """The embedded server, fetched and unpacked on first use. Raises FetchError."""
    machine = platform.machine()
    digest = _SHA256.get(machine)
    if digest is None or sys.platform != "linux":
        raise FetchError(
            f"there is no embedded Triton server for {sys.platform} on {machine} "
            f"(only Linux on {' and '.join(sorted(_SHA256))}); set embedded = false in [pool] and "
            f"give the endpoints of servers of your own"
        )
    if SERIES not in _STUBS:
        raise FetchError(
            f"the embedded Triton server has no stub for Python {SERIES}; "
            f"it has {', '.join(_STUBS)}"
        )
    cache = cache_folder()
    folder = cache / f"triton-{SERVER_VERSION}-{digest[:8]}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if not folder.is_dir():
            with _alone(cache / "fetch.lock", say):
                if not folder.is_dir():
                    _fetch(cache, folder, digest, say)
        with _alone(cache / f"lib{SERIES}.lock", say):
            libraries = library_folder(cache, say)
    except OSError as error:
        raise FetchError(
            f"{error.filename or cache}: {error.strerror}; the embedded server needs 300 MB there "
            f"(XDG_CACHE_HOME moves it)"
        ) from error
    return EmbeddedServer(folder, libraries)


@contextlib.contextmanager
def _alone(path: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold a lock file; the second of two starts waits for the first and then finds it done."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another start that holds {path} …")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(cache: Path, folder: Path, digest: str, say: Callable[[str], None]) -> None:
    began = time.monotonic()
    downloads = cache / f"download-{digest[:8]}"
    downloads.mkdir(exist_ok=True)
    wheel = _downloaded(downloads, digest)
    if wheel is None:
        say(f"fetching the Triton server, 55 MB, once ({PROJECT} {WHEEL_VERSION}) …")
        _pip_download(downloads, digest)
        wheel = _downloaded(downloads, digest)
        if wheel is None:
            raise FetchError(f"pip left no wheel with sha256 {digest} in {downloads}")
    say("unpacking the Triton server …")
    _unpack(wheel, cache, folder)
    shutil.rmtree(downloads, ignore_errors=True)
    say(f"the Triton server is ready after {time.monotonic() - began:.1f} s: {folder}")


def _downloaded(downloads: Path, digest: str) -> Path | None:
    for wheel in downloads.glob("*.whl"):
        with wheel.open("rb") as file:
            if file_digest(file, "sha256").hexdigest() == digest:
                return wheel
        wheel.unlink()
    return None


def _pip_download(downloads: Path, digest: str) -> None:
    """Download by name. pip refuses a wheel of any other hash. Raises FetchError."""
    pinned = downloads / "pinned.txt"
    pinned.write_text(f"{PROJECT}=={WHEEL_VERSION} --hash=sha256:{digest}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--only-binary=:all:", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--retries", "5", "--dest", str(downloads), "-r", str(pinned)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-12:])
        raise FetchError(
            f"pip cannot download {PROJECT}=={WHEEL_VERSION}:\n{tail}\n"
            f"check the network; on an air-gapped machine put the wheel's folder in PIP_FIND_LINKS"
        )


def _unpack(wheel: Path, cache: Path, folder: Path) -> None:
    """Unpack what a server needs next to its place, then rename it there in one step."""
    for abandoned in cache.glob(f"{folder.name}.partial-*"):
        shutil.rmtree(abandoned, ignore_errors=True)
    partial = cache / f"{folder.name}.partial-{os.getpid()}"
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            if member.filename.startswith(_PARTS) and not member.is_dir():
                path = Path(archive.extract(member, partial))
                path.chmod(0o755 if str(path).endswith(_EXECUTABLE) else 0o644)
    server = partial / "pytriton/tritonserver"
    for series in _STUBS:
        # One backend folder per series: two environments on one cache must not swap stubs, and
        # the same depth keeps the stub's $ORIGIN library path true.
        backend = server / f"backends-{series}/python"
        backend.mkdir(parents=True)
        for file in (server / "backends/python").iterdir():
            os.link(file, backend / file.name)
        stub = "triton_python_backend_stub"
        os.link(server / "python_backend_stubs" / series / stub, backend / stub)
    shutil.rmtree(server / "python_backend_stubs")
    shutil.rmtree(server / "backends")
    partial.rename(folder)


def main(argv: list[str] | None = None) -> int:
    """Fetch the server and say where it is. Exit 0, or 1 with the reason on stderr."""
    if argv if argv is not None else sys.argv[1:]:
        say_on_stderr("usage: python -m appliance.triton.fetch   (it takes no arguments)")
        return 2
    try:
        server = embedded_server()
    except FetchError as error:
        say_on_stderr(f"takt: {error}")
        return 1
    print(f"tritonserver {SERVER_VERSION}: {server.program}")
    print(f"stub for Python {SERIES}: {server.backends}/python/triton_python_backend_stub")
    print(f"libpython: {server.library_folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
