"""Who answered on which route, and why: from the parts and the `route.` events of a journal. Pure.

A part's route is that of its line when its picture was ready. A part answered by the fallback on
`POOL` was taken over; on `RETURNING` it was a trial frame; on `FALLBACK` that is the route's doing
and no fault of anybody.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lines.record import PartRow


@dataclass(frozen=True, slots=True)
class Routes:
    """How a plant's parts were answered, by route.

    off_pool: parts answered by the fallback, by why the line was off the pool. changes: by line.
    """

    parts: int = 0
    by_pool: int = 0
    taken_over: int = 0
    off_pool: Mapping[str, int] = field(default_factory=dict)
    changes: Mapping[str, int] = field(default_factory=dict)

    @property
    def pool_share(self) -> float | None:
        """Of what an engine answered."""
        return self.by_pool / self.parts if self.parts else None


class _Story:
    """One line's routes over time."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self.routes: list[tuple[str, str]] = []

    def add(self, at_ns: int, route: str, reason: str) -> None:
        self.at_ns.append(at_ns)
        self.routes.append((route, reason))

    def at(self, at_ns: int) -> tuple[str, str] | None:
        """(route, why) at an instant; None before the first that was told."""
        place = bisect_right(self.at_ns, at_ns)
        return self.routes[place - 1] if place else None


def routes_of(parts: Sequence[PartRow], events: Iterable[Mapping[str, Any]]) -> Routes | None:
    """The figures; None where the journal says nothing of routes."""
    stories: dict[str, _Story] = defaultdict(_Story)
    changes: Counter[str] = Counter()
    told = [event for event in events if event["kind"] in ("route.started", "route.changed")]
    for event in sorted(told, key=lambda event: int(event["at_ns"])):
        line, detail = str(event["subject"]), str(event["detail"])
        route, _, why = detail.rpartition("→ ")[2].partition(": ")
        stories[line].add(int(event["at_ns"]), route, _short(why))
        changes[line] += event["kind"] == "route.changed"
    if not stories:
        return None
    by_pool = taken_over = 0
    off_pool: Counter[str] = Counter()
    for row in parts:
        if row.answered_by == "pool":
            by_pool += 1
        elif row.answered_by == "fallback":
            route, why = stories[row.line].at(row.ready_at_ns) or ("FALLBACK", "start")
            if route == "POOL":
                taken_over += 1
            else:
                off_pool["trial frames" if route == "RETURNING" else why] += 1
    answered = by_pool + taken_over + off_pool.total()
    return Routes(answered, by_pool, taken_over, dict(off_pool), dict(changes))


def _short(why: str) -> str:
    """`shed: gpus: 2 GPUs carry 7 of 12 lines` → `shed: gpus`."""
    return ": ".join(why.split(": ")[:2]) if why.startswith("shed: ") else why


def as_text(routes: Routes) -> str:
    """One line for a person."""
    share = routes.pool_share
    if share is None:
        return "no part was answered by an engine"
    reasons = {"taken over": routes.taken_over, **routes.off_pool}
    told = [f"{count} {why}" for why, count in sorted(reasons.items(), key=_by_count) if count]
    by_fallback = routes.parts - routes.by_pool
    text = f"the pool answered {100 * share:.2f} % of {routes.parts} parts"
    if by_fallback:
        text += f", the fallback {by_fallback}: {', '.join(told)}"
    return f"{text}; {sum(routes.changes.values())} changes of route on {len(routes.changes)} lines"


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def as_json(routes: Routes | None) -> dict[str, Any] | None:
    """The same for a machine."""
    if routes is None:
        return None
    share = routes.pool_share
    return {
        "parts": routes.parts,
        "by_pool": routes.by_pool,
        "pool_share": None if share is None else round(share, 6),
        "taken_over": routes.taken_over,
        "off_pool": dict(routes.off_pool),
        "changes": dict(routes.changes),
    }
