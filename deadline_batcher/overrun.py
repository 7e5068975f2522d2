"""What late batches teach of their GPU: by how much to inflate its worst cases, and for how long.

An overrun is a batch that ended after the worst-case end it was promised for. The profile is of
all GPUs alike; `inflation_permille` is of one, and the only factor on its `wcet_ns`.
"""

from __future__ import annotations

from typing import NamedTuple

MARGIN_PERMILLE = 100
"""On top of what was seen: worst cases become observed / wcet x 1.1. The profile's own margin is
inside wcet already; this one is for the next batch being a little later than the one seen."""
MOST_PERMILLE = 500
"""The most a GPU is inflated. One that needs more than half again its worst case is not to be
promised with: it goes on overrunning, and is drained."""
LEAST_PERMILLE = 50
"""Inflation that has worn off below this is none."""
QUIET_NS = 60_000_000_000
"""After so long without an overrun inflation is halved, and again after as long."""
DRAIN_AFTER = 3
"""So many overruns..."""
DRAIN_WITHIN_NS = 10_000_000_000
"""...within so long, and the GPU is drained."""
FAR_MORE = 3
"""...if they are more than so many times those of all other GPUs together: less is the host's."""
KEPT_MAX = 16
"""Overruns of one GPU that are remembered at most; more of them decide nothing."""


class Overruns(NamedTuple):
    """What the overruns of one GPU have left behind.

    quiet_since_ns: its last overrun, or the last time inflation was halved.
    recent_at_ns: its overruns since it was READY, within `DRAIN_WITHIN_NS` of the last one.
    """

    inflation_permille: int = 0
    quiet_since_ns: int = 0
    recent_at_ns: tuple[int, ...] = ()

    def and_one(self, took_ns: int, wcet_ns: int, now_ns: int) -> Overruns:
        """After one more: a batch took `took_ns` where the profile says `wcet_ns` at worst."""
        seen_permille = -(-took_ns * (1000 + MARGIN_PERMILLE) // wcet_ns) - 1000
        inflation_permille = min(seen_permille, MOST_PERMILLE)  # longer than inflated before
        recent_at_ns = (*(at for at in self.recent_at_ns if _is_recent(at, now_ns)), now_ns)
        return Overruns(inflation_permille, now_ns, recent_at_ns[-KEPT_MAX:])

    def worn_off(self, now_ns: int) -> Overruns:
        """After quiet: halved for every `QUIET_NS`."""
        permille, since_ns = self.inflation_permille, self.quiet_since_ns
        while permille and now_ns - since_ns >= QUIET_NS:
            permille //= 2
            since_ns += QUIET_NS
            if permille < LEAST_PERMILLE:
                permille = 0
        return self._replace(inflation_permille=permille, quiet_since_ns=since_ns)

    def count(self, now_ns: int) -> int:
        """How many there were in the last `DRAIN_WITHIN_NS`."""
        return sum(_is_recent(at_ns, now_ns) for at_ns in self.recent_at_ns)


NO_OVERRUNS = Overruns()


def _is_recent(at_ns: int, now_ns: int) -> bool:
    return now_ns - at_ns < DRAIN_WITHIN_NS


def inflated(wcet_ns: tuple[int, ...], inflation_permille: int) -> tuple[int, ...]:
    """Worst cases of an inflated GPU, rounded up."""
    if not inflation_permille:
        return wcet_ns
    return tuple(-(-ns * (1000 + inflation_permille) // 1000) for ns in wcet_ns)
