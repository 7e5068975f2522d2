"""One embedded Triton as a unit: started for one slot, watched, ended with all it left behind.

Triton itself does not notice a Python stub that was killed and goes on saying "ready"; its
graceful exit waits whole seconds. So the unit watches every process of the server by its pidfd,
ends at the first death, and stops the server by killing its process group: it holds no state.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.processes import Port, group_members, naming, port_trouble, send, tied, wait_gone
from appliance.triton.fetch import EmbeddedServer, embedded_server
from appliance.triton.libpython import FetchError
from appliance.triton.repository import (
    OwnBatchers,
    RepositoryError,
    ServedModel,
    write_repository,
)
from appliance.triton.restart import RestartSocket, socket_path
from deadline_batcher.shm import SHM_FOLDER, start_ticks

READY_LIMIT_S = 60.0
_KILL_LIMIT_S = 0.8
_MIB = 1024 * 1024
_starts = itertools.count(1)


class ServerError(Exception):
    """The embedded server cannot run; the text says why and what to do."""


def loopback_port(plant: Plant, slot: int) -> Port:
    """Where slot's server listens. Raises ServerError for a slot or host that cannot be ours."""
    if not 0 <= slot < len(plant.pool.endpoints):
        raise ServerError(
            f"there is no slot {slot}: [pool] endpoints names {len(plant.pool.endpoints)} "
            f"(slots 0 to {len(plant.pool.endpoints) - 1})"
        )
    parts = urlsplit(plant.pool.endpoints[slot])
    host = parts.hostname or ""
    if host != "localhost" and not host.startswith("127."):
        raise ServerError(
            f"[pool] endpoints: {plant.pool.endpoints[slot]} is not on this host's loopback, "
            f"where embedded servers listen; use 127.0.0.1, or set embedded = false"
        )
    return Port(f"triton-{slot}", "127.0.0.1" if host == "localhost" else host, parts.port or 0)


