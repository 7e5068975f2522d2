"""The imitated host: virtual time, processes that can be killed at any call, fibers for threads.

One fiber runs at a time, until it waits; the order of everything is fixed by the seed. A killed
process never runs on: the call it was in raises `Killed`, and so does every later call of it, so
that no `finally` of the shipped code does what a dead process could not.
"""

from __future__ import annotations

import heapq
import traceback
import zlib
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from greenlet import getcurrent, greenlet

MS = 1_000_000
EVENTS_MAX = 400_000
"""More than any run needs: past it something spins."""
STORY_MAX = 400


class Killed(BaseException):
    """The process of this fiber is dead."""


class Spinning(Exception):  # noqa: N818 - a finding, not an error of this code
    """Far more happened than a run needs."""


class Process:
    """One imitated process. `sockets` and `fibers` end with it."""

    def __init__(self, world: World, name: str, kind: str, pid: int) -> None:
        self.world = world
        self.name = name
        self.kind = kind
        self.pid = pid
        self.is_dead = False
        self.fibers: list[Fiber] = []
        self.sockets: list[Any] = []
        self.subject: Any = None
        """The shipped object that runs in it, for those who look at its state."""
        self.stopped_until_ns = 0
        """Until when the process gets no time (SIGSTOP)."""


class Fiber:
    """A thread of a process."""

    def __init__(self, process: Process, run: Callable[[], None], name: str, hub: greenlet) -> None:
        self.process = process
        self.name = name
        self.token = 0
        self.is_woken = False
        self.greenlet = greenlet(run, hub)


