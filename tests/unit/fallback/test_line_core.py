"""Guard and route together at literal instants: what is measured, and how a trial ends."""

from __future__ import annotations

import pytest

from fallback import guard as g
from fallback import line_core as lc
from fallback import route as r
from fallback.route import Route

MS = 1_000_000
S = 1000 * MS
PLAN = lc.CorePlan(
    guard=g.GuardPlan(wcet_ns=10 * MS, timer_ns=2 * MS, start_ns=1 * MS, warm_every_ns=10_000 * S),
    route=r.RoutePlan(
        window_ns=10 * S,
        window_parts_min=3,
        latency_percentile=90,
        latency_ns=85 * MS,
        hedge_permille=200,
        late_permille=100,
        beat_lost_ns=1000 * S,
        return_after_ns=2 * S,
        return_after_max_ns=8 * S,
        steady_ns=60 * S,
        trial_frames=2,
    ),
    due_budget_ns=100 * MS,
    trial_latency_ns=80 * MS,
)
LAST_START_MS = 87
"""After exposure: 100 due − 2 timer − 10 worst case − 1 start."""


class Line:
    """Parts are captured 20 ms before they are accepted; part n at n seconds."""

    def __init__(self) -> None:
        self.core = lc.LineCore(PLAN, 0)
        self.part = 0

    def feed(self, event: lc.CoreEvent, at_ms: float) -> tuple[lc.CoreCommand, ...]:
        return self.core.handle(event, round(at_ms * MS))

    def accept(self) -> tuple[int, tuple[lc.CoreCommand, ...]]:
        """A new part; the instant of its exposure in ms, and what was ordered."""
        self.part += 1
        exposed_ms = self.part * 1000
        self.feed(g.PartAccepted(self.part, (exposed_ms + 100) * MS), exposed_ms + 20)
        return exposed_ms, self.feed(g.PictureReady(self.part), exposed_ms + 20)

    def trial(self, answer_ms: float | None = 30, agrees: bool = True) -> list[lc.CoreCommand]:
        """A part answered by its fallback at 40 ms and by the pool; everything ordered after."""
        exposed_ms, _ = self.accept()
        told: list[lc.CoreCommand] = []
        events: list[tuple[float, g.Event]] = [(40, g.FallbackDone(self.part, True))]
        if answer_ms is not None:
            events.append((answer_ms, g.PoolAnswered(self.part)))
        else:
            events.append((100, g.TimeReached()))
        for after_ms, event in sorted(events, key=lambda one: one[0]):
            for command in self.feed(event, exposed_ms + after_ms):
                told.append(command)
                if isinstance(command, lc.CompareTrial):
                    compared = lc.TrialCompared(command.part, agrees)
                    told += self.feed(compared, exposed_ms + after_ms)
        return told

    def part_on_pool(self, answer_ms: int) -> list[lc.CoreCommand]:
        """A part whose pool answer comes so long after exposure, and whose fallback takes 9 ms."""
        exposed_ms, told = self.accept()
        assert told == (g.OfferToPool(self.part, (exposed_ms + LAST_START_MS) * MS),)
        ordered: list[lc.CoreCommand] = []
        events: list[tuple[float, g.Event]] = [(answer_ms, g.PoolAnswered(self.part))]
        if answer_ms > LAST_START_MS:
            events += [(LAST_START_MS, g.TimeReached()), (96, g.FallbackDone(self.part, True))]
        for after_ms, event in sorted(events, key=lambda one: one[0]):
            ordered += self.feed(event, exposed_ms + after_ms)
        return ordered


def returning() -> Line:
    """A line that the operator took off the pool and has just released."""
    line = Line()
    line.feed(r.PoolBeat(1), 0)
    line.feed(r.OperatorForced(), 0)
    back = r.ChangeRoute(Route.FALLBACK, Route.RETURNING, "headroom")
    assert line.feed(r.OperatorReleased(), 0) == (back,)
    return line


def on_pool() -> Line:
    line = returning()
    line.trial()
    line.trial()
    assert line.core.route is Route.POOL
    return line


def test_until_the_pool_was_seen_a_line_answers_for_itself() -> None:
    line = Line()
    _, ordered = line.accept()
    assert ordered == (g.StartFallback(1),)


@pytest.mark.parametrize("answer_ms", [30, 50])  # before the fallback's answer, and after it
def test_trials_that_agree_bring_the_line_back(answer_ms: int) -> None:
    line = returning()
    told = line.trial(answer_ms)
    assert told == [g.Decide(1, "fallback", ""), lc.CompareTrial(1)]
    told = line.trial(answer_ms)
    to_pool = r.ChangeRoute(Route.RETURNING, Route.POOL, "trials")
    assert told == [g.Decide(2, "fallback", ""), lc.CompareTrial(2), to_pool]


