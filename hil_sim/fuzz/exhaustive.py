"""A kill at every step of every protocol, before and after it: one case each."""

from __future__ import annotations

from hil_sim.fuzz.case import Case, Fault
from hil_sim.fuzz.steps import STEPS

SETTLING = {
    "line.take_over", "line.ledger_settle", "line.hello_to_batcher", "batcher.register",
    "batcher.golden",
}  # fmt: skip
"""Steps of a start: the process is killed first, so that it starts again."""
STEP_SEED = 1_000_000


def cases() -> list[Case]:
    """In the order of the list of steps."""
    made = []
    for step in STEPS:
        for when in ("before", "after"):
            seed = STEP_SEED + len(made)
            made.append(
                Case(
                    seed=seed, lines=2, gpus=1, load_ms=700, readmit_ms=500, cycle_ms=40,
                    deadline_ms=110, tick_ns=1000, faults=_faults(step, when),
                )
            )  # fmt: skip
    return made


def _faults(step: str, when: str) -> tuple[Fault, ...]:
    kill = Fault("kill-step", 50, 0, 0, f"{step} {when} 1")
    kind = step.split(".", 1)[0]
    if step in SETTLING:
        return (kill, Fault(f"kill-{kind}", 100))
    if step == "batcher.doubt":
        return (kill, Fault("gpu-lies", 60, 400, 0, "unwritten"))
    if step == "batcher.tell_refusal":
        return (kill, Fault("gpu-hung", 60, 400, 0))
    if step in ("line.read_begins", "line.read_ended"):
        return (kill, Fault("stop-batcher", 60, 400))
    return (kill,)
