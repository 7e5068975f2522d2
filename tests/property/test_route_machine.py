"""A line's guard and route under any order of troubles: one verdict a part, and the way back.

The machine is the rest of the plant in virtual time: a pool that answers, is late, refuses or dies,
a fallback that works or fails, a batcher that beats, sheds and restarts, and an operator.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fallback import guard as g
from fallback import line_core as lc
from fallback import route as r
from fallback.route import Route

MS = 1_000_000
GUARD = g.GuardPlan(wcet_ns=6 * MS, timer_ns=2 * MS, start_ns=1 * MS, warm_every_ns=500 * MS)
ROUTE = r.RoutePlan(
    window_ns=400 * MS,
    window_parts_min=4,
    latency_percentile=75,
    latency_ns=70 * MS,
    hedge_permille=400,
    late_permille=250,
    beat_lost_ns=100 * MS,
    return_after_ns=50 * MS,
    return_after_max_ns=400 * MS,
    steady_ns=1000 * MS,
    trial_frames=3,
)
PLAN = lc.CorePlan(GUARD, ROUTE, due_budget_ns=80 * MS, trial_latency_ns=60 * MS)
CYCLE_NS = 20 * MS
BEAT_NS = 25 * MS
BACK_NS = ROUTE.return_after_max_ns + BEAT_NS + (ROUTE.trial_frames + 2) * CYCLE_NS + 80 * MS
"""The stated time: the longest hold, a beat, the trials, and one part's life."""
BETWEEN_TRIALS = ("shed", "operator", "no-gpu", "wrong", "dead", "broken", "slow")
TROUBLES = ("is_pool_dead", "is_pool_wrong", "is_refusing", "is_fallback_broken")


@dataclass
class Part:
    """What the machine knows of a part."""

    due_at_ns: int
    verdict: g.Decide | None = None
    is_trial: bool = False
    is_trial_over: bool = False
    fallback_ok: bool = False
    has_fallback_failed: bool = False
    is_pool_in: bool = False
    pool_took_ns: int = 0


