"""Triton's dynamic batcher as the scenarios' README models it, in virtual time.

First come first served per model; a batch when the cap is reached or the oldest part has waited
the queue delay. `central` is one queue over all GPUs (generous to Triton); `shortest` puts a
join-shortest-queue client before one queue per GPU, which is what can be had of real Tritons;
`least-work` weighs every outstanding part by what it takes alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hil_sim.trial_plants import Part, TrialPlant, arrivals

Front = Literal["central", "shortest", "least-work", "round-robin"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of Triton's batcher, for all models of a plant.

    cap: largest batch, cut to each model's own; delay_ms: max_queue_delay in the plant's own time;
    with_priorities: levels within a model by urgency, and among models by theirs. with_queue_limit:
    max_queue_size is set, which keeps Triton from forming two batches ahead.
    """

    cap: int
    delay_ms: float
    with_priorities: bool = False
    with_queue_limit: bool = False

    def __str__(self) -> str:
        told = f"cap {self.cap}, delay {self.delay_ms:g} ms"
        told += ", priorities" if self.with_priorities else ""
        return told + (", queue limit" if self.with_queue_limit else "")


@dataclass(slots=True)
class _Queue:
    waiting: dict[str, list[tuple[int, int, Part]]]
    free: int
    outstanding: dict[str, int] = field(default_factory=dict)

    def load(self, wcet_ns: Mapping[str, Sequence[int]], front: Front) -> int:
        """What the client in front compares."""
        return sum(
            count * (wcet_ns[name][0] if front == "least-work" else 1)
            for name, count in self.outstanding.items()
        )


def misses(
    parts: Sequence[Part],
    wcet_ns: Mapping[str, Sequence[int]],
    gpus: int,
    setting: Setting,
    delay_ns: int,
    front: Front = "shortest",
) -> int:
    """How many parts end after they are due."""
    order = itertools.count()
    queues = [
        _Queue({name: [] for name in wcet_ns}, gpus if front == "central" else 1)
        for _ in range(1 if front == "central" else gpus)
    ]
    events: list[tuple[int, int, int, Part | tuple[str, int] | None]] = [
        (part.arrives_at_ns, next(order), -1, part) for part in parts
    ]
    turn = itertools.count()
    missed = 0
    while events:
        now_ns, _, number, what = heapq.heappop(events)
        if isinstance(what, Part):
            number = _chosen(queues, front, next(turn), wcet_ns)
            level = what.urgency if setting.with_priorities else 0
            queues[number].waiting[what.model].append((level, next(order), what))
            told = queues[number].outstanding
            told[what.model] = told.get(what.model, 0) + 1
        elif what is not None:  # a batch has ended
            queues[number].free += 1
            queues[number].outstanding[what[0]] -= what[1]
        queue = queues[number]
        while queue.free and (name := _ready(queue, wcet_ns, setting, now_ns, delay_ns)):
            size = min(setting.cap, len(wcet_ns[name]), len(queue.waiting[name]))
            batch = sorted(queue.waiting[name], key=lambda one: one[:2])[:size]
            queue.waiting[name] = [one for one in queue.waiting[name] if one not in batch]
            queue.free -= 1
            end_ns = now_ns + wcet_ns[name][size - 1]
            missed += sum(p.arrives_at_ns + p.deadline_ns < end_ns for _, _, p in batch)
            heapq.heappush(events, (end_ns, next(order), number, (name, size)))
        if queue.free and (arrived := [w[0][2].arrives_at_ns for w in queue.waiting.values() if w]):
            wake_ns = max(now_ns + 1, min(arrived) + delay_ns)
            heapq.heappush(events, (wake_ns, next(order), number, None))
    return missed


def _chosen(
    queues: list[_Queue], front: Front, turn: int, wcet_ns: Mapping[str, Sequence[int]]
) -> int:
    if front in ("shortest", "least-work"):
        count = len(queues)
        loads = [queue.load(wcet_ns, front) for queue in queues]
        return min(range(count), key=lambda n: (loads[n], (n - turn) % count))
    return turn % len(queues)


def _ready(
    queue: _Queue,
    wcet_ns: Mapping[str, Sequence[int]],
    setting: Setting,
    now_ns: int,
    delay_ns: int,
) -> str | None:
    """The model whose batch goes next: of those that may, the one with the oldest part."""
    found: list[tuple[int, int, str]] = []
    for name, waiting in queue.waiting.items():
        if not waiting:
            continue
        oldest_ns = min(part.arrives_at_ns for _, _, part in waiting)
        cap = min(setting.cap, len(wcet_ns[name]))
        if len(waiting) >= cap or now_ns - oldest_ns >= delay_ns:
            urgency = min(part.urgency for _, _, part in waiting)
            found.append((urgency if setting.with_priorities else 0, oldest_ns, name))
    return min(found)[2] if found else None


def largest_load(
    plant: TrialPlant,
    gpus: int,
    setting: Setting,
    horizon_ms: float,
    seeds: Sequence[int],
    front: Front = "shortest",
) -> float:
    """The largest load without a miss in any seed, by bisection to 1 %."""
    wcet_ns = {model.name: model.wcet_ns(plant.stretch) for model in plant.models}
    delay_ns = round(setting.delay_ms * plant.stretch * 1e6)

    def holds(load: float) -> bool:
        return not any(
            misses(arrivals(plant, load, horizon_ms, seed), wcet_ns, gpus, setting, delay_ns, front)
            for seed in seeds
        )

    low, high = 0.0, plant.bound(gpus) * 1.02
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
