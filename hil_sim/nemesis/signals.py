"""Faults by signal: SIGKILL and SIGSTOP of each kind of process, and how their end is seen."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from typing import Final

from hil_sim.nemesis.arena import Arena, Inject, Injection
from hil_sim.nemesis.records import GPU_TROUBLE

BACK_LIMIT_S: Final = 60.0
STOPPED_S: Final = (0.2, 3.0)
SAY_NOTHING: Final = ("journal", "monitor")
"""Units that do not say `ready` in their log."""
TWICE_SHARE: Final = 0.25
AGAIN_S: Final = (0.0, 1.5)
"""From a death to the next kill: the unit waits, starts, or has just begun to serve."""


# --- whom -----------------------------------------------------------------------------------


def any_line(arena: Arena) -> str:
    return f"line-{arena.chance.choice(arena.plant.line).id}"


def any_triton(arena: Arena) -> str:
    """One that is in the pool; waits for one."""
    ready = arena.wait(arena.records.ready_gpus, "a GPU in the pool")
    return f"triton-{arena.chance.choice(ready).removeprefix('gpu')}"


def gpu_of(unit: str) -> str:
    return f"gpu{unit.removeprefix('triton-')}"


SERVER: Final = ("tritonserver",)
STUB: Final = ("triton_python",)


# --- when it is over --------------------------------------------------------------------------


def wait_back(arena: Arena, injection: Injection, is_back: Callable[[], int]) -> None:
    injection.back_at_ns = arena.within(is_back, BACK_LIMIT_S)


def _kill(arena: Arena, injection: Injection, unit: str) -> None:
    """SIGKILL of the unit's own process; waits until it is noticed, and until it says ready.

    Every fourth time it has just died and is starting: any instant is one to be killed at.
    """
    injection.subject = unit
    if arena.chance.random() < TWICE_SHARE and _kill_once(arena, unit):
        arena.pause(arena.chance.uniform(*AGAIN_S))
        injection.note = "killed while it started"
    ready = _says_ready(arena, unit)
    injection.at_ns = time.monotonic_ns()
    injection.noticed_at_ns = _kill_once(arena, unit)
    if unit not in SAY_NOTHING:
        injection.ready_at_ns = arena.within(ready, BACK_LIMIT_S)


def _kill_once(arena: Arena, unit: str) -> int:
    """Kill what runs, once something does; when the supervisor said so: then nobody is there."""
    pid = arena.wait(lambda: arena.leader(unit), f"a process of {unit}")
    at_ns = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    return int(arena.within(lambda: arena.said(unit, "died", at_ns), BACK_LIMIT_S))


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
    """When it was ready again; where nobody noticed, when it next answered anything."""
    gpu, records = gpu_of(injection.subject), arena.records
    noticed_ns = records.event_at(GPU_TROUBLE, gpu, injection.at_ns)
    if not noticed_ns:
        return records.gpu_answers(gpu, since_ns)
    if gpu not in records.ready_gpus():
        return 0
    return records.last_event_at(("gpu.ready",), gpu, max(since_ns, noticed_ns))


# --- killed -----------------------------------------------------------------------------------


def kill_line(arena: Arena, injection: Injection) -> None:
    unit = any_line(arena)
    _kill(arena, injection, unit)
    line, since_ns = unit.removeprefix("line-"), injection.noticed_at_ns
    wait_back(arena, injection, lambda: arena.records.line_answers(line, since_ns))


def kill_batcher(arena: Arena, injection: Injection) -> None:
    _kill(arena, injection, "batcher")
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.noticed_at_ns))
    arena.wait(lambda: len(arena.records.ready_gpus()) == arena.spec.gpus, "the whole pool")


def kill_journal(arena: Arena, injection: Injection) -> None:
    _kill(arena, injection, "journal")

    def is_back() -> int:
        return arena.records.event_at(("journal.started",), "", injection.at_ns)

    wait_back(arena, injection, is_back)
    injection.ready_at_ns = injection.back_at_ns


def kill_monitor(arena: Arena, injection: Injection) -> None:
    _kill(arena, injection, "monitor")
    since_ns = injection.noticed_at_ns
    wait_back(arena, injection, lambda: arena.said("monitor", "restarted", since_ns))
    injection.ready_at_ns = injection.back_at_ns


def kill_of_triton(names: tuple[str, ...]) -> Inject:
    def inject(arena: Arena, injection: Injection) -> None:
        injection.subject = unit = any_triton(arena)
        victims = arena.processes(unit, names) if names else [arena.leader(unit)]
        ready = _says_ready(arena, unit)
        injection.at_ns = time.monotonic_ns()
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        injection.note = f"{len(victims)} processes"
        injection.ready_at_ns = arena.within(ready, BACK_LIMIT_S)
        since_ns = injection.ready_at_ns or injection.at_ns
        wait_back(arena, injection, lambda: _gpu_is_back(arena, injection, since_ns))
        gpu = gpu_of(unit)
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


def stop_line(arena: Arena, injection: Injection) -> None:
    injection.subject = unit = any_line(arena)
    _stop(arena, injection, [arena.leader(unit)])
    line = unit.removeprefix("line-")
    wait_back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))


def stop_batcher(arena: Arena, injection: Injection) -> None:
    injection.subject = "batcher"
    _stop(arena, injection, [arena.leader("batcher")])
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def stop_journal(arena: Arena, injection: Injection) -> None:
    injection.subject = "journal"
    _stop(arena, injection, [arena.leader("journal")])
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def stop_monitor(arena: Arena, injection: Injection) -> None:
    injection.subject = "monitor"
    _stop(arena, injection, arena.supervisor.processes("monitor"))
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def stop_of_triton(names: tuple[str, ...], goes_on: bool) -> Inject:
    def inject(arena: Arena, injection: Injection) -> None:
        injection.subject = unit = any_triton(arena)
        gpu = gpu_of(unit)
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
            wait_back(arena, injection, lambda: _gpu_is_back(arena, injection, since_ns))
        finally:
            _go_on(pids)
        injection.noticed_at_ns = arena.records.event_at(GPU_TROUBLE, gpu, injection.at_ns)

    return inject
