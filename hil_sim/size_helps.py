"""What would help a plant, as numbers: GPUs, batch caps, deadlines; what it needs to fit.

Each answer is found by search on the worst phases seen and then tried on fresh adverse ones, so it
is evidence like the rest: a value that held, not the least that ever could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deadline_batcher.sizing.bounds import fluid_share
from deadline_batcher.sizing.load import Load
from hil_sim.size_certify import largest_caps
from hil_sim.size_evidence import Phases, first_phases, search
from hil_sim.size_judge import Asked, Judgement, halved, holds, largest_factor, worst_phases
from hil_sim.size_plant import GPUS_MAX

TENTH = 10
HALVINGS = 2
DEADLINE_STEPS = 64
"""A deadline is sought in so many parts of the longest one, then confirmed or raised by more."""
RAISES = (0, 1, 2, 4, 8, 16, 32)
LONGEST_FACTOR = 16
"""Deadlines are not lengthened by more than this many times the longest one."""


@dataclass(frozen=True, slots=True)
class Help:
    """what: in words. factor: of the load that then holds; None where only the value says it.

    value: GPUs, or milliseconds added to every deadline (below 0: shorter); None where none helps.
    """

    what: str
    factor: float | None = None
    value: float | None = None
    fits: bool = False


def what_helps(
    asked: Asked, judged: Judgement, others: Sequence[Judgement], seed: int = 1
) -> list[Help]:
    """For the least number of GPUs that must fit."""
    phases = worst_phases(judged.sights) or first_phases(asked.load, 4, seed)
    found = [_more_gpus(asked, judged, others, phases)]
    caps = judged.caps
    for divisor, halvings in (("half", 1), ("a quarter of", HALVINGS)):
        smaller = halved(asked.load, judged.caps, halvings)
        if smaller != caps and judged.sights:
            found.append(_with(asked, f"{divisor} the batch caps", judged.gpus, smaller, phases))
        caps = smaller
    longer = stretched(asked, [due_ns // TENTH for due_ns in asked.due_ns])
    wider = largest_caps(longer.load)
    found.append(_with(longer, "deadlines a tenth longer", judged.gpus, wider, phases))
    trial = _trial(asked, judged, phases, seed)
    if not judged.fits:
        found.append(gpus_needed(asked, judged, trial))
    found.append(deadline_needed(asked, judged, trial))
    return found


def _more_gpus(
    asked: Asked, judged: Judgement, others: Sequence[Judgement], phases: Sequence[Phases]
) -> Help:
    gpus = judged.gpus + 1
    known = next((one for one in others if one.gpus == gpus), None)
    if known is not None:
        return Help("one more GPU", known.factor, gpus, known.fits)
    return replace(_with(asked, "one more GPU", gpus, judged.caps, phases), value=gpus)


def _with(
    asked: Asked, what: str, gpus: int, caps: Sequence[int], phases: Sequence[Phases]
) -> Help:
    fits = all(holds(asked, asked.load, asked.setting(caps), gpus, one) for one in phases)
    return Help(what, largest_factor(asked, gpus, caps, phases, fits), None, fits)


def stretched(asked: Asked, extra_ns: Sequence[int]) -> Asked:
    """The same with so much more (or less) for each line's deadline_ms, and slo_p99_ms if any."""
    streams = tuple(
        replace(one, relative_ns=one.relative_ns + ns, needed_ns=one.needed_ns + ns)
        for one, ns in zip(asked.load.streams, extra_ns, strict=True)
    )
    slo_ns = (
        None if slo is None else slo + ns for slo, ns in zip(asked.slo_ns, extra_ns, strict=True)
    )
    due_ns = (due + ns for due, ns in zip(asked.due_ns, extra_ns, strict=True))
    load = replace(asked.load, streams=streams)
    return replace(asked, load=load, slo_ns=tuple(slo_ns), due_ns=tuple(due_ns))


@dataclass(frozen=True, slots=True)
class _Trial:
    """A load asked again with other deadlines or GPUs. halvings: how often caps may be halved."""

    phases: Sequence[Phases]
    halvings: Sequence[int]
    seed: int

    def is_carried(self, asked: Asked, gpus: int, *, fresh: bool = False) -> bool:
        """Whether these phases hold; `fresh`: whether those of a new search do."""
        return fluid_share(asked.load) <= gpus and any(
            self._holds(asked, gpus, halvings, fresh=fresh) for halvings in self.halvings
        )

    def _holds(self, asked: Asked, gpus: int, halvings: int, *, fresh: bool) -> bool:
        setting = asked.setting(halved(asked.load, largest_caps(asked.load), halvings))
        if not fresh:
            return all(holds(asked, asked.load, setting, gpus, one) for one in self.phases)
        effort = replace(asked.effort, steps=asked.effort.steps // 2)
        sights = search(asked.load, setting, gpus, effort, self.seed + 7, asked.on_run)
        return asked.fits(sights[0])


def _trial(asked: Asked, judged: Judgement, phases: Sequence[Phases], seed: int) -> _Trial:
    """With the largest caps, and as often halved as the judgement found best."""
    full = largest_caps(asked.load)
    used = next((n for n in range(8) if halved(asked.load, full, n) == judged.caps), 0)
    return _Trial(phases, (used, 0) if used else (0,), seed)


def gpus_needed(asked: Asked, judged: Judgement, trial: _Trial) -> Help:
    """The least number of GPUs, beyond what is there, with which the load holds."""
    share = fluid_share(asked.load)
    least = judged.gpus + 1 if share == float("inf") else max(judged.gpus + 1, -int(-share // 1))
    for gpus in range(least, GPUS_MAX + 1):
        if trial.is_carried(asked, gpus) and trial.is_carried(asked, gpus, fresh=True):
            return Help("GPUs needed", None, gpus, True)
    return Help("GPUs needed")


def deadline_needed(asked: Asked, judged: Judgement, trial: _Trial) -> Help:
    """By how much all deadlines must grow to fit; where it fits, by how much they may shrink."""
    gpus = judged.gpus
    step_ns = max(1, max(asked.due_ns) // DEADLINE_STEPS)
    what = "deadlines needed" if not judged.fits else "deadlines could be"

    def at(steps: int, *, fresh: bool = False) -> bool:
        changed = stretched(asked, [steps * step_ns] * len(asked.due_ns))
        return not _has_none(changed.load) and trial.is_carried(changed, gpus, fresh=fresh)

    if judged.fits:
        low, high = -DEADLINE_STEPS, 0
    else:
        low, high = 0, 1
        while not at(high):
            low, high = high, 2 * high
            if high > LONGEST_FACTOR * DEADLINE_STEPS:
                return Help(what)
    while high - low > 1:
        middle = (low + high) // 2
        if at(middle):
            high = middle
        else:
            low = middle
    for steps in (high + more for more in RAISES):
        if steps >= 0 and judged.fits:
            return Help(what, None, 0.0, True)
        if at(steps, fresh=True):
            return Help(what, None, steps * step_ns / 1e6, True)
    return Help(what, None, 0.0, True) if judged.fits else Help(what)


def _has_none(load: Load) -> bool:
    """Whether a line has no time left for a picture alone."""
    return any(load.categories[one.category].wcet_ns[0] > one.needed_ns for one in load.streams)
