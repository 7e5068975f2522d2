"""Whether one line is on the pool: a table, fed with what was measured. Pure.

`POOL`: the pool answers, the fallback stands by. `FALLBACK`: the line answers every part itself and
offers none to the pool. `RETURNING`: every part goes to both; the fallback answers, and the pool's
answer is compared and counted.

Rules for editing ROUTES: what takes a line off the pool (pressure, an infeasible pool, shedding,
the operator) is a cause; so is what brings it back. A pair that cannot happen is not in the table,
and to meet it raises: pressure is measured on the pool alone, trials end in RETURNING alone.

A line that has just started is on FALLBACK until the pool is there for the first time, and on POOL
at once then: nothing was ever held against it, and its GPUs are READY by goldens. Trials are the
way back of a line that has fallen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

WINDOW_PARTS_MAX = 4096
"""Parts that a window holds at most; the oldest leave first."""


class Route(Enum):
    """Who answers a line's parts."""

    POOL = "POOL"
    FALLBACK = "FALLBACK"
    RETURNING = "RETURNING"


class Cause(Enum):
    """What may change a route."""

    PRESSURE = "pressure"
    INFEASIBLE = "infeasible"
    SHED = "shed"
    FORCED = "forced"
    FRESH = "fresh"
    HEADROOM = "headroom"
    PROVEN = "proven"
    DISPROVEN = "disproven"


R, C = Route, Cause
ROUTES: dict[tuple[Route, Cause], Route] = {
    (R.POOL, C.PRESSURE): R.FALLBACK,
    (R.POOL, C.INFEASIBLE): R.FALLBACK,
    (R.POOL, C.SHED): R.FALLBACK,
    (R.POOL, C.FORCED): R.FALLBACK,
    (R.FALLBACK, C.FRESH): R.POOL,
    (R.FALLBACK, C.HEADROOM): R.RETURNING,
    (R.RETURNING, C.INFEASIBLE): R.FALLBACK,
    (R.RETURNING, C.SHED): R.FALLBACK,
    (R.RETURNING, C.FORCED): R.FALLBACK,
    (R.RETURNING, C.DISPROVEN): R.FALLBACK,
    (R.RETURNING, C.PROVEN): R.POOL,
}

# --- events ---------------------------------------------------------------------------------


class PartDecided(NamedTuple):
    """A part that had been given to the pool in good time has its verdict.

    took_ns: from exposure to verdict. is_hedged: the fallback was started on it.
    """

    took_ns: int
    answered_by: str
    is_hedged: bool


class PoolBeat(NamedTuple):
    """The batcher lives, and so many GPUs may be counted on."""

    gpus_ready: int


class LineShed(NamedTuple):
    """The batcher's admission takes the line off the pool."""

    reason: str


class LineUnshed(NamedTuple):
    """The batcher's admission carries the line (again): headroom has been held."""


class OperatorForced(NamedTuple):
    """The operator wants the line on its fallback until released."""


class OperatorReleased(NamedTuple):
    """The operator leaves the route to the table again."""


class TrialEnded(NamedTuple):
    """A trial frame was answered by both, or by the pool not in time (then `agrees` is False)."""

    is_in_time: bool
    agrees: bool


class ClockTicked(NamedTuple):
    """Nothing happened, but `wakeup_at_ns` may have come. What has come of the pool goes first."""


RouteEvent = (
    PartDecided
    | PoolBeat
    | LineShed
    | LineUnshed
    | OperatorForced
    | OperatorReleased
    | TrialEnded
    | ClockTicked
)

# --- commands -------------------------------------------------------------------------------


class ChangeRoute(NamedTuple):
    """The line's route is another from now on; `reason` is one of REASONS or the batcher's."""

    before: Route
    after: Route
    reason: str


