"""What waits and what runs, as policies see it: queues in order, free GPUs, ends of the others.

The scheduler alone changes a board; a policy only reads it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from deadline_batcher.messages import PartKey
from deadline_batcher.plan import Plan


@dataclass(slots=True, eq=False)
class Part:
    """One part that waits or runs. Instants in ns on the monotonic clock."""

    key: PartKey
    category: int
    order: int
    ready_at_ns: int
    pool_due_at_ns: int
    blocked_mark_ns: int
    runs: int = 0
    batch_id: int = 0  # 0 while waiting
    is_waiting: bool = False


Entry = tuple[int, int, Part]  # sorts by instant, then by order of arrival; parts never compare


class Queue:
    """Waiting parts of one category: earliest `pool_due` first, or first come first."""

    __slots__ = ("_is_by_due", "entries")

    def __init__(self, is_by_due: bool) -> None:
        self._is_by_due = is_by_due
        self.entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def head(self) -> Part:
        """The part that is first; there must be one."""
        return self.entries[0][2]

    def add(self, part: Part) -> None:
        """Let a part wait in its place."""
        part.is_waiting = True
        insort(self.entries, self._entry(part))

    def remove(self, part: Part) -> None:
        """Take one part out, wherever it stands."""
        part.is_waiting = False
        del self.entries[bisect_left(self.entries, self._entry(part))]

    def take(self, first: int, count: int) -> list[Part]:
        """Take `count` parts out, from place `first` on."""
        parts = [entry[2] for entry in self.entries[first : first + count]]
        del self.entries[first : first + count]
        for part in parts:
            part.is_waiting = False
        return parts

    def _entry(self, part: Part) -> Entry:
        at_ns = part.pool_due_at_ns if self._is_by_due else part.ready_at_ns
        return (at_ns, part.order, part)


class Board:
    """The state a policy decides from.

    occupied: the categories in which a part waits, as a dict for its insertion order.
    free: GPUs that may be given work now: least inflated first, then longest idle.
    ends_ns: worst-case ends of the batches (and goldens) on READY GPUs, ascending.
    ready: the numbers of the GPUs that are READY, ascending.
    wcet_on: worst cases by GPU, category and size, with what each GPU's overruns added.
    wcet: those of the GPU offered first, free[0]. What waits fits it at least alone.
    returned: how many of the waiting parts were in a batch before, on a lost or doubtful GPU.
    """

    __slots__ = (
        "ends_ns",
        "free",
        "occupied",
        "plan",
        "queues",
        "ready",
        "returned",
        "wcet",
        "wcet_on",
    )

    def __init__(self, plan: Plan, is_by_due: bool) -> None:
        self.plan = plan
        self.queues = [Queue(is_by_due) for _ in plan.categories]
        self.occupied: dict[int, None] = {}
        self.free: list[int] = []
        self.ends_ns: list[int] = []
        self.ready: list[int] = []
        self.wcet = [category.wcet_ns for category in plan.categories]
        self.wcet_on = [self.wcet] * plan.gpus
        self.returned = 0

    def cap_for(self, category: int, available_ns: int) -> int:
        """The largest batch that the GPU offered first surely ends in `available_ns`; 0: none."""
        return bisect_right(self.wcet[category], available_ns)

    def set_aside(self, now_ns: int) -> dict[int, list[Entry]]:
        """Take out of sight, by category, what the GPU offered first would surely answer late."""
        aside = {}
        for number in tuple(self.occupied):
            entries = self.queues[number].entries
            ends_ns = now_ns + self.plan.result_ns + self.wcet[number][0]
            first = bisect_left(entries, ends_ns, key=lambda entry: entry[0])
            if first:
                aside[number] = entries[:first]
                del entries[:first]
            if not entries:
                del self.occupied[number]
        return aside

    def put_in_front(self, aside: dict[int, list[Entry]]) -> None:
        """Undo `set_aside`."""
        for number, entries in aside.items():
            self.queues[number].entries[:0] = entries
            self.occupied[number] = None
