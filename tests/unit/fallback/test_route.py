"""The route of one line at literal instants: every trigger, every way back, and no flapping."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from fallback import route as r
from fallback.route import Cause, Route

MS = 1_000_000
S = 1000 * MS
PLAN = r.RoutePlan(
    window_ns=10 * S,
    window_parts_min=10,
    latency_percentile=90,
    latency_ns=100 * MS,
    hedge_permille=200,
    late_permille=100,
    beat_lost_ns=1 * S,
    return_after_ns=2 * S,
    return_after_max_ns=30 * S,
    steady_ns=60 * S,
    trial_frames=3,
)
CALM = replace(PLAN, beat_lost_ns=1000 * S)
"""For tests of all else: the batcher may be silent."""
GOOD = r.TrialEnded(is_in_time=True, agrees=True)
LATE = r.TrialEnded(is_in_time=False, agrees=False)
WRONG = r.TrialEnded(is_in_time=True, agrees=False)


class Line:
    """A route with a clock, and the story of its changes."""

    def __init__(self, plan: r.RoutePlan = PLAN) -> None:
        self.core = r.LineRoute(plan, 0)
        self.changes: list[tuple[int, Route, str]] = []

    def feed(self, event: r.RouteEvent, now_ns: int) -> None:
        for change in self.core.handle(event, now_ns):
            self.changes.append((now_ns, change.after, change.reason))

    def part(self, now_ns: int, took_ms: int = 50, by: str = "pool", hedged: bool = False) -> None:
        self.feed(r.PartDecided(took_ms * MS, by, hedged), now_ns)

    def parts(self, count: int, begin_ns: int, **what: object) -> int:
        """So many parts, 100 ms apart; the instant after the last."""
        for k in range(count):
            self.part(begin_ns + k * 100 * MS, **what)  # type: ignore[arg-type]
        return begin_ns + count * 100 * MS

    @property
    def last(self) -> tuple[Route, str]:
        return self.changes[-1][1:]


def on_pool(plan: r.RoutePlan = CALM) -> Line:
    """A line on the pool since 3 ms, which has heard no beat since 0."""
    line = Line(plan)
    line.feed(r.PoolBeat(4), 0)
    line.core.since_ns = 3 * MS
    assert line.core.route is Route.POOL
    line.changes.clear()
    return line


def returning(plan: r.RoutePlan = PLAN) -> Line:
    """A line that the operator took off the pool and has released, at 0."""
    line = Line(plan)
    for event in (r.PoolBeat(1), r.OperatorForced(), r.OperatorReleased()):
        line.feed(event, 0)
    assert line.core.route is Route.RETURNING
    return line


def beaten(line: Line, now_ns: int) -> None:
    line.feed(r.PoolBeat(4), now_ns)


def test_a_line_starts_on_its_fallback_and_is_on_the_pool_once_that_is_there() -> None:
    line = Line()
    assert (line.core.route, line.core.reason) == (Route.FALLBACK, "start")
    line.feed(r.PoolBeat(0), 1 * S)  # no GPU is READY yet
    assert line.core.route is Route.FALLBACK
    line.feed(r.PoolBeat(1), 1250 * MS)
    assert line.changes == [(1250 * MS, Route.POOL, "pool-ready")]


def test_what_has_fallen_comes_back_by_trials_alone() -> None:
    line = on_pool()
    line.feed(r.OperatorForced(), 1 * S)
    line.feed(r.OperatorReleased(), 2 * S)
    assert line.last == (Route.RETURNING, "headroom")
    for at_ms in (2100, 2200, 2300):
        assert line.core.route is Route.RETURNING
        line.feed(GOOD, at_ms * MS)
    assert line.last == (Route.POOL, "trials")


def test_no_gpu_and_no_batcher_take_a_line_off_the_pool_and_two_seconds_bring_trials() -> None:
    line = on_pool(PLAN)
    line.feed(r.PoolBeat(0), 100 * MS)
    assert line.last == (Route.FALLBACK, "no-gpu")
    line.feed(r.PoolBeat(1), 350 * MS)
    assert line.core.wakeup_at_ns() == 1350 * MS  # silence comes before the end of the hold
    for at_ms in range(600, 2350, 250):
        beaten(line, at_ms * MS)
    assert line.core.route is Route.FALLBACK
    assert line.core.wakeup_at_ns() == 2350 * MS
    line.feed(r.ClockTicked(), 2350 * MS)
    assert line.last == (Route.RETURNING, "headroom")

    line = on_pool(PLAN)
    assert line.core.wakeup_at_ns() == 1 * S
    line.feed(r.ClockTicked(), 999 * MS)
    assert line.core.route is Route.POOL
    line.feed(r.ClockTicked(), 1 * S)
    assert line.last == (Route.FALLBACK, "no-batcher")
    assert line.core.wakeup_at_ns() is None


def test_shedding_takes_a_line_off_and_the_batchers_headroom_is_headroom_enough() -> None:
    line = on_pool()
    line.feed(r.LineShed("2 GPUs carry 7 of 12 lines"), 100 * MS)
    assert line.last == (Route.FALLBACK, "shed: 2 GPUs carry 7 of 12 lines")
    line.feed(GOOD, 150 * MS)  # of a trial before: no matter
    assert line.core.route is Route.FALLBACK
    line.feed(r.LineUnshed(), 200 * MS)
    assert line.last == (Route.RETURNING, "headroom")
    line.feed(r.LineShed("again"), 210 * MS)
    assert line.last == (Route.FALLBACK, "shed: again")


def test_the_operator_wins_until_released_and_both_switches_are_idempotent() -> None:
    line = on_pool()
    line.feed(r.OperatorForced(), 100 * MS)
    assert line.last == (Route.FALLBACK, "operator")
    line.feed(r.OperatorForced(), 110 * MS)
    beaten(line, 900 * MS)
    line.feed(r.LineShed("x"), 950 * MS)
    line.feed(r.LineUnshed(), 960 * MS)
    beaten(line, 1800 * MS)
    assert len(line.changes) == 1
    line.feed(r.OperatorReleased(), 1900 * MS)
    assert line.last == (Route.RETURNING, "headroom")
    line.feed(r.OperatorReleased(), 1950 * MS)
    assert len(line.changes) == 2
    line.feed(r.OperatorForced(), 1960 * MS)
    assert line.last == (Route.FALLBACK, "operator")


def test_latency_near_the_slo_at_its_percentile_takes_a_line_off() -> None:
    line = on_pool()
    now_ns = line.parts(18, 10 * MS)
    line.part(now_ns, took_ms=101)
    line.part(now_ns + 1, took_ms=101)  # 2 of 20: the 90th percentile is the 18th, which is good
    assert line.core.route is Route.POOL
    line.part(now_ns + 2, took_ms=101)
    assert line.last == (Route.FALLBACK, "latency")


def test_exactly_the_threshold_is_not_above_it() -> None:
    line = on_pool()
    line.parts(50, 10 * MS, took_ms=100)
    assert line.core.route is Route.POOL


def test_few_parts_are_no_measure() -> None:
    line = on_pool()
    line.parts(9, 10 * MS, took_ms=500, by="fallback", hedged=True)
    assert line.core.route is Route.POOL
    line.part(10 * MS + 900 * MS, took_ms=500, by="fallback", hedged=True)
    assert line.core.route is Route.FALLBACK


def test_hedges_that_the_pool_won_count_less_than_answers_that_it_lost() -> None:
    line = on_pool()
    now_ns = line.parts(16, 10 * MS)
    for k in range(4):
        line.part(now_ns + k, hedged=True)  # 4 of 20: a fifth is allowed
    assert line.core.route is Route.POOL
    line.part(now_ns + 5, hedged=True)
    assert line.last == (Route.FALLBACK, "hedges")

    line = on_pool()
    now_ns = line.parts(18, 10 * MS)
    line.part(now_ns, by="fallback", hedged=True)
    line.part(now_ns + 1, by="failsafe", hedged=False)  # 2 of 20: a tenth is allowed
    assert line.core.route is Route.POOL
    line.part(now_ns + 2, by="fallback", hedged=True)
    assert line.last == (Route.FALLBACK, "late")


def test_what_is_older_than_the_window_no_longer_counts() -> None:
    line = on_pool()
    line.parts(2, 10 * MS, took_ms=200)
    later = line.parts(10, 10 * S + 60 * MS)  # the first of the two is over 10 s old, then both
    line.parts(20, later)
    assert line.core.route is Route.POOL
    assert (line.core._over, len(line.core._window)) == (0, 30)


def test_a_window_has_a_limit() -> None:
    line = on_pool()
    for k in range(r.WINDOW_PARTS_MAX + 10):
        line.part(10 * MS + k)
    assert len(line.core._window) == r.WINDOW_PARTS_MAX


def test_a_trial_out_of_time_begins_the_row_anew_and_too_many_end_it() -> None:
    line = returning()
    for event in (GOOD, GOOD, LATE, GOOD, GOOD, LATE, GOOD, GOOD):
        line.feed(event, 10 * MS)
    assert line.core.route is Route.RETURNING
    line.feed(LATE, 20 * MS)
    assert line.last == (Route.FALLBACK, "trial-late")


def test_two_models_may_disagree_once_in_a_row_of_trials() -> None:
    line = returning()
    for event in (GOOD, WRONG, GOOD, GOOD):
        line.feed(event, 10 * MS)
    assert line.core.route is Route.POOL
    line = returning()
    for event in (WRONG, GOOD, GOOD, WRONG):
        line.feed(event, 10 * MS)
    assert line.last == (Route.FALLBACK, "trial-disagreed")


def test_one_more_that_disagrees_ends_them_and_the_hold_doubles_up_to_its_most() -> None:
    line = returning(replace(CALM, trial_differ_max=0))
    holds = []
    now_ns = 0
    for _ in range(7):
        assert line.core.route is Route.RETURNING
        line.feed(WRONG, now_ns)
        assert line.last == (Route.FALLBACK, "trial-disagreed")
        wakeups = [at for at in (line.core.wakeup_at_ns(),) if at is not None]
        holds.append((wakeups[0] - now_ns) // S)
        now_ns = wakeups[0]
        line.feed(r.ClockTicked(), now_ns)
    assert holds == [2, 4, 8, 16, 30, 30, 30]


def test_a_fall_after_a_steady_time_on_the_pool_is_the_first_again() -> None:
    line = on_pool(CALM)
    held = []
    now_ns = 10 * MS
    for wait_ns in (0, 0, 0, 61 * S, 0):
        now_ns += wait_ns
        now_ns = line.parts(10, now_ns, took_ms=200) - 100 * MS
        assert line.core.route is Route.FALLBACK
        held.append(((line.core.wakeup_at_ns() or 0) - now_ns) // S)
        now_ns += held[-1] * S
        line.feed(r.ClockTicked(), now_ns)
        for _ in range(3):
            line.feed(GOOD, now_ns)
    assert held == [2, 4, 8, 2, 4]


CYCLE_NS = 200 * MS
TEN_MINUTES = 600 * S


def changes_in_ten_minutes(plan: r.RoutePlan, took_ms: list[int]) -> int:
    """A line whose parts take these times in turn, trials included; how often its route changes."""
    line = on_pool(plan)
    for k, took in zip(range(TEN_MINUTES // CYCLE_NS), itertools.cycle(took_ms), strict=False):
        now_ns = 10 * MS + k * CYCLE_NS
        beaten(line, now_ns)
        if line.core.route is Route.RETURNING:
            is_good = took * MS <= plan.latency_ns
            line.feed(r.TrialEnded(is_good, is_good), now_ns)
        else:
            line.part(now_ns, took_ms=took)
    return len(line.changes)


@pytest.mark.parametrize(
    "took_ms",
    [[99, 101], [99] * 9 + [101], [99] * 8 + [101, 101], [100, 100, 101], [99] * 15 + [101] * 5],
)
def test_load_just_at_the_edge_changes_the_route_at_most_so_often(took_ms: list[int]) -> None:
    """Holds of 2, 4, 8, 16 and then 30 s: at most 22 falls in ten minutes, of 3 changes each."""
    assert changes_in_ten_minutes(PLAN, took_ms) <= 66
    few = changes_in_ten_minutes(replace(PLAN, return_after_max_ns=300 * S), took_ms)
    assert few <= 27  # 2 + 4 + … + 256 s are 510 s


def test_the_edge_does_change_routes_else_the_test_above_says_nothing() -> None:
    assert changes_in_ten_minutes(PLAN, [99] * 8 + [101, 101]) > 10
    unheld = replace(PLAN, return_after_max_ns=PLAN.return_after_ns)
    assert changes_in_ten_minutes(unheld, [99] * 8 + [101, 101]) > 66


def test_the_table_has_every_pair_that_can_happen_and_another_raises() -> None:
    impossible = {
        (Route.FALLBACK, Cause.PRESSURE),  # measured on the pool alone
        (Route.RETURNING, Cause.PRESSURE),
        (Route.POOL, Cause.FRESH),  # of a line that was never on the pool
        (Route.RETURNING, Cause.FRESH),
        (Route.POOL, Cause.HEADROOM),
        (Route.RETURNING, Cause.HEADROOM),
        (Route.POOL, Cause.PROVEN),
        (Route.FALLBACK, Cause.PROVEN),
        (Route.POOL, Cause.DISPROVEN),
        (Route.FALLBACK, Cause.DISPROVEN),
        (Route.FALLBACK, Cause.INFEASIBLE),  # it is there already: nothing to change
        (Route.FALLBACK, Cause.SHED),
        (Route.FALLBACK, Cause.FORCED),
    }
    assert set(itertools.product(Route, Cause)) - set(r.ROUTES) == impossible
    with pytest.raises(
        r.RouteError, match=r"proven \(x\) at 7 on POOL since 3000000 \(pool-ready\)"
    ):
        on_pool().core._step(Cause.PROVEN, "x", 7, [])


@pytest.mark.parametrize(
    "wrong",
    [{"window_ns": 0}, {"trial_frames": 0}, {"latency_percentile": 101}, {"latency_percentile": 0},
     {"return_after_max_ns": 1}, {"steady_ns": -1}],
)  # fmt: skip
def test_a_plan_that_makes_no_sense_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be above 0|from 1 to 100|is below"):
        replace(PLAN, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pool", "fallback", "expected"),
    [
        (0.9, 0.8, True),
        (0.1, 0.2, True),
        (0.9, 0.1, False),
        (0.504, 0.1, True),  # 0.004 from the pool's threshold
        (0.506, 0.1, False),
        (0.9, 0.26, True),  # 0.04 from the fallback's 0.3
        (0.9, 0.24, False),
    ],
)
def test_verdicts_agree_or_lie_in_a_guard_band(
    pool: float, fallback: float, expected: bool
) -> None:
    assert r.agrees(pool, fallback, (0.5, 0.3), (0.005, 0.05)) is expected
