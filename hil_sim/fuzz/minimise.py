"""Makes a failing case smaller: fewer faults, fewer lines and GPUs, a shorter load."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from hil_sim.fuzz.case import Case, Fault

TRIES_MAX = 80
LOAD_STEPS_MS = (100, 200, 300, 450, 700)

IsBad = Callable[[Case], bool]


def minimised(case: Case, is_bad: IsBad, tries_max: int = TRIES_MAX) -> Case:
    """The smallest case found of which `is_bad` still holds, after at most `tries_max` runs.

    Delta debugging: halves of the faults first, then single ones; each change is kept where the
    case stays bad.
    """
    tries_left = tries_max

    def still_bad(candidate: Case) -> bool:
        nonlocal tries_left
        tries_left -= 1
        return tries_left >= 0 and is_bad(candidate)

    smaller = True
    while smaller and tries_left > 0:
        smaller = False
        for candidate in _candidates(case):
            if still_bad(candidate):
                case, smaller = candidate, True
                break
    return case


def _candidates(case: Case) -> Iterator[Case]:
    """Smaller cases, the boldest first."""
    faults = case.faults
    share = len(faults) // 2
    while share >= 1:
        for first in range(0, len(faults), share):
            yield dataclasses.replace(case, faults=faults[:first] + faults[first + share :])
        share //= 2
    if case.lines > 1:
        for number in range(case.lines):
            yield dataclasses.replace(
                case, lines=case.lines - 1, faults=_without_line(faults, number)
            )
    if case.gpus > 1:
        kept = tuple(f for f in faults if not (f.kind.startswith("gpu-") and f.target))
        yield dataclasses.replace(case, gpus=1, faults=kept)
    for load_ms in LOAD_STEPS_MS:
        if load_ms < case.load_ms:
            kept = tuple(f for f in faults if f.at_ms < load_ms)
            yield dataclasses.replace(case, load_ms=load_ms, faults=kept)
    if case.readmit_ms > 500:
        yield dataclasses.replace(case, readmit_ms=500)
    if case.policy != "takt":
        yield dataclasses.replace(case, policy="takt")
    if case.tick_ns:
        yield dataclasses.replace(case, tick_ns=0)


def _without_line(faults: tuple[Fault, ...], number: int) -> tuple[Fault, ...]:
    """The faults without one line's; later lines move up by one."""
    kept = []
    for fault in faults:
        if fault.kind.startswith("gpu-"):
            kept.append(fault)
        elif fault.target != number:
            moved = fault.target - (fault.target > number)
            kept.append(dataclasses.replace(fault, target=moved))
    return tuple(kept)
