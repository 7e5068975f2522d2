"""What the imitated machine gives a process: clock, threads, timers, shared memory, a disk."""

from __future__ import annotations

import fnmatch
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath
from typing import Any

from deadline_batcher.shm import Segment, SharedMemoryError
from hil_sim.fuzz.host import Fiber, World

NS_PER_S = 1_000_000_000


class Time:
    """The module `time`."""

    def __init__(self, world: World) -> None:
        self.monotonic_ns = world.clock_ns
        self.time_ns = world.wall_ns
        self._world = world

    def monotonic(self) -> float:
        """Seconds."""
        return self._world.clock_ns() / NS_PER_S

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self._world.sleep(round(seconds * NS_PER_S))


class Secrets:
    """The module `secrets`, repeatable."""

    def __init__(self, world: World) -> None:
        self.randbits = world.stream("secrets").getrandbits


class Timer:
    """deadline_batcher.timer.Timer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._armed_at_ns: int | None = None
        self._set = 0
        self.waiter: Fiber | None = None

    def fileno(self) -> Timer:
        """What the poller takes."""
        return self

    @property
    def is_readable(self) -> bool:
        """Whether the instant has come."""
        return self._armed_at_ns is not None and self._armed_at_ns <= self._world.now_ns

    def arm(self, at_ns: int | None) -> None:
        """See deadline_batcher.timer."""
        self._world.here  # noqa: B018 - a dead process arms nothing
        if at_ns == self._armed_at_ns:
            return
        self._armed_at_ns = at_ns
        self._set += 1
        if at_ns is not None:
            number = self._set
            self._world.at(max(at_ns, self._world.now_ns), lambda: self._fire(number))

    def _fire(self, number: int) -> None:
        if number == self._set:
            self._world.wake(self.waiter)

    def read(self, now_ns: int) -> int | None:
        """The instant that has come, if one has."""
        if not self.is_readable:
            return None
        at_ns, self._armed_at_ns = self._armed_at_ns, None
        return at_ns

    def take_lateness(self) -> str | None:
        """Nothing to tell."""
        return None


class Signal:
    """deadline_batcher.timer.Signal."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.is_readable = False
        self.waiter: Fiber | None = None

    def fileno(self) -> Signal:
        """What the poller takes."""
        return self

    def ring(self) -> None:
        """Wake the loop."""
        self.is_readable = True
        self._world.wake(self.waiter)

    def clear(self) -> None:
        """Forget rings so far."""
        self.is_readable = False


class Never:
    """Something to poll that never comes (the journal's stop)."""

    is_readable = False
    waiter: Fiber | None = None

    def fileno(self) -> Never:
        """What the poller takes."""
        return self


class Event:
    """threading.Event."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiter: Fiber | None = None

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it; who waits goes on."""
        self._is_set = True
        self._world.wake(self._waiter)

    def clear(self) -> None:
        """Unset it."""
        self._is_set = False

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is set, at most so long; whether it is."""
        world = self._world
        until_ns = None if seconds is None else world.now_ns + round(seconds * NS_PER_S)
        self._waiter = world.current
        while not self._is_set and (until_ns is None or world.now_ns < until_ns):
            world.park(until_ns)
        self._waiter = None
        return self._is_set


class Thread:
    """threading.Thread: a fiber of the process that starts it."""

    def __init__(self, world: World, target: Callable[[], None], name: str) -> None:
        self._world = world
        self._target = target
        self._name = name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        """Begin."""
        self._fiber = self._world.spawn(self._world.here, self._target, self._name)

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._fiber is not None and not self._fiber.greenlet.dead

    def join(self, seconds: float | None = None) -> None:
        """Not waited for: nothing here ends a process in peace while its threads run."""


class Threading:
    """The module `threading`, as far as it is used."""

    def __init__(self, world: World) -> None:
        self._world = world

    def Event(self) -> Event:  # noqa: N802 - the name in the standard library
        """See Event."""
        return Event(self._world)

    def Thread(  # noqa: N802
        self, target: Callable[[], None], name: str = "", daemon: bool = True
    ) -> Thread:
        """See Thread."""
        return Thread(self._world, target, name)


class SimpleQueue:
    """queue.SimpleQueue with one reader."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiter: Fiber | None = None

    def put(self, item: Any) -> None:
        """Queue one."""
        self._items.append(item)
        self._world.wake(self._waiter)

    def get(self) -> Any:
        """The next, waiting for it."""
        self._waiter = self._world.current
        while not self._items:
            self._world.park(None)
        self._waiter = None
        return self._items.popleft()


# --- shared memory --------------------------------------------------------------------------


