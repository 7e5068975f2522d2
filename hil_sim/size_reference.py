"""A plain pool in virtual time that knows nothing of the tests: what the tests are judged by.

It runs sporadic arrivals on N GPUs under rules chosen to be as unkind as a test's premises allow,
and says by how much the worst part was late. `takt size` itself runs the shipped scheduler.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

from deadline_batcher.sizing.load import Load, SizedCategory, Stream

RULES = ("random", "newest", "longest", "earliest")
"""Which waiting part goes first; batches are filled at random up to the cap."""
MODES = ("work-conserving", "batch-one", "windows")


@dataclass(slots=True)
class Waiting:
    """A part, or one batch of a closed window. due_ns: what must hold; order_ns: what orders it."""

    category: int
    ready_ns: int
    due_ns: int
    order_ns: int
    parts: int = 1


def arrivals_of(load: Load, horizon_ns: int, rng: random.Random) -> list[tuple[int, int, int, int]]:
    """(ready, due, order, category) of every part: sporadic, jittered, in random or equal phase."""
    found = []
    common = rng.random() < 0.3
    for one in load.streams:
        at_ns = 0 if common else rng.randrange(one.cycle_ns)
        is_strict = rng.random() < 0.8
        follows = rng.random() < 0.5
        jitter_kind, turns_at = rng.randrange(4), rng.randrange(4)
        number = 0
        while at_ns < horizon_ns:
            # Late up to one part and early from it on brings two as close as can be.
            kind = jitter_kind if jitter_kind < 3 else int(number < turns_at)
            found.append(_part(one, at_ns, kind, follows, rng))
            number += 1
            at_ns += one.cycle_ns
            if not is_strict and rng.random() < 0.3:
                at_ns += rng.randrange(one.cycle_ns)
    return sorted(found)


def _part(
    one: Stream, at_ns: int, jitter_kind: int, follows: bool, rng: random.Random
) -> tuple[int, int, int, int]:
    """follows: its deadline counts from when it is ready, else from the latest it could be."""
    late_ns = (0, one.jitter_ns, rng.randint(0, one.jitter_ns))[jitter_kind]
    ready_ns = at_ns + late_ns
    base_ns = ready_ns if follows else at_ns + one.jitter_ns
    return ready_ns, base_ns + one.needed_ns, base_ns + one.relative_ns, one.category


@dataclass(slots=True)
class Pool:
    """N GPUs in virtual time."""

    load: Load
    gpus: int
    mode: str
    rule: str
    rng: random.Random

    def least_margin_ns(self, arrivals: list[tuple[int, int, int, int]]) -> int:
        """The least (due - end) over all parts, each started at the latest moment it fits."""
        events: list[tuple[int, int, int, Waiting | None]] = []
        for number, (ready, due, order, category) in enumerate(arrivals):
            events.append((ready, 0, number, Waiting(category, ready, due, order)))
        heapq.heapify(events)
        waiting: list[Waiting] = []
        windows: dict[int, list[Waiting]] = {}
        free, serial, worst_ns = self.gpus, len(arrivals), 1 << 62
        if self.load.golden_ns:  # a golden on every GPU, just begun
            free = 0
            for gpu in range(self.gpus):
                heapq.heappush(events, (self.load.golden_ns - 1, 1, serial + gpu, None))
            serial += self.gpus
        while events:
            now_ns = events[0][0]
            while events and events[0][0] == now_ns:
                _, kind, number, part = heapq.heappop(events)
                if kind == 1:
                    free += 1
                elif kind == 2:
                    waiting += self._close(windows.pop(number))
                elif part is not None and self.mode == "windows":
                    self._gather(part, windows, events, now_ns)
                elif part is not None:
                    waiting.append(part)
            while free and waiting:
                length_ns, margin_ns = self._start(waiting, now_ns)
                worst_ns = min(worst_ns, margin_ns)
                free, serial = free - 1, serial + 1
                heapq.heappush(events, (now_ns + length_ns, 1, serial, None))
        return worst_ns

    def _gather(
        self,
        part: Waiting,
        windows: dict[int, list[Waiting]],
        events: list[tuple[int, int, int, Waiting | None]],
        now_ns: int,
    ) -> None:
        """A window closes as late as its timer may be; its category is its number."""
        if part.category not in windows:
            windows[part.category] = []
            held_ns = self.load.categories[part.category].window_ns
            held_ns += self.rng.choice((0, self.load.timer_ns))
            heapq.heappush(events, (now_ns + held_ns, 2, part.category, None))
        windows[part.category].append(part)

    def _close(self, parts: list[Waiting]) -> list[Waiting]:
        """Full batches and a rest, with the deadline of the earliest part."""
        cap = self.load.categories[parts[0].category].cap
        due_ns, order_ns = min(p.due_ns for p in parts), min(p.order_ns for p in parts)
        return [
            Waiting(
                parts[0].category, parts[0].ready_ns, due_ns, order_ns, min(cap, len(parts) - k)
            )
            for k in range(0, len(parts), cap)
        ]

    def _start(self, waiting: list[Waiting], now_ns: int) -> tuple[int, int]:
        """Run one batch; its length and its least margin."""
        head = waiting.pop(self._choose(waiting))
        wcet_ns = self.load.categories[head.category].wcet_ns
        length_ns, margin_ns = (
            wcet_ns[head.parts - 1],
            head.due_ns - now_ns - wcet_ns[head.parts - 1],
        )
        if self.mode == "work-conserving":
            wanted, room_ns = self.rng.randint(1, len(wcet_ns)), head.due_ns - now_ns
            taken = 1
            for index in range(len(waiting) - 1, -1, -1):
                other = waiting[index]
                if taken >= wanted or other.category != head.category:
                    continue
                fits_ns = min(room_ns, other.due_ns - now_ns)
                if wcet_ns[taken] <= fits_ns:
                    room_ns, taken = fits_ns, taken + 1
                    del waiting[index]
            length_ns = wcet_ns[taken - 1]
            margin_ns = min(margin_ns, room_ns - length_ns)
        if self.rng.random() < 0.1:
            length_ns = max(1, length_ns * self.rng.randint(1, 100) // 100)
        return length_ns, margin_ns

    def _choose(self, waiting: list[Waiting]) -> int:
        indices = range(len(waiting))
        if self.mode == "batch-one" or self.rule == "earliest":
            return min(indices, key=lambda index: waiting[index].order_ns)
        if self.rule == "newest":
            return len(waiting) - 1
        if self.rule == "longest":
            times = self.load.categories
            return max(indices, key=lambda index: times[waiting[index].category].wcet_ns[0])
        return self.rng.randrange(len(waiting))


def random_load(rng: random.Random) -> Load:
    """A small plant: few categories, tight or loose lines, affine, stepped or odd profiles."""
    categories = []
    for number in range(rng.randint(1, 3)):
        base, slope = rng.randint(1, 20) * 100, rng.randint(0, 12) * 100
        times, at = [], base + slope
        for _ in range(rng.randint(1, 8)):
            times.append(max(1, at))
            at += slope if rng.random() < 0.85 else rng.randint(0, 30) * 100
        categories.append(SizedCategory(f"m{number}", tuple(times)))
    streams = []
    for number in range(rng.randint(1, 9)):
        category = rng.randrange(len(categories))
        cycle = rng.randint(10, 400) * 100
        relative = categories[category].wcet_ns[0] + rng.randint(1, 300) * 100
        needed = relative - (rng.randint(0, 20) * 50 if rng.random() < 0.2 else 0)
        jitter = rng.randint(0, 60) * 100 if rng.random() < 0.5 else 0
        streams.append(Stream(f"l{number}", category, cycle, relative, needed, jitter))
    timer = rng.choice((0, 100, 500))
    golden = rng.choice((0, max(category.wcet_ns[0] for category in categories)))
    return Load(tuple(categories), tuple(streams), timer, golden)