class Plant(RuleBasedStateMachine):
    """Troubles as rules; what the core orders is obeyed and judged in `feed`."""

    def __init__(self) -> None:
        super().__init__()
        self.core = lc.LineCore(PLAN, 0)
        self.now_ns = 0
        self.parts: dict[int, Part] = {}
        self.agenda: list[tuple[int, int, lc.CoreEvent]] = []
        self.order = itertools.count()
        self.pool_takes_ms = 20
        self.is_pool_dead = self.is_fallback_broken = self.is_pool_wrong = False
        self.is_refusing = self.is_batcher_dead = self.is_shed = self.is_forced = False
        self.gpus = 2
        self.is_camera_on = True
        self.next_part_ns = self.next_beat_ns = 0
        self.route_since_ns = 0
        self.fell_at_ns: int | None = None
        self.changes: list[r.ChangeRoute] = []
        self.good_trials = self.wrong_trials = 0  # by this machine's own account

    # --- obeying and judging ----------------------------------------------------------------

    def at(self, after_ns: int, event: lc.CoreEvent) -> None:
        heapq.heappush(self.agenda, (self.now_ns + after_ns, next(self.order), event))

    def feed(self, event: lc.CoreEvent) -> None:
        route = self.core.route
        for command in self.core.handle(event, self.now_ns):
            match command:
                case g.OfferToPool():
                    part = self.parts[command.part]
                    assert route is not Route.FALLBACK or self.core.route is not Route.FALLBACK
                    part.is_trial = command.is_trial
                    part.is_trial_over = False  # a new batcher is offered what the old one had
                    self.pool_gets(command.part)
                case g.StartFallback():
                    self.at(5 * MS, g.FallbackDone(command.part, not self.is_fallback_broken))
                case g.StartWarm():
                    self.at(5 * MS, g.WarmDone())
                case g.Decide():
                    self.judge(command)
                case lc.CompareTrial():
                    self.trial_over(command.part)
                    part = self.parts[command.part]
                    assert part.is_pool_in and part.fallback_ok
                    assert part.verdict is not None
                    self.at(0, lc.TrialCompared(command.part, not self.is_pool_wrong))
                    assert part.pool_took_ns <= PLAN.trial_latency_ns
                    self.good_trials += not self.is_pool_wrong
                    self.wrong_trials += self.is_pool_wrong
                case lc.EndTrial():
                    self.trial_over(command.part)
                    part = self.parts[command.part]
                    if not part.has_fallback_failed and not part.is_pool_in:
                        self.good_trials = 0
                case r.ChangeRoute():
                    self.changes.append(command)
                    assert command.before is not command.after
                    route, self.route_since_ns = command.after, self.now_ns
                    if command.before is Route.RETURNING and command.after is Route.POOL:
                        assert self.good_trials >= ROUTE.trial_frames, "returned unproven"
                        assert self.wrong_trials <= ROUTE.trial_differ_max
                    elif command.after is Route.POOL:
                        assert len(self.changes) == 1, "only a line that has never fallen"
                    self.good_trials = self.wrong_trials = 0
        assert route is self.core.route, "the route changed without a word"

    def pool_gets(self, part: int) -> None:
        """A well pool answers some parts before the fallback could, and most after."""
        if self.is_batcher_dead or self.is_refusing:
            self.at(0, g.PoolRefused(part))
        elif not self.is_pool_dead and self.gpus:
            is_fast = part % 3 == 0 and self.pool_takes_ms <= 20
            self.at(2 * MS if is_fast else self.pool_takes_ms * MS, g.PoolAnswered(part))

    def trial_over(self, number: int) -> None:
        part = self.parts[number]
        assert part.is_trial and not part.is_trial_over, "a trial ends once"
        part.is_trial_over = True

    def judge(self, decide: g.Decide) -> None:
        part = self.parts[decide.part]
        assert part.verdict is None, "decided twice"
        part.verdict = decide
        assert self.now_ns <= part.due_at_ns
        if decide.answered_by == "pool":
            assert part.is_pool_in
            is_over = self.now_ns >= part.due_at_ns - GUARD.timer_ns
            assert not part.is_trial or part.has_fallback_failed or is_over, "a trial decided"
        if decide.answered_by == "fallback":
            assert part.fallback_ok

    # --- time -------------------------------------------------------------------------------

    def pass_until(self, end_ns: int) -> None:
        for _ in range(20_000):
            wakeup_ns = self.core.wakeup_at_ns()
            assert wakeup_ns is None or wakeup_ns > self.now_ns, "the core spins"
            nexts = [self.next_part_ns, self.next_beat_ns]
            nexts += [wakeup_ns] if wakeup_ns is not None else []
            nexts += [self.agenda[0][0]] if self.agenda else []
            if min(nexts) > end_ns:
                break
            self.now_ns = min(nexts)
            self.happen()
        else:
            raise AssertionError("too many events")
        self.now_ns = end_ns

    def happen(self) -> None:
        """Everything of this instant: answers first, then what is new, then the clock."""
        while self.agenda and self.agenda[0][0] <= self.now_ns:
            event = heapq.heappop(self.agenda)[2]
            if isinstance(event, g.PoolAnswered):
                part = self.parts[event.part]
                part.is_pool_in = part.verdict is None and self.now_ns < part.due_at_ns
                part.is_pool_in |= part.is_trial
                part.pool_took_ns = self.now_ns - part.due_at_ns + PLAN.due_budget_ns
            elif isinstance(event, g.FallbackDone):
                self.parts[event.part].fallback_ok = event.ok
                self.parts[event.part].has_fallback_failed = not event.ok
            self.feed(event)
        if self.now_ns >= self.next_beat_ns:
            self.next_beat_ns = self.now_ns + BEAT_NS
            if not self.is_batcher_dead:
                self.feed(r.PoolBeat(self.gpus))
        if self.now_ns >= self.next_part_ns:
            self.next_part_ns = self.now_ns + CYCLE_NS
            if self.is_camera_on:
                number = len(self.parts)
                due_at_ns = self.now_ns + 75 * MS
                self.parts[number] = Part(due_at_ns)
                self.feed(g.PartAccepted(number, due_at_ns))
                self.feed(g.PictureReady(number))
        self.feed(g.TimeReached())
        self.feed(r.ClockTicked())

    # --- troubles ---------------------------------------------------------------------------

    @rule(ms=st.integers(1, 400))
    def time_passes(self, ms: int) -> None:
        self.pass_until(self.now_ns + ms * MS)

    @rule(ms=st.sampled_from([20, 20, 54, 56, 65, 75, 90]))
    def the_pool_takes(self, ms: int) -> None:
        self.pool_takes_ms = ms

    @rule(what=st.sampled_from(TROUBLES), on=st.booleans())
    def trouble(self, what: str, on: bool) -> None:
        setattr(self, what, on)

    @rule(on=st.booleans())
    def camera(self, on: bool) -> None:
        self.is_camera_on = on

    @rule(gpus=st.integers(0, 2))
    def gpus_ready(self, gpus: int) -> None:
        self.gpus = gpus
        if not self.is_batcher_dead:
            self.feed(r.PoolBeat(gpus))

    @rule(on=st.booleans())
    def batcher_dies(self, on: bool) -> None:
        if self.is_batcher_dead and not on:
            self.feed(g.PoolBack())
        self.is_batcher_dead = on

    @precondition(lambda self: not self.is_batcher_dead)
    @rule(on=st.booleans())
    def shed(self, on: bool) -> None:
        self.is_shed = on
        self.feed(r.LineShed("test") if on else r.LineUnshed())

    @rule(what=st.sampled_from(BETWEEN_TRIALS), ms=st.integers(0, 40))
    def something_comes_between_the_trials(self, what: str, ms: int) -> None:
        """The same troubles, at an instant that is otherwise seldom hit."""
        self.clear()
        self.operator(True)
        self.operator(False)  # brings trials as soon as the pool may be counted on
        self.pass_until(self.now_ns + BEAT_NS)
        self.pass_until(self.now_ns + ms * MS)
        match what:
            case "shed" if not self.is_batcher_dead:
                self.shed(True)
            case "operator":
                self.operator(True)
            case "no-gpu":
                self.gpus_ready(0)
            case "wrong":
                self.is_pool_wrong = True
            case "dead":
                self.is_pool_dead = True
            case "broken":
                self.is_fallback_broken = True
            case "slow":
                self.pool_takes_ms = 65
        self.pass_until(self.now_ns + 150 * MS)

    @rule(on=st.booleans())
    def operator(self, on: bool) -> None:
        self.is_forced = on
        self.feed(r.OperatorForced() if on else r.OperatorReleased())

    def clear(self) -> None:
        """Every trouble stops."""
        self.is_pool_dead = self.is_pool_wrong = self.is_refusing = self.is_fallback_broken = False
        self.is_camera_on, self.pool_takes_ms, self.gpus = True, 20, 2
        self.batcher_dies(False)
        self.shed(False)
        self.operator(False)

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def what_forbids_the_pool_is_obeyed_at_once(self) -> None:
        if self.is_forced or self.is_shed:
            assert self.core.route is Route.FALLBACK

    @invariant()
    def every_change_is_in_the_table(self) -> None:
        pairs = {(before, after) for (before, _), after in r.ROUTES.items()}
        assert all((change.before, change.after) in pairs for change in self.changes)

    @invariant()
    def nothing_overdue_is_open(self) -> None:
        for part in self.parts.values():
            assert part.verdict is not None or part.due_at_ns > self.now_ns

    def teardown(self) -> None:
        """The troubles stop: the line is back on the pool within the stated time, for good."""
        self.clear()
        # what the troubles left behind: parts with the pool, and a window full of them
        self.pass_until(self.now_ns + ROUTE.window_ns + 100 * MS)
        self.pass_until(self.now_ns + BACK_NS)
        assert self.core.route is Route.POOL
        self.is_camera_on = False
        self.pass_until(self.now_ns + 200 * MS)
        assert self.core.open_count == 0
        assert all(part.verdict is not None for part in self.parts.values())
        assert all(part.is_trial_over for part in self.parts.values() if part.is_trial)


