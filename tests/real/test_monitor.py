"""The monitor beside a real plant: it names who presses the host, and its doubts reach the pool."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from plant_rig import Rig
from plant_wire import until

from deadline_batcher import link

pytestmark = pytest.mark.real

PRESSED = """
[monitor]
period_ms = 200
cpu_some_percent = 20
raise_after_ms = 400
clear_after_ms = 1000
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path, lines=1, change=lambda text: text + PRESSED) as one:
        yield one


def test_a_hog_is_named_and_its_end_is_noticed(rig: Rig) -> None:
    rig.start("journal", "monitor")
    hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6)]
    try:
        until(lambda: rig.events("trouble.raised"), 20, "the pressure is noticed")
        (raised, *_) = rig.events("trouble.raised")
        assert raised["subject"] == "host" and raised["detail"].startswith("cpu-pressure: ")
        # Which of those that work just now is named is for the unit test: this host is shared.
        assert re.search(r"most by .+ \(process \d+\), \d+ % of a core$", raised["detail"])
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    until(lambda: "monitor" in rig.units and rig.units["monitor"].poll() is None, 1, "it lives")


def test_a_doubt_has_the_gpu_proved_again(rig: Rig) -> None:
    rig.start("journal", "triton-0", "batcher")
    until(lambda: rig.events("gpu.ready"), 30, "the pool is ready")
    socket = rig.context.socket(zmq.DEALER)
    socket.set(zmq.ROUTING_ID, link.MONITOR.encode())
    socket.connect(f"ipc://{rig.plant.path(rig.plant.paths.runtime)}/batcher.sock")
    socket.send(link.pack(link.GpuDoubt(0, False)))
    until(lambda: rig.events("gpu.suspect"), 10, "the GPU is suspect")
    until(lambda: len(rig.events("gpu.ready")) == 2, 20, "it was proved again")
    socket.send(link.pack(link.GpuDoubt(7, True)))  # there is no such GPU
    socket.close(0)
    assert rig.units["batcher"].poll() is None


def test_it_ends_at_once_when_told(rig: Rig) -> None:
    rig.start("monitor")
    unit = rig.units["monitor"]
    until(lambda: "ready" in rig.log("monitor"), 20, "it runs")
    unit.send_signal(signal.SIGTERM)
    assert unit.wait(3) == 0
