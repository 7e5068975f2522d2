"""Bugs to plant in the shipped code for one simulated run, each as the changes that make it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from appliance import batcher as batcher_
from appliance.journal_store import JournalStore
from appliance.line_links import LineLinks
from appliance.triton.endpoint import Endpoint
from deadline_batcher import link
from fallback import guard as g
from hil_sim.fuzz.substitutes import Change
from lines import process as process_
from lines.journal_link import JournalSender
from lines.ledger import EntryState, Ledger
from lines.part_book import PartBook
from lines.pool_link import PoolLink
from lines.slots import SlotWriter
from lines.threads import JobThread

Plant = Callable[[], list[Change]]


def forgets_its_former_self() -> list[Change]:
    """A line that starts anew knows no part of before: its camera's next frame shows a gap."""
    return [(Ledger, "remembered", lambda self: [])]


def hello_is_lost() -> list[Change]:
    """A hello that finds no batcher is not said again."""

    def say_hello(self: Any) -> None:
        self._greet()
        self._owes_hello = False

    return [(PoolLink, "say_hello", say_hello)]


def slot_without_quarantine() -> list[Change]:
    """An overdue batch's slot is given up at once, while the server may still write to it."""
    doubt = Endpoint.doubt

    def hasty(self: Endpoint, is_fault: bool) -> None:
        doubt(self, is_fault)
        if self.live is not None:
            region = self.live.region
            busy = [k for k in range(len(region.slots)) if k not in region._free]
            region._free.extendleft(busy)

    return [(Endpoint, "doubt", hasty)]


def no_take_over_without_refusal() -> list[Change]:
    """The fallback starts only where the pool said no: a dead batcher says nothing."""
    started = g.Guard._next_to_run

    def waiting(self: g.Guard) -> Any:
        part = started(self)
        return part if part is not None and part.is_pool_out else None

    return [(g.Guard, "_next_to_run", waiting)]


def answers_are_believed() -> list[Change]:
    """Neither batcher nor line compares an answer's nonce with the part's."""

    received = PoolLink.received

    def believing(self: PoolLink) -> list[Any]:
        return [
            message._replace(nonce_echo=offered[id(self), message.part])
            if isinstance(message, link.Result) and (id(self), message.part) in offered
            else message
            for message in received(self)
        ]

    offered: dict[tuple[int, int], int] = {}
    tell = PoolLink.tell

    def telling(self: PoolLink, message: link.Message) -> bool:
        if isinstance(message, link.Part):
            offered[id(self), message.part] = message.nonce
        return tell(self, message)

    return [
        (batcher_, "unwritten_rows", lambda slot, rows: None),
        (PoolLink, "received", believing),
        (PoolLink, "tell", telling),
    ]


def refused_part_forgotten() -> list[Change]:
    """A part whose picture turns out bad leaves the guard without a verdict."""
    decide = g.Guard._decide

    def forget(self: g.Guard, part: int, by: str, reason: str, commands: Any) -> None:
        if reason in ("checksum", "decode"):
            del self._open[part]
        else:
            decide(self, part, by, reason, commands)

    return [(g.Guard, "_decide", forget)]


def slot_leaks() -> list[Change]:
    """A part decided while the fallback reads its picture never gives its slot back."""
    ended = PartBook.read_ended

    def leak(self: PartBook, number: int) -> None:
        ended(self, number)
        self._parts.pop(number, None)

    return [(PartBook, "read_ended", leak)]


def dropped_rows_untold() -> list[Change]:
    """Rows beyond the sender's limit are gone and nobody says so."""
    return [(JournalSender, "_report_drops", lambda self: None)]


def wakeup_lost() -> list[Change]:
    """A thread that has a result does not ring the loop."""

    def run(self: Any) -> None:
        while (job := self._jobs.get()) is not None:
            self.outcomes.append(self._work(job))

    return [(JobThread, "_run", run)]


def state_before_row() -> list[Change]:
    """The ledger's state says accepted before the row is there."""

    def accept(self: Ledger, part: int, row: dict[str, Any]) -> None:
        self._set(part, EntryState.ACCEPTED)
        self._write_row(part, 0, process_.wire.json.dumps(row).encode())

    return [(Ledger, "accept", accept)]


def commit_failure_ignored() -> list[Change]:
    """The journal acknowledges what the disk refused."""
    write = JournalStore.write

    def careless(self: JournalStore, *told: Any) -> list[str]:
        try:
            return write(self, *told)
        except Exception:
            return []

    return [(JournalStore, "write", careless)]


def wall_clock_decides() -> list[Change]:
    """The line's loop reads the wall clock."""
    real = process_.time

    class Wall:
        monotonic_ns = staticmethod(lambda: real.time_ns() - 1_700_000_000_000_000_000)
        time_ns = staticmethod(real.time_ns)

    return [(process_, "time", Wall)]


def offers_are_kept() -> list[Change]:
    """The batcher keeps what it has answered."""

    def answer(self: LineLinks, key: Any, result: link.Result) -> None:
        offer = self._offers.get(key)
        if offer is not None:
            self._send(offer.line_id, result)

    return [(LineLinks, "answer", answer)]


def margins_forgotten() -> list[Change]:
    """The guard gives up at `due` and not `timer_ns` before it."""
    handle = g.Guard.handle

    def late(self: g.Guard, event: g.Event, now_ns: int) -> Any:
        if isinstance(event, g.PartAccepted):
            event = event._replace(due_at_ns=event.due_at_ns + self.plan.timer_ns)
        return handle(self, event, now_ns)

    return [(g.Guard, "handle", late)]


def slot_not_reserved() -> list[Change]:
    """A slot is handed out and stays free."""
    return [
        (SlotWriter, "take", lambda self: self._free[-1] if self._free else None),
        (SlotWriter, "release", lambda self, slot: None),
    ]


def accepted_after_the_ack() -> list[Change]:
    """A part is written into the ledger only when its verdict goes out."""
    return [(Ledger, "accept", lambda self, part, row: None)]


def sent_row_not_written() -> list[Change]:
    """The ledger is told that a verdict is on its way, never that it has left."""
    return [(Ledger, "sent", lambda self, part, row: None)]


BUGS: dict[str, Plant] = {
    plant.__name__: plant
    for plant in (
        forgets_its_former_self, hello_is_lost, slot_without_quarantine,
        no_take_over_without_refusal, answers_are_believed, refused_part_forgotten, slot_leaks,
        dropped_rows_untold, wakeup_lost, state_before_row, commit_failure_ignored,
        wall_clock_decides, offers_are_kept, margins_forgotten, slot_not_reserved,
        accepted_after_the_ack, sent_row_not_written,
    )
}  # fmt: skip
