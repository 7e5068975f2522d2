"""Find the interpreter's shared library, which Triton's Python stub links against.

A Debian or Ubuntu interpreter is linked statically, so the library is often absent. It is then
fetched into the user's cache without root, from the distribution's own archive.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

SERIES = f"{sys.version_info.major}.{sys.version_info.minor}"
LIBRARY = f"libpython{SERIES}.so.1.0"
PACKAGE = f"libpython{SERIES}"
_APT_LIMIT_S = 240


class FetchError(Exception):
    """Something the embedded server needs cannot be had; the text says what and the way out."""


def library_folder(cache: Path, say: Callable[[str], None]) -> Path:
    """The folder that holds `libpython3.X.so.1.0`, fetched into `cache` where the system lacks it.

    Raises FetchError with the package and the command that installs it.
    """
    for folder in _usual_folders():
        if (folder / LIBRARY).exists():
            return folder
    kept = cache / f"lib{SERIES}"
    if (kept / LIBRARY).exists():
        return kept
    say(f"fetching {PACKAGE} (2 MB) into the cache, once …")
    _fetch_from_apt(cache, kept)
    return kept


def _usual_folders() -> list[Path]:
    named = [sysconfig.get_config_var("LIBDIR"), f"{sys.base_prefix}/lib"]
    folders = [Path(text) for text in named if text]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    if multiarch:
        folders += [Path("/usr/lib") / multiarch, Path("/lib") / multiarch]
    return folders + _linker_cache_folders()


def _linker_cache_folders() -> list[Path]:
    """Folders of the dynamic linker's cache that hold the library."""
    tool = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
    if tool is None:
        return []
    listed = subprocess.run([tool, "-p"], capture_output=True, text=True, check=False).stdout
    found = re.findall(rf"^\s*{re.escape(LIBRARY)} .*=> (\S+)$", listed, re.MULTILINE)
    return [Path(path).parent for path in found]


def _fetch_from_apt(cache: Path, kept: Path) -> None:
    """Download the Debian package and take the library out of it."""
    wanted = f"install it with: sudo apt-get install {PACKAGE}"
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise FetchError(
                f"{LIBRARY} is not on this machine and there is no {tool} to fetch it with; "
                f"install your distribution's shared library of Python {SERIES} "
                f"(Debian, Ubuntu: package {PACKAGE}; Fedora, RHEL: python{SERIES}-libs)"
            )
    folder = cache / f"apt-{SERIES}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        package = _download(folder)
        if package is None:
            raise FetchError(
                f"{LIBRARY} is not on this machine and apt-get cannot download it:\n"
                f"{(folder / 'apt.log').read_text()[-800:]}\n{wanted}"
            )
        unpacked = folder / "unpacked"
        done = subprocess.run(
            ["dpkg-deb", "-x", str(package), str(unpacked)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = next(unpacked.rglob(LIBRARY), None) if done.returncode == 0 else None
        if found is None:
            raise FetchError(f"{package.name} holds no {LIBRARY}: {done.stderr.strip()}; {wanted}")
        kept.mkdir(parents=True, exist_ok=True)
        partial = kept / f"{LIBRARY}.partial"
        shutil.copyfile(found.resolve(), partial)
        partial.replace(kept / LIBRARY)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _download(folder: Path) -> Path | None:
    """The package file, or None. A machine whose package lists are empty gets lists of its own."""
    for subfolder in ("lists/partial", "archives/partial"):
        (folder / subfolder).mkdir(parents=True)
    own_lists = [
        "-o",
        f"Dir::State::lists={folder}/lists",
        "-o",
        f"Dir::Cache={folder}",
        "-o",
        "APT::Sandbox::User=",
    ]
    if not _apt(folder, ["download", PACKAGE]):
        _apt(folder, [*own_lists, "update"])
        _apt(folder, [*own_lists, "download", PACKAGE])
    return next(folder.glob(f"{PACKAGE}_*.deb"), None)


def _apt(folder: Path, arguments: list[str]) -> bool:
    with (folder / "apt.log").open("ab") as log:
        try:
            done = subprocess.run(
                ["apt-get", "-q", *arguments],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=False,
                timeout=_APT_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            log.write(b"apt-get gave no answer; is there a network?\n")
            return False
    return done.returncode == 0
