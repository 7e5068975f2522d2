"""`takt rescore`: asks the pool's own model on the CPU about a few parts that a GPU has answered.

A process of its own at the lowest priority, so that neither its work nor its death costs the
batcher anything; a thread there would hold the interpreter while the host is busy. It owes nothing
to anyone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import struct
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zmq

from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.rescore_link import QUEUE_MAX, Answer, job_of
from fallback.session import Session, SessionError

POLL_MS = 200


def endpoint_of(plant: Plant) -> str:
    """Where the process of a plant listens."""
    return f"ipc://{plant.path(plant.paths.runtime)}/rescore.sock"


class Rescorer:
    """The loop; models in the plan's order."""

    def __init__(self, endpoint: str, models: Sequence[Path]) -> None:
        self._sessions = [Session(path, threads=1) for path in models]
        self._endpoint = endpoint
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.set(zmq.RCVHWM, QUEUE_MAX)
        self._socket.bind(endpoint)
        self._ending = threading.Event()

    def run(self) -> None:
        """Answer until `stop`."""
        while not self._ending.is_set():
            if self._socket.poll(POLL_MS):
                self._answer(self._socket.recv_multipart())
        self._context.destroy(0)
        Path(self._endpoint.removeprefix("ipc://")).unlink(missing_ok=True)

    def stop(self) -> None:
        """Leave the loop. Safe in a signal handler."""
        self._ending.set()

    def _answer(self, frames: list[bytes]) -> None:
        with contextlib.suppress(struct.error, ValueError, IndexError, zmq.ZMQError):
            who, head, raw = frames
            job = job_of(head)
            session = self._sessions[job.category]
            picture = np.frombuffer(raw, np.uint8).reshape(1, *session.facts.shape)
            scores, _ = session.run(picture, np.zeros(1, np.int64))
            answer = Answer(*job, cpu_score=float(scores[0]))
            self._socket.send_multipart([who, answer.pack()], zmq.NOBLOCK)


def lower_priority() -> None:
    """After everybody else. Not SCHED_IDLE: on a busy host such a process takes seconds to end."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 19)


def main(argv: Sequence[str] | None = None) -> int:
    """`takt rescore --plant FILE`. Exit 0 when told to end, 1 if it cannot run, 2 for wrong use."""
    parser = argparse.ArgumentParser(
        prog="takt rescore",
        description="Ask the pool's model on the CPU about some of the parts that a GPU has "
        "answered ([pool] rescore_permille of a thousand), at the lowest priority.",
        epilog="example: takt rescore --plant plant.toml",
    )
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    told = parser.parse_args(argv)
    try:
        plant = load_plant(told.plant)
        lower_priority()
        models = [plant.path(model.pool) for model in plant.model]
        rescorer = Rescorer(endpoint_of(plant), models)
    except PlantError as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    except (SessionError, zmq.ZMQError) as error:
        print(f"takt rescore: {error}", file=sys.stderr)
        return 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: rescorer.stop())
    print("takt rescore: ready", flush=True)
    rescorer.run()
    return 0