class World:
    """The clock and everything that is to happen. Instants in ns, from 0."""

    def __init__(self, seed: str, tick_ns: int, late_max_ns: int) -> None:
        """`tick_ns`: how far each look at the clock moves it. `late_max_ns`: how late a fiber that
        was woken runs at most."""
        self.now_ns = 1_000 * MS
        self.wall_offset_ns = 1_700_000_000_000_000_000
        self.current: Fiber | None = None
        self.processes: list[Process] = []
        self.mistakes: list[str] = []
        self.story: deque[str] = deque(maxlen=STORY_MAX)
        self.trace = 0
        self._seed = seed
        self._tick_ns = tick_ns
        self._late_max_ns = late_max_ns
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._events = 0
        self._hub = getcurrent()
        self._dying: list[Process] = []
        self._next_pid = 1000
        self._lateness = self.stream("lateness")

    # --- chance and record ------------------------------------------------------------------

    def stream(self, name: str) -> Random:
        """A source of chance of its own, so that one fault less leaves the others alike."""
        return Random(f"{self._seed}/{name}")

    def note(self, who: str, what: str) -> None:
        """One line of the run's story; the trace hash is over all of them."""
        line = f"{self.now_ns / MS:10.3f} {who}: {what}"
        self.trace = zlib.crc32(line.encode(), self.trace)
        self.story.append(line)

    def mistake(self, promise: int, what: str) -> None:
        """The promise is broken: told with the instant."""
        self.note("BROKEN", f"promise {promise}: {what}")
        self.mistakes.append(f"promise {promise} at {self.now_ns / MS:.3f} ms: {what}")

    # --- the clock --------------------------------------------------------------------------

    def clock_ns(self) -> int:
        """The monotonic clock as a process reads it."""
        self._alive()
        self.now_ns += self._tick_ns
        return self.now_ns

    def wall_ns(self) -> int:
        """The wall clock as a process reads it."""
        return self.clock_ns() + self.wall_offset_ns

    def at(self, at_ns: int, act: Callable[[], None]) -> None:
        """Let something happen outside of every process."""
        self._order += 1
        heapq.heappush(self._heap, (at_ns, self._order, act))

    def after(self, in_ns: int, act: Callable[[], None]) -> None:
        """The same, from now on."""
        self.at(self.now_ns + in_ns, act)

    def run(self, end_ns: int, is_over: Callable[[], bool] | None = None) -> None:
        """Let things happen until `end_ns`, or until `is_over` (asked after each)."""
        while self._heap and self._heap[0][0] <= end_ns and not self.mistakes:
            at_ns, _, act = heapq.heappop(self._heap)
            self.now_ns = max(self.now_ns, at_ns)
            self._events += 1
            if self._events > EVENTS_MAX:
                raise Spinning(f"{EVENTS_MAX} events by {self.now_ns / MS:.0f} ms")
            act()
            if self._dying:
                self._reap()
            if is_over is not None and is_over():
                return
        if not self.mistakes:
            self.now_ns = max(self.now_ns, end_ns)

    # --- processes --------------------------------------------------------------------------

    def process(self, name: str, kind: str) -> Process:
        """A new process without a thread."""
        self._next_pid += 1
        process = Process(self, name, kind, self._next_pid)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, run: Callable[[], None], name: str) -> Fiber:
        """A thread of a process, run as soon as the present one waits."""

        def guarded() -> None:
            try:
                run()
            except Killed:
                pass
            except Exception as error:
                if not process.is_dead:
                    frames = traceback.extract_tb(error.__traceback__)[-3:]
                    where = " < ".join(f"{f.name}:{f.lineno}" for f in reversed(frames))
                    told = f"{process.name}/{name} ended by {type(error).__name__}: {error}"
                    self.mistake(4, f"{told} ({where})")

        fiber = Fiber(process, guarded, name, self._hub)
        process.fibers.append(fiber)
        fiber.token += 1
        token = fiber.token
        self.after(0, lambda: self._resume(fiber, token))
        return fiber

    def kill(self, process: Process, why: str) -> None:
        """SIGKILL. Called by a fiber of the process itself, it still has to raise `Killed`."""
        if process.is_dead:
            return
        self.note(process.name, f"killed: {why}")
        process.is_dead = True
        for socket in list(process.sockets):
            socket.vanish()
        self._dying.append(process)
        if self.current is None:
            self._reap()

    def _reap(self) -> None:
        while self._dying:
            process = self._dying.pop()
            for fiber in process.fibers:
                if fiber.greenlet and not fiber.greenlet.dead:
                    self.current = fiber
                    fiber.greenlet.throw(Killed)
                    self.current = None
            process.fibers.clear()
            process.subject = None

    def _alive(self) -> None:
        if self.current is not None and self.current.process.is_dead:
            raise Killed

    @property
    def here(self) -> Process:
        """The process that runs now. There must be one."""
        assert self.current is not None
        self._alive()
        return self.current.process

    # --- waiting ----------------------------------------------------------------------------

    def park(self, until_ns: int | None) -> None:
        """The running fiber waits to be woken, at most until `until_ns`."""
        fiber = self.current
        assert fiber is not None
        self._alive()
        fiber.token += 1
        fiber.is_woken = False
        token = fiber.token
        if until_ns is not None:
            late_ns = self._late_ns()
            self.at(until_ns + late_ns, lambda: self._resume(fiber, token))
        self.current = None
        self._hub.switch()
        self._alive()

    def wake(self, fiber: Fiber | None) -> None:
        """Something a fiber waits for has come."""
        if fiber is None or fiber.is_woken or fiber.process.is_dead:
            return
        fiber.is_woken = True
        token = fiber.token
        self.at(self.now_ns + self._late_ns(), lambda: self._resume(fiber, token))

    def sleep(self, length_ns: int) -> None:
        """The running fiber does nothing for a time; nothing wakes it before."""
        until_ns = self.now_ns + max(0, length_ns)
        while self.now_ns < until_ns:
            self.park(until_ns)

    def _late_ns(self) -> int:
        return int(self._lateness.random() * self._late_max_ns)

    def _resume(self, fiber: Fiber, token: int) -> None:
        process = fiber.process
        if token != fiber.token or process.is_dead:
            return
        if process.stopped_until_ns > self.now_ns:
            self.at(process.stopped_until_ns, lambda: self._resume(fiber, token))
            return
        self.current = fiber
        fiber.greenlet.switch()
        self.current = None