REASONS = (
    "start",
    "latency",
    "hedges",
    "late",
    "no-gpu",
    "no-batcher",
    "operator",
    "pool-ready",
    "trial-late",
    "trial-disagreed",
    "headroom",
    "trials",
)
"""Why a route changed; beside them whatever a `LineShed` says, behind `shed: `."""


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """What one line's route is told: the plant file's `[route]`. Lengths of time in nanoseconds.

    window_ns, window_parts_min: measures are judged over so long a time, from so many parts on.
    latency_percentile, latency_ns: the line leaves the pool where that percentile of exposure to
    verdict is above `latency_ns`. hedge_permille: where more parts than this had the fallback
    started on them. late_permille: where more than this were not answered by the pool.
    beat_lost_ns: silence of the batcher that counts as its death.
    return_after_ns, return_after_max_ns: how long headroom must have been held before trials; after
    a fall for measured reasons within `steady_ns` of the last return (or in the trials) it doubles.
    trial_frames: trials in a row that must be in time and agree. trial_differ_max: so many more
    may disagree, which is what two different models do now and then.
    """

    window_ns: int
    window_parts_min: int
    latency_percentile: int
    latency_ns: int
    hedge_permille: int
    late_permille: int
    beat_lost_ns: int
    return_after_ns: int
    return_after_max_ns: int
    steady_ns: int
    trial_frames: int
    trial_differ_max: int = 1

    def __post_init__(self) -> None:
        lengths = (self.window_ns, self.latency_ns, self.beat_lost_ns, self.return_after_ns)
        if min(*lengths, self.steady_ns, self.trial_frames, self.window_parts_min) <= 0:
            raise ValueError("a route's times and counts must be above 0")
        if not 1 <= self.latency_percentile <= 100:
            raise ValueError("a percentile is from 1 to 100")
        if self.return_after_max_ns < self.return_after_ns:
            raise ValueError("return_after_max_ns is below return_after_ns")


class RouteError(AssertionError):
    """A pair that is not in ROUTES; the text says which, and how the line came there."""


class _Measured(NamedTuple):
    at_ns: int
    is_over: bool
    is_hedged: bool
    is_late: bool


