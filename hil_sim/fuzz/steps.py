"""Every step of the protocols at which a process may die: before it is done, or just after.

A step is a call of a shipped method; wrapping them all by name keeps the list honest, because a
method that is renamed breaks the list and not the search.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any

from hil_sim.fuzz.host import Killed, World

STEPS: dict[str, tuple[str, str]] = {
    # the line: accepted in the ledger, acknowledged, decoded, offered, decided, sent, journalled
    "line.take_over": ("lines.part_book:PartBook", "take_over"),
    "line.ledger_settle": ("lines.ledger:Ledger", "settle"),
    "line.open": ("lines.part_book:PartBook", "open"),
    "line.ledger_accept": ("lines.ledger:Ledger", "accept"),
    "line.mark_lost": ("lines.ledger:Ledger", "mark_lost"),
    "line.ledger_row": ("lines.ledger:Ledger", "_write_row"),
    "line.ledger_state": ("lines.ledger:Ledger", "_set"),
    "line.take_slot": ("lines.part_book:PartBook", "take_slot"),
    "line.job_queued": ("lines.threads:JobThread", "put"),
    "line.picture_in_slot": ("lines.slots:SlotWriter", "write"),
    "line.answer_camera": ("lines.intake:Intake", "answer"),
    "line.hello_to_batcher": ("lines.pool_link:PoolLink", "say_hello"),
    "line.tell_batcher": ("lines.pool_link:PoolLink", "tell"),
    "line.guard": ("fallback.guard:Guard", "handle"),
    "line.ledger_sending": ("lines.ledger:Ledger", "sending"),
    "line.send_verdict": ("lines.output:VerdictOutput", "send"),
    "line.ledger_sent": ("lines.ledger:Ledger", "sent"),
    "line.journal_add": ("lines.journal_link:JournalSender", "add"),
    "line.journal_flush": ("lines.journal_link:JournalSender", "flush"),
    "line.slot_released": ("lines.slots:SlotWriter", "release"),
    "line.read_begins": ("lines.part_book:PartBook", "read_begins"),
    "line.read_ended": ("lines.part_book:PartBook", "read_ended"),
    # the batcher: offered, scheduled, gathered, called, answered, told, released
    "batcher.schedule": ("appliance.event_journal:EventJournal", "handle"),
    "batcher.region_take": ("appliance.triton.region:Region", "take"),
    "batcher.copy_picture": ("appliance.line_links:LineLinks", "copy_picture"),
    "batcher.poison": ("appliance.triton.region:BatchSlot", "poison"),
    "batcher.call": ("hil_sim.fuzz.engines:Client", "infer"),
    "batcher.tell_answer": ("appliance.line_links:LineLinks", "answer"),
    "batcher.tell_refusal": ("appliance.line_links:LineLinks", "refuse"),
    "batcher.region_settle": ("appliance.triton.region:Region", "settle"),
    "batcher.register": ("hil_sim.fuzz.engines:Client", "register"),
    "batcher.golden": ("appliance.triton.proof:Proof", "_golden"),
    "batcher.doubt": ("appliance.triton.endpoint:Endpoint", "doubt"),
    "batcher.journal_flush": ("lines.journal_link:JournalSender", "flush"),
    # the journal: taken, inside the transaction, committed, acknowledged
    "journal.take": ("appliance.journal:Journal", "take"),
    "journal.insert": ("appliance.journal_store:JournalStore", "_insert_parts"),
    "journal.commit": ("appliance.journal_store:JournalStore", "write"),
    "journal.acknowledge": ("appliance.journal:", "_acknowledge"),
}


def owner_of(step: str) -> tuple[Any, str]:
    """The class or module that has the step's method, and the method's name."""
    place, method = STEPS[step]
    module, _, name = place.partition(":")
    owner: Any = importlib.import_module(module)
    return (getattr(owner, name) if name else owner), method


@dataclass(slots=True)
class KillAt:
    """Kill the process `process` at the `count`-th time that it comes to a step's before or after,
    counted from `from_ns` on."""

    step: str
    when: str
    process: str
    count: int
    from_ns: int
    is_done: bool = False
    is_reached: bool = False


class Stepper:
    """Counts steps and kills where it was told to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._plans: dict[str, list[KillAt]] = {}

    def plan(self, kill: KillAt) -> None:
        """Have one more process killed."""
        self._plans.setdefault(kill.step, []).append(kill)

    def wrappers(self) -> list[tuple[Any, str, Callable[..., Any]]]:
        """(owner, name, replacement) of every step that is planned for."""
        found: dict[tuple[str, str], list[str]] = {}
        for step in self._plans:
            found.setdefault(STEPS[step], []).append(step)
        return [
            (*owner_of(steps[0]), self._wrapped(getattr(*owner_of(steps[0])), steps))
            for steps in found.values()
        ]

    def _wrapped(self, method: Callable[..., Any], steps: list[str]) -> Callable[..., Any]:
        @wraps(method)
        def stepping(*told: Any, **named: Any) -> Any:
            self._reach(steps, "before")
            outcome = method(*told, **named)
            self._reach(steps, "after")
            return outcome

        return stepping

    def _reach(self, steps: list[str], when: str) -> None:
        world = self._world
        if world.current is None:
            return
        process = world.current.process
        for step in steps:
            for kill in self._plans[step]:
                if (
                    kill.is_done
                    or kill.when != when
                    or kill.process != process.name
                    or world.now_ns < kill.from_ns
                ):
                    continue
                kill.count -= 1
                if kill.count <= 0:
                    kill.is_done = kill.is_reached = True
                    world.kill(process, f"{when} {step}")
                    raise Killed