def test_a_second_trial_that_disagrees_sends_the_line_back() -> None:
    line = returning()
    line.trial(agrees=False)
    told = line.trial(agrees=False)
    assert told[-1] == r.ChangeRoute(Route.RETURNING, Route.FALLBACK, "trial-disagreed")


@pytest.mark.parametrize("answer_ms", [81, 88, None])
def test_a_trial_near_the_slo_past_pool_due_or_never_answered_is_late(
    answer_ms: float | None,
) -> None:
    line = returning()
    first, second = line.trial(answer_ms), line.trial(answer_ms)
    assert first == [g.Decide(1, "fallback", ""), lc.EndTrial(1)]
    assert second[1:] == [
        lc.EndTrial(2),
        r.ChangeRoute(Route.RETURNING, Route.FALLBACK, "trial-late"),
    ]


def test_a_trial_that_the_pool_refuses_is_late_too() -> None:
    line = returning()
    exposed_ms, _ = line.accept()
    assert line.feed(g.PoolRefused(1), exposed_ms + 21) == (lc.EndTrial(1),)
    assert line.core.line_route._overdue == 1


def test_a_trial_whose_fallback_failed_counts_for_nothing_and_the_pool_saves_the_part() -> None:
    line = returning()
    exposed_ms, _ = line.accept()
    assert line.feed(g.FallbackDone(1, False), exposed_ms + 30) == (lc.EndTrial(1),)
    assert line.feed(g.PoolAnswered(1), exposed_ms + 40) == (g.Decide(1, "pool", ""),)
    assert (line.core.line_route._passed, line.core.line_route._overdue) == (0, 0)


def test_a_line_that_leaves_returning_ends_its_trials() -> None:
    line = returning()
    exposed_ms, _ = line.accept()
    assert line.core.is_trial(1)
    told = line.feed(r.OperatorForced(), exposed_ms + 25)
    assert told == (
        r.ChangeRoute(Route.RETURNING, Route.FALLBACK, "operator"),
        lc.EndTrial(1),
    )
    assert not line.core.is_trial(1)
    assert line.feed(g.PoolAnswered(1), exposed_ms + 30) == ()
    assert line.feed(g.FallbackDone(1, True), exposed_ms + 40) == (g.Decide(1, "fallback", ""),)


def test_a_take_over_is_measured_as_a_hedge_and_as_late() -> None:
    line = on_pool()
    assert line.part_on_pool(30) == [g.Decide(3, "pool", "")]
    line.part_on_pool(30)
    told = line.part_on_pool(99)
    assert told[:2] == [g.StartFallback(5), g.Decide(5, "fallback", "")]
    assert told[2] == r.ChangeRoute(Route.POOL, Route.FALLBACK, "latency")  # 96 ms is above 85


def test_a_part_that_came_with_no_time_for_a_take_over_says_nothing_of_the_pool() -> None:
    line = on_pool()
    for part in range(3, 13):
        line.part = part
        exposed_ms = part * 1000
        line.feed(g.PartAccepted(part, (exposed_ms + 100) * MS), exposed_ms + 88)
        told = line.feed(g.PictureReady(part), exposed_ms + 88)
        assert told == (g.OfferToPool(part, (exposed_ms + 98) * MS), g.StartFallback(part))
        line.feed(g.PoolAnswered(part), exposed_ms + 97)
        line.feed(g.FallbackDone(part, True), exposed_ms + 98)
    assert line.core.route is Route.POOL


def test_parts_of_a_line_that_stops_measure_nothing() -> None:
    line = on_pool()
    for _ in range(5):
        exposed_ms, _ = line.accept()
        line.feed(g.PictureBad(line.part, "stop"), exposed_ms + 30)
    assert line.core.route is Route.POOL
    assert len(line.core.line_route._window) == 0


def test_the_end_of_a_trial_and_the_routes_wakeup_are_wakeups() -> None:
    line = returning()
    exposed_ms, _ = line.accept()
    line.feed(g.FallbackDone(1, True), exposed_ms + 30)
    wakeup_ns = line.core.wakeup_at_ns()
    assert wakeup_ns == (exposed_ms + 100) * MS
    assert line.feed(g.TimeReached(), exposed_ms + 100) == (lc.EndTrial(1),)
