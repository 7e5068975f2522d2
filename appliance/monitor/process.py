"""`takt monitor`: watches host and GPUs beside the plant; tells the batcher and the journal.

No process that owes a verdict asks a driver or reads another process's state; this one does, and
may hang or die without harm. Of a GPU that it says nothing of the batcher is told to have doubts.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import zmq

from appliance.monitor.gpu_probe import DRIVER, GpuProbe
from appliance.monitor.host import HostWatch
from appliance.monitor.judge import Finding, Judge, Thresholds
from appliance.monitor.kernel_log import KernelLog
from appliance.monitor.readings import HostReading
from appliance.plant import Plant, ms_to_ns
from appliance.plant_errors import PlantError, load_plant
from deadline_batcher import link
from lines.journal_link import JournalSender

BACKLOG_ROWS_MAX = 1000


def thresholds(plant: Plant) -> Thresholds:
    """The plant file's `[monitor]` section in the judge's units."""
    told = plant.monitor
    return Thresholds(
        cpu_some=round(10 * told.cpu_some_percent),
        memory_full=round(10 * told.memory_full_percent),
        io_some=round(10 * told.io_some_percent),
        steal=round(10 * told.steal_percent),
        gpu_temperature_c=told.gpu_temperature_c,
        gpu_memory=round(10 * told.gpu_memory_percent),
        raise_after_ns=ms_to_ns(told.raise_after_ms),
        clear_after_ns=ms_to_ns(told.clear_after_ms),
        silent_after_ns=ms_to_ns(told.silent_after_ms),
    )


class Monitor:
    """The loop; `run` returns after `stop`."""

    def __init__(self, plant: Plant) -> None:
        self._period_s = plant.monitor.period_ms / 1e3
        self._stopping = False
        ours = (f"takt-{plant.tag}-", str(plant.folder.absolute()))
        self._watch = HostWatch(lambda command: any(text in command for text in ours))
        has_gpus = DRIVER.exists()
        gpus = tuple(range(len(plant.pool.endpoints))) if has_gpus else ()
        self._bounds = thresholds(plant)
        self._judge = Judge(self._bounds, gpus, time.monotonic_ns())
        self._probe = None
        if has_gpus:
            silent_s = plant.monitor.silent_after_ms / 1e3
            self._probe = GpuProbe(self._period_s, silent_s, ours[0])
        self._log = KernelLog()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        runtime = plant.path(plant.paths.runtime)
        self._journal = JournalSender(
            self._context,
            f"ipc://{runtime}/journal.sock",
            link.MONITOR,
            plant.limits.journal_backlog_s,
            BACKLOG_ROWS_MAX,
        )
        self._batcher = self._context.socket(zmq.DEALER)
        self._batcher.set(zmq.ROUTING_ID, link.MONITOR.encode())
        self._batcher.set(zmq.LINGER, 0)
        self._batcher.set(zmq.IMMEDIATE, 1)
        self._batcher.connect(f"ipc://{runtime}/batcher.sock")
        self._is_pressed = False
        if self._probe is not None and self._log.trouble:
            self._tell("monitor.blind", "host", self._log.trouble)

    def run(self) -> None:
        """Look once a period until `stop`."""
        print("takt monitor: ready", flush=True)
        while not self._stopping:
            self._look()
            end_s = time.monotonic() + self._period_s
            while not self._stopping and (left_s := end_s - time.monotonic()) > 0:
                self._journal.flush(time.monotonic_ns())
                self._journal.socket.poll(min(100, max(1, int(left_s * 1000))))
                self._journal.on_readable()
        self._finish()

    def stop(self) -> None:
        """Leave the loop within a tenth of a second. Safe in a signal handler."""
        self._stopping = True

    def _look(self) -> None:
        host = self._watch.look(self._is_pressed)
        self._is_pressed = _is_pressed(host, self._bounds)
        self._said(self._judge.host(host))
        if self._probe is not None:
            for reading in self._probe.look():
                self._said(self._judge.gpu(reading))
            for line in self._log.new_lines():
                self._said(self._judge.xid(self._probe.buses.get(line.bus), line.number, line.text))
        self._said(self._judge.tick(time.monotonic_ns()))

    def _said(self, findings: Iterable[Finding]) -> None:
        for one in findings:
            kind = "trouble.raised" if one.is_raised else "trouble.cleared"
            self._tell(kind, one.subject, f"{one.kind}: {one.detail}")
            if one.is_doubt:
                doubt = link.GpuDoubt(int(one.subject.removeprefix("gpu")), one.is_fault)
                try:
                    self._batcher.send(link.pack(doubt), zmq.NOBLOCK)
                except zmq.Again:  # a batcher that starts anew proves every GPU by itself
                    continue

    def _tell(self, kind: str, subject: str, detail: str) -> None:
        print(f"{kind} {subject}: {detail}", flush=True)
        self._journal.event(time.monotonic_ns(), kind, subject, detail[:500])

    def _finish(self) -> None:
        if self._probe is not None:
            self._probe.close()
        self._log.close()
        self._journal.close()
        self._context.destroy(linger=0)


def _is_pressed(host: HostReading, bounds: Thresholds) -> bool:
    return (
        host.cpu_some > bounds.cpu_some
        or host.memory_full > bounds.memory_full
        or host.io_some > bounds.io_some
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 after SIGTERM or Ctrl-C, 2 wrong use."""
    parser = argparse.ArgumentParser(
        prog="takt monitor",
        description="Watch the host and its GPUs: pressure and who makes it, temperature, clocks, "
        "memory errors, Xids. What it finds is journalled; GPUs it doubts are proved anew.",
        epilog="example: takt monitor --plant plant.toml",
    )
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    told = parser.parse_args(argv)
    try:
        plant = load_plant(told.plant)
    except PlantError as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    monitor = Monitor(plant)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: monitor.stop())
    monitor.run()
    return 0
