"""The shipped scheduler in virtual time: arrivals, batches that last their worst case, a lost GPU.

Ties are broken by insertion: what was planned earlier happens first, so at one instant arrivals
come before ends of batches, and wake-ups last.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from deadline_batcher import messages as m
from deadline_batcher.plan import Plan
from deadline_batcher.scheduler import Scheduler
from hil_sim.scenario import Arrival

NEVER_NS = 1 << 62


@dataclass(frozen=True, slots=True)
class Loss:
    """A GPU dies at an instant; the scheduler hears of it `detect_ns` later."""

    gpu: int
    at_ns: int
    detect_ns: int = 10_000_000


@dataclass(slots=True)
class Outcome:
    """What came of the parts. A part is named by its place in the arrivals."""

    parts: int
    events: int = 0
    batches: int = 0
    on_time: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)  # answered, too late
    refused: list[int] = field(default_factory=list)
    caught: set[int] = field(default_factory=set)  # in a batch on a GPU when it was lost
    is_stopped: bool = False

    @property
    def missed(self) -> int:
        """Parts that the pool did not answer in time."""
        return len(self.late) + len(self.refused)


class PolicyRun:
    """One run; `play` returns when nothing is left to happen or misses exceed `misses_max`."""

    def __init__(self, plan: Plan, arrivals: Sequence[Arrival], loss: Loss | None = None) -> None:
        self._plan = plan
        self._arrivals = arrivals
        self._loss = loss
        self.scheduler = Scheduler(plan)
        self.outcome = Outcome(len(arrivals))
        self._ends: list[tuple[int, int, m.RunBatch]] = []
        for gpu in range(plan.gpus):
            self.scheduler.handle(m.GpuReady(gpu), 0)

    def play(self, misses_max: int | None = None) -> Outcome:
        """Feed events in order of time until all is done."""
        scheduler, outcome, ends, arrivals = (
            self.scheduler,
            self.outcome,
            self._ends,
            self._arrivals,
        )
        told_ns = self._loss.at_ns + self._loss.detect_ns if self._loss else NEVER_NS
        number, count = 0, len(arrivals)
        wake_ns = NEVER_NS
        while True:
            arrival_ns = arrivals[number].at_ns if number < count else NEVER_NS
            end_ns = ends[0][0] if ends else NEVER_NS
            now_ns = min(arrival_ns, end_ns, told_ns, wake_ns)
            event: m.Event
            if now_ns == NEVER_NS:
                break
            if now_ns == arrival_ns:
                _, line, category, due_ns = arrivals[number]
                event = m.PartReady(m.PartKey(line, number), category, now_ns, due_ns)
                number += 1
            elif now_ns == end_ns:
                batch = heapq.heappop(ends)[2]
                if self._is_lost(batch.gpu, end_ns):
                    outcome.caught.update(member.key.part for member in batch.parts)
                    continue
                self._answered(batch, now_ns)
                event = m.BatchDone(batch.batch_id, batch.gpu)
            elif now_ns == told_ns and self._loss:
                event, told_ns = m.GpuLost(self._loss.gpu), NEVER_NS
            else:
                event = m.TimeReached()
            outcome.events += 1
            for command in scheduler.handle(event, now_ns):
                if isinstance(command, m.RunBatch):
                    self._start(command)
                elif isinstance(command, m.RefusePart):
                    outcome.refused.append(command.key.part)
            if misses_max is not None and outcome.missed > misses_max:
                outcome.is_stopped = True
                break
            wakeup_ns = scheduler.wakeup_at_ns()
            wake_ns = NEVER_NS if wakeup_ns is None else wakeup_ns
            if wake_ns <= now_ns:
                raise AssertionError(f"the scheduler wants to be woken at once, at {now_ns}")
        return outcome

    def _start(self, batch: m.RunBatch) -> None:
        self.outcome.batches += 1
        heapq.heappush(self._ends, (batch.worst_end_at_ns, batch.batch_id, batch))

    def _answered(self, batch: m.RunBatch, now_ns: int) -> None:
        reserve_ns = self._plan.result_ns
        for member in batch.parts:
            part = member.key.part
            is_in_time = now_ns + reserve_ns <= self._arrivals[part].due_ns
            (self.outcome.on_time if is_in_time else self.outcome.late).append(part)

    def _is_lost(self, gpu: int, end_ns: int) -> bool:
        loss = self._loss
        return loss is not None and gpu == loss.gpu and end_ns > loss.at_ns
