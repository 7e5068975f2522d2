"""Late batches at literal instants: what they teach of their GPU, how it wears off, who is drained.

Worst cases 10, 14 and 20 ms; a batch that took 12 where 10 was promised is 1.2 × 1.1 = 1.32.
"""

from __future__ import annotations

import pytest

from deadline_batcher import messages as m
from deadline_batcher.overrun import KEPT_MAX, NO_OVERRUNS, Overruns, inflated
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.policies import POLICIES
from deadline_batcher.scheduler import Scheduler

MS = 1_000_000
SECOND_NS = 1_000 * MS
MINUTE_NS = 60 * SECOND_NS
MODEL = Category("m", (10 * MS, 14 * MS, 20 * MS), window_ns=20 * MS)


class Pool:
    """A scheduler, and the instants in ms."""

    def __init__(self, gpus: int = 1, policy: str = "eager", learnt: tuple[Overruns, ...] = ()):
        plan = Plan((MODEL,), gpus, 1 * MS, 1 * MS, 30 * MS, 64, PolicySpec(policy))
        self.core = Scheduler(plan, 0, learnt)
        self.parts = 0
        for gpu in range(gpus):
            self.core.handle(m.GpuReady(gpu), 0)

    def put(self, now_ms: float, left_ms: float) -> tuple[m.Command, ...]:
        self.parts += 1
        now_ns, due_ns = round(now_ms * MS), round((now_ms + left_ms) * MS)
        return self.core.handle(m.PartReady(m.PartKey(0, self.parts), 0, now_ns, due_ns), now_ns)

    def done(
        self, now_ms: float, batch: int, gpu: int = 0, answered_ms: float = 0
    ) -> tuple[m.Command, ...]:
        event = m.BatchDone(batch, gpu, round(answered_ms * MS))
        return self.core.handle(event, round(now_ms * MS))

    def permille(self) -> list[int]:
        return [overruns.inflation_permille for overruns in self.core.snapshot().gpu_overruns]

    def states(self) -> tuple[str, ...]:
        return self.core.snapshot().gpu_states


def batches(commands: tuple[m.Command, ...]) -> list[tuple[int, int, float]]:
    """(GPU, parts, worst end in ms)."""
    runs = [c for c in commands if isinstance(c, m.RunBatch)]
    return [(run.gpu, len(run.parts), run.worst_end_at_ns / MS) for run in runs]


# --- one overrun ----------------------------------------------------------------------------


def test_a_batch_that_ends_at_its_worst_case_is_no_overrun() -> None:
    pool = Pool()
    pool.put(0, 100)
    assert pool.done(10, 1) == ()
    assert pool.permille() == [0]


def test_one_nanosecond_later_is_one_though_within_grace_and_the_gpu_stays_ready() -> None:
    pool = Pool()
    pool.put(0, 100)
    late = pool.core.handle(m.BatchDone(1, 0), 10 * MS + 1)
    assert late == (m.Overrun(0, 1, 1, 101),)  # 1.0000001 × 1.1, rounded up
    assert pool.states() == ("READY",)


def test_the_answer_counts_and_not_when_it_was_heard_of() -> None:
    pool = Pool()
    pool.put(0, 100)
    assert pool.done(19, 1, answered_ms=10) == ()
    pool.put(20, 100)
    assert pool.done(39, 2, answered_ms=32) == (m.Overrun(0, 2, 2 * MS, 320),)


def test_from_then_on_the_gpu_is_promised_with_what_was_seen_and_a_tenth() -> None:
    pool = Pool()
    pool.put(0, 100)
    assert pool.done(12, 1) == (m.Overrun(0, 1, 2 * MS, 320),)
    assert batches(pool.put(20, 100)) == [(0, 1, 33.2)]
    assert pool.core.wakeup_at_ns() == round(63.2 * MS)  # worst end + grace
    pool.put(21, 100)
    pool.put(21, 100)
    pool.put(21, 100)
    # 14 and 20 ms are 18.48 and 26.4: all parts alike, not only the size that was late
    assert batches(pool.done(30, 2)) == [(0, 3, 56.4)]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "triton"])
