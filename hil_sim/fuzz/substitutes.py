"""Puts the imitated machine under the shipped modules for the length of one run.

Whatever module-level name of a shipped module is the real clock, the real ZeroMQ or another part of
the machine becomes the imitated one. Found by identity, so that new code is covered without a list;
`tests/unit/hil_sim/test_fuzz_substitutes.py` says which modules of the machine may stay real.
"""

from __future__ import annotations

import importlib
import queue
import secrets
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import crc32c
import zmq

from appliance import event_journal, journal, journal_store
from appliance.triton import client
from deadline_batcher import shm, timer
from fallback import session
from hil_sim.fuzz import engines, machine
from hil_sim.fuzz.host import World
from hil_sim.fuzz.wires import Network, Poller, Socket
from lines import decode, keys, ledger, process, slots, sockets, threads

SHIPPED = ("appliance.", "lines.", "fallback.", "deadline_batcher.")
DRIVEN = (
    "appliance.batcher", "appliance.event_journal", "appliance.journal", "appliance.journal_store",
    "appliance.line_links", "appliance.triton.endpoint", "appliance.triton.goldens",
    "appliance.triton.region", "lines.process", "lines.admission", "lines.intake", "lines.output",
)  # fmt: skip
"""Loaded before the names are looked for."""
LEDGER_ENTRIES = 24
"""So few that the ring comes round in a run."""
_ENTRY_BYTES = ledger._ENTRY_BYTES
DECODE_NS = (200_000, 2_000_000)
DECODE_SLOW_NS = 160_000_000
PREEMPTED_NS = 500_000


class Zmq:
    """The module `zmq`: its constants and errors are real."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def __getattr__(self, name: str) -> Any:
        return getattr(zmq, name)

    def Poller(self) -> Poller:  # noqa: N802 - pyzmq's name
        """See wires.Poller."""
        return Poller(self._network.world)

    def Context(self) -> Context:  # noqa: N802
        """See Context."""
        return Context(self._network)


class Context:
    """zmq.Context of one process."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, kind: int) -> Socket:
        """A socket of the running process."""
        return Socket(self._network, self._network.world.here, kind)

    def destroy(self, linger: int | None = None) -> None:
        """Close every socket of the running process."""
        for socket in list(self._network.world.here.sockets):
            socket.close()


class AllowList:
    """lines.keys.AllowList: every key is allowed; keys are tested elsewhere."""

    refused_count = 0
    problems: tuple[str, ...] = ()

    def __init__(self, *_: object) -> None:
        """Whatever the folder."""

    def name_of(self, key: str) -> str | None:
        """A client's key is its name."""
        return key


AUTHENTICATOR = {"stop": lambda: None, "is_alive": lambda: True}
"""lines.sockets: ZAP's thread; keys are beside the point of a simulation."""


def _no_locks(*_: object) -> Any:
    """lines.threads.CoreLocks: waiting for a core is part of the session's worst case."""

    class Free:
        def __enter__(self) -> None:
            return None

        def __exit__(self, *_: object) -> None:
            return None

    return Free()


class SlowDecode:
    """lines.threads.decode, which takes its time; `slow_until_ns`: far more than it should."""

    def __init__(self, world: World) -> None:
        self.slow_until_ns = 0
        self._world = world
        self._random = world.stream("decode")
        self._decode = decode.decode

    def __call__(self, header: Any, payload: Any, shape: tuple[int, int, int]) -> Any:
        """Decode, in its own thread."""
        longest_ns = DECODE_NS[1]
        if self.slow_until_ns > self._world.now_ns:
            longest_ns = DECODE_SLOW_NS
        self._world.sleep(self._random.randrange(DECODE_NS[0], longest_ns))
        return self._decode(header, payload, shape)


