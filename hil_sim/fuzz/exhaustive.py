"""A kill at every step of every protocol, before and after it: one case each."""

from __future__ import annotations

from hil_sim.fuzz.case import Case, Fault
from hil_sim.fuzz.steps import STEPS

SETTLING = {
    "line.take_over", "line.ledger_settle", "line.hello_to_batcher", "batcher.register",
    "batcher.golden",
}  # fmt: skip
"""Steps of a start: the process is killed first, so that it starts again."""
LATER = {"line.ledger_accept": 30, "line.ledger_row": 61, "line.ledger_state": 91,
         "line.ledger_sent": 30}  # fmt: skip
"""Steps that are done once more when the ledger's ring has come round, at this occurrence."""
STEP_SEED = 1_000_000


def cases() -> list[Case]:
    """In the order of the list of steps."""
    wanted = [(step, when, 1) for step in STEPS for when in ("before", "after")]
    wanted += [(step, when, LATER[step]) for step in LATER for when in ("before", "after")]
    return [
        Case(
            seed=STEP_SEED + number, lines=2, gpus=1, load_ms=700 if count == 1 else 1600,
            readmit_ms=500, cycle_ms=40, deadline_ms=110, tick_ns=1000,
            faults=_faults(step, when, count),
        )
        for number, (step, when, count) in enumerate(wanted)
    ]  # fmt: skip


def _faults(step: str, when: str, count: int) -> tuple[Fault, ...]:
    kill = Fault("kill-step", 50, 0, 0, f"{step} {when} {count}")
    kind = step.split(".", 1)[0]
    if step in SETTLING:
        return (kill, Fault(f"kill-{kind}", 100))
    if step == "batcher.doubt":
        return (kill, Fault("gpu-lies", 60, 400, 0, "unwritten"))
    if step == "line.mark_lost":
        return (kill, Fault("decode-slow", 60, 400))
    if step == "batcher.tell_refusal":
        return (kill, Fault("stop-batcher", 340, 320))
    if step in ("line.read_begins", "line.read_ended"):
        return (kill, Fault("stop-batcher", 60, 400))
    return (kill,)
