"""The kinds of fault: how each is done to a running plant, and how its end is seen."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from deadline_batcher.shm import SHM_FOLDER
from hil_sim.nemesis import host, storms
from hil_sim.nemesis.arena import Arena, Injection
from hil_sim.nemesis.records import GPU_TROUBLE

BACK_LIMIT_S: Final = 60.0
STOPPED_S: Final = (0.2, 3.0)
LONG_S: Final = (3.0, 6.0)
STEPS_NS: Final = tuple(
    round(seconds * 1e9) for seconds in (37, -37, 3600, -3600, -56 * 365.25 * 86400)
)
SLOW_FSYNC_US: Final = (50_000, 3_000_000)

Inject = Callable[[Arena, Injection], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. needs: of the host, see `host.missing`, and `disk`: a small one for the journal.

    room_s: seconds that one injection takes at most before its recovery.
    """

    what: str
    inject: Inject
    needs: tuple[str, ...] = ()


# --- whom -----------------------------------------------------------------------------------


def _line(arena: Arena) -> str:
    return f"line-{arena.chance.choice(arena.plant.line).id}"


def _triton(arena: Arena) -> str:
    """One that is in the pool; waits for one."""
    ready = arena.wait(arena.records.ready_gpus, "a GPU in the pool")
    return f"triton-{arena.chance.choice(ready).removeprefix('gpu')}"


def _gpu(unit: str) -> str:
    return f"gpu{unit.removeprefix('triton-')}"


SERVER: Final = ("tritonserver",)
STUB: Final = ("triton_python",)


# --- when it is over --------------------------------------------------------------------------


def _back(arena: Arena, injection: Injection, is_back: Callable[[], int]) -> None:
    injection.back_at_ns = arena.within(is_back, BACK_LIMIT_S)


def _kill(arena: Arena, injection: Injection, unit: str) -> None:
    """SIGKILL of the unit's own process; waits until it is noticed, and until it says ready."""
    injection.subject = unit
    ready = _says_ready(arena, unit)
    injection.at_ns = time.monotonic_ns()
    os.kill(arena.leader(unit), signal.SIGKILL)
    # The supervisor's word: it buries the process first, so that from here on nobody is there.
    injection.noticed_at_ns = arena.within(lambda: arena.died(unit, injection.at_ns), BACK_LIMIT_S)
    if unit != "journal":
        injection.ready_at_ns = arena.within(ready, BACK_LIMIT_S)


def _says_ready(arena: Arena, unit: str) -> Callable[[], int]:
    """When the unit's log says `ready` again; the look itself is the instant."""
    path = arena.plant.path(arena.plant.paths.logs) / f"{unit}.log"
    said = path.stat().st_size

    def look() -> int:
        with contextlib.suppress(OSError), path.open("rb") as log:
            log.seek(said if path.stat().st_size >= said else 0)
            return time.monotonic_ns() if b"ready" in log.read() else 0
        return 0

    return look


def _gpu_is_back(arena: Arena, injection: Injection, since_ns: int) -> int:
    """A batch of parts was answered by it, and its last word is ready."""
    gpu = _gpu(injection.subject)
    if gpu not in arena.records.ready_gpus():
        return 0
    return arena.records.gpu_answers(gpu, since_ns)


# --- killed -----------------------------------------------------------------------------------


def _kill_line(arena: Arena, injection: Injection) -> None:
    unit = _line(arena)
    _kill(arena, injection, unit)
    line, since_ns = unit.removeprefix("line-"), injection.noticed_at_ns
    _back(arena, injection, lambda: arena.records.line_answers(line, since_ns))


def _kill_batcher(arena: Arena, injection: Injection) -> None:
    _kill(arena, injection, "batcher")
    _back(arena, injection, lambda: arena.records.pool_answers(injection.noticed_at_ns))
    arena.wait(lambda: len(arena.records.ready_gpus()) == arena.spec.gpus, "the whole pool")


def _kill_journal(arena: Arena, injection: Injection) -> None:
    _kill(arena, injection, "journal")

    def is_back() -> int:
        return arena.records.event_at(("journal.started",), "", injection.at_ns)

    _back(arena, injection, is_back)
    injection.ready_at_ns = injection.back_at_ns


