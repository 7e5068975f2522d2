"""Imitated ZeroMQ: ROUTER and DEALER with the rules that the plant rests on.

In order within one connection, in any order across connections. A DEALER without a connection
refuses to take a message (IMMEDIATE); a ROUTER refuses an address that it does not know
(ROUTER_MANDATORY). What a dying process had not yet handed over is lost from some message on; what
was sent to one that is gone, before anybody noticed, is lost as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, ClassVar

import zmq

from hil_sim.fuzz.host import MS, Fiber, Process, World

DEFAULT_HIGH_WATER = 1000
_AGAIN = zmq.Again()  # made once: making one looks its text up
LOCAL_NS = (20_000, 400_000)
"""Shortest and longest way of a message inside the host, or over a quiet network."""
HANDSHAKE_NS = (100_000, 2 * MS)
AGAIN_NS = (20 * MS, 120 * MS)
"""Between two tries to connect."""
NOTICED_NS = (50_000, 3 * MS)
"""How long the death of the other end stays unnoticed."""
SILENCE_NOTICED_NS = 1_000 * MS
"""The same where the network lets nothing through: ZMTP's heartbeats find it."""


class WireFrame:
    """One part of a message as pyzmq gives it without a copy."""

    __slots__ = ("_user_id", "buffer")

    def __init__(self, buffer: bytes, user_id: str) -> None:
        self.buffer = memoryview(buffer)
        self._user_id = user_id

    def get(self, name: str) -> str:
        """The peer's key; nothing else is asked for."""
        assert name == "User-Id"
        return self._user_id


@dataclass(slots=True, eq=False)
class Wire:
    """One connection. `ends`: the sockets that still hold it for alive."""

    dealer: Socket
    router: Socket
    identity: bytes
    ends: dict[Socket, bool] = field(default_factory=dict)
    is_cut: bool = False
    lost_from_ns: int | None = None
    """Messages that would arrive after this instant do not."""
    last_at_ns: dict[Socket, int] = field(default_factory=dict)
    waiting: dict[Socket, int] = field(default_factory=dict)
    """Messages on their way to, or unread at, each end."""


class Network:
    """All bound addresses and connections, and what is cut."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bound: dict[str, Socket] = {}
        self.wires: list[Wire] = []
        self.cut_until_ns: dict[str, int] = {}
        self.slow_until_ns: dict[str, int] = {}
        self.slow_ns = 0
        self.random: Random = world.stream("network")
        self._next_identity = 0

    def name_peer(self) -> bytes:
        """An address for a DEALER that chose none."""
        self._next_identity += 1
        return b"\0" + self._next_identity.to_bytes(4, "little")

    def between(self, bounds: tuple[int, int]) -> int:
        """A length of time from the network's own chance."""
        shortest, longest = bounds
        return shortest + int(self.random.random() * (longest - shortest))

    def cut(self, endpoint: str, until_ns: int) -> None:
        """Nothing gets through to this address until then; both ends find out by silence."""
        self.cut_until_ns[endpoint] = until_ns
        for wire in [w for w in self.wires if w.router.endpoint == endpoint]:
            wire.lost_from_ns = self.world.now_ns
            for end in (wire.dealer, wire.router):
                self.world.after(SILENCE_NOTICED_NS, partial(end.lose, wire))

    def is_cut(self, endpoint: str) -> bool:
        """Whether nothing gets through to it now."""
        return self.cut_until_ns.get(endpoint, 0) > self.world.now_ns

    def break_off(self, wire: Wire, from_end: Socket) -> None:
        """One end is gone at once; the other notices a little later."""
        if wire.is_cut:
            return
        wire.is_cut = True
        if wire in self.wires:
            self.wires.remove(wire)
        now_ns = self.world.now_ns
        if wire.lost_from_ns is None:
            wire.lost_from_ns = now_ns + self.between((0, LOCAL_NS[1]))
        other = wire.router if from_end is wire.dealer else wire.dealer
        from_end.lose(wire)
        self.world.after(self.between(NOTICED_NS), lambda: other.lose(wire))

    def way_ns(self, endpoint: str) -> int:
        """How long the next message to or from this address takes."""
        way_ns = self.between(LOCAL_NS)
        if self.slow_until_ns.get(endpoint, 0) > self.world.now_ns:
            way_ns += self.between((0, self.slow_ns))
        return way_ns