TestPlant = Plant.TestCase
TestPlant.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)


@given(
    st.lists(st.tuples(st.integers(1, 100 * MS), st.booleans()), min_size=50, max_size=400),
    st.integers(1, 6),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_falls_for_measured_reasons_are_held_ever_longer(
    parts: list[tuple[int, bool]], trial_frames: int
) -> None:
    """Between two falls lies the hold of the first; holds double unless a steady time came."""
    plan = r.RoutePlan(
        100 * MS, 3, 50, 10 * MS, 500, 500, 10**18, 20 * MS, 160 * MS, 300 * MS, trial_frames
    )
    core = r.LineRoute(plan, 0)
    core.handle(r.PoolBeat(1), 0)
    now_ns, pooled_ns, hold_ns = 0, 0, 0
    fell_ns: int | None = None
    for gap_ns, is_good in parts:
        now_ns += gap_ns
        wakeup_ns = core.wakeup_at_ns()
        if wakeup_ns is not None and wakeup_ns <= now_ns:
            assert fell_ns is not None and wakeup_ns == fell_ns + hold_ns
            core.handle(r.ClockTicked(), wakeup_ns)
            assert core.route is Route.RETURNING
        before = core.route
        if before is Route.RETURNING:
            core.handle(r.TrialEnded(is_good, is_good), now_ns)
        else:
            core.handle(r.PartDecided(5 * MS if is_good else 20 * MS, "pool", False), now_ns)
        if core.route is Route.POOL and before is not Route.POOL:
            pooled_ns = now_ns
        if core.route is Route.FALLBACK and before is not Route.FALLBACK:
            is_steady = before is Route.POOL and now_ns - pooled_ns >= plan.steady_ns
            is_first = is_steady or not hold_ns
            hold_ns = plan.return_after_ns if is_first else min(2 * hold_ns, 160 * MS)
            fell_ns = now_ns