def _kill_of_triton(names: tuple[str, ...]) -> Inject:
    def inject(arena: Arena, injection: Injection) -> None:
        injection.subject = unit = _triton(arena)
        victims = arena.processes(unit, names) if names else [arena.leader(unit)]
        ready = _says_ready(arena, unit)
        injection.at_ns = time.monotonic_ns()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        injection.note = f"{len(victims)} processes"
        injection.ready_at_ns = arena.within(ready, BACK_LIMIT_S)
        since_ns = injection.ready_at_ns or injection.at_ns
        _back(arena, injection, lambda: _gpu_is_back(arena, injection, since_ns))
        gpu = _gpu(unit)
        injection.noticed_at_ns = arena.records.event_at(GPU_TROUBLE, gpu, injection.at_ns)

    return inject


# --- stopped ----------------------------------------------------------------------------------


def _stop(arena: Arena, injection: Injection, pids: list[int]) -> None:
    """SIGSTOP, a stated time, SIGCONT."""
    stopped_s = arena.chance.uniform(*STOPPED_S)
    injection.note = f"stopped for {stopped_s:.2f} s"
    injection.at_ns = time.monotonic_ns()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        arena.pause(stopped_s)
    finally:
        _go_on(pids)
        injection.ended_at_ns = time.monotonic_ns()


def _go_on(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _stop_line(arena: Arena, injection: Injection) -> None:
    injection.subject = unit = _line(arena)
    _stop(arena, injection, [arena.leader(unit)])
    line = unit.removeprefix("line-")
    _back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))


def _stop_batcher(arena: Arena, injection: Injection) -> None:
    injection.subject = "batcher"
    _stop(arena, injection, [arena.leader("batcher")])
    _back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def _stop_journal(arena: Arena, injection: Injection) -> None:
    injection.subject = "journal"
    _stop(arena, injection, [arena.leader("journal")])
    _back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def _stop_of_triton(names: tuple[str, ...], goes_on: bool) -> Inject:
    def inject(arena: Arena, injection: Injection) -> None:
        injection.subject = unit = _triton(arena)
        gpu = _gpu(unit)
        pids = arena.processes(unit, names)
        if goes_on:
            _stop(arena, injection, pids)
            since_ns = injection.ended_at_ns
        else:
            injection.note = "for ever"
            injection.at_ns = since_ns = time.monotonic_ns()
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
        try:
            _back(arena, injection, lambda: _gpu_is_back(arena, injection, since_ns))
        finally:
            _go_on(pids)
        injection.noticed_at_ns = arena.records.event_at(GPU_TROUBLE, gpu, injection.at_ns)

    return inject


# --- the neighbours -----------------------------------------------------------------------------


def _beside(commands: Callable[[Arena], list[list[str]]]) -> Inject:
    """Programs of somebody else on the same cores and disks for a while."""

    def inject(arena: Arena, injection: Injection) -> None:
        lasts_s = arena.chance.uniform(*LONG_S)
        injection.subject, injection.note = "host", f"for {lasts_s:.1f} s"
        injection.at_ns = time.monotonic_ns()
        programs = [arena.beside(command) for command in commands(arena)]
        try:
            arena.pause(lasts_s)
        finally:
            for program in programs:
                arena.end_beside(program)
            injection.ended_at_ns = time.monotonic_ns()
        _back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))

    return inject


def _hog(_: Arena) -> list[list[str]]:
    return [[sys.executable, "-I", "-S", "-c", "while True: pass"]] * (os.cpu_count() or 1)


def _training(_: Arena) -> list[list[str]]:
    return [[sys.executable, "-c", storms.TRAINING]]


def _loader(arena: Arena) -> list[list[str]]:
    folder = arena.plant.path(arena.plant.paths.journal)
    return [[sys.executable, "-I", "-c", storms.LOADER, str(folder)]] * 2


# --- disks, clocks, links -----------------------------------------------------------------------