def test_an_inflated_gpu_gets_no_more_parts_than_it_answers_in_time(policy: str) -> None:
    pool = Pool(policy=policy, learnt=(Overruns(320, 0),))
    assert batches(pool.put(0, 14.2)) == [(0, 1, 13.2)]  # its last moment
    pool.put(1, 29)  # due at 30
    pool.put(1, 29)
    # at 12 two would end at 12 + 18.48, and 1 is for the result: one ends at 25.2
    assert batches(pool.done(12, 1)) == [(0, 1, 25.2)]


def test_nexus_gives_a_slow_gpu_none_of_its_category_that_it_answers_late() -> None:
    categories = tuple(Category(name, (10 * MS,), 20 * MS) for name in "ab")
    lines = tuple(LineTiming(number, 12 * MS, 40 * MS) for number in (0, 1))  # a GPU for each
    plan = Plan(categories, 2, MS, MS, 30 * MS, 64, PolicySpec("nexus"), lines)
    core = Scheduler(plan, 0, (NO_OVERRUNS, Overruns(320, 0)))
    for gpu in (0, 1):
        core.handle(m.GpuReady(gpu), 0)
    assert core.handle(m.PartReady(m.PartKey(0, 1), 0, 0, 14 * MS), 0) == ()
    assert core.handle(m.TimeReached(), 3 * MS + 1) == (m.RefusePart(m.PartKey(0, 1), "late"),)
    (run,) = core.handle(m.PartReady(m.PartKey(0, 2), 0, 4 * MS, 19 * MS), 4 * MS)
    assert isinstance(run, m.RunBatch)
    assert (run.gpu, run.worst_end_at_ns) == (1, 17_200_000)


def test_where_the_pool_has_no_other_gpu_a_part_is_late_by_the_inflated_time() -> None:
    pool = Pool()
    pool.put(0, 100)
    pool.done(12, 1)
    assert pool.put(20, 14.1) == (m.RefusePart(m.PartKey(0, 2), "infeasible"),)
    assert batches(pool.put(20, 14.2)) == [(0, 1, 33.2)]
    assert pool.put(21, 27) == ()  # due at 48: late from 48 − 1 − 13.2 on, and a nanosecond
    assert pool.core.wakeup_at_ns() == round(33.8 * MS) + 1


def test_what_waits_already_is_late_earlier_once_its_gpu_is_slow() -> None:
    pool = Pool()
    pool.put(0, 100)
    pool.put(1, 21)  # due at 22: alone it may start until 11; inflated, until 7.8
    late = pool.done(10.5, 1)
    assert late == (m.Overrun(0, 1, MS // 2, 155), m.RefusePart(m.PartKey(0, 2), "late"))


def test_a_smaller_overrun_takes_nothing_back_and_a_larger_one_adds() -> None:
    pool = Pool(learnt=(Overruns(200, 0),))
    pool.put(0, 100)
    assert pool.done(11, 1) == ()  # promised 12
    pool.put(20, 100)
    assert pool.done(33, 2) == (m.Overrun(0, 2, 1 * MS, 430),)


def test_half_again_is_the_most() -> None:
    pool = Pool()
    pool.put(0, 100)
    assert pool.done(29, 1) == (m.Overrun(0, 1, 19 * MS, 500),)


def test_an_overdue_batch_makes_its_gpu_suspect_first_and_is_an_overrun_when_it_ends() -> None:
    pool = Pool()
    pool.put(0, 100)
    assert pool.core.handle(m.TimeReached(), 40 * MS) == (m.SuspectGpu(0, 1, False),)
    # its part waits again, and has its answer now
    assert pool.done(41, 1) == (m.Overrun(0, 1, 31 * MS, 500),)
    assert pool.states() == ("SUSPECT",)
    assert pool.core.is_empty


def test_a_failed_batch_and_that_of_a_lost_gpu_teach_nothing() -> None:
    pool = Pool()
    pool.put(0, 100)
    failed = pool.core.handle(m.BatchFailed(1, 0, False), 15 * MS)
    assert batches(failed) == [(0, 1, 25)]
    pool.core.handle(m.GpuLost(0), 26 * MS)
    assert pool.done(30, 2) == ()
    assert pool.permille() == [0]


# --- which GPU ------------------------------------------------------------------------------


def slow_and_fast() -> Pool:
    """GPU 0 is inflated by 320, GPU 1 not; both free."""
    return Pool(gpus=2, learnt=(Overruns(320, 0), NO_OVERRUNS))


def test_the_least_inflated_gpu_is_offered_first_though_it_was_idle_for_shorter() -> None:
    pool = slow_and_fast()
    assert batches(pool.put(0, 100)) == [(1, 1, 10)]
    pool.done(9, 1, gpu=1)
    assert batches(pool.put(20, 100)) == [(1, 1, 30)]
    assert batches(pool.put(21, 100)) == [(0, 1, 34.2)]


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "triton"])
def test_a_part_that_the_free_gpu_is_too_slow_for_waits_for_the_other(policy: str) -> None:
    pool = Pool(gpus=2, policy=policy, learnt=(Overruns(320, 0), NO_OVERRUNS))
    assert batches(pool.put(0, 11)) == [(1, 1, 10)]  # no time to wait, by any rule
    assert pool.put(3, 13) == ()  # due at 16, and GPU 0 would end at 16.2
    assert batches(pool.done(5, 1, gpu=1)) == [(1, 1, 15)]


