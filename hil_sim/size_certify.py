"""Which settings are proved to hold on so many GPUs: caps, windows, and the rule that must run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deadline_batcher.sizing.bounds import fluid_load, frontier
from deadline_batcher.sizing.deeprt import find_windows
from deadline_batcher.sizing.global_np import (
    Finding,
    Result,
    batched_tasks,
    certify_batch_one,
    certify_work_conserving,
    spare_under_edf,
)
from deadline_batcher.sizing.load import Load, ceil_div, running_ns

SOURCES = {
    "work-conserving": "any work-conserving rule, after Guan et al. RTSS 2008, own proof",
    "batch-one": "global non-preemptive EDF at batch 1, after Guan et al. RTSS 2008, own proof",
    "windows": "windows, after DeepRT (Yang et al. SEC 2021), for N GPUs, own proof",
}
FACTOR_STEPS = 128
"""Load factors are tried in 128ths."""
FACTOR_MAX = 8.0
"""More than this many times the plant's load is not looked at."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A proof that a setting holds. policy: the shipped rule that it covers."""

    test: str
    policy: str
    caps: tuple[int, ...]
    windows_ns: tuple[int, ...]
    result: Result


def largest_caps(load: Load) -> tuple[int, ...]:
    """Per category the largest efficient batch that fits its tightest line, were it alone."""
    caps = []
    for number, category in enumerate(load.categories):
        needed = [one.needed_ns for one in load.streams if one.category == number]
        least_ns = min(needed, default=category.wcet_ns[-1])
        sizes = frontier(category.wcet_ns)
        caps.append(max((b for b in sizes if category.wcet_ns[b - 1] <= least_ns), default=1))
    return tuple(caps)


def _work_conserving(load: Load, gpus: int) -> Certificate | None:
    """The largest caps: all halved until it holds, then each as large as still holds."""
    top = largest_caps(load)
    for halvings in range(max(top).bit_length()):
        caps = [max(1, cap >> halvings) for cap in top]
        if not certify_work_conserving(load.capped(caps), gpus).holds:
            continue
        for number, category in enumerate(load.categories):
            sizes = [b for b in frontier(category.wcet_ns) if caps[number] < b <= top[number]]
            for size in reversed(sizes):
                larger = [*caps[:number], size, *caps[number + 1 :]]
                if certify_work_conserving(load.capped(larger), gpus).holds:
                    caps = larger
                    break
        result = certify_work_conserving(load.capped(caps), gpus)
        return Certificate("work-conserving", "eager", tuple(caps), (0,) * len(caps), result)
    return None


def _batch_one(load: Load, gpus: int) -> Certificate | None:
    result = certify_batch_one(load, gpus)
    count = len(load.categories)
    one, none = (1,) * count, (0,) * count
    return Certificate("batch-one", "eager", one, none, result) if result.holds else None


def binding_of(load: Load, gpus: int, proof: Certificate) -> Finding:
    """The line with least to spare under a proof that holds."""
    if proof.test != "batch-one":
        return proof.result.binding
    single = load.capped(proof.caps)
    return spare_under_edf(batched_tasks(single), running_ns(single, gpus), gpus)


def _windows(load: Load, gpus: int) -> Certificate | None:
    found = find_windows(load, gpus)
    if found is None:
        return None
    return Certificate("windows", "window", found.caps, found.windows_ns, found.result)


CERTIFIERS: dict[str, Callable[[Load, int], Certificate | None]] = {
    "work-conserving": _work_conserving,
    "windows": _windows,
    "batch-one": _batch_one,
}
"""In order of what they allow: the first that holds is the one to run."""


def certificates(load: Load, gpus: int) -> list[Certificate]:
    """Every proof that holds, the most useful first."""
    if any(one.needed_ns <= 0 for one in load.streams):
        return []
    found = (certify(load, gpus) for certify in CERTIFIERS.values())
    return [certificate for certificate in found if certificate is not None]


def certified_factor(load: Load, gpus: int, test: str) -> float:
    """The largest factor on all rates at which a test still holds; 0 where none does."""
    certify = CERTIFIERS[test]
    top = min(fluid_load(load, gpus), FACTOR_MAX)
    low, high = 0, max(1, int(top * FACTOR_STEPS)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if certify(load.at(middle, FACTOR_STEPS), gpus) is not None:
            low = middle
        else:
            high = middle
    return low / FACTOR_STEPS


def wait_terms(load: Load, gpus: int, certificate: Certificate) -> list[tuple[str, float]]:
    """The sum that bounds the wait under the work-conserving test, in ms of one GPU's time."""
    held = load.capped(certificate.caps).windowed(certificate.windows_ns)
    wait_ns = certificate.result.wait_ns
    terms = [
        (f"{gpus - 1} longest batches that run already", sum(running_ns(held, gpus)[: gpus - 1])),
        ("a golden", held.golden_ns),
    ]
    tasks = batched_tasks(held)
    for number, category in enumerate(held.categories):
        mine = [
            task for task, one in zip(tasks, held.streams, strict=True) if one.category == number
        ]
        parts = sum(ceil_div(wait_ns + task.jitter_ns, task.period_ns) for task in mine)
        cost_ns = parts * (mine[0].cost_ns if mine else 0)
        terms.append((f"{parts} parts of {category.name} that come meanwhile", cost_ns))
    own_ns = min((task.own_ns for task in tasks), default=0)
    terms.append(("the part itself, which has not run", -own_ns))
    return [(name, time_ns / 1e6) for name, time_ns in terms]
