"""The guard of one line: owns every open part's deadline and its one verdict. Pure.

It offers parts to the pool, starts the line's own fallback at the last instant at which that is
still in time, and decides each part exactly once. Events in, commands out, time as an argument.

    last_start[k] = min(due[k] - timer, last_start[k+1]) - wcet_fallback - start

walked back from the latest part, so that parts that come due together still all find the one
fallback session free in time.

Off the pool (`fallback/route.py`) nothing is offered, and every part runs as soon as that harms no
other: waiting for `last_start` would only spend slack. While the line is returning, a part is
offered as a trial beside its run: the pool's answer decides nothing, unless the fallback fails.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fallback.route import Route

# --- events ---------------------------------------------------------------------------------


class PartAccepted(NamedTuple):
    """A part is owed a verdict that must have left by `due_at_ns`; its picture is not ready."""

    part: int
    due_at_ns: int


class PictureReady(NamedTuple):
    """The part's picture lies in its slot."""

    part: int


class PictureBad(NamedTuple):
    """There will be no picture; `reason` is one of PROTOCOL's."""

    part: int
    reason: str


class PoolAnswered(NamedTuple):
    """The pool's answer for the part came and matches it."""

    part: int


class PoolRefused(NamedTuple):
    """The pool will not answer, or its answer did not match the part."""

    part: int


class PoolBack(NamedTuple):
    """A batcher without memory of our parts is there: offer the open ones again."""


class FallbackDone(NamedTuple):
    """The fallback run of this part ended; `ok` if with an answer that matches it."""

    part: int
    ok: bool


class WarmDone(NamedTuple):
    """A warm frame's run ended."""


class RouteChanged(NamedTuple):
    """The line's route is this one from now on; parts with the pool stay there."""

    route: Route


class TimeReached(NamedTuple):
    """Nothing happened, but `wakeup_at_ns` has come."""


Event = (
    PartAccepted
    | PictureReady
    | PictureBad
    | PoolAnswered
    | PoolRefused
    | PoolBack
    | FallbackDone
    | WarmDone
    | RouteChanged
    | TimeReached
)

# --- commands -------------------------------------------------------------------------------


class OfferToPool(NamedTuple):
    """Ask the pool; its answer is useful until `pool_due_at_ns`.

    is_trial: the fallback answers the part, the pool's answer is to be compared with it.
    """

    part: int
    pool_due_at_ns: int
    is_trial: bool = False


class MovePoolDue(NamedTuple):
    """Tell the pool that the part's latest useful instant has moved."""

    part: int
    pool_due_at_ns: int


class StartFallback(NamedTuple):
    """Run the part through the line's own session now."""

    part: int


class StartWarm(NamedTuple):
    """Run a warm frame through the line's own session now."""


class Decide(NamedTuple):
    """The part's one verdict: by `pool`, `fallback` or `failsafe` (then with a reason)."""

    part: int
    answered_by: str
    reason: str


Command = OfferToPool | MovePoolDue | StartFallback | StartWarm | Decide


@dataclass(frozen=True, slots=True)
class GuardPlan:
    """What one line's guard is told. Lengths of time in nanoseconds.

    wcet_ns: worst case of one fallback run at the plant's rates, waiting for a core included.
    timer_ns: lateness allowed to the line's own timer. start_ns: from deciding to running.
    warm_every_ns: the session runs at least this often. moved_min_ns: smallest change of a
    part's `pool_due` that the pool is told about when it becomes later (earlier: always told).
    """

    wcet_ns: int
    timer_ns: int
    start_ns: int
    warm_every_ns: int
    moved_min_ns: int = 1_000_000


@dataclass(slots=True)
class _Open:
    part: int
    due_at_ns: int
    failsafe_at_ns: int
    has_picture: bool = False
    is_with_pool: bool = False
    told_pool_due_at_ns: int = 0
    is_trial: bool = False
    is_pool_in: bool = False  # a trial's answer, kept for the case that the fallback fails
    is_pool_out: bool = False
    is_fallback_out: bool = False
    last_start_at_ns: int = 0


