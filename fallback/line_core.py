"""One line's guard and route together: what the guard decides is what the route measures. Pure.

The guard's events and commands pass through; the route's events are taken too, and the route's are
made from what the guard orders. A driver has to do three things more than for the guard alone:

- `ChangeRoute`: write it down.
- `OfferToPool(is_trial=True)`: keep the part's slot and pool answer, also after its verdict, until
  `CompareTrial` or `EndTrial` names it. Both give the slot back; nothing more is expected then.
- `CompareTrial`: compare the two scores (`fallback.route.agrees`) and feed `TrialCompared`.

`ClockTicked` goes in after everything that has come of the pool, so that a driver that was held up
does not take a batcher for dead whose beats it has not read.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from fallback import guard as g
from fallback import route as r


class TrialCompared(NamedTuple):
    """The two answers of a trial were compared."""

    part: int
    agrees: bool


class CompareTrial(NamedTuple):
    """Both have answered this trial, the pool in time: compare, and give the slot back."""

    part: int


class EndTrial(NamedTuple):
    """Nobody waits for the pool's answer on this trial any more; once decided, withdraw it."""

    part: int


CoreEvent = g.Event | r.RouteEvent | TrialCompared
CoreCommand = g.Command | r.ChangeRoute | CompareTrial | EndTrial


@dataclass(frozen=True, slots=True)
class CorePlan:
    """guard, route: theirs. due_budget_ns: from exposure to `due`. trial_latency_ns: a trial is in
    time when the pool's answer comes by its `pool_due` and so soon after exposure.
    """

    guard: g.GuardPlan
    route: r.RoutePlan
    due_budget_ns: int
    trial_latency_ns: int


@dataclass(slots=True)
class _Seen:
    """An open part, as far as it says something of the pool."""

    due_at_ns: int
    is_measured: bool = False  # given to the pool while the fallback's last start was to come
    is_hedged: bool = False