def test_a_part_behind_one_that_must_wait_goes_first() -> None:
    pool = slow_and_fast()
    pool.put(0, 100)
    assert pool.put(1, 13) == ()  # due at 14: too soon for GPU 0 (1 + 13.2 + 1)
    assert batches(pool.put(1, 40)) == [(0, 1, 14.2)]
    assert batches(pool.done(2, 1, gpu=1)) == [(1, 1, 12)]


def test_without_the_fast_gpu_the_part_is_late() -> None:
    pool = slow_and_fast()
    pool.put(0, 100)
    assert pool.put(1, 13) == ()
    lost = pool.core.handle(m.GpuLost(1), 2 * MS)
    assert lost[0] == m.RefusePart(m.PartKey(0, 2), "late")
    assert batches(lost) == [(0, 1, 15.2)]  # the part that GPU 1 had


# --- wearing off ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quiet_ns", "permille"),
    [
        (MINUTE_NS - 1, 320),
        (MINUTE_NS, 160),
        (2 * MINUTE_NS - 1, 160),
        (2 * MINUTE_NS, 80),
        (3 * MINUTE_NS, 0),  # 40 is below the least
        (90 * MINUTE_NS, 0),
    ],
)
def test_inflation_halves_every_quiet_minute(quiet_ns: int, permille: int) -> None:
    pool = Pool()
    pool.put(0, 100)
    pool.done(12, 1)
    pool.core.handle(m.TimeReached(), 12 * MS + quiet_ns)
    assert pool.permille() == [permille]
    now_ms = 12 + quiet_ns / MS
    (run,) = (c for c in pool.put(now_ms, 100) if isinstance(c, m.RunBatch))
    now_ns = round(now_ms * MS)
    assert run.worst_end_at_ns - now_ns == 10 * MS * (1000 + permille) // 1000


