"""Shared memory whose names are never used twice.

`multiprocessing.shared_memory` is not used: its resource tracker unlinks segments that other
processes still need (cpython#82300). A segment here is created exclusively, allocated in full at
once (a full /dev/shm is an error at start, not a SIGBUS later) and unlinked by its owner, or by
`sweep` once its owner is dead.
"""

from __future__ import annotations

import itertools
import mmap
import os
import re
from pathlib import Path

SHM_FOLDER = Path("/dev/shm")
_counter = itertools.count(1)
_OWNED = re.compile(r"^takt-([0-9a-f]{8})-[a-z0-9]+-(\d+)-(\d+)-\d+$")


class SharedMemoryError(Exception):
    """Shared memory could not be made or opened; the text says why and what to do."""


def start_ticks(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none of that number."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(after_name.split()[19])


def new_name(tag: str, kind: str) -> str:
    """A name that carries its owner, so that anyone can tell whether the owner still lives."""
    pid = os.getpid()
    return f"takt-{tag}-{kind}-{pid}-{start_ticks(pid)}-{next(_counter)}"


class Segment:
    """A mapped segment of shared memory. The mapping lives as long as this object."""

    def __init__(self, name: str, mapping: mmap.mmap, size: int, owned: bool) -> None:
        self.name = name
        self.size = size
        self.mapping = mapping
        self.view = memoryview(mapping)
        self._owned = owned

    @classmethod
    def create(cls, name: str, size: int) -> Segment:
        """Make `/dev/shm/name`, all of it allocated. Raises SharedMemoryError."""
        path = SHM_FOLDER / name
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            raise SharedMemoryError(f"{path} exists already; names are never used twice") from None
        try:
            os.posix_fallocate(handle, 0, size)
            mapping = mmap.mmap(handle, size)
        except OSError as error:
            path.unlink()
            raise SharedMemoryError(
                f"{path}: {size} bytes cannot be allocated ({error.strerror}); "
                f"give /dev/shm more room (mount -o remount,size=… /dev/shm)"
            ) from None
        finally:
            os.close(handle)
        return cls(name, mapping, size, owned=True)

    @classmethod
    def attach(cls, name: str, size: int, writable: bool = False) -> Segment:
        """Map another process's segment; its size must be exactly `size` bytes."""
        path = SHM_FOLDER / name
        try:
            handle = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError as error:
            raise SharedMemoryError(f"{path}: {error.strerror}") from None
        try:
            found = os.fstat(handle).st_size
            if found != size:
                raise SharedMemoryError(f"{path} holds {found} bytes, not {size}")
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            mapping = mmap.mmap(handle, size, access=access)
        finally:
            os.close(handle)
        return cls(name, mapping, size, owned=False)

    def unlink(self) -> None:
        """Remove the name, if this process made it. Mappings stay valid."""
        if self._owned:
            (SHM_FOLDER / self.name).unlink(missing_ok=True)


def is_of_the_dead(name: str) -> bool:
    """Whether a name carries an owner that no longer lives."""
    match = _OWNED.match(name)
    return match is not None and start_ticks(int(match[2])) != int(match[3])


def sweep(tag: str) -> list[str]:
    """Remove this plant's segments whose owner is dead; returns their names."""
    removed = []
    for path in SHM_FOLDER.glob(f"takt-{tag}-*"):
        if is_of_the_dead(path.name):
            path.unlink(missing_ok=True)
            removed.append(path.name)
    return sorted(removed)