class Socket:
    """One end, as the shipped code sees it. Without a process it belongs to the outside."""

    def __init__(self, network: Network, process: Process, kind: int) -> None:
        self.network = network
        self.process = process
        self.kind = kind
        self.endpoint = ""
        self.options: dict[int, Any] = {}
        self.user_id = ""
        self.inbox: deque[tuple[Wire, Sequence[bytes]]] = deque()
        self.peers: dict[bytes, Wire] = {}
        self.wire: Wire | None = None
        self.waiter: Fiber | None = None
        self.on_message: Callable[[list[bytes]], None] | None = None
        self.on_link: Callable[[bool], None] | None = None
        self.is_closed = False
        process.sockets.append(self)

    # --- pyzmq's interface ------------------------------------------------------------------

    def set(self, option: int, value: Any) -> None:
        """An option; those that matter here are looked up when used."""
        self.options[option] = value

    set_string = set
    setsockopt = set

    def bind(self, endpoint: str) -> None:
        """Take an address. Raises ZMQError where another socket has it."""
        self.network.world.here  # noqa: B018 - a dead process binds nothing
        if endpoint in self.network.bound:
            raise zmq.ZMQError(zmq.EADDRINUSE)
        self.endpoint = endpoint
        self.network.bound[endpoint] = self

    def connect(self, endpoint: str) -> None:
        """Connect, and again whenever the connection is lost."""
        self.endpoint = endpoint
        self._try_soon(HANDSHAKE_NS)

    def send(self, raw: bytes, flags: int = 0) -> None:
        """See send_multipart."""
        self.send_multipart([raw], flags)

    def send_multipart(self, frames: Sequence[bytes], flags: int = 0) -> None:
        """Queue a message. Raises zmq.Again where it cannot go now, ZMQError for no such peer."""
        if self.network.world.current is not None:
            self.network.world.here  # noqa: B018 - a dead process sends nothing
        if self.kind == zmq.ROUTER:
            wire = self.peers.get(bytes(frames[0]))
            if wire is None:
                raise zmq.ZMQError(zmq.EHOSTUNREACH)
            self._put(wire, wire.dealer, list(frames[1:]))
        elif self.wire is None:
            raise _AGAIN.with_traceback(None)
        else:
            self._put(self.wire, self.wire.router, list(frames))

    def recv(self, flags: int = 0) -> bytes:
        """One message of one part. Raises zmq.Again."""
        return self.recv_multipart(flags)[0]  # type: ignore[no-any-return]

    def recv_multipart(self, flags: int = 0, copy: bool = True) -> Any:
        """The next message. Raises zmq.Again."""
        self.network.world.here  # noqa: B018
        if not self.inbox:
            raise _AGAIN.with_traceback(None)
        wire, frames = self.inbox.popleft()
        wire.waiting[self] -= 1
        if self.kind == zmq.ROUTER:
            frames = [wire.identity, *frames]
        if copy:
            return list(frames)
        return [WireFrame(frame, wire.dealer.user_id) for frame in frames]

    def poll(self, timeout_ms: int) -> int:
        """Wait for a message."""
        poller = Poller(self.network.world)
        poller.register(self)
        return len(poller.poll(timeout_ms))

    def close(self, linger: int | None = None) -> None:
        """Let go of address and connections."""
        self.vanish()

    # --- inside -----------------------------------------------------------------------------

    @property
    def is_readable(self) -> bool:
        """Whether a message waits."""
        return bool(self.inbox)

    def vanish(self) -> None:
        """The socket is gone, by close or by death."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.network.bound.get(self.endpoint) is self:
            del self.network.bound[self.endpoint]
        for wire in [*self.peers.values(), *([self.wire] if self.wire else [])]:
            self.network.break_off(wire, self)
        self.inbox.clear()

    def _high_water(self, other: Socket) -> int:
        mine = self.options.get(zmq.SNDHWM, DEFAULT_HIGH_WATER)
        theirs = other.options.get(zmq.RCVHWM, DEFAULT_HIGH_WATER)
        return int(mine) + int(theirs)

    def _put(self, wire: Wire, to: Socket, frames: list[bytes]) -> None:
        if wire.waiting.get(to, 0) >= self._high_water(to):
            raise _AGAIN.with_traceback(None)
        wire.waiting[to] = wire.waiting.get(to, 0) + 1
        world = self.network.world
        at_ns = world.now_ns + self.network.way_ns(wire.router.endpoint)
        at_ns = max(at_ns, wire.last_at_ns.get(to, 0))
        wire.last_at_ns[to] = at_ns
        world.at(at_ns, lambda: to.arrive(wire, frames))

    def arrive(self, wire: Wire, frames: list[bytes]) -> None:
        """A message has come, unless its connection was lost under way."""
        is_lost = wire.lost_from_ns is not None and self.network.world.now_ns > wire.lost_from_ns
        if is_lost or self.is_closed or not wire.ends.get(self, False):
            return
        if self.on_message is not None:
            wire.waiting[self] -= 1
            self.on_message(frames)
            return
        self.inbox.append((wire, frames))
        self.network.world.wake(self.waiter)

    def lose(self, wire: Wire) -> None:
        """This end finds that the connection is gone."""
        if not wire.ends.get(self, False):
            return
        wire.ends[self] = False
        wire.is_cut = True
        if wire in self.network.wires:
            self.network.wires.remove(wire)
        if self.peers.get(wire.identity) is wire:
            del self.peers[wire.identity]
        if self.wire is wire:
            self.wire = None
            if self.on_link is not None:
                self.on_link(False)
            self._try_soon(AGAIN_NS)

    def _try_soon(self, bounds: tuple[int, int]) -> None:
        if not self.is_closed:
            self.network.world.after(self.network.between(bounds), self._try)

    def _try(self) -> None:
        if self.is_closed or self.wire is not None:
            return
        router = self.network.bound.get(self.endpoint)
        if router is None or self.network.is_cut(self.endpoint):
            self._try_soon(AGAIN_NS)
            return
        identity = self.options.get(zmq.ROUTING_ID) or self.network.name_peer()
        former = router.peers.get(identity)
        if former is not None:
            if not router.options.get(zmq.ROUTER_HANDOVER):
                self._try_soon(AGAIN_NS)
                return
            router.lose(former)
        wire = Wire(self, router, identity, {self: True, router: True})
        self.network.wires.append(wire)
        self.wire = router.peers[identity] = wire
        if self.on_link is not None:
            self.on_link(True)


class Poller:
    """zmq.Poller over imitated sockets, timers and signals."""

    stretch: ClassVar[int] = 20
    """A wait is this many times as long as asked for: what rests on it alone shows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._things: list[Any] = []

    def register(self, thing: Any, flags: int = 0) -> None:
        """Wait for this as well."""
        self._things.append(thing)

    def poll(self, timeout_ms: float | None = None) -> list[tuple[Any, int]]:
        """What is readable; waits for it, at most `timeout_ms`."""
        world = self._world
        world.here  # noqa: B018
        until_ns = None
        if timeout_ms is not None:
            until_ns = world.now_ns + round(timeout_ms * MS) * self.stretch
        while True:
            ready: list[tuple[Any, int]] = [
                (thing, zmq.POLLIN) for thing in self._things if thing.is_readable
            ]
            if ready or (until_ns is not None and world.now_ns >= until_ns):
                return ready
            for thing in self._things:
                thing.waiter = world.current
            world.park(until_ns)