def test_an_overrun_begins_the_quiet_anew() -> None:
    pool = Pool()
    pool.put(0, 100)
    pool.done(12, 1)
    pool.put(50_000, 100)
    assert pool.done(50_013.3, 2) == (m.Overrun(0, 2, MS // 10, 463),)
    pool.core.handle(m.TimeReached(), 100_000 * MS)
    assert pool.permille() == [463]
    pool.core.handle(m.TimeReached(), round(110_013.3 * MS))
    assert pool.permille() == [231]


def test_nothing_needs_waking_for_it() -> None:
    pool = Pool()
    pool.put(0, 100)
    pool.done(12, 1)
    assert pool.core.wakeup_at_ns() is None


# --- draining -------------------------------------------------------------------------------


def overruns(pool: Pool, gpu: int, at_s: list[float], batch: int = 1) -> list[m.Command]:
    """Batches of one that end so late that even the inflated promise is broken."""
    told: list[m.Command] = []
    for number, second in enumerate(at_s):
        began_ms = second * 1000 - 40
        for other in range(len(pool.states())):
            if other != gpu:
                pool.core.handle(m.GpuDrained(other), round(began_ms * MS))
        (run,) = batches(pool.put(began_ms, 100))
        assert run[0] == gpu
        for other in range(len(pool.states())):
            if other != gpu:
                pool.core.handle(m.GpuReady(other), round(began_ms * MS))
        told += pool.done(second * 1000, batch + number, gpu)
    return told


def test_three_overruns_in_ten_seconds_take_a_gpu_out() -> None:
    pool = Pool(gpus=2)
    assert overruns(pool, 0, [1, 5, 10.9])[-2:] == [m.Overrun(0, 3, 25 * MS, 500), m.DrainGpu(0, 3)]
    assert pool.states() == ("DRAINING", "READY")
    assert batches(pool.put(11_000, 100)) == [(1, 1, 11_010)]
    assert pool.put(11_001, 100) == ()


def test_three_in_more_than_ten_seconds_do_not() -> None:
    pool = Pool(gpus=2)
    assert m.DrainGpu(0, 3) not in overruns(pool, 0, [1, 5, 11])
    assert pool.states() == ("READY", "READY")


def test_it_comes_back_with_its_inflation_and_its_overruns_counted_anew() -> None:
    pool = Pool(gpus=2)
    overruns(pool, 0, [1, 2, 3])
    pool.core.handle(m.GpuReady(0), 8_000 * MS)
    assert pool.permille() == [500, 0]
    assert m.DrainGpu(0, 3) not in overruns(pool, 0, [8.5, 9], batch=4)
    assert overruns(pool, 0, [9.5], batch=6)[-1] == m.DrainGpu(0, 3)


def test_a_pool_of_one_keeps_its_gpu() -> None:
    pool = Pool()
    assert m.DrainGpu(0, 3) not in overruns(pool, 0, [1, 2, 3, 4, 5])
    assert pool.states() == ("READY",)


def test_where_every_gpu_overruns_the_fault_is_no_gpus() -> None:
    pool = Pool(gpus=3)
    told = overruns(pool, 1, [1, 1.5]) + overruns(pool, 2, [2], batch=3)
    told += overruns(pool, 0, [3, 4, 5], batch=4)
    assert not any(isinstance(one, m.DrainGpu) for one in told)
    # nine are three times what all others together have, a tenth is more
    assert overruns(pool, 0, [5.5, 6, 6.5, 7, 7.5, 8], batch=7)[-1].gpu == 0
    assert pool.states() == ("READY", "READY", "READY")
    assert overruns(pool, 0, [8.5], batch=13)[-1] == m.DrainGpu(0, 10)


def test_no_second_gpu_is_taken_out() -> None:
    pool = Pool(gpus=3)
    pool.core.handle(m.GpuLost(2), 0)
    for second in (1, 2, 3, 4):
        pool.core.handle(m.GpuDrained(1), (second * 1000 - 40) * MS)
        pool.put(second * 1000 - 40, 100)
        pool.core.handle(m.GpuReady(1), (second * 1000 - 40) * MS)
        assert len(pool.done(second * 1000, second)) == 1
    assert pool.states() == ("READY", "READY", "LOST")


# --- the arithmetic -------------------------------------------------------------------------


def test_worst_cases_are_rounded_up() -> None:
    assert inflated((1, 3, 1000), 101) == (2, 4, 1101)
    assert inflated((7, 8), 0) == (7, 8)


def test_no_more_overruns_are_remembered_than_decide_anything() -> None:
    learnt = NO_OVERRUNS
    for at_ns in range(100):
        learnt = learnt.and_one(11, 10, at_ns)
    assert len(learnt.recent_at_ns) == KEPT_MAX
    assert learnt.count(99) == KEPT_MAX
    assert learnt.count(99 + 10 * SECOND_NS) == 0
