"""One embedded Triton killed again and again: its way from death to READY, by stage.

The real supervisor starts it anew and the real keeper of the batcher proves it, so the stages are
those of a running plant: noticed, waited (back-off) and started, serving, connected, proved.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from appliance.plant import Plant
from appliance.processes import answers, naming
from appliance.supervisor import STEADY_AFTER_S, Supervisor
from appliance.triton.endpoint import Endpoint, Server
from appliance.triton.goldens import Goldens
from appliance.triton.news import Lost, News, Proved, Ready, ServedModel
from appliance.triton.standing import Patience
from appliance.units import plant_units
from deadline_batcher.timer import Signal

LIMIT_S = 90.0
LOOK_EVERY_S = 0.002


class PoolColdError(Exception):
    """The server did not come back; the text says where it stuck."""


class _Watch:
    """When the keeper's news and the supervisor's events came."""

    def __init__(self) -> None:
        self.news: deque[News] = deque()
        self.came: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def on_event(self, _unit: str, kind: str, _detail: str) -> None:
        """The supervisor's; on its thread."""
        self._note(kind)

    def take_news(self) -> None:
        """The keeper's."""
        names = {Lost: "lost", Proved: "proved", Ready: "ready"}
        while self.news:
            name = names.get(type(self.news.popleft()))
            if name:
                self._note(name)

    def _note(self, name: str) -> None:
        with self._lock:
            self.came.append((name, time.monotonic_ns()))

    def first(self, name: str, after_ns: int) -> int | None:
        """When this first came after an instant."""
        with self._lock:
            return next((at for what, at in self.came if what == name and at >= after_ns), None)


def pool_cold_starts(
    plant: Plant, plant_file: Path, runs: int, say: Callable[[str], None]
) -> list[dict[str, int]]:
    """Lengths in ns of each stage of `runs` deaths of endpoint 0. Raises PoolColdError and others.

    noticed: the supervisor has seen the death. lost: the batcher's keeper has (beside it, so it is
    no stage). started: back-off and the new process. serving: libraries, models and warm-up in
    the server until its port answers. connected: channel, region and the first golden. proved:
    goldens of every size, for as long as readmission asks.
    """
    models = [
        ServedModel(model.name, model.batch_max, Goldens(plant.path(model.pool)))
        for model in plant.model
    ]
    watch, bell = _Watch(), Signal()
    units = [unit for unit in plant_units(plant, plant_file) if unit.name == "triton-0"]
    if not units or any(map(answers, plant.pool.endpoints)):
        raise PoolColdError(
            "needs an embedded pool that is not running: set [pool] embedded = true and stop it"
        )
    supervisor = Supervisor(plant, plant_file, units=units, on_event=watch.on_event)
    supervisor.start()
    server = Server(plant.pool.endpoints[0], plant.pool.server_version)
    patience = Patience(free_losses=runs + 1)  # else the back-off of a flapping GPU is measured
    keeper = Endpoint(0, server, plant.tag, models, watch.news, bell, patience)
    keeper.start()
    try:
        _until(watch, "ready", 0, "the first start")
        found = []
        for run in range(runs):
            say(f"death {run + 1} of {runs}: letting the server run for {STEADY_AFTER_S:g} s first")
            time.sleep(STEADY_AFTER_S + 0.5)  # else the back-off of a flapping unit is measured
            say(f"death {run + 1} of {runs}: waiting until the server is READY again")
            found.append(_one_death(plant, watch))
        return found
    finally:
        keeper.stop()
        supervisor.stop()


def _until(watch: _Watch, name: str, after_ns: int, what: str) -> int:
    end_s = time.monotonic() + LIMIT_S
    while (at_ns := watch.first(name, after_ns)) is None:
        watch.take_news()
        if time.monotonic() > end_s:
            raise PoolColdError(f"{what}: no {name!r} within {LIMIT_S:g} s; see triton-0's log")
        time.sleep(LOOK_EVERY_S)
    return at_ns


def _one_death(plant: Plant, watch: _Watch) -> dict[str, int]:
    servers = naming(f"takt-{plant.tag}-triton-slot0-")
    died_ns = time.monotonic_ns()
    for pid in servers:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    noticed_ns = _until(watch, "died", died_ns, "after its death")
    started_ns = _until(watch, "restarted", noticed_ns, "after its death")
    end_s = time.monotonic() + LIMIT_S
    while not answers(plant.pool.endpoints[0]):
        watch.take_news()
        if time.monotonic() > end_s:
            raise PoolColdError(f"started anew, its port does not answer within {LIMIT_S:g} s")
        time.sleep(LOOK_EVERY_S)
    serving_ns = time.monotonic_ns()
    connected_ns = _until(watch, "proved", serving_ns, "after its port answered")
    ready_ns = _until(watch, "ready", connected_ns, "while it was proved")
    return {
        "noticed": noticed_ns - died_ns,
        "started": started_ns - noticed_ns,
        "serving": serving_ns - started_ns,
        "connected": connected_ns - serving_ns,
        "proved": ready_ns - connected_ns,
    }
