"""The frozen plan: everything the scheduler knows before the first part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Category:
    """A model with its input shape; only parts of one category share a batch.

    wcet_ns[b - 1] is the worst-case execution time of a batch of b on any GPU of the pool.
    used: the sizes that the profile marks as worth running; empty: any.
    """

    name: str
    wcet_ns: tuple[int, ...]
    window_ns: int
    used: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.wcet_ns or min(self.wcet_ns) <= 0:
            raise ValueError(f"category {self.name}: wcet_ns must be positive")
        if any(a > b for a, b in zip(self.wcet_ns, self.wcet_ns[1:], strict=False)):
            raise ValueError(f"category {self.name}: wcet_ns must not fall with the batch size")
        if self.window_ns < 0:
            raise ValueError(f"category {self.name}: window_ns is negative")
        if self.used and (self.used[0] != 1 or self.used[-1] > len(self.wcet_ns)):
            raise ValueError(f"category {self.name}: used must begin at 1 and end in wcet_ns")
        if any(a >= b for a, b in zip(self.used, self.used[1:], strict=False)):
            raise ValueError(f"category {self.name}: used must ascend")

    @property
    def batch_max(self) -> int:
        """The largest batch this category may form."""
        return len(self.wcet_ns)


@dataclass(frozen=True, slots=True)
class LineTiming:
    """What a policy may know of one line beforehand; a line's number is its place in the plan.

    cycle_ns: mean time between two parts; deadline_ns: from a part being ready to its `pool_due`.
    """

    category: int
    cycle_ns: int
    deadline_ns: int

    def __post_init__(self) -> None:
        if self.cycle_ns <= 0 or self.deadline_ns < 0:
            raise ValueError("a line needs a cycle above 0 and a deadline that is not negative")


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Which batching rule, and what it is told beyond the plan.

    batch_cap, delay_ns: Triton's max_batch_size (0: the category's largest) and
    max_queue_delay; no other rule reads them.
    """

    name: str = "takt"
    batch_cap: int = 0
    delay_ns: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Categories, pool and limits.

    result_ns: reserve between a batch's worst-case end and the line having its answer.
    timer_ns: how late the driver's timer may be; a batch closes that much before it must.
    grace_ns: how much longer than its worst case a batch may take before its GPU is suspect.
    waiting_max: parts that may wait at once; one more is refused (`full`).
    policy: the rule that forms batches. lines: may be empty; rates are then unknown.
    """

    categories: tuple[Category, ...]
    gpus: int
    result_ns: int
    timer_ns: int
    grace_ns: int
    waiting_max: int
    policy: PolicySpec = PolicySpec()
    lines: tuple[LineTiming, ...] = ()

    def __post_init__(self) -> None:
        if self.gpus < 1 or not self.categories:
            raise ValueError("a plan needs at least one GPU and one category")
        if any(not 0 <= line.category < len(self.categories) for line in self.lines):
            raise ValueError("a line names a category that the plan does not have")

    def deadline_ns(self, category: int) -> int:
        """The shortest relative deadline of a category; twice its window if no line is told."""
        told = [line.deadline_ns for line in self.lines if line.category == category]
        return min(told, default=2 * self.categories[category].window_ns)

    def rate_hz(self, category: int) -> float:
        """Parts a second of a category, all its lines together; 0 if no line is told."""
        cycles_ns = (line.cycle_ns for line in self.lines if line.category == category)
        return sum(1e9 / cycle_ns for cycle_ns in cycles_ns)

    def least_gpus(self) -> float:
        """GPUs that all lines keep busy if every part runs in its cheapest batch; 0 for no lines.

        The cheapest batch that ends within the part's deadline; a pool of fewer carries no more.
        """
        busy = 0.0
        for line in self.lines:
            wcet_ns = self.categories[line.category].wcet_ns
            costs = [
                ns / size
                for size, ns in enumerate(wcet_ns, 1)
                if ns + self.result_ns <= line.deadline_ns
            ]
            busy += min(costs, default=wcet_ns[0]) / line.cycle_ns
        return busy


def frontier(wcet_ns: tuple[int, ...], used: tuple[int, ...] = ()) -> tuple[int, ...]:
    """For every size from 0 up, the largest size not above it that is worth running.

    A size is off the efficient frontier when two smaller batches need no more time than it. Where
    `used` names sizes, no other is run, not even as a part of a split.
    """
    allowed = set(used) or set(range(1, len(wcet_ns) + 1))
    best_ns: list[int] = [0]
    usable = [0]
    for size, whole_ns in enumerate(wcet_ns, start=1):
        split_ns = min((best_ns[a] + best_ns[size - a] for a in range(1, size)), default=None)
        is_worth_it = split_ns is None or (size in allowed and whole_ns < split_ns)
        best_ns.append(whole_ns if is_worth_it or split_ns is None else split_ns)
        usable.append(size if is_worth_it else usable[-1])
    return tuple(usable)
