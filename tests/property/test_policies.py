"""Every policy's promises under any order of events, and proof that each check can fail.

`judged` plays a script of events through a scheduler and keeps its own, simpler account. The
mutants are bugs planted one at a time; each must be found by the same scripts.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deadline_batcher import messages as m
from deadline_batcher.board import Board, Queue
from deadline_batcher.journal import encode_entry, encode_header, replay
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.policies import POLICIES
from deadline_batcher.policies.policy import Choice, Hold
from deadline_batcher.policies.takt import Takt
from deadline_batcher.pool import Gpu, GpuState, Pool
from deadline_batcher.scheduler import Scheduler

MS = 1_000_000
MINUTE_NS = 60_000 * MS
GPUS = 3
CATEGORIES = (
    Category("long", (9 * MS, 12 * MS, 15 * MS, 18 * MS), window_ns=30 * MS),
    Category("short", (2 * MS, 3 * MS, 4 * MS), window_ns=8 * MS),
    Category("odd", (5 * MS, 11 * MS, 12 * MS), window_ns=20 * MS),
)
LINES = tuple(LineTiming(n % 3, (12 + n) * MS, 2 * CATEGORIES[n % 3].window_ns) for n in range(6))


def plan_of(policy: str, gpus: int = GPUS) -> Plan:
    spec = PolicySpec(policy, 3, 4 * MS)
    return Plan(CATEGORIES, gpus, MS // 2, MS // 4, 3 * MS, 40, spec, LINES)


class FoundError(Exception):
    """A promise is broken; the text says which."""


class Judge:
    """A pool, a scheduler, and an account of every part."""

    def __init__(self, policy: str) -> None:
        self.plan = plan_of(policy)
        self.is_by_due = policy != "triton"
        self.scheduler = Scheduler(self.plan)
        self.now_ns = 0
        self.open: dict[m.PartKey, int] = {}
        self.running: dict[int, m.RunBatch] = {}
        self.ready: set[int] = set()
        self.journal = [encode_header(self.plan, 1, 0)]
        self.batches = self.reruns = 0
        self.ran: dict[m.PartKey, int] = {}
        self.late_ns = 0  # how late batches end that start from now on
        self.ends_ns: dict[int, int] = {}
        self.slow: dict[int, tuple[int, int]] = {}  # GPU: inflation, since when
        self.overruns = self.drains = 0

    def feed(self, event: m.Event) -> tuple[m.Command, ...]:
        commands = self.scheduler.handle(event, self.now_ns)
        self.journal.append(encode_entry(self.now_ns, event, commands))
        for command in commands:
            if isinstance(command, m.RunBatch):
                self._judge(command)
            elif isinstance(command, m.RefusePart):
                if self.open.pop(command.key, None) is None:
                    raise FoundError("a part refused that is not open")
            elif isinstance(command, m.SuspectGpu | m.DrainGpu):
                self.ready.discard(command.gpu)
                self.drains += isinstance(command, m.DrainGpu)
            elif isinstance(command, m.Overrun):
                self.overruns += 1
                self.slow[command.gpu] = command.inflation_permille, self.now_ns
        wakeup_ns = self.scheduler.wakeup_at_ns()
        if wakeup_ns is not None and wakeup_ns <= self.now_ns:
            raise FoundError("a wake-up repeats")
        return commands

    def _judge(self, batch: m.RunBatch) -> None:
        if batch.gpu not in self.ready:
            raise FoundError("work for a GPU that is not ready")
        if batch.gpu in self.running:
            raise FoundError("two batches on one GPU")
        elsewhere = {key for other in self.running.values() for key, _, _ in other.parts}
        keys = [key for key, _, _ in batch.parts]
        if len(set(keys)) < len(keys) or elsewhere & set(keys):
            raise FoundError("a part runs twice")
        for key in keys:
            if key not in self.open:
                raise FoundError("a part runs that is not open")
            if self.is_by_due and batch.worst_end_at_ns + self.plan.result_ns > self.open[key]:
                raise FoundError("a batch that ends late")
            self.reruns += key in self.ran
            self.ran[key] = batch.batch_id
        permille, since_ns = self.slow.get(batch.gpu, (0, 0))
        wcet_ns = CATEGORIES[batch.category].wcet_ns[len(batch.parts) - 1]
        promised_ns = batch.worst_end_at_ns - self.now_ns
        if self.now_ns < since_ns + MINUTE_NS and promised_ns * 1000 < wcet_ns * (1000 + permille):
            raise FoundError("a slow GPU is promised with too little")
        self.batches += 1
        self.running[batch.gpu] = batch
        # GPU 0 is late whenever the host is, the others now and then: so that one stands out.
        is_late = batch.gpu == 0 or batch.batch_id % 8 == 0
        self.ends_ns[batch.gpu] = batch.worst_end_at_ns + is_late * self.late_ns

    def pass_to(self, until_ns: int) -> None:
        """Serve every wake-up and every end of a batch up to an instant."""
        for _ in range(5000):
            ends = [(self.ends_ns[gpu], gpu) for gpu in self.running]
            end_ns, gpu = min(ends, default=(until_ns + 1, -1))
            wakeup_ns = self.scheduler.wakeup_at_ns()
            if wakeup_ns is not None and wakeup_ns < min(end_ns, until_ns + 1):
                self.now_ns = max(self.now_ns, wakeup_ns)
                self.feed(m.TimeReached())
            elif end_ns <= until_ns:
                self.now_ns = end_ns
                batch = self.running.pop(gpu)
                for key, _, _ in batch.parts:
                    self.open.pop(key, None)
                self.feed(m.BatchDone(batch.batch_id, gpu))
            else:
                self.now_ns = until_ns
                return
        raise FoundError("a wake-up repeats without end")

    def lose(self, gpu: int) -> None:
        self.ready.discard(gpu)
        self.running.pop(gpu, None)
        self.feed(m.GpuLost(gpu))

    def come_back(self, gpu: int) -> None:
        self.ready.add(gpu)
        self.feed(m.GpuReady(gpu))


def lone_part_runs(judge: Judge, number: int) -> None:
    """On an idle pool with every GPU ready, a part that can be answered is."""
    for gpu in range(GPUS):
        judge.come_back(gpu)
    judge.pass_to(judge.now_ns + 6 * MINUTE_NS)  # no GPU is slow any more
    for gpu in range(GPUS):
        judge.come_back(gpu)
    judge.late_ns = 0
    if judge.open:
        raise FoundError("a part was forgotten")
    category = number % 3
    key = m.PartKey(number % 6, 10_000 + number)
    due_ns = judge.now_ns + CATEGORIES[category].wcet_ns[0] + judge.plan.result_ns + number * MS
    judge.open[key] = due_ns
    judge.feed(m.PartReady(key, category, judge.now_ns, due_ns))
    judge.pass_to(due_ns)
    # Triton's rule waits its delay whatever the part's due: it alone may let a lone part pass.
    if key not in judge.ran and judge.is_by_due:
        raise FoundError("a lone part was not run")


def judged(policy: str, script: list[tuple[int, int, int]]) -> Judge:
    """(what, which, how much): see the branches."""
    judge = Judge(policy)
    for gpu in range(GPUS):
        judge.come_back(gpu)
    for number, (what, which, much) in enumerate(script):
        if what < 6:
            category = which % 3
            due_ns = judge.now_ns + CATEGORIES[category].wcet_ns[0] + (much + 1) * 2 * MS
            key = m.PartKey(which % 6, number)
            judge.open[key] = due_ns
            judge.feed(m.PartReady(key, category, judge.now_ns, due_ns))
        elif what == 6:
            judge.pass_to(judge.now_ns + much * MS)
        elif what == 7:
            judge.lose(which % GPUS)
        elif what == 8:
            judge.come_back(which % GPUS)
        elif what == 9 and judge.open:
            key = list(judge.open)[which % len(judge.open)]
            del judge.open[key]
            judge.feed(m.PartWithdrawn(key))
        elif what == 10:
            judge.late_ns = which % 3 * MS
    lone_part_runs(judge, len(script) % 6)
    return judge


def judged_often(policy: str) -> None:
    for seed in range(25):
        judged(policy, random_script(seed))


def random_script(seed: int, length: int = 160) -> list[tuple[int, int, int]]:
    chance = random.Random(seed)
    weights = [6, 6, 6, 6, 6, 6, 14, 1, 2, 1, 3]
    return [
        (chance.choices(range(11), weights)[0], chance.randrange(30), chance.randrange(12))
        for _ in range(length)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_keeps_its_promises_over_seeded_runs(policy: str) -> None:
    batches = reruns = overruns = drains = 0
    for seed in range(25):
        judge = judged(policy, random_script(seed))
        batches, reruns = batches + judge.batches, reruns + judge.reruns
        overruns, drains = overruns + judge.overruns, drains + judge.drains
        assert len(list(replay(judge.journal))) == len(judge.journal) - 1
    assert batches > 500
    assert reruns > 3
    assert overruns > 50
    assert drains > 3


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    script=st.lists(
        st.tuples(st.integers(0, 10), st.integers(0, 29), st.integers(0, 11)), max_size=60
    )
)
def test_a_policy_keeps_its_promises_in_any_order(
    policy: str, script: list[tuple[int, int, int]]
) -> None:
    judged(policy, script)


def _too_large(self: Takt, board: Board, now_ns: int) -> Choice | Hold:
    number = next(iter(board.occupied))
    waiting = len(board.queues[number])
    return Choice(board.free[0], number, min(waiting, CATEGORIES[number].batch_max))


def _copies(self: Queue, first: int, count: int) -> list[Any]:
    return [entry[2] for entry in self.entries[first : first + count]]


MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "head not looked at": (Takt, "choose", _too_large),
    "state not looked at": (
        Gpu, "is_free", property(lambda gpu: gpu.batch is None and not gpu.is_golden_out),
    ),
    "occupied GPU is free": (Gpu, "is_free", property(lambda gpu: gpu.state is GpuState.READY)),
    "lost batch forgotten": (Scheduler, "_put_back", lambda *_: None),
    "parts stay in the queue": (Queue, "take", _copies),
    "wake-up lost": (Scheduler, "wakeup_at_ns", lambda _: None),
    "wake-up repeats": (Scheduler, "wakeup_at_ns", lambda core: core._hold_until_ns and 0),
    "always holds": (Takt, "choose", lambda *_: Hold()),
    "inflation not counted": (Pool, "_inflate", lambda pool: pool.changed()),
    "too slow a GPU taken": (Board, "set_aside", lambda *_: {}),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = "window" if name.startswith("wake-up") else "takt"
    owner, attribute, planted = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, planted)
    with pytest.raises((FoundError, AssertionError, IndexError, KeyError, ValueError)):
        judged_often(policy)


HASHING = """
import sys
from test_policies import judged, random_script, POLICIES
from deadline_batcher.policies.eager import Eager
from deadline_batcher.policies.policy import Choice
if sys.argv[1] == "mutant":
    Eager.choose = lambda self, board, now_ns: Choice(
        board.free[0], min(board.occupied, key=lambda n: hash(str(n))), 1)
import hashlib
text = "".join("".join(judged(p, random_script(1)).journal) for p in POLICIES)
print(hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.parametrize(("words", "alike"), [("shipped", True), ("mutant", False)])
def test_no_decision_depends_on_hashing(words: str, alike: bool) -> None:
    def digest(hash_seed: str) -> str:
        here = os.path.dirname(os.path.abspath(__file__))
        path = os.pathsep.join([here, *filter(None, sys.path)])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        command = [sys.executable, "-c", HASHING, words]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    digests = {digest(seed) for seed in ("0", "1", "2", "3")}
    assert (len(digests) == 1) == alike


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="no policy 'best'; there are: takt"):
        Scheduler(plan_of("best"))
