"""Faults of host and network: neighbours, full and slow disks, clocks, links, keys, storms."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Final

from deadline_batcher.shm import SHM_FOLDER
from hil_sim.nemesis import host, storms
from hil_sim.nemesis.arena import Arena, Inject, Injection
from hil_sim.nemesis.signals import any_line, wait_back

LONG_S: Final = (3.0, 6.0)
STEPS_NS: Final = tuple(
    round(seconds * 1e9) for seconds in (37, -37, 3600, -3600, -56 * 365.25 * 86400)
)
SLOW_FSYNC_US: Final = (50_000, 3_000_000)


# --- the neighbours -----------------------------------------------------------------------------


def beside(commands: Callable[[Arena], list[list[str]]]) -> Inject:
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
        wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))

    return inject


def hog(_: Arena) -> list[list[str]]:
    return [[sys.executable, "-I", "-S", "-c", "while True: pass"]] * (os.cpu_count() or 1)


def training(_: Arena) -> list[list[str]]:
    return [[sys.executable, "-c", storms.TRAINING]]


def loader(arena: Arena) -> list[list[str]]:
    folder = arena.plant.path(arena.plant.paths.journal)
    return [[sys.executable, "-I", "-c", storms.LOADER, str(folder)]] * 2


# --- disks, clocks, links -----------------------------------------------------------------------


def shm_full(arena: Arena, injection: Injection) -> None:
    """/dev/shm without a byte left; every second time a line dies in it and must come back."""
    victim = any_line(arena) if arena.chance.random() < 0.5 else ""
    injection.subject, injection.note = victim or "host", f"{victim or 'nobody'} killed meanwhile"
    injection.at_ns = time.monotonic_ns()
    with host.filled(SHM_FOLDER):
        if victim:
            os.kill(arena.leader(victim), signal.SIGKILL)
        arena.pause(arena.chance.uniform(2.0, 4.0))
    injection.ended_at_ns = time.monotonic_ns()
    line = victim.removeprefix("line-") or arena.plant.line[0].id
    wait_back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))


def disk_full(arena: Arena, injection: Injection) -> None:
    injection.subject = "journal"
    injection.at_ns = time.monotonic_ns()
    with host.filled(arena.plant.path(arena.plant.paths.journal)):
        arena.pause(arena.chance.uniform(*LONG_S))
    injection.ended_at_ns = time.monotonic_ns()
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))
    kinds = ("journal.disk",)
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


def slow_fsync(arena: Arena, injection: Injection) -> None:
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
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))
    kinds = ("journal.slow_disk",)
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


def clock_step(arena: Arena, injection: Injection) -> None:
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
    wait_back(arena, injection, lambda: arena.records.pool_answers(injection.ended_at_ns))


def net_drop(arena: Arena, injection: Injection) -> None:
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
    wait_back(arena, injection, lambda: arena.records.line_answers("line01", injection.ended_at_ns))
    kinds = ("actuator.silent", "actuator.unreachable", "camera.unreachable")
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


# --- keys and storms ----------------------------------------------------------------------------


def wrong_key(arena: Arena, injection: Injection) -> None:
    unit = any_line(arena)
    injection.subject = unit
    injection.at_ns = time.monotonic_ns()
    lasts_s = arena.chance.uniform(1.5, 3.0)
    tries = storms.wrong_keys(arena.plant, unit.removeprefix("line-"), lasts_s, arena.pause)
    injection.ended_at_ns = time.monotonic_ns()
    injection.note = f"{tries} connections with keys that nobody allowed"
    line = unit.removeprefix("line-")
    wait_back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))
    kinds = ("camera.refused", "actuator.refused")
    injection.noticed_at_ns = arena.within(
        lambda: arena.records.event_at(kinds, "", injection.at_ns), 3.0
    )


def rotated_key(arena: Arena, injection: Injection) -> None:
    """The camera's key is replaced in the allow-list while it sends, and later put back."""
    unit = any_line(arena)
    line = unit.removeprefix("line-")
    injection.subject = unit
    injection.at_ns = time.monotonic_ns()
    with storms.other_key(arena.plant, f"camera-{line}"):
        arena.pause(arena.chance.uniform(2.0, 4.0))
    injection.ended_at_ns = time.monotonic_ns()
    wait_back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))
    kinds = ("camera.denied", "camera.refused")
    injection.noticed_at_ns = arena.records.event_at(kinds, "", injection.at_ns)


def log_storm(arena: Arena, injection: Injection) -> None:
    """A flood on the standard error of one line's process, as a warning in a decoder makes it."""
    injection.subject = unit = any_line(arena)
    lasts_s = arena.chance.uniform(2.0, 4.0)
    injection.at_ns = time.monotonic_ns()
    written = storms.flood(arena.leader(unit), lasts_s, arena.pause)
    injection.ended_at_ns = time.monotonic_ns()
    injection.note = f"{written / 1e6:.0f} MB in {lasts_s:.1f} s"
    line = unit.removeprefix("line-")
    wait_back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))


def bad_frames(arena: Arena, injection: Injection) -> None:
    """A second client with the camera's own key sends garbage beside it."""
    injection.subject = unit = any_line(arena)
    line = unit.removeprefix("line-")
    injection.at_ns = time.monotonic_ns()
    lasts_s = arena.chance.uniform(2.0, 4.0)
    sent = storms.bad_frames(arena.plant, line, arena.chance, lasts_s, arena.pause)
    injection.ended_at_ns = time.monotonic_ns()
    injection.note = f"{sent} messages in {lasts_s:.1f} s"
    wait_back(arena, injection, lambda: arena.records.line_answers(line, injection.ended_at_ns))
    injection.noticed_at_ns = arena.records.event_at(("reject",), "", injection.at_ns)