def _shm_full(arena: Arena, injection: Injection) -> None:
    """/dev/shm without a byte left; every second time a line dies in it and must come back."""
    victim = _line(arena) if arena.chance.random() < 0.5 else ""
    injection.subject, injection.note = victim or "host", f"{victim or 'nobody'} killed meanwhile"
    injection.at_ns = time.monotonic_ns()
    with host.filled(SHM_FOLDER):
        if victim:
            os.kill(arena.leader(victim), signal.SIGKILL)
        arena.pause(arena.chance.uniform(2.0, 4.0))
    injection.ended_at_ns = time.monotonic_ns()
    line = victim.removeprefix("line-") or arena.plant.line[0].id
    _back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))


def _disk_full(arena: Arena, injection: Injection) -> None:
    injection.subject = "journal"
    injection.at_ns = time.monotonic_ns()
    with host.filled(arena.plant.path(arena.plant.paths.journal)):
        arena.pause(arena.chance.uniform(*LONG_S))
    injection.ended_at_ns = time.monotonic_ns()
    _back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))
    kinds = ("journal.disk",)
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


def _slow_fsync(arena: Arena, injection: Injection) -> None:
    assert arena.shim is not None
    delay_us = arena.chance.randint(*SLOW_FSYNC_US)
    injection.subject, injection.note = "journal", f"each fsync {delay_us / 1e3:.0f} ms slower"
    injection.at_ns = time.monotonic_ns()
    arena.shim.tell(0, delay_us)
    try:
        arena.pause(arena.chance.uniform(*LONG_S))
    finally:
        arena.shim.tell(0, 0)
        injection.ended_at_ns = time.monotonic_ns()
    _back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))
    kinds = ("journal.slow_disk",)
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


def _clock_step(arena: Arena, injection: Injection) -> None:
    """The wall clock of every process of the plant steps, and later steps back."""
    assert arena.shim is not None
    step_ns = arena.chance.choice(STEPS_NS)
    injection.subject, injection.note = "host", f"wall clock {step_ns / 1e9:+.0f} s"
    injection.at_ns = time.monotonic_ns()
    arena.shim.tell(step_ns, 0)
    try:
        arena.pause(arena.chance.uniform(2.0, 4.0))
    finally:
        arena.shim.tell(0, 0)
        injection.ended_at_ns = time.monotonic_ns()
    _back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def _net_drop(arena: Arena, injection: Injection) -> None:
    assert arena.far is not None
    lasts_s = arena.chance.uniform(0.1, 4.0)
    injection.subject, injection.note = "line-line01", f"no packet for {lasts_s:.2f} s"
    injection.at_ns = time.monotonic_ns()
    arena.far.cut()
    try:
        arena.pause(lasts_s)
    finally:
        arena.far.connect()
        injection.ended_at_ns = time.monotonic_ns()
    _back(arena, injection, lambda: arena.records.line_answers("line01", injection.ended_at_ns))
    kinds = ("actuator.silent", "actuator.unreachable", "camera.unreachable")
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


# --- keys and storms ----------------------------------------------------------------------------


def _wrong_key(arena: Arena, injection: Injection) -> None:
    unit = _line(arena)
    injection.subject = unit
    injection.at_ns = time.monotonic_ns()
    tries = storms.wrong_keys(arena.plant, unit.removeprefix("line-"), arena.chance)
    injection.ended_at_ns = time.monotonic_ns()
    injection.note = f"{tries} connections with keys that nobody allowed"
    line = unit.removeprefix("line-")
    _back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))
    kinds = ("camera.refused",)
    injection.noticed_at_ns = arena.within(
        lambda: arena.records.event_at(kinds, "", injection.at_ns), 3.0
    )


def _rotated_key(arena: Arena, injection: Injection) -> None:
    """The camera's key is replaced in the allow-list while it sends, and later put back."""
    unit = _line(arena)
    line = unit.removeprefix("line-")
    injection.subject = unit
    injection.at_ns = time.monotonic_ns()
    with storms.other_key(arena.plant, f"camera-{line}"):
        arena.pause(arena.chance.uniform(2.0, 4.0))
    injection.ended_at_ns = time.monotonic_ns()
    _back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))
    kinds = ("camera.denied", "camera.refused")
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


