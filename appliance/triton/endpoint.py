"""One GPU of the pool, kept by a thread of its own: connect, register, prove, watch, begin again.

The loop that owns the scheduler never waits for a server: it uses `live` while there is one and
reads `news`. Triton's own `ready` is only ever a negative signal; goldens through the real path
decide. Each start of a server, and each connection to it, is an epoch with channels and a region
of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from appliance.triton.client import CallFailed, Counters, Health, TritonClient
from appliance.triton.faults import Failure, Kind, Step
from appliance.triton.news import Live, Lost, News, Noted, Ready, ServedModel, Watched
from appliance.triton.proof import Proof
from appliance.triton.region import Region
from appliance.triton.standing import Patience, Standing
from deadline_batcher.shm import SharedMemoryError
from deadline_batcher.timer import Signal

SLOTS = 4
LOOK_EVERY_S = 0.1
AGAIN_MAX_S = 1.6
SILENCES_TOLD = 5
"""In a row, until it is said that a server no longer tells its statistics."""
REFUSED_EVERY_S = 5.0
WATCH_EVERY_S = 1.0
CONTROL_JOIN_S = 0.5

_NAMED = {
    Kind.SHM_DISABLED: "gpu.shm-disabled",
    Kind.SHM_UNREACHABLE: "gpu.shm-unreachable",
    Kind.VERSION: "gpu.version-refused",
}
"""What a person must mend has an event of its own, not just a lost GPU."""


@dataclass(frozen=True, slots=True)
class Server:
    """What one endpoint's server is. version: `2.51` takes any 2.51.x; "" takes all.

    restart: asks whoever keeps the server for a new start; False if nobody was there to be asked.
    """

    url: str
    version: str = ""
    restart: Callable[[str], bool] = lambda _: False


class Endpoint:
    """The keeper of one GPU. `news` is filled and `signal` rung from its thread."""

    def __init__(
        self,
        gpu: int,
        server: Server,
        plant_tag: str,
        models: Sequence[ServedModel],
        news: deque[News],
        signal: Signal,
        patience: Patience,
    ) -> None:
        self.gpu = gpu
        self.live: Live | None = None
        self._server = server
        self.readmissions = 0
        """How many were asked for. A `Ready` that knows of fewer is from before the last."""
        self._tag = plant_tag
        self._models = models
        self._news = news
        self._signal = signal
        self._epoch = 0
        self._patience = patience
        self._standing = Standing(patience)
        self._proof = Proof(gpu, models, patience, self._tell)
        self._orders: deque[tuple[int, Step, Failure]] = deque()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._retired: list[Live] = []
        self._old_regions: set[str] = set()
        self._told_lost = ""
        self._tries = 0
        self._silences = 0
        self._thread = threading.Thread(target=self._keep, name=f"gpu{gpu}", daemon=True)

    def start(self) -> None:
        """Begin to look for the server."""
        self._thread.start()

    def doubt(self, is_fault: bool) -> None:
        """Prove the server again, now: with every batch size after an answer that was wrong or
        none, with one picture after one that is merely late. Late means busy, and a proof of every
        size would keep it so.
        """
        step = Step.PROVE_ALL if is_fault else Step.PROVE_ONE
        self._order(self._epoch, step, Failure(Kind.SERVER, "in doubt"))

    def failed(self, live: Live, failure: Failure) -> None:
        """A call through `live` failed like this: do what follows from it."""
        self._order(live.epoch, failure.consequence.step, failure)

    def disagreed(self, epoch: int, text: str) -> None:
        """An answer of that epoch was not what the CPU says: goldens cannot clear the server."""
        self._order(epoch, Step.RESTART, Failure(Kind.DISAGREED, text))

    def readmit(self) -> None:
        """The GPU is drained: prove it as after a loss, before it is `Ready` again."""
        self.readmissions += 1
        self._woken.set()

    def stop(self) -> None:
        """End the thread and give shared memory back."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(CONTROL_JOIN_S)
        live = self.live
        if live is not None:
            live.region.unlink()

    def _order(self, epoch: int, step: Step, failure: Failure) -> None:
        self._orders.append((epoch, step, failure))
        self._woken.set()

    # --- the thread -------------------------------------------------------------------------

    def _keep(self) -> None:
        while not self._stopping.is_set():
            failure = self._serve()
            if self._stopping.is_set() or failure is None:
                return
            held_s = self._lose(failure)
            self._close_retired()
            again_s = min(LOOK_EVERY_S * 2 ** min(self._tries, 8), AGAIN_MAX_S)
            self._tries += 1
            self._stopping.wait(max(again_s, held_s))

    def _serve(self) -> Failure | None:
        """From one connection to its end; why it ended."""
        live: Live | None = None
        try:
            live = self._connect()
            if live is None:
                return None
            asked = self.readmissions
            self._proof.readmit(live, self._epoch > 1, self._pause)
            self.live = live
            self._ready(live, f"Triton {live.version}", asked)
            self._watch(live, asked)  # until it raises
        except CallFailed as error:
            return error.failure
        except SharedMemoryError as error:
            return Failure(Kind.SHM_UNREACHABLE, str(error))
        except Exception as error:  # a bug must not end the thread: the GPU would be lost for good
            return Failure(Kind.SERVER, f"the keeper failed: {error!r}")
        finally:
            self.live = None
            if live is not None:
                self._retire(live)

    def _connect(self) -> Live | None:
        """Wait for a server that does not say no, and give it a region of its own."""
        epoch = self._epoch + 1
        gone = Failure(Kind.CONNECTION, "the connection is gone")
        client = TritonClient(self._server.url, lambda: self._order(epoch, Step.RECONNECT, gone))
        try:
            while any(
                client.health(model.name) in (Health.ABSENT, Health.NOT_READY)
                for model in self._models
            ):
                if self._stopping.wait(LOOK_EVERY_S):
                    client.close()
                    return None
            self._epoch = epoch
            return self._introduce(client)
        except (CallFailed, SharedMemoryError):
            client.close()
            raise

    def _introduce(self, client: TritonClient) -> Live:
        """Compare versions, register a new region, have the server let go of the old ones."""
        version = client.version()
        wanted = self._server.version
        if wanted and version != wanted and not version.startswith(f"{wanted}."):
            text = (
                f"{self._server.url} is Triton {version}, not the expected {wanted}: its profile "
                f'and tests are of that one; [pool] server_version = "{version}" expects it'
            )
            raise CallFailed(Failure(Kind.VERSION, text))
        rows = max(model.batch_max for model in self._models)
        picture_bytes = max(model.goldens.facts.picture_bytes for model in self._models)
        region = Region(self._tag, self.gpu, SLOTS, rows, picture_bytes)
        try:
            client.register(region)
            self._let_go(client)
        except CallFailed:
            region.unlink()
            raise
        return Live(self._epoch, client, region, version)

    def _let_go(self, client: TritonClient) -> None:
        """Have the server let go of the regions of former epochs, as far as it will."""
        prefix = f"takt-{self._tag}-gpu{self.gpu}-"
        self._old_regions = client.unregister_old(prefix, self._old_regions)

    def _watch(self, live: Live, readmitted: int) -> NoReturn:
        while True:
            step = self._pause(WATCH_EVERY_S)
            asked = self.readmissions
            if asked > readmitted:
                self._proof.readmit(live, True, self._pause)
                readmitted = asked
                self._ready(live, "goldens passed again", asked)
            elif step in (Step.PROVE_ONE, Step.PROVE_ALL):
                self._proof.again(live, is_whole=step is Step.PROVE_ALL)
                self._ready(live, "goldens passed again", asked)
            if live.client.oldest_ns(time.monotonic_ns()) > self._patience.golden_limit_ns:
                raise CallFailed(Failure(Kind.UNANSWERED, "a call is not answered; others are"))
            self._close_retired()
            if self._old_regions:
                with contextlib.suppress(CallFailed):  # tried again in a second
                    self._let_go(live.client)
            self._tell(Watched(self.gpu, live, self._counters(live)))

    def _pause(self, wait_s: float) -> Step:
        """Wait, or until something is ordered; the mildest that covers it all. Raises CallFailed
        where only a new connection or a new server will do.
        """
        self._woken.wait(wait_s)
        self._woken.clear()
        if self._stopping.is_set():
            raise CallFailed(Failure(Kind.SERVER, "stopping"))
        worst, why = Step.NONE, Failure(Kind.SERVER, "")
        while self._orders:
            epoch, step, failure = self._orders.popleft()
            if epoch == self._epoch and step.value > worst.value:
                worst, why = step, failure
        if worst.value >= Step.RECONNECT.value:
            raise CallFailed(why)
        return worst

    def _counters(self, live: Live) -> tuple[tuple[str, Counters], ...]:
        """Triton's own sums; none where it does not say them, which is no sign of anything."""
        try:
            found = tuple((m.name, live.client.counters(m.name)) for m in self._models)
        except CallFailed as error:
            self._silences += 1
            if self._silences == SILENCES_TOLD:
                self._tell(Noted(self.gpu, "gpu.silent", f"no statistics: {error}"))
            return ()
        self._silences = 0
        return found

    # --- coming and going -------------------------------------------------------------------

    def _ready(self, live: Live, detail: str, asked: int) -> None:
        self._standing.ready(time.monotonic_ns())
        self._told_lost = ""
        self._tries = 0
        self._tell(Ready(self.gpu, live.epoch, detail, asked))

    def _lose(self, failure: Failure) -> float:
        """Say what happened, have the server started anew where that is due; how long to stay
        away, in seconds.
        """
        now_ns = time.monotonic_ns()
        if self._told_lost != failure.text:  # one line, however often it is tried
            self._told_lost = failure.text
            self._tell(Lost(self.gpu, self._epoch, failure.text))
            if failure.kind in _NAMED:
                self._tell(Noted(self.gpu, _NAMED[failure.kind], failure.text))
        held_s = (self._standing.lost(now_ns) - now_ns) / 1e9
        if held_s > 0:
            text = f"lost {self._standing.losses} times in a short time: out for {held_s:g} s"
            self._tell(Noted(self.gpu, "gpu.quarantined", text))
        if self._standing.failed(failure.kind, now_ns):
            is_asked = self._server.restart(failure.text)
            kind = "gpu.restart-asked" if is_asked else "gpu.restart-wanted"
            self._tell(Noted(self.gpu, kind, failure.text))
        if failure.kind is Kind.DISAGREED and self._standing.disagreed(now_ns):
            self._tell(Noted(self.gpu, "gpu.condemned", f"stays out: {failure.text}"))
            self._stopping.wait()
        if failure.consequence.step is Step.REFUSE:
            held_s = max(held_s, REFUSED_EVERY_S)
        return held_s

    def _retire(self, live: Live) -> None:
        """The name goes at once; the connection when its calls have ended: closing it would cancel
        them.
        """
        live.region.unlink()
        self._old_regions.add(live.region.name)
        self._retired.append(live)

    def _close_retired(self) -> None:
        for live in [one for one in self._retired if not one.client.open_calls]:
            live.client.close()
            self._retired.remove(live)

    def _tell(self, news: News) -> None:
        self._news.append(news)
        self._signal.ring()
