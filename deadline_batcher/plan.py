"""The frozen plan: everything the scheduler knows before the first part."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Category:
    """A model with its input shape; only parts of one category share a batch.

    wcet_ns[b - 1] is the worst-case execution time of a batch of b on any GPU of the pool.
    """

    name: str
    wcet_ns: tuple[int, ...]
    window_ns: int

    def __post_init__(self) -> None:
        if not self.wcet_ns or min(self.wcet_ns) <= 0:
            raise ValueError(f"category {self.name}: wcet_ns must be positive")
        if any(a > b for a, b in zip(self.wcet_ns, self.wcet_ns[1:], strict=False)):
            raise ValueError(f"category {self.name}: wcet_ns must not fall with the batch size")
        if self.window_ns < 0:
            raise ValueError(f"category {self.name}: window_ns is negative")

    @property
    def batch_max(self) -> int:
        """The largest batch this category may form."""
        return len(self.wcet_ns)

    def cap_for(self, available_ns: int) -> int:
        """The largest batch whose worst case fits in `available_ns`; 0 when none does."""
        size = self.batch_max
        while size and self.wcet_ns[size - 1] > available_ns:
            size -= 1
        return size


@dataclass(frozen=True, slots=True)
class Plan:
    """Categories, pool and limits.

    result_ns: reserve between a batch's worst-case end and the line having its answer.
    timer_ns: how late the driver's timer may be; a batch closes that much before it must.
    grace_ns: how much longer than its worst case a batch may take before its GPU is suspect.
    waiting_max: parts that may wait at once; one more is refused (`full`).
    """

    categories: tuple[Category, ...]
    gpus: int
    result_ns: int
    timer_ns: int
    grace_ns: int
    waiting_max: int

    def __post_init__(self) -> None:
        if self.gpus < 1 or not self.categories:
            raise ValueError("a plan needs at least one GPU and one category")
