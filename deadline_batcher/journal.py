"""The event journal: every (instant, event, commands) as one JSON line, and its replay.

Replaying a journal through a fresh scheduler must give the same commands. The first line holds
the plan; nothing in the journal is volatile, because time is an argument.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from deadline_batcher import messages
from deadline_batcher.messages import Command, Event, PartKey, PartReady
from deadline_batcher.overrun import Overruns
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.scheduler import Scheduler

JOURNAL_VERSION = 3
_EVENTS: dict[str, Any] = {
    name: getattr(messages, name)
    for name in (
        "PartReady",
        "PoolDueMoved",
        "PartWithdrawn",
        "BatchDone",
        "BatchFailed",
        "GpuReady",
        "GpuLost",
        "GpuDrained",
        "GpuDoubted",
        "GoldenWanted",
        "GoldenDone",
        "TimeReached",
    )
}
_KEYED = {"PartReady", "PoolDueMoved", "PartWithdrawn"}


class JournalError(Exception):
    """A journal that cannot be read, or that does not replay; the text names the line."""


class JournalVersionError(JournalError):
    """A journal of another release, whose scheduler decided by other rules."""


def encode_header(
    plan: Plan, epoch: int, batches_run: int, overruns: Sequence[Overruns] = ()
) -> str:
    """The first line of a journal: what the scheduler was made from."""
    header = {
        "version": JOURNAL_VERSION,
        "epoch": epoch,
        "batches_run": batches_run,
        "overruns": overruns,
    }
    return json.dumps({**header, "plan": asdict(plan)})


def encode_entry(now_ns: int, event: Event, commands: tuple[Command, ...]) -> str:
    """One line of a journal."""
    told = [type(event).__name__, *event]
    ordered = [[type(command).__name__, *command] for command in commands]
    return json.dumps([now_ns, told, ordered], separators=(",", ":"))


def decode_header(line: str) -> Scheduler:
    """The fresh scheduler of a journal's first line. Raises JournalError."""
    try:
        header = json.loads(line)
        if header["version"] != JOURNAL_VERSION:
            raise JournalVersionError(
                f"line 1: version {header['version']}, and this release writes and replays "
                f"{JOURNAL_VERSION}; replay it with the release that wrote it"
            )
        fields = header["plan"]
        categories = tuple(
            Category(c["name"], tuple(c["wcet_ns"]), c["window_ns"], tuple(c["used"]))
            for c in fields["categories"]
        )
        policy = PolicySpec(**fields["policy"])
        lines = tuple(LineTiming(**timing) for timing in fields["lines"])
        plan = Plan(**{**fields, "categories": categories, "policy": policy, "lines": lines})
        overruns = tuple(Overruns(o[0], o[1], tuple(o[2])) for o in header["overruns"])
        return Scheduler(plan, header["batches_run"], overruns)
    except (ValueError, KeyError, TypeError) as error:
        raise JournalError(f"line 1: not a journal's header ({error})") from None


def decode_event(told: list[Any]) -> Event:
    """An event from its JSON form."""
    name, *fields = told
    if name in _KEYED:
        fields[0] = PartKey(*fields[0])
    event: Event = _EVENTS[name](*fields)
    return event


def replay(lines: Iterable[str]) -> Iterator[tuple[int, Event, tuple[Command, ...]]]:
    """Run a journal through a fresh scheduler, yielding what it ordered this time.

    Raises JournalError at the first line whose commands differ. A last line cut short by a crash
    ends the replay.
    """
    iterator = iter(lines)
    scheduler = decode_header(next(iterator, ""))
    for number, line in enumerate(iterator, start=2):
        try:
            now_ns, told, ordered = json.loads(line)
        except ValueError:
            if next(iterator, None) is not None:
                raise JournalError(f"line {number}: not JSON, and not the last line") from None
            return
        event = decode_event(told)
        commands = scheduler.handle(event, now_ns)
        again = json.loads(encode_entry(now_ns, event, commands))[2]
        if again != ordered:
            raise JournalError(
                f"line {number}: at {now_ns} {told} was answered by {ordered}, now by {again}"
            )
        yield now_ns, event, commands


def parts_ready(entries: Iterable[tuple[int, Event, tuple[Command, ...]]]) -> int:
    """How many parts a journal speaks of: shows that a replay was not vacuous."""
    return sum(isinstance(event, PartReady) for _, event, _ in entries)