class SharedMemory:
    """/dev/shm. Mappings outlive names, as they do."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.blocks: dict[str, bytearray] = {}
        self.is_full = False

    def create(self, name: str, size: int) -> Segment:
        """Segment.create."""
        self.world.here  # noqa: B018 - a dead process makes nothing
        if name in self.blocks:
            raise SharedMemoryError(f"/dev/shm/{name} exists already")
        if self.is_full:
            raise SharedMemoryError(f"/dev/shm/{name}: {size} bytes cannot be allocated")
        self.blocks[name] = bytearray(size)
        return Segment(name, self.blocks[name], size, owned=True)  # type: ignore[arg-type]

    def attach(self, name: str, size: int, writable: bool = False) -> Segment:
        """Segment.attach."""
        self.world.here  # noqa: B018
        block = self.blocks.get(name)
        if block is None or len(block) != size:
            raise SharedMemoryError(f"/dev/shm/{name}: not there, or not {size} bytes")
        return Segment(name, block, size, owned=False)  # type: ignore[arg-type]

    def unlink(self, segment: Segment) -> None:
        """Segment.unlink."""
        self.world.here  # noqa: B018 - the dead leave their names behind
        self.blocks.pop(segment.name, None)

    def is_alive(self, pid: int) -> int | None:
        """deadline_batcher.shm.start_ticks."""
        alive = any(p.pid == pid and not p.is_dead for p in self.world.processes)
        return pid * 10 if alive else None


class SharedFolder:
    """The path /dev/shm."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory

    def __truediv__(self, name: str) -> SharedPath:
        return SharedPath(self._memory, name)

    def glob(self, pattern: str) -> Iterator[SharedPath]:
        """The names that match."""
        for name in sorted(self._memory.blocks):
            if fnmatch.fnmatchcase(name, pattern):
                yield SharedPath(self._memory, name)


class SharedPath:
    """One name in /dev/shm."""

    def __init__(self, memory: SharedMemory, name: str) -> None:
        self._memory = memory
        self.name = name

    def __lt__(self, other: SharedPath) -> bool:
        return self.name < other.name

    def read_bytes(self) -> bytes:
        """The whole content."""
        return bytes(self._memory.blocks[self.name])

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the name."""
        self._memory.world.here  # noqa: B018
        self._memory.blocks.pop(self.name, None)


# --- the journal's disk ---------------------------------------------------------------------


class Disk:
    """The journal's folder: one database that outlives its process; it may be full or slow."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trouble = ""
        """SQLite's name of what the disk answers (SQLITE_FULL, SQLITE_IOERR); empty: it works."""
        self.slow_ns = 0
        self.keeper = sqlite3.connect(
            "file:takt-fuzz?mode=memory&cache=shared", uri=True, isolation_level=None
        )
        for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'"):
            self.keeper.execute(f"DELETE FROM {name}")

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read it, as a checker does."""
        return self.keeper.execute(sql).fetchall()

    def close(self) -> None:
        """The run is over."""
        self.keeper.close()


class Sqlite:
    """The module `sqlite3` for the journal's store."""

    Error = sqlite3.Error
    OperationalError = sqlite3.OperationalError

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(sqlite3, name)

    def connect(self, path: object, **_: object) -> Connection:
        """The disk's one database, whatever the path."""
        return Connection(self._disk)


class Connection:
    """A connection whose COMMIT meets the disk's troubles."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._file = sqlite3.connect(
            "file:takt-fuzz?mode=memory&cache=shared", uri=True, isolation_level=None
        )

    def execute(self, sql: str, values: Iterable[Any] = ()) -> sqlite3.Cursor:
        """One statement."""
        if sql == "COMMIT":
            self._commit()
        return self._file.execute(sql, tuple(values))

    def executemany(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> sqlite3.Cursor:
        """One statement for many rows."""
        return self._file.executemany(sql, rows)

    def _commit(self) -> None:
        disk = self._disk
        if disk.slow_ns:
            disk.world.sleep(disk.slow_ns)
        if disk.trouble:
            error = sqlite3.OperationalError(disk.trouble)
            error.sqlite_errorcode = getattr(sqlite3, disk.trouble)
            error.sqlite_errorname = disk.trouble
            raise error

    @property
    def in_transaction(self) -> bool:
        """Whether one is open."""
        return self._file.in_transaction

    def close(self) -> None:
        """Roll back what was not committed."""
        self._file.close()


class Folder:
    """The journal's folder as a path: it has one file, or none yet."""

    def __truediv__(self, name: str) -> PurePosixPath:
        return PurePosixPath("/journal") / name

    def glob(self, pattern: str) -> Iterator[PurePosixPath]:
        """No further files: all segments are the one database."""
        return iter(())

    def mkdir(self, **_: object) -> None:
        """It is there."""