class TritonServer:
    """The embedded server of one slot of the pool. Use it from one thread that outlives it.

    own_batchers: for trials, Triton's own dynamic batcher; the appliance leaves it off.
    """

    def __init__(
        self,
        plant: Plant,
        slot: int,
        *,
        threads: int = 1,
        own_batchers: OwnBatchers | None = None,
    ) -> None:
        self._own_batchers = own_batchers or {}
        self.port = loopback_port(plant, slot)
        self._plant = plant
        self._slot = slot
        self._threads = threads
        self._ours = f"takt-{plant.tag}-triton-slot{slot}-"
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self.stubs: list[int] = []

    @property
    def pid(self) -> int:
        """The `tritonserver` process, which leads its own process group."""
        if self._process is None:
            raise ServerError(f"{self.port.wanted_by} has not been started")
        return self._process.pid

    @property
    def restart_socket(self) -> Path:
        """Where a new start is asked for."""
        return socket_path(self._plant.path(self._plant.paths.runtime), self._slot)

    def start(self) -> None:
        """Start the server process. Raises ServerError, FetchError or RepositoryError."""
        self._take_slot()
        self._sweep()
        trouble = port_trouble(self.port)
        if trouble:
            raise ServerError(trouble)
        server = embedded_server()
        models, served = write_repository(
            self._plant, self._slot, threads=self._threads, own_batchers=self._own_batchers
        )
        self._process = subprocess.Popen(
            tied(self._command(server, models, served)),
            env=server.environment(),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )

    def _take_slot(self) -> None:
        """One unit per slot of a plant: whatever else carries the slot's name is an orphan."""
        folder = self._plant.path(self._plant.paths.runtime)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"triton-{self._slot}.lock"
        self._lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            self._lock = None
            raise ServerError(
                f"{self.port.wanted_by} of this plant runs already: another process holds {path}"
            ) from None

    def _command(
        self, server: EmbeddedServer, models: Path, served: list[ServedModel]
    ) -> list[str]:
        batch_bytes = max(one.batch_max * _bytes_of(one.image_shape) for one in served)
        # Room for one batch in the message and its answer; it grows by itself where that is short.
        region = (batch_bytes // _MIB + 2) * _MIB
        prefix = f"{self._ours}{os.getpid()}-{start_ticks(os.getpid())}-{next(_starts)}-"
        return [
            str(server.program),
            f"--model-repository={models}",
            f"--backend-directory={server.backends}",
            "--model-control-mode=none",
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            "--model-load-thread-count=1",
            "--allow-http=false",
            "--allow-metrics=false",
            "--allow-grpc=true",
            f"--grpc-address={self.port.host}",
            f"--grpc-port={self.port.number}",
            "--grpc-infer-allocation-pool-size=2",
            "--grpc-keepalive-permit-without-calls=1",
            "--grpc-http2-max-pings-without-data=0",
            "--grpc-http2-min-recv-ping-interval-without-data=1000",
            "--grpc-http2-max-ping-strikes=0",
            "--pinned-memory-pool-byte-size=0",
            f"--backend-config=python,shm-region-prefix-name={prefix}",
            f"--backend-config=python,shm-default-byte-size={region}",
            *(
                ("--rate-limit=execution_count",)
                if any(one.among_models for one in self._own_batchers.values())
                else ()
            ),
        ]

    def wait_ready(self, limit_s: float = READY_LIMIT_S, stop: int | None = None) -> bool:
        """Wait until every model is loaded and the port answers.

        Triton opens the port after the last warm-up, so a connection means ready. Returns False
        where the file descriptor `stop` became readable first. Raises ServerError when the server
        ends or `limit_s` passes.
        """
        end = time.monotonic() + limit_s
        watched = [] if stop is None else [stop]
        while True:
            if self._process is None or self._process.poll() is not None:
                raise ServerError(f"{self.port.wanted_by} ended while it started; see its log")
            if self._answers():
                self.stubs = [pid for pid in group_members(self.pid) if pid != self.pid]
                return True
            if time.monotonic() > end:
                raise ServerError(f"{self.port.wanted_by} was not ready within {limit_s:g} s")
            if select.select(watched, [], [], 0.02)[0]:
                return False

    def _answers(self) -> bool:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
            return trial.connect_ex((self.port.host, self.port.number)) == 0

    def wait_death(self, stop: int, asked: RestartSocket) -> str | None:
        """Wait for the death of any process of the server, or for being asked to start it anew,
        and say which; None for `stop`.
        """
        waiting = select.poll()
        waiting.register(stop, select.POLLIN)
        waiting.register(asked, select.POLLIN)
        names: dict[int, str] = {}
        try:
            for pid, name in [(self.pid, "tritonserver"), *((s, "its stub") for s in self.stubs)]:
                try:
                    handle = os.pidfd_open(pid)
                except ProcessLookupError:
                    return f"{name} (process {pid}) died"
                names[handle] = f"{name} (process {pid}) died"
                waiting.register(handle, select.POLLIN)
            while True:
                ready = [handle for handle, _ in waiting.poll()]
                if stop in ready:
                    return None
                died = [names[handle] for handle in ready if handle in names]
                if died:
                    return died[0]
                why = asked.asked()
                if why is not None:
                    return f"a new start is wanted ({why})"
        finally:
            for handle in names:
                os.close(handle)

    def stop(self) -> None:
        """End the server and remove what it left. Well under a second; safe to call twice."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        if self._lock is not None:
            self._sweep()
            os.close(self._lock)
            self._lock = None

    def _sweep(self) -> None:
        """End the orphans of earlier starts of this slot, then remove their shared memory."""
        orphans = send(naming(self._ours), signal.SIGKILL)
        if not wait_gone(orphans, _KILL_LIMIT_S):
            raise ServerError(
                f"{self.port.wanted_by}: process {orphans[0]} of an earlier start cannot be killed "
                f"(stuck in the kernel); only a restart of this host ends it"
            )
        for path in SHM_FOLDER.glob(f"{self._ours}*"):
            path.unlink(missing_ok=True)


def _bytes_of(shape: tuple[int, int, int]) -> int:
    return shape[0] * shape[1] * shape[2]


def run_unit(server: TritonServer) -> int:
    """Run a server until SIGTERM or SIGINT (0), or until a process of it dies or somebody asks for
    a new start (1).
    """
    wake, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        os.write(waker, b"\0")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    name = server.port.wanted_by
    began = time.monotonic()
    try:
        server.start()
        if not server.wait_ready(stop=wake):
            return 0
        where = f"{server.port.host}:{server.port.number}"
        with RestartSocket(server.restart_socket) as asked:
            print(f"{name} ready on {where} after {time.monotonic() - began:.2f} s", flush=True)
            ended = server.wait_death(wake, asked)
        if ended is not None:
            print(f"{name}: {ended}; ending", file=sys.stderr, flush=True)
        return 0 if ended is None else 1
    except (ServerError, FetchError, RepositoryError) as error:
        print(f"takt: {error}", file=sys.stderr, flush=True)
        return 1
    finally:
        server.stop()


def main(argv: list[str] | None = None) -> int:
    """`takt triton SLOT --plant FILE`: one embedded server in the foreground.

    Exit 0 after SIGTERM, 1 when the server or a stub of it died or could not start, 2 for wrong
    use.
    """
    parser = argparse.ArgumentParser(
        prog="takt triton",
        description="Run the embedded Triton server of one slot of the pool in the foreground.",
        epilog="example: takt triton 0 --plant plant.toml",
    )
    parser.add_argument("slot", type=int, help="which endpoint of [pool] endpoints, from 0")
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    parser.add_argument(
        "--threads", type=int, default=1, metavar="N", help="ONNX Runtime threads (default 1)"
    )
    told = parser.parse_args(argv)
    try:
        plant = load_plant(told.plant)
        server = TritonServer(plant, told.slot, threads=told.threads)
    except (PlantError, ServerError) as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    return run_unit(server)


if __name__ == "__main__":
    sys.exit(main())
