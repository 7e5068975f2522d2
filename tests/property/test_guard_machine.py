"""The guard's promises under any order of events, and its arithmetic against brute force."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fallback import guard as g
from fallback.route import Route

MS = 1_000_000
PLAN = g.GuardPlan(wcet_ns=6 * MS, timer_ns=2 * MS, start_ns=1 * MS, warm_every_ns=40 * MS)
RUN_NS = PLAN.wcet_ns + PLAN.start_ns


@dataclass
class Account:
    """What the machine knows of one part."""

    due_at_ns: int
    has_picture: bool = False
    is_pool_out: bool = False
    is_fallback_out: bool = False
    is_started: bool = False
    is_offered: bool = False
    is_trial: bool = False
    is_pool_in: bool = False  # a trial's answer came in time
    told_ns: int = 0
    may_be_late: bool = False  # the driver was held up across its fail-safe
    decided: g.Decide | None = None

    @property
    def failsafe_at_ns(self) -> int:
        return self.due_at_ns - PLAN.timer_ns


def last_starts(failsafes: dict[int, int]) -> dict[int, int]:
    """Closed form: part k and the n − 1 parts after it, back to back, all end in time."""
    order = sorted(failsafes, key=lambda part: (failsafes[part], part))
    return {
        part: min(failsafes[later] - (n + 1) * RUN_NS for n, later in enumerate(order[k:]))
        for k, part in enumerate(order)
    }


class GuardMachine(RuleBasedStateMachine):
    """Events in any order; `feed` judges what is ordered."""

    def __init__(self) -> None:
        super().__init__()
        self.guard = g.Guard(PLAN, 0)
        self.now_ns = 0
        self.parts: dict[int, Account] = {}
        self.running: int | str | None = None  # a part's number, "warm" or None
        self.route = Route.POOL
        self.has_just_started = False  # what that moves later is told with the next event

    def open(self) -> dict[int, Account]:
        return {number: part for number, part in self.parts.items() if part.decided is None}

    def expected_last_starts(self) -> dict[int, int]:
        return last_starts(
            {
                number: part.failsafe_at_ns
                for number, part in self.open().items()
                if not part.is_fallback_out and number != self.running
            }
        )

    # --- judging ----------------------------------------------------------------------------

    def feed(self, event: g.Event) -> tuple[g.Command, ...]:
        commands = self.guard.handle(event, self.now_ns)
        self.has_just_started = any(isinstance(c, g.StartFallback) for c in commands)
        for command in commands:
            match command:
                case g.Decide():
                    self.judge_decide(command)
                case g.StartFallback():
                    part = self.parts[command.part]
                    assert self.running is None, "two runs at once"
                    assert part.decided is None and part.has_picture and not part.is_started
                    part.is_started, self.running = True, command.part
                case g.StartWarm():
                    assert self.running is None, "two runs at once"
                    end_ns = self.now_ns + RUN_NS
                    assert all(end_ns <= last for last in self.expected_last_starts().values())
                    self.running = "warm"
                case g.OfferToPool():
                    part = self.parts[command.part]
                    assert part.has_picture and not part.is_pool_out and not part.is_offered
                    assert self.route is not Route.FALLBACK, "offered off the pool"
                    assert command.is_trial == (self.route is Route.RETURNING)
                    part.is_offered, part.told_ns = True, command.pool_due_at_ns
                    part.is_trial = command.is_trial
                case g.MovePoolDue():
                    part = self.parts[command.part]
                    assert part.is_offered and part.told_ns != command.pool_due_at_ns
                    assert not part.is_trial, "a trial's promise does not move"
                    part.told_ns = command.pool_due_at_ns
        return commands

    def judge_decide(self, decide: g.Decide) -> None:
        part = self.parts[decide.part]
        assert part.decided is None, "decided twice"
        assert self.now_ns <= part.failsafe_at_ns or part.may_be_late, "later than the fail-safe"
        if decide.answered_by != "failsafe":
            assert decide.reason == "" and self.now_ns < part.due_at_ns
        elif decide.reason == "deadline":
            assert self.now_ns >= part.failsafe_at_ns
        elif decide.reason == "engine":
            assert part.is_fallback_out
            is_given = part.is_offered and not part.is_pool_out
            assert part.is_pool_out or (self.route is Route.FALLBACK and not is_given)
        if decide.answered_by == "pool" and part.is_trial:
            is_over = self.now_ns >= part.failsafe_at_ns
            assert part.is_pool_in and (part.is_fallback_out or is_over), "a trial decided"
        part.decided = decide

    # --- rules ------------------------------------------------------------------------------

    @rule(in_ms=st.integers(1, 60), has_picture=st.booleans())
    def accepted(self, in_ms: int, has_picture: bool) -> None:
        number = len(self.parts)
        self.parts[number] = Account(self.now_ns + in_ms * MS)
        if in_ms * MS <= PLAN.timer_ns:
            self.parts[number].may_be_late = True
        self.feed(g.PartAccepted(number, self.now_ns + in_ms * MS))
        if has_picture and self.parts[number].decided is None:
            self.parts[number].has_picture = True
            self.feed(g.PictureReady(number))

    @precondition(lambda self: self.parts)
    @rule(data=st.data(), is_good=st.booleans())
    def picture(self, data: st.DataObject, is_good: bool) -> None:
        number = data.draw(st.sampled_from(list(self.parts)))
        part = self.parts[number]
        if part.has_picture:
            return
        part.has_picture = is_good
        if is_good:
            self.feed(g.PictureReady(number))
        else:
            self.feed(g.PictureBad(number, "decode"))
            assert part.decided is not None

    @precondition(lambda self: any(part.is_offered for part in self.parts.values()))
    @rule(data=st.data(), is_answer=st.booleans())
    def pool_speaks(self, data: st.DataObject, is_answer: bool) -> None:
        offered = [number for number, part in self.parts.items() if part.is_offered]
        number = data.draw(st.sampled_from(offered))
        part = self.parts[number]
        was_open = part.decided is None
        if is_answer:
            part.is_pool_in |= self.now_ns < part.due_at_ns
            commands = self.feed(g.PoolAnswered(number))
            decides = was_open and (not part.is_trial or part.is_fallback_out)
            assert (g.Decide(number, "pool", "") in commands) == decides
        else:
            self.parts[number].is_pool_out = True
            self.feed(g.PoolRefused(number))

    @rule()
    def pool_back(self) -> None:
        wanted = {k for k, part in self.open().items() if part.has_picture and not part.is_pool_out}
        wanted = set() if self.route is Route.FALLBACK else wanted
        for part in self.parts.values():
            part.is_offered = False
        offers = [c.part for c in self.feed(g.PoolBack()) if isinstance(c, g.OfferToPool)]
        assert sorted(offers) == sorted(wanted)
        for number, part in self.parts.items():
            part.is_offered |= part.decided is not None and number in wanted

    @rule(route=st.sampled_from(Route))
    def the_route_changes(self, route: Route) -> None:
        self.route = route
        self.feed(g.RouteChanged(route))

    @precondition(lambda self: self.running is not None)
    @rule(ok=st.booleans())
    def run_ends(self, ok: bool) -> None:
        ran, self.running = self.running, None
        if isinstance(ran, str):
            self.feed(g.WarmDone())
        elif ran is not None:
            part = self.parts[ran]
            part.is_fallback_out |= not ok
            commands = self.feed(g.FallbackDone(ran, ok))
            assert any(isinstance(c, g.Decide) and c.part == ran for c in commands) or (
                not ok or part.decided is not None
            )

    @rule(ms=st.integers(1, 15))
    def time_passes(self, ms: int) -> None:
        self.pass_until(self.now_ns + ms * MS)

    @rule(ms=st.integers(1, 30))
    def the_driver_was_held_up(self, ms: int) -> None:
        self.now_ns += ms * MS
        for part in self.open().values():
            part.may_be_late |= part.failsafe_at_ns < self.now_ns
        self.feed(g.TimeReached())

    def pass_until(self, end_ns: int) -> None:
        for _ in range(1000):
            wakeup_ns = self.guard.wakeup_at_ns()
            if wakeup_ns is None or wakeup_ns > end_ns:
                self.now_ns = end_ns
                return
            self.now_ns = wakeup_ns
            self.feed(g.TimeReached())
        raise AssertionError("the guard spins")

    @invariant()
    def nothing_spins_and_nothing_overdue_is_open(self) -> None:
        wakeup_ns = self.guard.wakeup_at_ns()
        assert wakeup_ns is None or wakeup_ns > self.now_ns
        assert self.guard.open_count == len(self.open())
        assert all(part.failsafe_at_ns > self.now_ns for part in self.open().values())

    @invariant()
    def the_pool_knows_each_last_start(self) -> None:
        for number, last_ns in self.expected_last_starts().items():
            part = self.parts[number]
            if part.is_trial:
                continue
            if part.is_offered and not part.is_pool_out and last_ns > self.now_ns:
                assert part.told_ns <= last_ns
                assert self.has_just_started or last_ns - PLAN.moved_min_ns < part.told_ns

    @invariant()
    def an_idle_session_does_not_wait_past_a_last_start(self) -> None:
        """A part alone in need, that still fits, is running."""
        if self.running is not None:
            return
        for number, last_ns in self.expected_last_starts().items():
            part = self.parts[number]
            fits = self.now_ns + PLAN.wcet_ns <= part.failsafe_at_ns
            assert not (part.has_picture and last_ns <= self.now_ns and fits)

    @invariant()
    def every_part_that_may_be_is_with_the_pool(self) -> None:
        if self.route is not Route.FALLBACK:
            for part in self.open().values():
                assert part.is_offered or part.is_pool_out or not part.has_picture

    @invariant()
    def off_the_pool_an_idle_session_waits_only_for_parts_it_would_harm(self) -> None:
        if self.running is not None:
            return
        lasts = self.expected_last_starts()
        for number in lasts:
            part = self.parts[number]
            is_at_once = part.is_pool_out or part.is_trial or self.route is not Route.POOL
            others = [last for other, last in lasts.items() if other != number]
            is_harmless = all(self.now_ns + RUN_NS <= last for last in others)
            assert not (part.has_picture and is_at_once and is_harmless)

    def teardown(self) -> None:
        for _ in range(len(self.parts) + 2):
            self.pass_until(self.now_ns + 70 * MS)
            if self.running is not None:
                self.run_ends(True)
        assert self.guard.open_count == 0
        assert all(part.decided is not None for part in self.parts.values())


TestGuard = GuardMachine.TestCase
TestGuard.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None, derandomize=True
)


# --- the arithmetic ---------------------------------------------------------------------------


@given(st.lists(st.integers(40, 100), min_size=1, max_size=5))
@settings(deadline=None, derandomize=True)
def test_the_walk_back_equals_brute_force_over_all_orders(dues_ms: list[int]) -> None:
    core, told = g.Guard(PLAN, 0), {}
    for part, due_ms in enumerate(dues_ms):
        core.handle(g.PartAccepted(part, due_ms * MS), 0)
    for part in range(len(dues_ms)):
        for command in core.handle(g.PictureReady(part), 0):
            if isinstance(command, g.OfferToPool):
                told[command.part] = command.pool_due_at_ns
    order = sorted(range(len(dues_ms)), key=lambda part: (dues_ms[part], part))
    for k, part in enumerate(order):
        # the latest start of `part`, over every order in which those due after it may follow
        best_ns = max(
            min(
                dues_ms[p] * MS - PLAN.timer_ns - (n + 1) * RUN_NS
                for n, p in enumerate((part, *after))
            )
            for after in itertools.permutations(order[k + 1 :])
        )
        assert told[part] == (best_ns if best_ns > 0 else dues_ms[part] * MS - PLAN.timer_ns)


@dataclass
class Line:
    """A line in virtual time: parts as given where the fallback alone could serve them all."""

    pool_answers_after_ns: int | None

    def run(self, arrivals: list[tuple[int, int, int, int]]) -> dict[int, tuple[str, int]]:
        """arrivals: (gap, slack, picture after, run lasts); returns part → (by whom, when)."""
        core, verdicts, dues = g.Guard(PLAN, 0), {}, {}
        agenda: list[tuple[int, int, g.Event]] = []
        order, at_ns, self.starts = itertools.count(), 0, 0
        busy_until_ns, lasts = 0, {}
        for number, (gap_ns, slack_ns, picture_ns, lasts_ns) in enumerate(arrivals):
            at_ns += gap_ns
            due_ns = at_ns + slack_ns
            dues[number], lasts[number] = due_ns, lasts_ns
            heapq.heappush(agenda, (at_ns, next(order), g.PartAccepted(number, due_ns)))
            ready_ns = at_ns + picture_ns
            heapq.heappush(agenda, (ready_ns, next(order), g.PictureReady(number)))
        pending: dict[int, int] = {}
        while agenda or core.open_count:
            wakeup_ns = core.wakeup_at_ns()
            event: g.Event
            if wakeup_ns is not None and (not agenda or wakeup_ns < agenda[0][0]):
                now_ns, event = wakeup_ns, g.TimeReached()
            else:
                now_ns, _, event = heapq.heappop(agenda)
            if isinstance(event, g.PartAccepted):
                trial = last_starts({**pending, event.part: event.due_at_ns - PLAN.timer_ns})
                if min(trial.values()) < max(now_ns, busy_until_ns) + 5 * MS:
                    continue  # more than one session can serve: not what is promised here
                pending[event.part] = event.due_at_ns - PLAN.timer_ns
            for command in core.handle(event, now_ns):
                match command:
                    case g.Decide():
                        verdicts[command.part] = (command.answered_by, now_ns)
                        assert now_ns <= dues[command.part] - PLAN.timer_ns
                        pending.pop(command.part, None)
                    case g.StartFallback():
                        self.starts += 1
                        pending.pop(command.part)
                        done = g.FallbackDone(command.part, True)
                        busy_until_ns = now_ns + RUN_NS
                        heapq.heappush(agenda, (now_ns + lasts[command.part], next(order), done))
                    case g.StartWarm():
                        busy_until_ns = now_ns + RUN_NS
                        heapq.heappush(agenda, (now_ns + RUN_NS, next(order), g.WarmDone()))
                    case g.OfferToPool() if self.pool_answers_after_ns is not None:
                        answer_ns = now_ns + self.pool_answers_after_ns
                        answer = g.PoolAnswered(command.part)
                        heapq.heappush(agenda, (answer_ns, next(order), answer))
        return verdicts


ARRIVALS = st.lists(
    st.tuples(
        st.integers(0, 30 * MS),  # since the part before
        st.integers(12 * MS, 120 * MS),  # until due
        st.integers(0, 4 * MS),  # until its picture is there
        st.integers(1, RUN_NS),  # how long its fallback run takes, start included
    ),
    min_size=1,
    max_size=25,
)


@given(ARRIVALS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_without_a_pool_the_fallback_answers_every_part_it_has_room_for(
    arrivals: list[tuple[int, int, int, int]],
) -> None:
    verdicts = Line(None).run(arrivals)
    assert {by for by, _ in verdicts.values()} <= {"fallback"}


@given(ARRIVALS)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_a_pool_that_always_answers_leaves_the_fallback_idle(
    arrivals: list[tuple[int, int, int, int]],
) -> None:
    line = Line(pool_answers_after_ns=1 * MS - 1)
    verdicts = line.run(arrivals)
    assert line.starts == 0
    assert {by for by, _ in verdicts.values()} <= {"pool"}


def test_the_two_properties_above_speak_of_many_parts() -> None:
    line = Line(None)
    verdicts = line.run([(5 * MS, 60 * MS, 1 * MS, RUN_NS)] * 40)
    assert len(verdicts) == line.starts >= 18
    # the first is served at the last instant at which those behind it still find the session free
    assert max(at_ns for _, at_ns in verdicts.values()) > 200 * MS
    assert len(Line(1).run([(5 * MS, 60 * MS, 1 * MS, RUN_NS)] * 40)) >= 36
