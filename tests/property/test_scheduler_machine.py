"""The scheduler's promises under any order of events, found by Hypothesis.

The machine keeps its own, simpler account of the pool and of every part, and judges each command
by it. Every run's journal is replayed at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from deadline_batcher import messages as m
from deadline_batcher.journal import encode_entry, encode_header, replay
from deadline_batcher.plan import Category, Plan
from deadline_batcher.scheduler import RUNS_MAX, Scheduler

MS = 1_000_000
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
    call: m.RunBatch | None = None
    is_void: bool = False  # overdue: its parts may run elsewhere, its call is still open
    is_golden_out: bool = False
    is_golden_wanted: bool = False
    ghosts: list[m.RunBatch] = field(default_factory=list)  # calls of former lives


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

    # --- judging ----------------------------------------------------------------------------

    def feed(self, event: m.Event) -> tuple[m.Command, ...]:
        commands = self.scheduler.handle(event, self.now_ns)
        self.journal.append(encode_entry(self.now_ns, event, commands))
        for command in commands:
            match command:
                case m.RunBatch():
                    self.judge_batch(command)
                case m.RefusePart():
                    self.judge_refusal(command)
                case m.SuspectGpu():
                    self.judge_suspect(command)
                case m.RunGolden():
                    place = self.places[command.gpu]
                    assert place.is_ready and place.call is None and not place.is_golden_out
                    assert place.is_golden_wanted
                    place.is_golden_wanted, place.is_golden_out = False, True
        return commands

    def judge_batch(self, batch: m.RunBatch) -> None:
        place = self.places[batch.gpu]
        assert place.is_ready, "work for a GPU that is not READY"
        assert place.call is None and not place.is_golden_out, "work for a busy GPU"
        wcet_ns = PLAN.categories[batch.category].wcet_ns
        assert 1 <= len(batch.parts) <= len(wcet_ns)
        assert batch.worst_end_at_ns == self.now_ns + wcet_ns[len(batch.parts) - 1]
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
        place.call, place.is_void = batch, False

    def judge_refusal(self, refusal: m.RefusePart) -> None:
        part = self.parts[refusal.key]
        assert part.state == "open"
        assert refusal.key not in self.parts_running()
        needed_ns = PLAN.categories[part.category].wcet_ns[0] + PLAN.result_ns
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

    @rule(gpu=GPU)
    def batch_done(self, gpu: int) -> None:
        place = self.places[gpu]
        if place.call is None:
            return
        batch, place.call = place.call, None
        for key, _, _ in batch.parts:
            if self.parts[key].state == "open":
                self.parts[key].state = "done"
        self.feed(m.BatchDone(batch.batch_id, gpu))

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
        self.places[gpu] = Place(ghosts=place.ghosts)
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
        self.places[gpu].is_ready = True
        self.feed(m.GpuReady(gpu))

    @rule(gpu=GPU)
    def gpu_drained(self, gpu: int) -> None:
        self.places[gpu].is_ready = False
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

    # --- time -------------------------------------------------------------------------------

    @rule(ms=st.integers(1, 12))
    def time_passes(self, ms: int) -> None:
        """Every wakeup is served at its instant."""
        self.pass_until(self.now_ns + ms * MS)

    @rule(ms=st.integers(1, 30))
    def the_driver_was_held_up(self, ms: int) -> None:
        self.now_ns += ms * MS
        self.feed(m.TimeReached())

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
        enough_ms = (PLAN.categories[category].wcet_ns[0] + PLAN.result_ns) // MS
        self.part_ready(category, enough_ms + spare_ms, 0)
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

    def teardown(self) -> None:
        """Once the pool answers what it has, is ready and time passes, every part has its end."""
        for gpu in range(GPUS):
            self.batch_done(gpu)
            self.golden_done(gpu, True)
            self.gpu_ready(gpu)
        for _ in range(200):
            self.pass_until(self.now_ns + PLAN.grace_ns)
            for gpu in range(GPUS):
                self.batch_done(gpu)
                self.golden_done(gpu, True)
            if self.scheduler.is_empty:
                break
        self.pass_until(self.now_ns + FAR_NS)
        assert self.scheduler.is_empty
        assert self.open_keys() == [], "a part was forgotten"
        assert self.scheduler.wakeup_at_ns() is None
        assert len(list(replay(self.journal))) == len(self.journal) - 1


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, derandomize=True
)
