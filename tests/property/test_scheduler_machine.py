"""The scheduler's promises under any order of events, found by Hypothesis.

The machine keeps its own, simpler account of the pool and of every part, and judges each command
by it. Batches end early, late, long after they were answered, or never. Every run's journal is
replayed at its end. The mutants are bugs planted one at a time; each must be found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from deadline_batcher import messages as m
from deadline_batcher.board import Board
from deadline_batcher.journal import encode_entry, encode_header, replay
from deadline_batcher.late_heads import LateHeads
from deadline_batcher.overrun import Overruns
from deadline_batcher.plan import Category, Plan
from deadline_batcher.pool import Gpu, Pool
from deadline_batcher.pool import GpuState as S
from deadline_batcher.scheduler import RUNS_MAX, Scheduler

MS = 1_000_000
MINUTE_NS = 60_000 * MS
GPUS = 2
PLAN = Plan(
    categories=(
        Category("m", (4 * MS, 5 * MS, 7 * MS), window_ns=8 * MS),
        Category("other", (6 * MS, 6 * MS), window_ns=5 * MS),
    ),
    gpus=GPUS,
    result_ns=1 * MS,
    timer_ns=1 * MS,
    grace_ns=2 * MS,
    waiting_max=6,
)
FAR_NS = 10**12
GPU = st.integers(0, GPUS - 1)


@dataclass
class Account:
    """What the machine knows of one part."""

    category: int
    ready_at_ns: int
    pool_due_at_ns: int
    state: str = "open"  # open, done, refused, withdrawn
    runs: int = 0


@dataclass
class Place:
    """What the machine knows of one GPU."""

    is_ready: bool = False
    state: str = ""  # LOST or DRAINING, if told so
    call: m.RunBatch | None = None
    is_void: bool = False  # overdue: its parts may run elsewhere, its call is still open
    is_golden_out: bool = False
    is_golden_wanted: bool = False
    ghosts: list[m.RunBatch] = field(default_factory=list)  # calls of former lives
    began_ns: int = 0
    taught_permille: int = 0  # by the last overrun, at `taught_ns`
    taught_ns: int = 0
    overruns_at_ns: list[int] = field(default_factory=list)

    def permille(self, now_ns: int) -> int:
        """Halved every quiet minute; below 50 it is nothing."""
        left = self.taught_permille >> ((now_ns - self.taught_ns) // MINUTE_NS)
        return left if left >= 50 else 0

    def wcet_ns(self, category: int, size: int, now_ns: int) -> int:
        thousandths = PLAN.categories[category].wcet_ns[size - 1] * (1000 + self.permille(now_ns))
        return (thousandths + 999) // 1000

    def recent(self, now_ns: int) -> int:
        return sum(at_ns > now_ns - 10_000 * MS for at_ns in self.overruns_at_ns)


class SchedulerMachine(RuleBasedStateMachine):
    """Events in any order; `feed` judges what is ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(PLAN)
        self.now_ns = 0
        self.parts: dict[m.PartKey, Account] = {}
        self.places = [Place() for _ in range(GPUS)]
        self.journal = [encode_header(PLAN, 1, 0)]
        self.failing: m.RunBatch | None = None
        self.ending: tuple[m.RunBatch, int] | None = None  # batch and when it was answered
        self.is_drain_owed = False

    # --- judging ----------------------------------------------------------------------------

    def feed(self, event: m.Event) -> tuple[m.Command, ...]:
        commands = self.scheduler.handle(event, self.now_ns)
        self.journal.append(encode_entry(self.now_ns, event, commands))
        late = [c for c in commands if isinstance(c, m.Overrun)]
        if self.ending is not None:
            batch, answered_at_ns = self.ending
            assert len(late) == (answered_at_ns > batch.worst_end_at_ns), "overrun unseen"
        else:
            assert not late
        for command in commands:
            match command:
                case m.RunBatch():
                    self.judge_batch(command)
                case m.RefusePart():
                    self.judge_refusal(command)
                case m.SuspectGpu():
                    self.judge_suspect(command)
                case m.Overrun():
                    self.judge_overrun(command)
                case m.DrainGpu():
                    assert self.is_drain_owed
                    self.is_drain_owed = False
                    place = self.places[command.gpu]
                    assert command.overruns == place.recent(self.now_ns)
                    place.is_ready, place.state, place.overruns_at_ns = False, "DRAINING", []
                case m.RunGolden():
                    place = self.places[command.gpu]
                    assert place.is_ready and place.call is None and not place.is_golden_out
                    assert place.is_golden_wanted
                    place.is_golden_wanted, place.is_golden_out = False, True
        assert not self.is_drain_owed, "a GPU that overran three times was not drained"
        for place, overruns in zip(
            self.places, self.scheduler.snapshot().gpu_overruns, strict=True
        ):
            assert overruns.inflation_permille == place.permille(self.now_ns)
        return commands

    def judge_overrun(self, overrun: m.Overrun) -> None:
        assert self.ending is not None
        batch, answered_at_ns = self.ending
        place = self.places[overrun.gpu]
        assert overrun[:3] == (batch.gpu, batch.batch_id, answered_at_ns - batch.worst_end_at_ns)
        wcet_ns = PLAN.categories[batch.category].wcet_ns[len(batch.parts) - 1]
        took_ns = answered_at_ns - place.began_ns
        seen_permille = (took_ns * 1100 + wcet_ns - 1) // wcet_ns - 1000
        place.taught_permille = max(place.permille(self.now_ns), min(seen_permille, 500))
        place.taught_ns = self.now_ns
        assert overrun.inflation_permille == place.taught_permille >= 100
        place.overruns_at_ns.append(self.now_ns)
        count = place.recent(self.now_ns)
        others = [other for other in self.places if other is not place]
        self.is_drain_owed = (
            count >= 3
            and place.state != "DRAINING"
            and all(other.is_ready for other in others)
            and count > 3 * sum(other.recent(self.now_ns) for other in others)
        )

    def judge_batch(self, batch: m.RunBatch) -> None:
        place = self.places[batch.gpu]
        assert place.is_ready, "work for a GPU that is not READY"
        assert place.call is None and not place.is_golden_out, "work for a busy GPU"
        assert 1 <= len(batch.parts) <= PLAN.categories[batch.category].batch_max
        permille = place.permille(self.now_ns)
        for other in self.places:
            is_free = other.is_ready and other.call is None and not other.is_golden_out
            assert not is_free or other.permille(self.now_ns) >= permille, "a better GPU is free"
        wcet_ns = place.wcet_ns(batch.category, len(batch.parts), self.now_ns)
        assert batch.worst_end_at_ns == self.now_ns + wcet_ns
        elsewhere = self.parts_running()
        for key, queue_ns, window_ns in batch.parts:
            part = self.parts[key]
            assert part.state == "open" and part.category == batch.category
            assert key not in elsewhere, "a part in two live batches"
            assert batch.worst_end_at_ns + PLAN.result_ns <= part.pool_due_at_ns, "too late"
            assert queue_ns >= 0 and window_ns >= 0
            assert queue_ns + window_ns == self.now_ns - part.ready_at_ns
            part.runs += 1
        assert len({key for key, _, _ in batch.parts}) == len(batch.parts)
        place.call, place.is_void, place.began_ns = batch, False, self.now_ns

    def judge_refusal(self, refusal: m.RefusePart) -> None:
        part = self.parts[refusal.key]
        assert part.state == "open"
        assert refusal.key not in self.parts_running()
        needed_ns = self.needed_ns(part.category)
        match refusal.reason:
            case "infeasible" | "late":
                assert self.now_ns + needed_ns > part.pool_due_at_ns, "refused with slack left"
            case "full":
                assert sum(p.state == "open" for p in self.parts.values()) > PLAN.waiting_max
            case "lost":
                assert part.runs == RUNS_MAX
            case other:
                raise AssertionError(other)
        part.state = "refused"

    def needed_ns(self, category: int) -> int:
        """What one part needs on the best GPU that is READY; the profile's time if none is."""
        working = [place for place in self.places if place.is_ready] or [Place()]
        wcet_ns = min(place.wcet_ns(category, 1, self.now_ns) for place in working)
        return wcet_ns + PLAN.result_ns

    def judge_suspect(self, suspect: m.SuspectGpu) -> None:
        place = self.places[suspect.gpu]
        assert place.is_ready or suspect.is_fault
        batch = place.call or self.failing
        assert suspect.batch_id == (batch.batch_id if batch else 0)
        place.is_ready, place.is_void = False, True

    def parts_running(self) -> set[m.PartKey]:
        calls = [p.call for p in self.places if p.call is not None and not self.is_overdue(p)]
        return {key for call in calls for key, _, _ in call.parts}

    def is_overdue(self, place: Place) -> bool:
        assert place.call is not None
        return place.is_void or place.call.worst_end_at_ns + PLAN.grace_ns <= self.now_ns

    def open_keys(self) -> list[m.PartKey]:
        return [key for key, part in self.parts.items() if part.state == "open"]

    # --- parts ------------------------------------------------------------------------------

    @initialize()
    def pool_works(self) -> None:
        for gpu in range(GPUS):
            self.gpu_ready(gpu)

    @rule(category=st.integers(0, 1), slack_ms=st.integers(3, 40), age_ms=st.integers(0, 2))
    def part_ready(self, category: int, slack_ms: int, age_ms: int) -> None:
        key = m.PartKey(category, len(self.parts))
        ready_at_ns, due_ns = self.now_ns - age_ms * MS, self.now_ns + slack_ms * MS
        self.parts[key] = Account(category, ready_at_ns, due_ns)
        self.feed(m.PartReady(key, category, ready_at_ns, due_ns))

    @rule(category=st.integers(0, 1), spare_ms=st.integers(0, 3))
    def tight_part_ready(self, category: int, spare_ms: int) -> None:
        """Only a GPU that is hardly inflated, if at all, answers it in time."""
        needed_ns = PLAN.categories[category].wcet_ns[0] + PLAN.result_ns
        self.part_ready(category, needed_ns // MS + spare_ms, 0)

    @precondition(lambda self: self.open_keys())
    @rule(data=st.data(), slack_ms=st.integers(-1, 40))
    def pool_due_moved(self, data: st.DataObject, slack_ms: int) -> None:
        key = data.draw(st.sampled_from(self.open_keys()))
        self.parts[key].pool_due_at_ns = self.now_ns + slack_ms * MS
        self.feed(m.PoolDueMoved(key, self.now_ns + slack_ms * MS))

    @precondition(lambda self: self.open_keys())
    @rule(data=st.data())
    def offered_again(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self.open_keys()))
        part = self.parts[key]
        self.feed(m.PartReady(key, part.category, part.ready_at_ns, part.pool_due_at_ns))

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def withdrawn(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.parts)))
        if self.parts[key].state == "open":
            self.parts[key].state = "withdrawn"
        self.feed(m.PartWithdrawn(key))

    # --- the pool ---------------------------------------------------------------------------

    @rule(gpu=GPU, ago_ms=st.integers(0, 3))
    def batch_done(self, gpu: int, ago_ms: int) -> None:
        place = self.places[gpu]
        if place.call is None:
            return
        batch, place.call = place.call, None
        for key, _, _ in batch.parts:
            if self.parts[key].state == "open":
                self.parts[key].state = "done"
        answered_at_ns = max(self.now_ns - ago_ms * MS, place.began_ns)
        self.ending = batch, answered_at_ns
        self.feed(m.BatchDone(batch.batch_id, gpu, answered_at_ns if ago_ms else 0))
        self.ending = None

    @rule(gpu=GPU, late_ms=st.integers(1, 4))
    def batch_done_late(self, gpu: int, late_ms: int) -> None:
        """Within grace or after it."""
        batch = self.places[gpu].call
        if batch is not None and batch.worst_end_at_ns + late_ms * MS > self.now_ns:
            self.pass_until(batch.worst_end_at_ns + late_ms * MS)
            self.batch_done(gpu, 0)

    @rule(gpu=GPU, times=st.integers(1, 4), late_ms=st.integers(1, 3))
    def one_gpu_overruns(self, gpu: int, times: int, late_ms: int) -> None:
        self.all_are_ready()
        for _ in range(times):
            for _ in range(GPUS):  # the other is busy too, or would have the work
                self.tight_part_ready(0, 4)
            self.batch_done(1 - gpu, 0)
            self.batch_done_late(gpu, late_ms)
        for _ in range(GPUS):  # the first for the other GPU, the second too tight for this one
            self.tight_part_ready(0, 0)

    @rule(gpu=GPU, is_gpu_fault=st.booleans())
    def batch_failed(self, gpu: int, is_gpu_fault: bool) -> None:
        place = self.places[gpu]
        if place.call is None:
            return
        self.failing, place.call = place.call, None
        self.feed(m.BatchFailed(self.failing.batch_id, gpu, is_gpu_fault))
        self.failing = None
        assert not (is_gpu_fault and place.is_ready)

    @rule(gpu=GPU)
    def gpu_lost(self, gpu: int) -> None:
        place = self.places[gpu]
        if place.call is not None:
            place.ghosts.append(place.call)
        place.is_ready = place.is_golden_out = place.is_golden_wanted = False
        place.call, place.state = None, "LOST"
        self.feed(m.GpuLost(gpu))

    @rule(gpu=GPU, is_done=st.booleans())
    def ghost_answers(self, gpu: int, is_done: bool) -> None:
        ghosts = self.places[gpu].ghosts
        if ghosts:
            batch_id = ghosts.pop().batch_id
            before = self.scheduler.snapshot()
            self.feed(m.BatchDone(batch_id, gpu) if is_done else m.BatchFailed(batch_id, gpu, True))
            assert self.scheduler.snapshot().gpu_states == before.gpu_states

    @rule(gpu=GPU)
    def gpu_ready(self, gpu: int) -> None:
        self.places[gpu].is_ready, self.places[gpu].state = True, ""
        self.feed(m.GpuReady(gpu))

    @rule(gpu=GPU)
    def gpu_drained(self, gpu: int) -> None:
        self.places[gpu].is_ready, self.places[gpu].state = False, "DRAINING"
        self.feed(m.GpuDrained(gpu))

    @rule(gpu=GPU, is_fault=st.booleans())
    def gpu_doubted(self, gpu: int, is_fault: bool) -> None:
        place = self.places[gpu]
        was_void = place.is_void
        self.feed(m.GpuDoubted(gpu, is_fault))
        place.is_ready = False
        place.is_void = was_void or is_fault  # a mere doubt leaves the batch its parts

    @rule(gpu=GPU, category=st.sampled_from(range(len(PLAN.categories))), rows=st.integers(1, 2))
    def golden_wanted(self, gpu: int, category: int, rows: int) -> None:
        self.places[gpu].is_golden_wanted = True
        rows = min(rows, PLAN.categories[category].batch_max)
        self.feed(m.GoldenWanted(gpu, category, rows))

    @rule(gpu=GPU, ok=st.booleans())
    def golden_done(self, gpu: int, ok: bool) -> None:
        place = self.places[gpu]
        if place.is_golden_out:
            place.is_golden_out = False
            self.feed(m.GoldenDone(gpu, ok))
            assert ok or self.scheduler.snapshot().gpu_states[gpu] != "READY"

    def all_are_ready(self) -> None:
        for gpu in range(GPUS):
            self.batch_done(gpu, 0)
            self.golden_done(gpu, True)
            self.gpu_ready(gpu)

    # --- time -------------------------------------------------------------------------------

    @rule(ms=st.integers(1, 12))
    def time_passes(self, ms: int) -> None:
        """Every wakeup is served at its instant."""
        self.pass_until(self.now_ns + ms * MS)

    @rule(ms=st.integers(1, 30))
    def the_driver_was_held_up(self, ms: int) -> None:
        self.now_ns += ms * MS
        self.feed(m.TimeReached())

    @rule(minutes=st.integers(1, 3), ms=st.integers(-5, 5))
    def minutes_pass(self, minutes: int, ms: int) -> None:
        self.pass_until(self.now_ns + minutes * MINUTE_NS + ms * MS)

    def pass_until(self, end_ns: int) -> None:
        for _ in range(1000):
            wakeup_ns = self.scheduler.wakeup_at_ns()
            if wakeup_ns is None or wakeup_ns > end_ns:
                self.now_ns = end_ns
                return
            self.now_ns = wakeup_ns
            self.feed(m.TimeReached())
        raise AssertionError("the scheduler spins")

    @precondition(lambda self: not self.open_keys())
    @rule(category=st.integers(0, 1), spare_ms=st.integers(0, 20), gpu=GPU)
    def a_lone_part_with_enough_slack_is_never_refused(
        self, category: int, spare_ms: int, gpu: int
    ) -> None:
        place = self.places[gpu]
        if not place.is_ready or place.call or any(p.is_golden_wanted for p in self.places):
            return
        if place.is_golden_out:
            return
        enough_ns = place.wcet_ns(category, 1, self.now_ns) + PLAN.result_ns
        self.part_ready(category, -(-enough_ns // MS) + spare_ms, 0)
        part = list(self.parts.values())[-1]
        self.pass_until(part.pool_due_at_ns)
        assert part.runs >= 1

    @invariant()
    def nothing_spins_and_the_tables_agree(self) -> None:
        wakeup_ns = self.scheduler.wakeup_at_ns()
        assert wakeup_ns is None or wakeup_ns > self.now_ns
        snapshot = self.scheduler.snapshot()
        for place, state in zip(self.places, snapshot.gpu_states, strict=True):
            assert place.is_ready == (state == "READY")

    @invariant()
    def no_wake_up_is_lost(self) -> None:
        """It is there by the instant at which something waiting is late, or running overdue."""
        running = self.parts_running()
        needed_at_ns = [
            part.pool_due_at_ns - self.needed_ns(part.category) + 1
            for key, part in self.parts.items()
            if part.state == "open" and key not in running
        ]
        needed_at_ns += [
            place.call.worst_end_at_ns + PLAN.grace_ns
            for place in self.places
            if place.call is not None and not self.is_overdue(place)
        ]
        wakeup_ns = self.scheduler.wakeup_at_ns()
        assert not needed_at_ns or (wakeup_ns is not None and wakeup_ns <= min(needed_at_ns))

    def teardown(self) -> None:
        """Once the pool answers what it has, is ready and time passes, every part has its end."""
        self.all_are_ready()
        for _ in range(200):
            self.pass_until(self.now_ns + PLAN.grace_ns)
            self.all_are_ready()
            if self.scheduler.is_empty:
                break
        self.pass_until(self.now_ns + FAR_NS)
        assert self.scheduler.is_empty
        assert self.open_keys() == [], "a part was forgotten"
        assert self.scheduler.wakeup_at_ns() is None
        assert len(list(replay(self.journal))) == len(self.journal) - 1


SETTINGS = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = SETTINGS


def _profile_forever(pool: Pool) -> None:
    pool.changed()


def _longest_idle_first(pool: Pool) -> None:
    pool.is_better_busy = False
    pool._board.wcet = pool._board.wcet_on[pool._board.free[0]] if pool._board.free else []


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "inflation is not counted with": (Pool, "_inflate", _profile_forever),
    "an overrun is not seen": (Pool, "overran", lambda *_: []),
    "inflation never wears off": (Overruns, "worn_off", lambda overruns, _: overruns),
    "a slow GPU takes what it answers late": (Board, "set_aside", lambda *_: {}),
    "late is late by the profile": (LateHeads, "best_changed", lambda *_: None),
    "a slow GPU is offered before a good one": (Pool, "_offer_best", _longest_idle_first),
    "no GPU is drained": (Pool, "_is_to_drain", lambda *_: False),
    "one overrun drains": (Pool, "_is_to_drain", lambda *_: True),
    "a drained GPU gets work": (
        Gpu, "is_free", property(lambda gpu: gpu.batch is None and gpu.state is not S.SUSPECT),
    ),
    "a lost batch is forgotten": (Scheduler, "_put_back", lambda *_: None),
    "a wake-up is lost": (Scheduler, "wakeup_at_ns", lambda core: core._pool.overdue_at_ns),
    "a wake-up repeats": (Scheduler, "wakeup_at_ns", lambda core: core._late.next_at_ns() and 0),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, planted = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, planted)
    quick = settings(SETTINGS, phases=[Phase.generate], report_multiple_bugs=False, database=None)
    with pytest.raises((AssertionError, IndexError, ZeroDivisionError)):
        run_state_machine_as_test(SchedulerMachine, settings=quick)