class LineRoute:
    """One line's route. Events in, `ChangeRoute` out, time as an argument."""

    def __init__(self, plan: RoutePlan, now_ns: int) -> None:
        self.plan = plan
        self.route = Route.FALLBACK
        self.reason = "start"
        self.since_ns = now_ns
        self._infeasible = "start"  # "": feasible
        self._shed = ""
        self._is_forced = False
        self._beat_at_ns: int | None = None
        self._free_at_ns = now_ns  # no trial before
        self._hold_ns = 0  # of the last fall for measured reasons; 0: none since it was steady
        self._passed = self._overdue = self._differing = 0  # of the trials in progress
        self._window: deque[_Measured] = deque()
        self._over = self._hedged = self._late = 0  # in the window

    # --- the interface ----------------------------------------------------------------------

    def handle(self, event: RouteEvent, now_ns: int) -> tuple[ChangeRoute, ...]:
        """Take one event at `now_ns`; what it changes, in order. Raises RouteError."""
        changes: list[ChangeRoute] = []
        match event:
            case PartDecided() if self.route is Route.POOL:
                self._measure(event, now_ns, changes)
            case PoolBeat():
                self._beat(event, now_ns)
            case LineShed():
                self._shed = event.reason or "shed"
            case LineUnshed() if self._shed:
                self._shed = ""
                self._free_at_ns = max(self._free_at_ns, now_ns)
            case OperatorForced():
                self._is_forced = True
            case OperatorReleased():
                self._is_forced = False
            case TrialEnded() if self.route is Route.RETURNING:
                self._trial(event, now_ns, changes)
            case _:
                pass
        self._settle(now_ns, changes)
        return tuple(changes)

    def wakeup_at_ns(self) -> int | None:
        """When to send `ClockTicked` if nothing else happens first."""
        wakeups = []
        if self._beat_at_ns is not None:
            wakeups.append(self._beat_at_ns + self.plan.beat_lost_ns)
        if self.route is Route.FALLBACK and self._block() is None:
            wakeups.append(self._free_at_ns)
        return min(wakeups, default=None)

    @property
    def is_shed(self) -> bool:
        """Whether the batcher's admission has taken the line off the pool."""
        return bool(self._shed)

    @property
    def is_forced(self) -> bool:
        """Whether the operator has."""
        return self._is_forced

    # --- what holds against the pool --------------------------------------------------------

    def _block(self) -> tuple[Cause, str] | None:
        """What forbids the pool now, whatever was measured; the operator first."""
        if self._is_forced:
            return Cause.FORCED, "operator"
        if self._infeasible:
            return Cause.INFEASIBLE, self._infeasible
        if self._shed:
            return Cause.SHED, f"shed: {self._shed}"
        return None

    def _beat(self, event: PoolBeat, now_ns: int) -> None:
        self._beat_at_ns = now_ns
        if not event.gpus_ready:
            # Before the first GPU a line has never been on the pool: nothing to recover from.
            if self._infeasible != "start":
                self._infeasible = "no-gpu"
        elif self._infeasible:
            hold_ns = 0 if self._infeasible == "start" else self.plan.return_after_ns
            self._free_at_ns = max(self._free_at_ns, now_ns + hold_ns)
            self._infeasible = ""

    def _settle(self, now_ns: int, changes: list[ChangeRoute]) -> None:
        if self._beat_at_ns is not None and now_ns >= self._beat_at_ns + self.plan.beat_lost_ns:
            self._beat_at_ns, self._infeasible = None, "no-batcher"
        block = self._block()
        if block is not None:
            if self.route is not Route.FALLBACK:
                self._step(*block, now_ns, changes)
        elif self.route is Route.FALLBACK and now_ns >= self._free_at_ns:
            if self.reason == "start":
                self._step(Cause.FRESH, "pool-ready", now_ns, changes)
            else:
                self._step(Cause.HEADROOM, "headroom", now_ns, changes)

    # --- measuring --------------------------------------------------------------------------

    def _measure(self, event: PartDecided, now_ns: int, changes: list[ChangeRoute]) -> None:
        plan, window = self.plan, self._window
        is_over = event.took_ns > plan.latency_ns
        window.append(_Measured(now_ns, is_over, event.is_hedged, event.answered_by != "pool"))
        self._count(window[-1], 1)
        while window[0].at_ns <= now_ns - plan.window_ns or len(window) > WINDOW_PARTS_MAX:
            self._count(window.popleft(), -1)
        parts = len(window)
        if parts < plan.window_parts_min:
            return
        rank = -(-plan.latency_percentile * parts // 100)  # nearest rank
        if parts - self._over < rank:
            self._fall(Cause.PRESSURE, "latency", now_ns, changes)
        elif self._late * 1000 > plan.late_permille * parts:
            self._fall(Cause.PRESSURE, "late", now_ns, changes)
        elif self._hedged * 1000 > plan.hedge_permille * parts:
            self._fall(Cause.PRESSURE, "hedges", now_ns, changes)

    def _count(self, measured: _Measured, sign: int) -> None:
        self._over += sign * measured.is_over
        self._hedged += sign * measured.is_hedged
        self._late += sign * measured.is_late

    # --- trials -----------------------------------------------------------------------------

    def _trial(self, event: TrialEnded, now_ns: int, changes: list[ChangeRoute]) -> None:
        if not event.is_in_time:
            self._passed, self._overdue = 0, self._overdue + 1
            if self._overdue >= self.plan.trial_frames:
                self._fall(Cause.DISPROVEN, "trial-late", now_ns, changes)
        elif not event.agrees:
            self._differing += 1
            if self._differing > self.plan.trial_differ_max:
                self._fall(Cause.DISPROVEN, "trial-disagreed", now_ns, changes)
        else:
            self._passed += 1
            if self._passed >= self.plan.trial_frames:
                self._step(Cause.PROVEN, "trials", now_ns, changes)

    # --- changing ---------------------------------------------------------------------------

    def _fall(self, cause: Cause, reason: str, now_ns: int, changes: list[ChangeRoute]) -> None:
        """Off the pool for what was measured: the sooner after a return, the longer."""
        plan = self.plan
        is_steady = self.route is Route.POOL and now_ns - self.since_ns >= plan.steady_ns
        if is_steady or not self._hold_ns:
            self._hold_ns = plan.return_after_ns
        else:
            self._hold_ns = min(2 * self._hold_ns, plan.return_after_max_ns)
        self._free_at_ns = now_ns + self._hold_ns
        self._step(cause, reason, now_ns, changes)

    def _step(self, cause: Cause, reason: str, now_ns: int, changes: list[ChangeRoute]) -> None:
        after = ROUTES.get((self.route, cause))
        if after is None:
            told = f"{self.route.value} since {self.since_ns} ({self.reason})"
            raise RouteError(f"{cause.value} ({reason}) at {now_ns} on {told} is not in ROUTES")
        changes.append(ChangeRoute(self.route, after, reason))
        self.route, self.reason, self.since_ns = after, reason, now_ns
        self._passed = self._overdue = self._differing = 0
        self._window.clear()
        self._over = self._hedged = self._late = 0


def agrees(pool: float, fallback: float, thresholds: tuple[float, float],
           bands: tuple[float, float]) -> bool:  # fmt: skip
    """Whether two scores give the same verdict, or lie too near a threshold to say.

    thresholds, bands: of pool and fallback; a band is half of the gate's guard band.
    """
    scores = (pool, fallback)
    verdicts = {score >= threshold for score, threshold in zip(scores, thresholds, strict=True)}
    near = any(
        abs(score - threshold) <= band
        for score, threshold, band in zip(scores, thresholds, bands, strict=True)
    )
    return len(verdicts) == 1 or near
