"""The event journal: a run replays to the same commands, and a changed one is found by its line."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from deadline_batcher import messages as m
from deadline_batcher.journal import (
    JournalError,
    decode_event,
    encode_entry,
    encode_header,
    parts_ready,
    replay,
)
from deadline_batcher.plan import Category, Plan, PolicySpec
from deadline_batcher.scheduler import Scheduler

MS = 1_000_000
PLAN = Plan((Category("m", (4 * MS, 6 * MS), 5 * MS),), 1, MS, MS, 2 * MS, 8, PolicySpec("window"))
KEY = m.PartKey(3, 14)
STORY: tuple[tuple[int, m.Event], ...] = (
    (0, m.GpuReady(0)),
    (1 * MS, m.PartReady(KEY, 0, 1 * MS, 40 * MS)),
    (2 * MS, m.PartReady(m.PartKey(4, 1), 0, 2 * MS, 50 * MS)),
    (5 * MS, m.PoolDueMoved(KEY, 39 * MS)),
    (8 * MS, m.BatchDone(1, 0)),
    (9 * MS, m.GoldenWanted(0)),
    (12 * MS, m.GoldenDone(0, True)),
    (13 * MS, m.PartReady(m.PartKey(4, 2), 0, 13 * MS, 60 * MS)),
    (18 * MS, m.TimeReached()),
    (19 * MS, m.BatchFailed(2, 0, True)),
    (20 * MS, m.PartWithdrawn(m.PartKey(4, 2))),
    (20 * MS, m.GpuDoubted(0, False)),
    (21 * MS, m.GpuDrained(0)),
    (22 * MS, m.GpuLost(0)),
)


def journal_of(story: Iterable[tuple[int, m.Event]], batches_run: int = 0) -> list[str]:
    scheduler = Scheduler(PLAN, batches_run)
    lines = [encode_header(PLAN, epoch=7, batches_run=batches_run)]
    lines += [encode_entry(now, event, scheduler.handle(event, now)) for now, event in story]
    return lines


def test_a_journal_replays_to_the_same_events_and_commands() -> None:
    entries = list(replay(journal_of(STORY)))
    assert [(now, event) for now, event, _ in entries] == list(STORY)
    ordered = [type(command).__name__ for _, _, commands in entries for command in commands]
    assert ordered == ["RunBatch", "RunGolden", "RunBatch", "SuspectGpu"]
    assert parts_ready(entries) == 3


def test_every_kind_of_event_is_in_the_story() -> None:
    assert {type(event) for _, event in STORY} == set(m.Event.__args__)


@pytest.mark.parametrize("event", [event for _, event in STORY])
def test_an_event_comes_back_from_its_json_with_its_types(event: m.Event) -> None:
    told = json.loads(encode_entry(5, event, ()))[1]
    again = decode_event(told)
    assert again == event and type(again) is type(event)
    if isinstance(again, m.PartReady | m.PoolDueMoved | m.PartWithdrawn):
        assert isinstance(again.key, m.PartKey)


def test_the_number_of_the_last_batch_before_is_kept() -> None:
    entries = list(replay(journal_of(STORY, batches_run=40)))
    batches = [c.batch_id for _, _, cs in entries for c in cs if isinstance(c, m.RunBatch)]
    assert batches == [41]  # the done and failed ones of the story name other batches


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        (4, '"RunBatch",1,0,0', '"RunBatch",1,1,0'),  # another GPU
        (4, "8000000]]", "8000001]]"),  # one nanosecond in a command
        (4, ',[["RunBatch"', ',[["RefusePart",[3,14],"late"],["RunBatch"'),
        (7, '[["RunGolden",0,0,1]]', "[]"),
        (3, "[]]", '[["RunGolden",0,0,1]]]'),
    ],
)
def test_a_changed_command_is_found_with_its_line(line: int, old: str, new: str) -> None:
    lines = journal_of(STORY)
    assert old in lines[line - 1]
    lines[line - 1] = lines[line - 1].replace(old, new)
    with pytest.raises(JournalError, match=rf"^line {line}: at "):
        list(replay(lines))


def test_a_changed_event_is_found_where_its_commands_first_differ() -> None:
    lines = journal_of(STORY)
    lines[2] = lines[2].replace("40000000", "9000000")  # the first part's pool_due
    with pytest.raises(JournalError, match=r"^line 3: "):
        list(replay(lines))


@pytest.mark.parametrize("keep", [1, 10, -1])
def test_a_last_line_cut_short_ends_the_replay(keep: int) -> None:
    lines = journal_of(STORY)
    lines[-1] = lines[-1][:keep]
    assert len(list(replay(lines))) == len(STORY) - 1


def test_a_line_cut_short_in_the_middle_is_an_error() -> None:
    lines = journal_of(STORY)
    lines[5] = lines[5][:-2]
    with pytest.raises(JournalError, match=r"^line 6: not JSON"):
        list(replay(lines))


@pytest.mark.parametrize("header", ["", "{", "[]", "{}", '{"version": 1}', '{"version": 2}'])
def test_what_is_no_header_is_refused(header: str) -> None:
    with pytest.raises(JournalError, match=r"^line 1: "):
        list(replay([header]))
