"""The sender of journal rows, with literal times and a journal made of one socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

from lines.journal_link import ACKNOWLEDGED, JournalSender

MS = 1_000_000
S = 1000 * MS
ROW = {"at_ns": 1, "unit": "u", "kind": "k", "subject": "s", "detail": ""}


class BareJournal:
    """Takes batches and answers by hand."""

    def __init__(self, folder: Path) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.senders: list[JournalSender] = []
        self.endpoint = f"ipc://{folder}/j.sock"
        self.router = self.context.socket(zmq.ROUTER)
        self.router.linger = 0
        self.router.bind(self.endpoint)

    def sender(self, backlog_s: float = 60, rows_max: int = 1000) -> JournalSender:
        sender = JournalSender(self.context, self.endpoint, "line-line01", backlog_s, rows_max)
        self.senders.append(sender)
        sender.socket.poll(1000, zmq.POLLOUT)
        return sender

    def take(self, wait_ms: int = 1000) -> tuple[bytes, bytes, Any] | None:
        if not self.router.poll(wait_ms):
            return None
        who, kind, batch_id, payload = self.router.recv_multipart()
        assert kind == b"R"
        return who, batch_id, json.loads(payload)

    def acknowledge(self, sender: JournalSender, who: bytes, batch_id: bytes) -> None:
        self.router.send_multipart([who, ACKNOWLEDGED, batch_id])
        assert sender.socket.poll(1000)
        sender.on_readable()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[BareJournal]:
    bare = BareJournal(tmp_path)
    yield bare
    for sender in bare.senders:
        sender.close(0)
    bare.context.destroy(0)


def test_rows_go_out_together_at_most_every_50_ms(journal: BareJournal) -> None:
    sender = journal.sender()
    assert sender.flush_due_at_ns() is None
    sender.flush(10 * S)
    sender.add("events", ROW)
    sender.add("events", {**ROW, "at_ns": 2})
    assert sender.flush_due_at_ns() == 10 * S + 50 * MS
    sender.flush(10 * S + 50 * MS)
    taken = journal.take()
    assert taken is not None
    assert taken[2] == {"unit": "line-line01", "parts": [], "batches": [],
                        "events": [ROW, {**ROW, "at_ns": 2}], "triton": []}  # fmt: skip
    journal.acknowledge(sender, *taken[:2])
    assert (sender.rows_held, sender.flush_due_at_ns()) == (0, None)


def test_silence_sends_again_later_and_later(journal: BareJournal) -> None:
    sender = journal.sender()
    sender.add("events", ROW)
    sender.flush(10 * S)
    first = journal.take()
    assert first is not None
    for at, again_at in ((11 * S, 13 * S), (13 * S, 17 * S), (17 * S, 25 * S), (25 * S, 33 * S)):
        assert sender.flush_due_at_ns() == at
        sender.flush(at - 1)
        assert journal.take(20) is None
        sender.flush(at)
        assert journal.take() == first
        assert sender.flush_due_at_ns() == again_at
    journal.acknowledge(sender, *first[:2])
    assert (sender.rows_held, sender.dropped_rows) == (0, 0)


def test_acknowledgements_of_later_batches_do_not_put_off_one_that_was_lost(
    journal: BareJournal,
) -> None:
    sender = journal.sender()
    sender.add("events", ROW)
    sender.flush(10 * S)
    lost = journal.take()
    assert lost is not None  # the journal died with it
    came_again = []
    for number in range(1, 13):
        sender.add("events", {**ROW, "at_ns": 1 + number})
        sender.flush(10 * S + number * 100 * MS)
        while (taken := journal.take(20)) is not None:
            if taken[1] == lost[1]:
                came_again.append(number)
            else:
                journal.acknowledge(sender, taken[0], taken[1])
    assert came_again == [10]  # a second after it was sent


def test_the_oldest_are_dropped_after_the_backlog_and_reported(journal: BareJournal) -> None:
    sender = journal.sender(backlog_s=2)
    for at in (10 * S, 11 * S, 12 * S + 1):
        sender.add("events", ROW)
        sender.flush(at)
    assert (sender.rows_held, sender.dropped_rows) == (2, 1)
    journal.take()
    kept = journal.take()
    assert kept is not None
    journal.acknowledge(sender, *kept[:2])
    assert sender.rows_held == 2  # the other one, and the event about what was dropped


def test_the_limit_on_rows_holds_without_any_flush(journal: BareJournal) -> None:
    sender = journal.sender(rows_max=10)
    for at_ns in range(25):
        sender.add("events", {**ROW, "at_ns": at_ns})
    assert (sender.rows_held, sender.dropped_rows) == (10, 15)
    sender.flush(10 * S)
    taken = journal.take()
    assert taken is not None
    assert [row["at_ns"] for row in taken[2]["events"]] == list(range(15, 25))


def test_many_rows_are_cut_into_batches(journal: BareJournal) -> None:
    sender = journal.sender(rows_max=5000)
    for at_ns in range(2500):
        sender.add("events", {**ROW, "at_ns": at_ns})
    sender.flush(10 * S)
    sizes = [len(taken[2]["events"]) for taken in iter(lambda: journal.take(200), None)]
    assert sizes == [1000, 1000, 500]


def test_an_unknown_kind_is_a_mistake_of_ours(journal: BareJournal) -> None:
    with pytest.raises(KeyError):
        journal.sender().add("pictures", ROW)
