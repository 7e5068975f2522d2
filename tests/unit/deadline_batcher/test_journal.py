"""The event journal: a run replays to the same commands, and a changed one is found by its line."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from deadline_batcher import messages as m
from deadline_batcher.journal import (
    JournalError,
    JournalVersionError,
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


@pytest.mark.parametrize("header", ["", "{", "[]", "{}", '{"version": 3}'])
def test_what_is_no_header_is_refused(header: str) -> None:
    with pytest.raises(JournalError, match=r"^line 1: not a journal's header"):
        list(replay([header]))


@pytest.mark.parametrize("version", [1, 2, 4])
def test_a_journal_of_another_version_is_refused_with_the_way_out(version: int) -> None:
    lines = journal_of(STORY)
    lines[0] = lines[0].replace('"version": 3', f'"version": {version}')
    with pytest.raises(
        JournalVersionError,
        match=f"^line 1: version {version}, and this release writes and replays 3; "
        "replay it with the release that wrote it$",
    ):
        list(replay(lines))


SLOW: tuple[tuple[int, m.Event], ...] = (
    (0, m.GpuReady(0)),
    (0, m.GpuReady(1)),
    *(
        told
        for second in (1, 2, 3)
        for told in (
            (second * 1000 * MS, m.GpuDrained(1)),
            (
                second * 1000 * MS,
                m.PartReady(m.PartKey(0, second), 0, 0, (second * 1000 + 90) * MS),
            ),
            (second * 1000 * MS, m.GpuReady(1)),
            ((second * 1000 + 30) * MS, m.BatchDone(second, 0, (second * 1000 + 7) * MS)),
        )
    ),
    (9000 * MS, m.GpuReady(0)),
    (70_000 * MS, m.TimeReached()),
)
POOL_OF_TWO = replace(PLAN, gpus=2, grace_ns=100 * MS, policy=PolicySpec("eager"))


def test_overruns_and_drains_replay_and_so_does_a_journal_that_begins_amid_them() -> None:
    scheduler = Scheduler(POOL_OF_TWO)
    whole = [encode_header(POOL_OF_TWO, 1, 0)]
    for now_ns, event in SLOW[:-2]:
        whole.append(encode_entry(now_ns, event, scheduler.handle(event, now_ns)))
    commands = [c for _, _, told in replay(whole) for c in told]
    assert [c for c in commands if not isinstance(c, m.RunBatch)] == [
        m.Overrun(0, 1, 3 * MS, 500),
        m.Overrun(0, 2, 1 * MS, 500),
        m.Overrun(0, 3, 1 * MS, 500),
        m.DrainGpu(0, 3),
    ]
    before = scheduler.snapshot()
    again = Scheduler(POOL_OF_TWO, before.batches_run, before.gpu_overruns)
    rest = [encode_header(POOL_OF_TWO, 1, before.batches_run, before.gpu_overruns)]
    for now_ns, event in SLOW[-2:]:
        rest.append(encode_entry(now_ns, event, again.handle(event, now_ns)))
    late = m.PartReady(m.PartKey(0, 9), 0, 70_001 * MS, 70_100 * MS)
    rest.append(encode_entry(70_001 * MS, late, again.handle(late, 70_001 * MS)))
    # halved once: 4 ms × 1.25, and not the 4 ms of a scheduler that knows nothing
    assert again.snapshot().gpu_overruns[0] == (250, 63_030 * MS, ())
    assert list(replay(rest))[-1][2][0].worst_end_at_ns == 70_006 * MS
