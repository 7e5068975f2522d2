"""How the batcher asks for a new start of an embedded server: a datagram to the server's own unit.

The unit's process binds `RUN/triton-N.sock` once its server is ready, and ends when asked; whoever
supervises it (`takt run`, systemd) starts it again as after any death. No file can be left over to
be obeyed twice, nobody must know a process number, and a unit that is not there is not asked.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

WORDS_MAX = 1024


def socket_path(runtime: Path, slot: int) -> Path:
    """Where slot's unit listens."""
    return runtime / f"triton-{slot}.sock"


def ask_restart(path: Path, why: str) -> bool:
    """Ask the unit that listens at `path` to end; False if none does. Never waits."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        try:
            asking.sendto(why.encode(errors="replace")[:WORDS_MAX], os.fspath(path))
        except OSError:
            return False
    return True


class RestartSocket:
    """The unit's end. Use as a context; `fileno()` is readable once somebody has asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._socket.fileno()

    def asked(self) -> str | None:
        """Why, if somebody has asked."""
        try:
            return self._socket.recv(WORDS_MAX).decode(errors="replace")
        except BlockingIOError:
            return None

    def __enter__(self) -> RestartSocket:
        self._path.unlink(missing_ok=True)
        self._socket.bind(os.fspath(self._path))
        self._path.chmod(0o600)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
