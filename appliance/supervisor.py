"""`takt run`: the plant's processes as children, restarted when they die, ended without a trace.

On a plant server systemd does this; here one thread starts, watches and logs every unit, for a
bench, a laptop and the demo. Each unit leads a session of its own, so that whatever it started is
found and ended with it, and is killed by the kernel should the supervisor itself be killed.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from appliance.processes import (
    Process,
    port_trouble,
    send,
    session_members,
    tied,
    wait_gone,
)
from appliance.unit_log import UnitLog
from appliance.units import Unit, plant_ports, plant_units
from deadline_batcher.shm import SHM_FOLDER, sweep
from lines.ledger import remove_settled

OnEvent = Callable[[str, str, str], None]
STEADY_AFTER_S = 10.0
# Lines first, then what they use, then the journal, which takes the last records of both. The
# times are from the start of `stop`, each the latest instant the next stage waits for.
STOP_STAGES_S = (0.5, 0.9, 1.2)
_KILL_LIMIT_S = 0.6
_PIPE_BYTES = 1024 * 1024
_READ_BYTES = 64 * 1024
_FLOOD_PAUSE_S = 0.02


class SupervisorError(Exception):
    """The plant cannot be started; the text says everything that is in the way."""


@dataclass(slots=True)
class _Child:
    unit: Unit
    log: UnitLog
    backoff_s: float
    process: subprocess.Popen[bytes] | None = None
    alive: bool = False
    pidfd: int = -1
    pipe: int = -1
    started_s: float = 0.0
    starts: int = 0
    restart_at_s: float | None = 0.0
    resume_at_s: float | None = None


class Supervisor:
    """Runs a plant's units until `stop`.

    `on_event(unit, kind, detail)` is called on its thread; the kinds are started, died, restarted,
    and ended for a unit that was told to.
    """

    def __init__(
        self,
        plant: Plant,
        plant_file: Path,
        *,
        units: Sequence[Unit] | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self._plant = plant
        self._on_event = on_event
        self._units = plant_units(plant, plant_file) if units is None else list(units)
        self._children: dict[str, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock_file: int | None = None
        self._wake, self._waker = -1, -1
        self._run_log: UnitLog | None = None

    def start(self) -> None:
        """Start every unit; returns at once. Raises SupervisorError, naming all that is wrong."""
        self._take_plant()
        try:
            sweep(self._plant.tag)
            troubles = [port_trouble(port) for port in plant_ports(self._plant)]
            found = [trouble for trouble in troubles if trouble]
            if found:
                raise SupervisorError("\n".join(found))
            self._run_log = self._open_log("run")
            for unit in self._units:
                log = self._open_log(unit.name)
                self._children[unit.name] = _Child(unit, log, unit.backoff_min_s)
            self._wake, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except BaseException:
            self._leave_plant()
            raise
        self._selector.register(self._wake, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        self._thread.start()

    def _open_log(self, name: str) -> UnitLog:
        path = self._plant.path(self._plant.paths.logs) / f"{name}.log"
        return UnitLog(path, self._plant.limits.log_bytes_max, self._plant.limits.log_files_max)

    def _take_plant(self) -> None:
        runtime = self._plant.path(self._plant.paths.runtime)
        runtime.mkdir(parents=True, exist_ok=True)
        lock = os.open(runtime / "run.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(lock, 32).decode(errors="replace").strip()
            os.close(lock)
            raise SupervisorError(
                f"this plant runs already, under process {holder}; stop that one first"
            ) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        self._lock_file = lock

    def _leave_plant(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    # Everything below `_run` is on the supervisor's own thread: the kernel ties children to it.

    def _run(self) -> None:
        while not self._stopping.is_set():
            now_s = time.monotonic()
            for child in self._children.values():
                if child.restart_at_s is not None and child.restart_at_s <= now_s:
                    self._spawn(child)
            self._pump(self._next_instant_s())
        self._shut_down()

    def _next_instant_s(self) -> float | None:
        children = self._children.values()
        instants = [
            instant
            for child in children
            for instant in (child.restart_at_s, child.resume_at_s)
            if instant is not None
        ]
        return min(instants, default=None)

    def _pump(self, until_s: float | None) -> None:
        """Wait for output, deaths or a wake-up, no longer than `until_s`, and deal with them."""
        now_s = time.monotonic()
        for child in self._children.values():
            if child.resume_at_s is not None and child.resume_at_s <= now_s:
                child.resume_at_s = None
                self._selector.register(child.pipe, selectors.EVENT_READ, child)
        wait_s = None if until_s is None else max(0.0, until_s - now_s)
        for key, _ in self._selector.select(wait_s):
            child = key.data
            if child is None:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._wake, 4096)
            elif key.fd == child.pipe:
                self._read(child)
            elif key.fd == child.pidfd:
                self._bury(child)

    def _spawn(self, child: _Child) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        # Room for a burst while this thread is busy; a host that grants less changes nothing else.
        with contextlib.suppress(OSError):
            fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(reading, False)
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        environment.pop("NOTIFY_SOCKET", None)
        child.restart_at_s = None
        try:
            child.process = subprocess.Popen(
                tied(child.unit.command, child.unit.nice),
                stdin=subprocess.DEVNULL,
                stdout=writing,
                stderr=writing,
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            os.close(reading)
            self._fail(child, f"cannot be started: {error.strerror}")
            return
        finally:
            os.close(writing)
        child.pipe, child.pidfd = reading, os.pidfd_open(child.process.pid)
        child.alive = True
        child.started_s = time.monotonic()
        child.starts += 1
        self._selector.register(child.pipe, selectors.EVENT_READ, child)
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        kind = "started" if child.starts == 1 else "restarted"
        self._tell(child, kind, f"process {child.process.pid}")

    def _read(self, child: _Child) -> None:
        text = os.read(child.pipe, _READ_BYTES)
        if not text:
            self._close_pipe(child)
        elif not child.log.write(text) and not self._stopping.is_set():
            # A flood gets a bounded share of this thread; the pipe's room meanwhile is the child's.
            self._selector.unregister(child.pipe)
            child.resume_at_s = time.monotonic() + _FLOOD_PAUSE_S

    def _close_pipe(self, child: _Child) -> None:
        if child.resume_at_s is None:
            self._selector.unregister(child.pipe)
        os.close(child.pipe)
        child.pipe, child.resume_at_s = -1, None

    def _keep_last_words(self, child: _Child) -> None:
        """What a dead unit left in its pipe; something that escaped its session may still write."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_PIPE_BYTES // _READ_BYTES + 1):
                text = os.read(child.pipe, _READ_BYTES)
                if not text:
                    break
                child.log.write(text)
        self._close_pipe(child)

    def _bury(self, child: _Child) -> None:
        """A unit's process has died: end what it started, keep its last words, plan the next."""
        process = child.process
        if process is None:
            return
        code = process.wait()
        self._kill_session(process.pid)
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        child.pidfd, child.alive = -1, False
        if child.pipe >= 0:
            self._keep_last_words(child)
        lived_s = time.monotonic() - child.started_s
        if lived_s >= STEADY_AFTER_S:
            child.backoff_s = child.unit.backoff_min_s
        self._fail(child, f"{_ending(code)} after {lived_s:.1f} s")

    def _fail(self, child: _Child, detail: str) -> None:
        if self._stopping.is_set():
            self._tell(child, "ended", detail)
            return
        sweep(self._plant.tag)
        child.restart_at_s = time.monotonic() + child.backoff_s
        again = f"again in {child.backoff_s:g} s"
        child.backoff_s = min(child.backoff_s * 2, child.unit.backoff_max_s)
        self._tell(child, "died", f"{detail}; {again}")

    def _kill_session(self, leader: int) -> None:
        members = [one.pid for one in session_members(leader)]
        if not wait_gone(send(members, signal.SIGKILL), _KILL_LIMIT_S) and self._run_log:
            self._run_log.note(f"processes {members} cannot be killed: stuck in the kernel")

    def _tell(self, child: _Child, kind: str, detail: str) -> None:
        name = child.unit.name
        child.log.note(f"{kind}: {detail}")
        if self._run_log is not None:
            self._run_log.note(f"{name} {kind}: {detail}")
        if self._on_event is not None:
            try:
                self._on_event(name, kind, detail)
            except Exception as error:  # A fault of whoever listens must not end the plant.
                child.log.note(f"the listener to events failed: {error!r}")

    def _shut_down(self) -> None:
        began_s = time.monotonic()
        for stage, until_s in enumerate(STOP_STAGES_S):
            ending = [one for one in self._children.values() if one.unit.stage == stage]
            for child in ending:
                if child.alive and child.process is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(child.process.pid, signal.SIGTERM)
            end_s = began_s + until_s
            while any(child.alive for child in ending) and time.monotonic() < end_s:
                self._pump(end_s)
        alive = [child for child in self._children.values() if child.alive]
        for child in alive:
            if child.process is not None:
                send([one.pid for one in session_members(child.process.pid)], signal.SIGKILL)
        for child in alive:
            self._bury(child)

    # Below, any thread.

    def kill_unit(self, name: str, number: signal.Signals = signal.SIGKILL) -> list[int]:
        """Signal what a unit runs: for a Triton the server's own process group, else the unit.

        Returns the processes that got it. Raises KeyError for a unit that does not exist.
        """
        process = self._children[name].process
        members = [] if process is None else session_members(process.pid)
        leader = 0 if process is None else process.pid
        inner: list[Process] = [one for one in members if one.group != leader]
        return send([one.pid for one in inner or members], number)

    def processes(self, name: str) -> list[int]:
        """Ids of what a unit runs, its own process first; none while it does not run.

        Raises KeyError for a unit that does not exist.
        """
        process = self._children[name].process
        if process is None:
            return []
        members = [one.pid for one in session_members(process.pid)]
        return sorted(members, key=lambda pid: (pid != process.pid, pid))

    def alive(self) -> dict[str, bool]:
        """Every unit's name and whether its process lives."""
        return {name: child.alive for name, child in self._children.items()}

    def stop(self, *, purge: bool = False) -> None:
        """End every unit within 2 s and remove sockets and shared memory; safe to call twice.

        `purge` also removes the lines' ledgers: only once every part in them is journalled.
        """
        if self._thread is not None:
            self._stopping.set()
            os.write(self._waker, b"\0")
            self._thread.join()
            self._thread = None
            self._selector.close()
            for handle in (self._wake, self._waker):
                os.close(handle)
            for log in [child.log for child in self._children.values()] + [self._run_log]:
                if log is not None:
                    log.close()
        if self._lock_file is not None:
            self._remove_traces()
        if purge:
            for path in SHM_FOLDER.glob(f"takt-{self._plant.tag}-ledger-*"):
                path.unlink(missing_ok=True)
        self._leave_plant()

    def _remove_traces(self) -> None:
        sweep(self._plant.tag)
        remove_settled(self._plant.tag)
        for path in SHM_FOLDER.glob(f"takt-{self._plant.tag}-triton-*"):
            path.unlink(missing_ok=True)
        for path in self._plant.path(self._plant.paths.runtime).iterdir():
            if path.is_socket():
                path.unlink(missing_ok=True)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exit {code}"
    with contextlib.suppress(ValueError):
        return f"killed by {signal.Signals(-code).name}"
    return f"killed by signal {-code}"


def main(argv: Sequence[str] | None = None) -> int:
    """`takt run --plant FILE`: run a plant until SIGINT or SIGTERM.

    Exit 0 when told to end, 1 when the plant cannot be started, 2 for wrong use.
    """
    parser = argparse.ArgumentParser(
        prog="takt run",
        description="Run every process of a plant as children of this one, for a bench or a "
        "laptop; on a plant server the systemd units do it.",
        epilog="example: takt run --plant plant.toml",
    )
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    told = parser.parse_args(argv)
    ended = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        ended.set()

    def on_event(unit: str, kind: str, detail: str) -> None:
        print(f"{unit} {kind}: {detail}", flush=True)

    try:
        plant = load_plant(told.plant)
    except PlantError as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    supervisor = Supervisor(plant, told.plant, on_event=on_event)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        supervisor.start()
    except (SupervisorError, OSError) as error:
        print(f"takt: {error}", file=sys.stderr)
        return 1
    try:
        ports = plant_ports(plant)
        while not ended.wait(0.2) and ports:
            ports = [port for port in ports if not port.is_served()]
        if not ended.is_set():
            print(f"all {len(plant.line)} lines serve; Ctrl-C ends the plant", flush=True)
        ended.wait()
    finally:
        supervisor.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
