"""Imitated engines: what a picture scores, the fallback's session, the servers and their clients.

A picture's score is a function of its bytes alone and every part has a picture of its own, so a
verdict that was made from another's picture, or from none, cannot go unseen.
"""

from __future__ import annotations

import itertools
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from appliance.triton.client import CallFailed, Counters, Health
from appliance.triton.faults import Failure, Kind, failure_of
from appliance.triton.region import Region
from deadline_batcher import shm
from fallback.session import ModelFacts
from hil_sim.fuzz.host import MS, World

FACTS = ModelFacts("model", "ab" * 32, (2, 4, 1), 0.5, ("defect",))
CALL_NS = (200_000, 2 * MS)
CONTROL_LIMIT_NS = 1_000 * MS
UNREACHABLE = failure_of("UNAVAILABLE", "failed to connect to all addresses")
RESET = failure_of("UNAVAILABLE", "Socket closed")
NO_REGION = failure_of(
    "INVALID_ARGUMENT", "Unable to find shared memory region with name: 'region'"
)
REGION_TAKEN = failure_of("ALREADY_EXISTS", "shared memory region 'region' already in manager")

Pictures = npt.NDArray[np.uint8]


def score_of(picture: bytes) -> float:
    """From 0 to 1, as float32 holds it."""
    return float(np.float32((zlib.crc32(picture) >> 8) / (1 << 24)))


class FallbackTroubles:
    """What is wrong with the session of one line. `slow`: share of its worst case it takes."""

    def __init__(self) -> None:
        self.fails_until_ns = 0
        self.slow_until_ns = 0
        self.wrong_until_ns = 0


