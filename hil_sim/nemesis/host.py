"""What faults need of the host: a mount namespace, small file systems, a second network, a shim.

Everything is made inside namespaces of our own, or in a folder of our own: nothing of the machine's
other users is touched, and the kernel takes it away with our last process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from appliance.processes import tied

SHIM_SOURCE: Final = Path(__file__).with_name("shim.c")
PAGE: Final = struct.Struct("=qq")
"""The shim's page: wall clock offset in ns, delay of fsync in µs."""
FAR_END: Final = "takt-far"
OWN_HOST: Final = ("shm", "disk", "network")
"""What is done only to mounts and a network of our own: else it would be done to everybody."""
HERE_END: Final = "takt-here"
HERE_ADDRESS: Final = "10.231.0.1"
FAR_ADDRESS: Final = "10.231.0.2"


class HostError(Exception):
    """The host did not do what a fault needs; the text is its own."""


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


def missing(needs: tuple[str, ...]) -> str | None:
    """Why this host cannot do it; None if it can. needs: disk, shm, network, compiler."""
    for need in needs:
        if need == "compiler" and compiler() is None:
            return "needs a C compiler (cc) for the shim"
        if need in OWN_HOST:
            if os.geteuid() != 0:
                return "needs root, for mounts and a network of its own"
            if shutil.which("ip") is None or shutil.which("nsenter") is None:
                return "needs ip (iproute2) and nsenter"
            if not _can_unshare():
                return "this host gives no namespaces (unshare --mount --net)"
    return None


def _can_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    words = ["unshare", "--mount", "--net", "true"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def compiler() -> str | None:
    """The C compiler's path."""
    return shutil.which("cc") or shutil.which("gcc")


def in_own_namespaces(command: list[str]) -> list[str]:
    """The same command with mounts and a network of its own, where the host can; else as it is."""
    if missing(OWN_HOST) is None:
        words = [str(shutil.which("unshare")), "--mount", "--net", "--propagation", "private", "--"]
        return [*words, *command]
    return command


def mount_small(folder: Path, mib: int) -> None:
    """A tmpfs of this size over a folder. Raises HostError."""
    folder.mkdir(parents=True, exist_ok=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder))


def loopback_up() -> None:
    """A network namespace begins without its loopback. Raises HostError."""
    _run("ip", "link", "set", "lo", "up")


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[int]:
    """Fill a file system of ours to its last byte; freed at the end. Gives the bytes taken."""
    path = folder / "nemesis-filler"
    handle = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    taken, step = 0, 1 << 20
    try:
        while step >= 4096:
            try:
                os.posix_fallocate(handle, taken, step)
                taken += step
            except OSError:
                step //= 4
        yield taken
    finally:
        os.close(handle)
        path.unlink(missing_ok=True)


class Shim:
    """The preloaded library and its page."""

    def __init__(self, folder: Path) -> None:
        """Compile it. Raises HostError."""
        found = compiler()
        if found is None:
            raise HostError("no C compiler")
        self.library = folder / "shim.so"
        self.page = folder / "shim.page"
        _run(found, "-O2", "-shared", "-fPIC", "-o", str(self.library), str(SHIM_SOURCE), "-ldl")
        self.page.write_bytes(PAGE.pack(0, 0))

    def environment(self) -> dict[str, str]:
        """What a process needs in its environment to be under it."""
        return {"LD_PRELOAD": str(self.library), "TAKT_NEMESIS_PAGE": str(self.page)}

    def tell(self, wall_offset_ns: int, fsync_delay_us: int) -> None:
        """Change what it does, in every process at once."""
        with self.page.open("r+b") as page:
            page.write(PAGE.pack(wall_offset_ns, fsync_delay_us))


class FarNetwork:
    """A second network namespace, reached over a pair of virtual Ethernet ends."""

    def __init__(self) -> None:
        """Make it. Raises HostError."""
        sleep = str(shutil.which("sleep"))
        unshare = str(shutil.which("unshare"))
        self._holder = subprocess.Popen(tied([unshare, "--net", sleep, "infinity"]))
        pid = str(self._holder.pid)
        own = os.readlink("/proc/self/ns/net")
        end_s = time.monotonic() + 5
        while os.readlink(f"/proc/{pid}/ns/net") == own:
            if time.monotonic() > end_s:
                raise HostError("no second network namespace within 5 s")
            time.sleep(0.01)
        self._enter = [str(shutil.which("nsenter")), "--target", pid, "--net", "--"]
        _run("ip", "link", "add", HERE_END, "type", "veth", "peer", "name", FAR_END, "netns", pid)
        _run("ip", "addr", "add", f"{HERE_ADDRESS}/30", "dev", HERE_END)
        _run(*self._enter, "ip", "addr", "add", f"{FAR_ADDRESS}/30", "dev", FAR_END)
        _run(*self._enter, "ip", "link", "set", FAR_END, "up")
        self.connect()

    def inside(self, command: list[str]) -> list[str]:
        """The same command at the far end."""
        return [*self._enter, *command]

    def cut(self) -> None:
        """No packet passes any more, and nobody is told."""
        _run("ip", "link", "set", HERE_END, "down")

    def connect(self) -> None:
        """Packets pass."""
        _run("ip", "link", "set", HERE_END, "up")

    def close(self) -> None:
        """Take it away."""
        self._holder.kill()
        self._holder.wait()