class Preempted:
    """The module `crc32c` in lines.slots: the decode thread may lose its core before it counts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.stream("preempted")

    def crc32c(self, picture: Any) -> int:
        """The checksum."""
        fiber = self._world.current
        if fiber is not None and fiber.name == "decode" and self._random.random() < 0.3:
            self._world.sleep(self._random.randrange(PREEMPTED_NS))
        return int(crc32c.crc32c(picture))


class EventWriter:
    """appliance.event_journal._Writer: keeps the lines; `full` says that its disk is full."""

    def __init__(self, keep: Callable[[EventWriter], None], is_full: Callable[[], bool]) -> None:
        self.lines: list[str] = []
        self._trouble = ""
        self._is_full = is_full
        keep(self)

    @property
    def trouble(self) -> str:
        """Why it stopped, once it has."""
        if not self._trouble and self._is_full():
            self._trouble = "No space left on device"
        return self._trouble

    def put(self, line: str) -> None:
        """Queue one line."""
        if not self.trouble:
            self.lines.append(line)

    def end(self, wait_s: float) -> None:
        """Written."""


class Machine:
    """All imitated parts of one run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.network = Network(world)
        self.memory = machine.SharedMemory(world)
        self.disk = machine.Disk(world)
        self.event_journals: list[EventWriter] = []
        self.is_event_disk_full = False
        self.decode = SlowDecode(world)
        self.make_session: Callable[..., engines.Session] = engines.no_model
        self.servers: dict[str, engines.Server] = {}

    def by_identity(self) -> dict[int, Any]:
        """id of a real thing → the imitated one."""
        world = self.world
        real: list[tuple[Any, Any]] = [
            (time, machine.Time(world)),
            (zmq, Zmq(self.network)),
            (secrets, machine.Secrets(world)),
            (threading, machine.Threading(world)),
            (sqlite3, machine.Sqlite(self.disk)),
            (queue.SimpleQueue, lambda: machine.SimpleQueue(world)),
            (timer.Timer, lambda: machine.Timer(world)),
            (timer.Signal, lambda: machine.Signal(world)),
            (session.Session, self._make_session),
            (client.TritonClient, lambda url, *more: engines.Client(self.servers[url], *more)),
            (threads.CoreLocks, _no_locks),
            (keys.AllowList, AllowList),
            (sockets.start_authenticator, lambda *_: SimpleNamespace(**AUTHENTICATOR)),
            (sockets.bind_router, self._bind_router),
            (event_journal._Writer, self._event_writer),
            (journal._say, lambda text: None),
            (journal_store.segments, lambda folder: []),
            (journal_store._identity, lambda path: (0, 0)),
        ]
        return {id(thing): instead for thing, instead in real}

    def named(self) -> list[tuple[Any, str, Any]]:
        """(owner, name, replacement) of what cannot be found by identity."""
        memory, world = self.memory, self.world
        folder = machine.SharedFolder(memory)
        counts = iter(range(1, 1_000_000))

        def unlink(segment: shm.Segment) -> None:
            memory.unlink(segment)

        return [
            (shm, "SHM_FOLDER", folder),
            (ledger, "SHM_FOLDER", folder),
            (ledger, "ENTRIES", LEDGER_ENTRIES),
            (ledger, "_SIZE", ledger._SIZE - (ledger.ENTRIES - LEDGER_ENTRIES) * _ENTRY_BYTES),
            (shm, "os", SimpleNamespace(getpid=lambda: world.here.pid)),
            (shm, "start_ticks", memory.is_alive),
            (shm, "_counter", counts),
            (shm.Segment, "create", memory.create),
            (shm.Segment, "attach", memory.attach),
            (shm.Segment, "unlink", unlink),
            (process, "hash", lambda text: 0),
            (threads, "decode", self.decode),
            (slots, "crc32c", Preempted(world)),
        ]

    def _make_session(self, path: Path, threads: int) -> engines.Session:
        return self.make_session(path, threads)

    def _event_writer(self, path: object) -> EventWriter:
        return EventWriter(self.event_journals.append, lambda: self.is_event_disk_full)

    def _bind_router(
        self, context: Context, endpoint: str, domain: str, secret: object,
        message_bytes_max: int, high_water: int,
    ) -> Socket:  # fmt: skip
        socket = context.socket(zmq.ROUTER)
        socket.set(zmq.SNDHWM, high_water)
        socket.set(zmq.RCVHWM, high_water)
        socket.bind(endpoint)
        return socket


_MISSING = object()


def shipped_modules() -> list[ModuleType]:
    """Every loaded module of the shipped packages that a run may drive."""
    for name in DRIVEN:
        importlib.import_module(name)
    return [
        module
        for name, module in sorted(sys.modules.items())
        if name.startswith(SHIPPED) and module is not None
    ]


Change = tuple[Any, str, Any]
"""Owner, name, replacement."""


@contextmanager
def substituted(
    machine_: Machine, more: Sequence[Callable[[], Sequence[Change]]]
) -> Iterator[None]:
    """Every shipped module runs on the imitated machine until the end of the block.

    `more`: further changes, each made from what the ones before it left.
    """
    instead = machine_.by_identity()
    first: list[Change] = [
        (module, name, instead[id(value)])
        for module in shipped_modules()
        for name, value in vars(module).items()
        if id(value) in instead
    ]
    first += machine_.named()
    before: list[Change] = []
    try:
        for make in (lambda: first, *more):
            for owner, name, value in make():
                before.append((owner, name, vars(owner).get(name, _MISSING)))
                setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in reversed(before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