class Session:
    """fallback.session.Session: takes up to its worst case, and reads its picture live."""

    def __init__(
        self, world: World | None, wcet_ns: int, random: Random, troubles: FallbackTroubles
    ) -> None:
        self.facts = FACTS
        self._world = world
        self._wcet_ns = wcet_ns
        self._random = random
        self._troubles = troubles

    def warm_up(self, picture: Pictures) -> None:
        """Costs nothing here."""

    def run(
        self, pictures: Pictures, nonces: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        """Scores and echoes. Raises RuntimeError while it is to fail."""
        world, troubles = self._world, self._troubles
        rows = [row.tobytes() for row in pictures.reshape(len(pictures), -1)]
        if world is not None:
            share = self._random.uniform(0.3, 0.9)
            if troubles.slow_until_ns > world.now_ns:
                share = 1.0
            world.sleep(round(share * self._wcet_ns))
            if troubles.fails_until_ns > world.now_ns:
                raise RuntimeError("the session fails")
            rows = [row.tobytes() for row in pictures.reshape(len(pictures), -1)]
            if troubles.wrong_until_ns > world.now_ns:
                nonces = nonces + 1
        return np.array([score_of(row) for row in rows], np.float32), nonces.copy()


# --- servers --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Call:
    """One inference in a server."""

    region: Region
    slot: int
    rows: int
    on_answer: Callable[[Failure | None], None]
    epoch: int
    owner: Any


class Server:
    """One GPU's server: one batch at a time, in order; registrations die with it.

    lies: what its answers are while `lies_until_ns` has not come (swapped, unwritten, stale,
    half, nan, nonce). hung_until_ns: it takes calls and answers none. speed: 1.0 is the profile.
    """

    def __init__(self, world: World, gpu: int, wcet_ns: tuple[int, ...]) -> None:
        self.world = world
        self.gpu = gpu
        self.is_up = True
        self.epoch = 1
        self.lies = ""
        self.lies_until_ns = 0
        self.hung_until_ns = 0
        self.slow_until_ns = 0
        self.slowness = 1.0
        self.answered = 0
        self.lied = 0
        self._wcet_ns = wcet_ns
        self._random = world.stream(f"gpu{gpu}")
        self._regions: set[str] = set()
        self._calls: deque[Call] = deque()
        self._is_running = False
        self._last: tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]] | None = None
        self.clients: list[Client] = []
        self.writing: set[tuple[str, int]] = set()
        """Region and slot of every call that has not ended: the server may write there."""

    # --- faults -----------------------------------------------------------------------------

    def die(self) -> None:
        """The process is gone: open calls end with an error shortly after."""
        if not self.is_up:
            return
        self.is_up = False
        self.hung_until_ns = self.lies_until_ns = self.slow_until_ns = 0
        self._regions.clear()
        for client in list(self.clients):
            self.world.after(self._call_ns(), client.lose)
        calls, self._calls = list(self._calls), deque()
        self._is_running = False
        for call in calls:
            self.world.after(self._call_ns(), partial(self._end, call, RESET))
        self.world.note(f"gpu{self.gpu}", "server dies")

    def start(self) -> None:
        """A new process at the same address, without a memory."""
        if not self.is_up:
            self.is_up = True
            self.epoch += 1
            self.world.note(f"gpu{self.gpu}", "server starts")

    def hang(self, until_ns: int) -> None:
        """Take calls, answer none until then."""
        self.hung_until_ns = until_ns
        self.world.at(until_ns, self._next)

    # --- what a client may do ---------------------------------------------------------------

    @property
    def is_hung(self) -> bool:
        """Whether it answers nothing now."""
        return self.hung_until_ns > self.world.now_ns

    def register(self, name: str) -> None:
        """Map a region by its name; it stays mapped until this process ends."""
        if name in self._regions:
            raise CallFailed(REGION_TAKEN)
        self._regions.add(name)

    def let_go(self, prefix: str, retired: set[str]) -> set[str]:
        """Unmap regions of the dead and `retired` ones, but for those that a call uses."""
        used = {name for name, _ in self.writing}
        old = {n for n in self._regions if n.startswith(prefix)}
        old = {name for name in old if name in retired or shm.is_of_the_dead(name)}
        self._regions -= old - used
        return old & used

    def infer(self, call: Call) -> None:
        """Queue a call."""
        if not self.is_up:
            self.world.after(self._call_ns(), lambda: self._end(call, UNREACHABLE))
            return
        key = (call.region.name, call.slot)
        if key in self.writing:
            self.world.mistake(3, f"gpu{self.gpu}: slot {call.slot} is used again too early")
        self.writing.add(key)
        self._calls.append(call)
        self._next()

    def _call_ns(self) -> int:
        return self._random.randrange(*CALL_NS)

    # --- running ----------------------------------------------------------------------------

    def _next(self) -> None:
        if self._is_running or not self._calls or self.is_hung or not self.is_up:
            return
        call = self._calls[0]
        self._is_running = True
        if call.region.name not in self._regions:
            self._over(call, self.epoch, None, NO_REGION)
            return
        slot = call.region.slots[call.slot]
        images = slot.pictures(call.rows, FACTS.picture_bytes).copy()
        nonces = slot.nonces[: call.rows].copy()
        share = self._random.uniform(0.4, 0.98)
        if self.slow_until_ns > self.world.now_ns:
            share *= self.slowness
        epoch = self.epoch
        self.world.after(
            round(share * self._wcet_ns[call.rows - 1]),
            lambda: self._over(call, epoch, (images, nonces), None),
        )

    def _over(
        self, call: Call, epoch: int,
        inputs: tuple[Pictures, npt.NDArray[np.int64]] | None, error: Failure | None,
    ) -> None:  # fmt: skip
        if epoch != self.epoch or not self.is_up:
            return  # of a process that has died meanwhile
        if self.is_hung:
            self.world.at(self.hung_until_ns, lambda: self._over(call, epoch, inputs, error))
            return
        self._calls.popleft()
        self._is_running = False
        if inputs is not None:
            self._write(call, *inputs)
        self.answered += error is None
        self.world.after(self._call_ns() // 4, lambda: self._end(call, error))
        self._next()

    def _write(self, call: Call, images: Pictures, nonces: npt.NDArray[np.int64]) -> None:
        slot, rows = call.region.slots[call.slot], call.rows
        scores = np.array([score_of(image.tobytes()) for image in images], np.float32)
        truth = (scores.copy(), nonces.copy())
        last, self._last = self._last, truth
        written = rows
        if self.lies and self.lies_until_ns > self.world.now_ns:
            self.lied += 1
            match self.lies:
                case "swapped":
                    scores, nonces = scores[::-1], nonces[::-1]
                case "unwritten":
                    written = 0
                case "half":
                    written = rows - 1
                case "stale" if last is not None:
                    written = min(rows, len(last[0]))
                    scores, nonces = last
                case "nan":
                    scores = np.full(rows, np.nan, np.float32)
                case "nonce":
                    nonces = nonces + 1
        slot.scores[:written] = scores[:written]
        slot.echoes[:written] = nonces[:written]

    def _end(self, call: Call, error: Failure | None) -> None:
        self.writing.discard((call.region.name, call.slot))
        if not call.owner.is_dead:
            call.on_answer(error)


class Client:
    """appliance.triton.client.TritonClient."""

    def __init__(self, server: Server, on_disconnect: Callable[[], None] | None = None) -> None:
        self._server = server
        self._world = server.world
        self._random = server.world.stream(f"client of gpu{server.gpu}")
        self._owner = server.world.here
        self._sent_at_ns: dict[int, int] = {}
        self._numbers = itertools.count()
        self._on_disconnect = on_disconnect
        server.clients.append(self)

    def lose(self) -> None:
        """The connection is gone; told once, shortly after."""
        on_disconnect, self._on_disconnect = self._on_disconnect, None
        if on_disconnect is not None and not self._owner.is_dead:
            on_disconnect()

    @property
    def open_calls(self) -> int:
        """Inference calls that have not ended."""
        return len(self._sent_at_ns)

    def oldest_ns(self, now_ns: int) -> int:
        """How long the oldest open call has been so."""
        sent = self._sent_at_ns.values()
        return now_ns - min(sent) if sent else 0

    def close(self) -> None:
        """Give the connection back."""
        self._on_disconnect = None
        if self in self._server.clients:
            self._server.clients.remove(self)

    def _control(self) -> None:
        """A control call's time. Raises CallFailed where there is no answer."""
        server = self._server
        if server.is_up and server.is_hung:
            self._world.sleep(min(CONTROL_LIMIT_NS, server.hung_until_ns - self._world.now_ns))
        else:
            self._world.sleep(self._random.randrange(*CALL_NS))
        if not server.is_up:
            raise CallFailed(UNREACHABLE)
        if server.is_hung:
            raise CallFailed(Failure(Kind.SILENT, "[DEADLINE_EXCEEDED] Deadline Exceeded"))

    def health(self, model: str) -> Health:
        """Triton's own word."""
        try:
            self._control()
        except CallFailed as error:
            is_silent = error.failure.kind is not Kind.CONNECTION
            return Health.SILENT if is_silent else Health.ABSENT
        return Health.READY

    def version(self) -> str:
        """The server's version."""
        self._control()
        return f"fuzz-{self._server.epoch}"

    def register(self, region: Region) -> None:
        """Register a region."""
        self._control()
        self._server.register(region.name)

    def unregister_old(self, prefix: str, retired: set[str]) -> set[str]:
        """Have the server let go of regions of the dead, and of `retired` ones."""
        self._control()
        return self._server.let_go(prefix, retired)

    def counters(self, model: str) -> Counters:
        """Sums since the server started."""
        self._control()
        return Counters(self._server.answered, self._server.answered, 0, 0, 0, 0, 0)

    def infer(
        self, model: str, region: Region, slot: int, rows: int, shape: tuple[int, int, int],
        on_answer: Callable[[Failure | None], None],
    ) -> None:  # fmt: skip
        """Start a call."""
        self._world.here  # noqa: B018 - a dead process calls nobody
        number = next(self._numbers)
        self._sent_at_ns[number] = self._world.now_ns

        def ended(failure: Failure | None) -> None:
            self._sent_at_ns.pop(number, None)
            on_answer(failure)

        self._server.infer(Call(region, slot, rows, ended, self._server.epoch, self._owner))


def no_model(path: Path, threads: int) -> Session:
    """The session that goldens take their right answers from."""
    return Session(None, 0, Random(0), FallbackTroubles())
