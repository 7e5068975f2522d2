"""Which lines the surviving GPUs carry: sufficient tests only, no search over phases.

Lines keep the pool in the order of their criticality (1 longest; among equals the one named first
in the plant). The longest such row that a test passes is carried, the rest goes to its fallback.
Every test is monotone in lines and in GPUs (`global_np`), so the row is found by bisection, and
removing a line or adding a GPU never sheds one more. A line that would be late even alone on an
idle GPU is shed first: no other line can help it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from deadline_batcher.sizing.bounds import fluid_share
from deadline_batcher.sizing.deeprt import certify_sliding
from deadline_batcher.sizing.global_np import (
    Result,
    certify_batch_one,
    certify_work_conserving,
)
from deadline_batcher.sizing.load import Load, Stream

Test = Callable[[Load, int], Result | None]

TESTS: dict[str, Test] = {
    "work-conserving": lambda load, gpus: certify_work_conserving(_unheld(load), gpus),
    "batch-one": certify_batch_one,
    "windows": certify_sliding,
}
"""By what must run for the test to mean something: any rule that never idles while a part waits;
earliest deadline first with every part alone; the shipped window rule."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What is carried, in order of criticality; what is not; the test that says so ("" if none).

    unproved: shed lines that the fluid bound does not exclude: a simulation may show more.
    """

    carried: tuple[str, ...]
    shed: tuple[str, ...]
    proof: str
    unproved: tuple[str, ...]


def _unheld(load: Load) -> Load:
    return load.windowed([0] * len(load.categories))


def admit(load: Load, gpus: int, tests: Sequence[str] = tuple(TESTS)) -> Admission:
    """The lines that `gpus` GPUs carry for sure. Any test of `tests` will do.

    Name only tests of what runs: a window certificate says nothing of a rule without windows.
    """
    ranked = sorted(load.streams, key=lambda stream: stream.criticality)
    hopeless = [one for one in ranked if _is_hopeless(load, one)] if gpus else ranked
    names = {one.name for one in hopeless}
    able = [one for one in ranked if one.name not in names]
    carried, proof = _longest(load, able, gpus, tests)
    rest = able[carried:]
    share, unproved = fluid_share(replace(load, streams=tuple(able[:carried]))), []
    for one in rest:
        share += fluid_share(replace(load, streams=(one,)))
        if share > gpus:
            break
        unproved.append(one.name)
    return Admission(
        tuple(one.name for one in able[:carried]),
        tuple(one.name for one in [*rest, *hopeless]),
        proof,
        tuple(unproved),
    )


def _is_hopeless(load: Load, one: Stream) -> bool:
    return load.categories[one.category].wcet_ns[0] > one.needed_ns


def _longest(
    load: Load, able: Sequence[Stream], gpus: int, tests: Sequence[str]
) -> tuple[int, str]:
    """How many of the row pass, by bisection, and by which test."""
    proof = _proof(load, able, gpus, tests)
    if proof or not able:
        return len(able), proof
    low, high, low_proof = 0, len(able), ""
    while high - low > 1:
        middle = (low + high) // 2
        proof = _proof(load, able[:middle], gpus, tests)
        if proof:
            low, low_proof = middle, proof
        else:
            high = middle
    return low, low_proof


def _proof(load: Load, row: Sequence[Stream], gpus: int, tests: Sequence[str]) -> str:
    asked = replace(load, streams=tuple(row))
    for name in tests:
        result = TESTS[name](asked, gpus)
        if result is not None and result.holds:
            return name
    return ""
