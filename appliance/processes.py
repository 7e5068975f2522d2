"""Child processes that leave nothing behind: tied to their parent, found and ended by session.

Reads /proc directly: a scan of all processes takes about a millisecond, and the verdict path's
supervisor does it whenever a unit dies.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

# The kernel ties a child to the *thread* that made it, and `preexec_fn` is unsafe beside threads:
# so the child ties itself, then becomes the program. A parent already gone is noticed by its pid.
_TIE = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,9,0,0,0);"
    "n=int(sys.argv[2]);"
    "n<0 and os.geteuid() or os.setpriority(os.PRIO_PROCESS,0,n);"
    "os.getppid()==int(sys.argv[1]) or os._exit(1);"
    "os.execv(sys.argv[3],sys.argv[3:])"
)


def tied(command: list[str], nice: int = 0) -> list[str]:
    """The same command, killed (SIGKILL) by the kernel when the calling thread ends.

    `command[0]` must be a path. Call it from the thread that starts the process, and let that
    thread live as long as the process should. `nice` below 0 is given to root's processes only.
    """
    return [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid()), str(nice), *command]


@dataclass(frozen=True, slots=True)
class Process:
    """A living process with its group and session."""

    pid: int
    group: int
    session: int


def _processes() -> list[Process]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
            except OSError:
                continue
            state, _, group, session = stat.rpartition(")")[2].split()[:4]
            if state not in "ZX":
                found.append(Process(int(name), int(group), int(session)))
    return found


def session_members(session: int) -> list[Process]:
    """Living processes of a session, its leader included."""
    return [process for process in _processes() if process.session == session]


def group_members(group: int) -> list[int]:
    """Ids of the living processes of a process group."""
    return [process.pid for process in _processes() if process.group == group]


def naming(text: str) -> list[int]:
    """Ids of the living processes whose command line holds `text`; never our own."""
    wanted, found = text.encode(), []
    for process in _processes():
        with contextlib.suppress(OSError):
            said = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            if wanted in said and process.pid != os.getpid():
                found.append(process.pid)
    return found


def send(pids: Iterable[int], number: signal.Signals) -> list[int]:
    """Signal each process; returns those that were there to get it."""
    reached = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            reached.append(pid)
    return reached


def wait_gone(pids: Iterable[int], limit_s: float) -> bool:
    """Wait until none of these processes lives (a zombie does not); False after `limit_s`."""
    waited, end = set(pids), time.monotonic() + limit_s
    while waited & {process.pid for process in _processes()}:
        if time.monotonic() >= end:
            return False
        time.sleep(0.005)
    return True


@dataclass(frozen=True, slots=True)
class Port:
    """A port that a part of the plant wants to listen on."""

    wanted_by: str
    host: str
    number: int

    def is_served(self) -> bool:
        """Whether something listens there."""
        return answers(f"tcp://{self.host}:{self.number}")


def answers(url: str) -> bool:
    """Whether something listens at `scheme://host:port`."""
    host, _, port = url.rpartition("://")[2].rpartition(":")
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((host, int(port))) == 0


def port_trouble(port: Port) -> str | None:
    """Why `port` cannot be listened on: who holds it and what to do; None if it is free."""
    host = "" if port.host == "*" else port.host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port.number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
            trial.listen(1)
    except OSError as error:
        where = f"{port.wanted_by}: {port.host}:{port.number}"
        if error.errno != errno.EADDRINUSE:
            return f"{where} cannot be listened on: {error.strerror or error}"
        return f"{where} is in use by {_holder(port.number)}; stop it or change the port"
    return None


def _holder(number: int) -> str:
    """The process that listens on a port, as far as we may see it."""
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.pid
            if listening and getattr(connection.laddr, "port", None) == number:
                name = psutil.Process(connection.pid).name()
                return f"{name} (process {connection.pid})"
    return "a process of another user"