class Guard:
    """One line's open parts, its fallback session's occupation, and what to do next."""

    def __init__(self, plan: GuardPlan, now_ns: int) -> None:
        self.plan = plan
        self._route = Route.POOL
        self._open: dict[int, _Open] = {}
        self._running_part: int | None = None
        self._is_running = False
        self._ran_at_ns = now_ns
        self._now_ns = now_ns

    # --- the interface ----------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> tuple[Command, ...]:
        """Take one event at `now_ns`; return what to do about it, in order."""
        self._now_ns = now_ns
        commands: list[Command] = []
        match event:
            case PartAccepted():
                failsafe_at_ns = event.due_at_ns - self.plan.timer_ns
                self._open[event.part] = _Open(event.part, event.due_at_ns, failsafe_at_ns)
            case PictureReady() if event.part in self._open:
                self._open[event.part].has_picture = True
            case PictureBad() if event.part in self._open:
                self._decide(event.part, "failsafe", event.reason, commands)
            case PoolAnswered() if self._is_in_time(event.part):
                if self._open[event.part].is_trial:
                    self._open[event.part].is_pool_in = True
                else:
                    self._decide(event.part, "pool", "", commands)
            case PoolRefused() if event.part in self._open:
                self._open[event.part].is_pool_out = True
            case PoolBack():
                for part in self._open.values():
                    part.is_with_pool = False
            case FallbackDone():
                self._fallback_done(event, commands)
            case WarmDone():
                self._is_running = False
            case RouteChanged():
                self._route = event.route
            case _:
                pass
        self._walk_back()
        self._give_up(commands)
        self._offer(commands)
        self._start(commands)
        return tuple(commands)

    def wakeup_at_ns(self) -> int | None:
        """When to send `TimeReached` if nothing else happens first."""
        wakeups = [part.failsafe_at_ns for part in self._open.values()]
        if not self._is_running:
            wakeups += [
                part.last_start_at_ns
                for part in self._open.values()
                if self._may_run(part) and part.last_start_at_ns > self._now_ns
            ]
            warm_at_ns = self._ran_at_ns + self.plan.warm_every_ns
            if warm_at_ns > self._now_ns and self._harms_none(warm_at_ns, but=None):
                wakeups.append(warm_at_ns)
        return min(wakeups, default=None)

    def is_open(self, part: int) -> bool:
        """Whether the part still waits for its verdict."""
        return part in self._open

    @property
    def open_count(self) -> int:
        """How many parts wait for a verdict."""
        return len(self._open)

    # --- deciding ---------------------------------------------------------------------------

    def _decide(self, part: int, by: str, reason: str, commands: list[Command]) -> None:
        del self._open[part]
        commands.append(Decide(part, by, reason))

    def _fallback_done(self, event: FallbackDone, commands: list[Command]) -> None:
        if self._running_part == event.part:
            self._is_running, self._running_part = False, None
        part = self._open.get(event.part)
        if part is None:
            return
        if event.ok and self._is_in_time(event.part):
            self._decide(event.part, "fallback", "", commands)
        else:
            part.is_fallback_out = True

    def _is_in_time(self, part: int) -> bool:
        """Whether an answer for an open part still counts; one at `due` or later is lateness."""
        return part in self._open and self._now_ns < self._open[part].due_at_ns

    def _give_up(self, commands: list[Command]) -> None:
        """`UNINSPECTED` for parts whose time is over, or that neither engine can answer."""
        for part in list(self._open.values()):
            is_over = part.failsafe_at_ns <= self._now_ns
            may_rescue = part.is_pool_in and self._is_in_time(part.part)
            if may_rescue and (part.is_fallback_out or is_over):
                self._decide(part.part, "pool", "", commands)
            elif is_over:
                self._decide(part.part, "failsafe", "deadline", commands)
            elif part.is_fallback_out and self._is_pool_out(part):
                self._decide(part.part, "failsafe", "engine", commands)

    def _is_pool_out(self, part: _Open) -> bool:
        """Whether no answer of the pool is to be hoped for."""
        return part.is_pool_out or (self._route is Route.FALLBACK and not part.is_with_pool)

    # --- the arithmetic ---------------------------------------------------------------------

    def _by_due(self) -> list[_Open]:
        return sorted(self._open.values(), key=lambda part: (part.due_at_ns, part.part))

    def _walk_back(self) -> None:
        next_start_ns: int | None = None
        for part in reversed(self._by_due()):
            end_ns = part.failsafe_at_ns
            if part.is_fallback_out or part.part == self._running_part:
                part.last_start_at_ns = end_ns
                continue
            if next_start_ns is not None:
                end_ns = min(end_ns, next_start_ns)
            part.last_start_at_ns = end_ns - self.plan.wcet_ns - self.plan.start_ns
            next_start_ns = part.last_start_at_ns

    def _may_run(self, part: _Open) -> bool:
        return part.has_picture and not part.is_fallback_out and part.part != self._running_part

    def _harms_none(self, start_ns: int, but: _Open | None) -> bool:
        """Whether a run started then ends, at worst, before every other part's last start."""
        end_ns = start_ns + self.plan.start_ns + self.plan.wcet_ns
        return all(
            end_ns <= part.last_start_at_ns
            for part in self._open.values()
            if part is not but and not part.is_fallback_out
        )

    # --- pool and fallback ------------------------------------------------------------------

    def _offer(self, commands: list[Command]) -> None:
        for part in self._by_due():
            if not part.has_picture or part.is_pool_out:
                continue
            is_past = part.last_start_at_ns <= self._now_ns
            pool_due_at_ns = part.failsafe_at_ns if is_past else part.last_start_at_ns
            if not part.is_with_pool:
                if self._route is Route.FALLBACK:
                    continue
                part.is_with_pool, part.is_trial = True, self._route is Route.RETURNING
                commands.append(OfferToPool(part.part, pool_due_at_ns, part.is_trial))
            else:
                moved_ns = pool_due_at_ns - part.told_pool_due_at_ns
                if part.is_trial or is_past or 0 <= moved_ns < self.plan.moved_min_ns:
                    continue
                commands.append(MovePoolDue(part.part, pool_due_at_ns))
            part.told_pool_due_at_ns = pool_due_at_ns

    def _start(self, commands: list[Command]) -> None:
        if self._is_running:
            return
        part = self._next_to_run()
        if part is not None:
            self._is_running, self._running_part = True, part.part
            self._ran_at_ns = self._now_ns
            commands.append(StartFallback(part.part))
            return
        is_warm_due = self._now_ns - self._ran_at_ns >= self.plan.warm_every_ns
        if is_warm_due and self._harms_none(self._now_ns, but=None):
            self._is_running = True
            self._ran_at_ns = self._now_ns
            commands.append(StartWarm())

    def _next_to_run(self) -> _Open | None:
        for part in self._by_due():
            if not self._may_run(part):
                continue
            is_time = part.last_start_at_ns <= self._now_ns
            is_at_once = part.is_pool_out or part.is_trial or self._route is not Route.POOL
            if not is_time and not is_at_once:
                continue
            fits = self._now_ns + self.plan.wcet_ns <= part.failsafe_at_ns
            if (is_time and fits) or self._harms_none(self._now_ns, but=part):
                return part
        return None
