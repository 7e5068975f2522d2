"""Long seeded runs of the scheduler in virtual time: replay, a lost GPU, and more GPUs.

`simulate` is a whole pool: batches last as long as their seed says, a lost GPU comes back.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from deadline_batcher import messages as m
from deadline_batcher.journal import JournalError, encode_entry, encode_header, parts_ready, replay
from deadline_batcher.plan import Category, Plan
from deadline_batcher.scheduler import Scheduler

MS = 1_000_000
CATEGORIES = (
    Category("m", (4 * MS, 5 * MS, 6 * MS, 8 * MS), window_ns=12 * MS),
    Category("other", (6 * MS, 9 * MS), window_ns=10 * MS),
)


@dataclass
class Run:
    """One simulated run: what happens when, and what came of it."""

    gpus: int
    categories: tuple[Category, ...] = CATEGORIES
    now_ns: int = 0
    answered: set[m.PartKey] = field(default_factory=set)
    refused: set[m.PartKey] = field(default_factory=set)
    lost_with_work: int = 0

    def __post_init__(self) -> None:
        plan = Plan(self.categories, self.gpus, 1 * MS, 1 * MS, 2 * MS, 64)
        self.scheduler = Scheduler(plan)
        self.journal = [encode_header(plan, 1, 0)]
        self.running: dict[int, m.RunBatch] = {}
        self._agenda: list[tuple[int, int, Callable[[], m.Event | None]]] = []
        self._order = itertools.count()

    def at(self, at_ns: int, what: Callable[[], m.Event | None]) -> None:
        heapq.heappush(self._agenda, (at_ns, next(self._order), what))

    def go(self, lasting: Callable[[m.RunBatch], int], events_max: int) -> None:
        """Until nothing is left to happen, or that many events."""
        while len(self.journal) <= events_max:
            wakeup_ns = self.scheduler.wakeup_at_ns()
            if wakeup_ns is not None and (not self._agenda or wakeup_ns < self._agenda[0][0]):
                self.now_ns = wakeup_ns
                self._feed(m.TimeReached(), lasting)
            elif self._agenda:
                self.now_ns, _, what = heapq.heappop(self._agenda)
                event = what()
                if event is not None:
                    self._feed(event, lasting)
            else:
                return

    def _feed(self, event: m.Event, lasting: Callable[[m.RunBatch], int]) -> None:
        commands = self.scheduler.handle(event, self.now_ns)
        self.journal.append(encode_entry(self.now_ns, event, commands))
        for command in commands:
            if isinstance(command, m.RefusePart):
                assert command.key not in self.refused | self.answered
                self.refused.add(command.key)
            elif isinstance(command, m.RunBatch):
                assert command.gpu not in self.running
                self.running[command.gpu] = command
                self.at(self.now_ns + lasting(command), lambda batch=command: self._done(batch))
            elif isinstance(command, m.RunGolden):
                self.at(self.now_ns + 2 * MS, lambda gpu=command.gpu: m.GoldenDone(gpu, True))

    def _done(self, batch: m.RunBatch) -> m.Event:
        if self.running.get(batch.gpu) == batch:
            del self.running[batch.gpu]
            keys = {key for key, _, _ in batch.parts}
            assert not keys & self.answered
            self.answered |= keys
        return m.BatchDone(batch.batch_id, batch.gpu)

    def lose(self, gpu: int) -> m.Event:
        self.lost_with_work += self.running.pop(gpu, None) is not None
        return m.GpuLost(gpu)


def plain_run(gpus: int, seed: int, parts: int, categories: tuple[Category, ...]) -> Run:
    """Parts at random, every batch as long as its worst case: only the pool's size differs."""
    source = random.Random(seed)
    run = Run(gpus, categories)
    for gpu in range(gpus):
        run.at(0, lambda gpu=gpu: m.GpuReady(gpu))
    at_ns = 0
    for number in range(parts):
        at_ns += source.randrange(0, 4 * MS)
        category = source.randrange(len(categories))
        due_ns = at_ns + source.randrange(6 * MS, 40 * MS)
        ready = m.PartReady(m.PartKey(0, number), category, at_ns, due_ns)
        run.at(at_ns, lambda ready=ready: ready)
    run.go(lambda batch: categories[batch.category].wcet_ns[len(batch.parts) - 1], 100_000)
    assert len(run.answered) + len(run.refused) == parts
    return run


def troubled_run(events: int) -> Run:
    """Three GPUs under load; a busy one is lost again and again and comes back."""
    source = random.Random(20261130)
    run = Run(gpus=3)
    for gpu in range(3):
        run.at(0, lambda gpu=gpu: m.GpuReady(gpu))
    at_ns = 0
    for number in range(events):
        at_ns += source.randrange(0, 3 * MS)
        due_ns = at_ns + source.randrange(8 * MS, 60 * MS)
        ready = m.PartReady(m.PartKey(number % 12, number), number % 2, at_ns, due_ns)
        run.at(at_ns, lambda ready=ready: ready)
        if number % 97 == 0:
            moved = m.PoolDueMoved(ready.key, due_ns - 3 * MS)
            run.at(at_ns + MS, lambda moved=moved: moved)
        if number % 500 == 250:
            run.at(at_ns, lambda: run.lose(max(run.running, default=0)))
            for gpu in range(3):
                run.at(at_ns + 200 * MS, lambda gpu=gpu: m.GpuReady(gpu))
        if number % 300 == 0:
            run.at(at_ns, lambda gpu=number % 3: m.GoldenWanted(gpu))

    def lasting(batch: m.RunBatch) -> int:
        worst_ns = batch.worst_end_at_ns - run.now_ns
        return worst_ns * source.randrange(40, 100) // 100

    run.go(lasting, events)
    return run


def test_twenty_thousand_events_with_lost_gpus_replay_to_the_same_commands() -> None:
    run = troubled_run(20_000)
    assert len(run.journal) == 20_001
    entries = list(replay(run.journal))
    assert len(entries) == 20_000
    assert run.lost_with_work >= 10
    assert parts_ready(entries) > 5_000
    assert len(run.answered) > 0.9 * parts_ready(entries)


def test_a_command_changed_deep_in_a_long_journal_is_found() -> None:
    run = troubled_run(3_000)
    line = next(k for k in range(2_000, 3_000) if '"RunBatch"' in run.journal[k])
    run.journal[line] = run.journal[line].replace('"RunBatch",', '"RunBatch",1', 1)
    with pytest.raises(JournalError, match=f"^line {line + 1}: "):
        list(replay(run.journal))


@pytest.mark.parametrize("seed", range(12))
def test_more_gpus_never_answer_fewer_parts(seed: int) -> None:
    answered = [len(plain_run(gpus, seed, 250, CATEGORIES).answered) for gpus in (1, 2, 3, 4)]
    assert answered == sorted(answered)
    assert answered[0] < answered[-1]