def _log_storm(arena: Arena, injection: Injection) -> None:
    """A flood on the standard error of one line's process, as a warning in a decoder makes it."""
    injection.subject = unit = _line(arena)
    lasts_s = arena.chance.uniform(2.0, 4.0)
    injection.at_ns = time.monotonic_ns()
    written = storms.flood(arena.leader(unit), lasts_s, arena.pause)
    injection.ended_at_ns = time.monotonic_ns()
    injection.note = f"{written / 1e6:.0f} MB in {lasts_s:.1f} s"
    line = unit.removeprefix("line-")
    _back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))


def _bad_frames(arena: Arena, injection: Injection) -> None:
    """A second client with the camera's own key sends garbage beside it."""
    injection.subject = unit = _line(arena)
    line = unit.removeprefix("line-")
    injection.at_ns = time.monotonic_ns()
    lasts_s = arena.chance.uniform(2.0, 4.0)
    sent = storms.bad_frames(arena.plant, line, arena.chance, lasts_s, arena.pause)
    injection.ended_at_ns = time.monotonic_ns()
    injection.note = f"{sent} messages in {lasts_s:.1f} s"
    _back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))
    injection.noticed_at_ns = arena.records.event_at(("reject",), "", injection.at_ns)


FAULTS: Final[dict[str, Fault]] = {
    "kill-line": Fault("SIGKILL of a line's process", _kill_line),
    "kill-batcher": Fault("SIGKILL of the batcher", _kill_batcher),
    "kill-journal": Fault("SIGKILL of the journal", _kill_journal),
    "kill-triton": Fault("SIGKILL of a Triton server", _kill_of_triton(SERVER)),
    "kill-stub": Fault("SIGKILL of a Triton's Python stub", _kill_of_triton(STUB)),
    "kill-keeper": Fault("SIGKILL of the process that keeps a Triton", _kill_of_triton(())),
    "stop-line": Fault("SIGSTOP of a line, 0.2 to 3 s", _stop_line),
    "stop-batcher": Fault("SIGSTOP of the batcher, 0.2 to 3 s", _stop_batcher),
    "stop-journal": Fault("SIGSTOP of the journal, 0.2 to 3 s", _stop_journal),
    "stop-triton": Fault("SIGSTOP of a Triton server, 0.2 to 3 s", _stop_of_triton(SERVER, True)),
    "stop-stub": Fault("SIGSTOP of a Python stub, 0.2 to 3 s", _stop_of_triton(STUB, True)),
    "hang-triton": Fault("SIGSTOP of a Triton server for ever", _stop_of_triton(SERVER, False)),
    "hang-stub": Fault("SIGSTOP of a Python stub for ever", _stop_of_triton(STUB, False)),
    "cpu-hog": Fault("a busy loop on every core, 3 to 6 s", _beside(_hog)),
    "training": Fault("a training job beside the pool, 3 to 6 s", _beside(_training)),
    "io-load": Fault("two programs that write and fsync, 3 to 6 s", _beside(_loader)),
    "shm-full": Fault("/dev/shm full for 2 to 4 s", _shm_full, ("namespaces",)),
    "disk-full": Fault("the journal's disk full for 3 to 6 s", _disk_full, ("namespaces", "disk")),
    "slow-fsync": Fault("each fsync 0.05 to 3 s slower, 3 to 6 s", _slow_fsync, ("compiler",)),
    "clock-step": Fault("wall clock ±37 s, ±1 h, −56 years", _clock_step, ("compiler",)),
    "net-drop": Fault("a line's link drops every packet, 0.1 to 4 s", _net_drop, ("network",)),
    "wrong-key": Fault("connections with unknown keys", _wrong_key),
    "rotated-key": Fault("a camera's key replaced, 2 to 4 s", _rotated_key),
    "log-storm": Fault("a flood on a line's standard error", _log_storm),
    "bad-frames": Fault("garbage with the camera's own key", _bad_frames),
}