@dataclass(slots=True)
class _Trial:
    due_at_ns: int
    pool_due_at_ns: int
    has_pool: bool = False
    has_fallback: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether both have answered, and only the comparison is missing."""
        return self.has_pool and self.has_fallback


class LineCore:
    """`handle` as the guard's, with the route beside it."""

    def __init__(self, plan: CorePlan, now_ns: int) -> None:
        self.plan = plan
        self._guard = g.Guard(plan.guard, now_ns)
        self._line_route = r.LineRoute(plan.route, now_ns)
        self._seen: dict[int, _Seen] = {}
        self._trials: dict[int, _Trial] = {}
        self._now_ns = now_ns
        self._guard.handle(g.RouteChanged(self._line_route.route), now_ns)

    # --- the interface ----------------------------------------------------------------------

    def handle(self, event: CoreEvent, now_ns: int) -> tuple[CoreCommand, ...]:
        """Take one event at `now_ns`; return what to do about it, in order."""
        self._now_ns = now_ns
        commands: list[CoreCommand] = []
        told: deque[r.RouteEvent] = deque()
        match event:
            case TrialCompared():
                if self._trials.pop(event.part, None) is not None:
                    told.append(r.TrialEnded(is_in_time=True, agrees=event.agrees))
            case (
                r.PartDecided() | r.PoolBeat() | r.LineShed() | r.LineUnshed() | r.OperatorForced()
                | r.OperatorReleased() | r.TrialEnded() | r.ClockTicked()
            ):  # fmt: skip
                told.append(event)
            case _:
                self._guarded(event, commands, told)
        self._expire(commands, told)
        while told:
            for change in self._line_route.handle(told.popleft(), now_ns):
                commands.append(change)
                if change.before is r.Route.RETURNING:
                    commands += [EndTrial(part) for part in self._trials]
                    self._trials.clear()
                self._guarded(g.RouteChanged(change.after), commands, told)
        return tuple(commands)

    def wakeup_at_ns(self) -> int | None:
        """When to send `TimeReached` and `ClockTicked` if nothing else happens first."""
        wakeups = [self._guard.wakeup_at_ns(), self._line_route.wakeup_at_ns()]
        wakeups += [one.due_at_ns for one in self._trials.values() if not one.is_complete]
        return min((at_ns for at_ns in wakeups if at_ns is not None), default=None)

    def is_open(self, part: int) -> bool:
        """Whether the part still waits for its verdict."""
        return self._guard.is_open(part)

    def is_trial(self, part: int) -> bool:
        """Whether the pool's answer on the part is still waited for, to be compared."""
        return part in self._trials

    @property
    def open_count(self) -> int:
        """How many parts wait for a verdict."""
        return self._guard.open_count

    @property
    def route(self) -> r.Route:
        """Who answers the line's parts."""
        return self._line_route.route

    @property
    def line_route(self) -> r.LineRoute:
        """The route with its reason, to be read only."""
        return self._line_route

    # --- the guard --------------------------------------------------------------------------

    def _guarded(
        self, event: g.Event, commands: list[CoreCommand], told: deque[r.RouteEvent]
    ) -> None:
        """Give the guard an event; what it orders is kept in mind and measured."""
        now_ns = self._now_ns
        if isinstance(event, g.PartAccepted):
            self._seen[event.part] = _Seen(event.due_at_ns)
        for command in self._guard.handle(event, now_ns):
            commands.append(command)
            match command:
                case g.OfferToPool():
                    self._offered(command)
                case g.StartFallback():
                    self._seen[command.part].is_hedged = True
                case g.Decide():
                    self._decided(command, told)
        match event:
            case g.PoolAnswered() if event.part in self._trials:
                self._pool_answered(event.part, commands, told)
            case g.PoolRefused() if event.part in self._trials:
                self._end(event.part, commands)
                told.append(r.TrialEnded(is_in_time=False, agrees=False))
            case g.FallbackDone() if event.part in self._trials:
                if event.ok:
                    self._trials[event.part].has_fallback = True
                    self._compare(event.part, commands)
                else:  # nothing to compare with; the pool may still save the part
                    self._end(event.part, commands)

    def _offered(self, command: g.OfferToPool) -> None:
        seen = self._seen[command.part]
        if command.is_trial:
            self._trials[command.part] = _Trial(seen.due_at_ns, command.pool_due_at_ns)
        else:
            failsafe_at_ns = seen.due_at_ns - self.plan.guard.timer_ns
            seen.is_measured = command.pool_due_at_ns < failsafe_at_ns

    def _decided(self, command: g.Decide, told: deque[r.RouteEvent]) -> None:
        seen = self._seen.pop(command.part)
        is_fault = command.answered_by == "failsafe" and command.reason not in (
            "deadline",
            "engine",
        )
        if seen.is_measured and not is_fault:
            took_ns = self._took_ns(seen.due_at_ns)
            told.append(r.PartDecided(took_ns, command.answered_by, seen.is_hedged))

    def _took_ns(self, due_at_ns: int) -> int:
        """From exposure to now."""
        return self._now_ns - due_at_ns + self.plan.due_budget_ns

    # --- trials -----------------------------------------------------------------------------

    def _pool_answered(
        self, part: int, commands: list[CoreCommand], told: deque[r.RouteEvent]
    ) -> None:
        trial = self._trials[part]
        is_soon = self._took_ns(trial.due_at_ns) <= self.plan.trial_latency_ns
        if is_soon and self._now_ns <= trial.pool_due_at_ns:
            trial.has_pool = True
            self._compare(part, commands)
        else:
            self._end(part, commands)
            told.append(r.TrialEnded(is_in_time=False, agrees=False))

    def _compare(self, part: int, commands: list[CoreCommand]) -> None:
        if self._trials[part].is_complete:
            commands.append(CompareTrial(part))

    def _end(self, part: int, commands: list[CoreCommand]) -> None:
        del self._trials[part]
        commands.append(EndTrial(part))

    def _expire(self, commands: list[CoreCommand], told: deque[r.RouteEvent]) -> None:
        """A trial that the pool has not answered by the part's due instant was not in time."""
        for part, trial in list(self._trials.items()):
            if trial.due_at_ns <= self._now_ns and not trial.is_complete:
                self._end(part, commands)
                if not trial.has_pool:
                    told.append(r.TrialEnded(is_in_time=False, agrees=False))
