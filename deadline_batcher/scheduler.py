"""Decides which parts run together, where and when. Pure: it never waits, reads or sends.

Promises, for every event sequence:
- a batch is ordered only if its worst case ends, with `result_ns` to spare, by the earliest
  `pool_due` in it as known at that instant;
- nothing is given to a GPU that is not READY and free; one batch a GPU;
- a part is in at most one place: waiting, in one batch, or gone; none is forgotten: each ends in
  a batch that was done, a refusal, or its line's withdrawal.

Iteration follows insertion order only, so that a journal replays alike in every process.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from deadline_batcher.messages import (
    BatchDone,
    BatchFailed,
    BatchPart,
    Command,
    Event,
    GoldenDone,
    GoldenWanted,
    GpuDrained,
    GpuLost,
    GpuReady,
    PartKey,
    PartReady,
    PartWithdrawn,
    PoolDueMoved,
    RefusePart,
    RunBatch,
    RunGolden,
    SuspectGpu,
    TimeReached,
)
from deadline_batcher.plan import Plan
from deadline_batcher.pool import Gpu, GpuEvent
from deadline_batcher.window import close_at_ns

RUNS_MAX = 3
"""How often a part may be put into a batch: once, and again after a lost or doubtful GPU."""


class Snapshot(NamedTuple):
    """A frozen copy of the state, for metrics and the console."""

    waiting: tuple[int, ...]  # per category
    gpu_states: tuple[str, ...]
    gpu_batches: tuple[int, ...]  # batch in flight per GPU, 0 for none
    batches_run: int


@dataclass(slots=True)
class _Part:
    key: PartKey
    category: int
    order: int
    ready_at_ns: int
    pool_due_at_ns: int
    blocked_mark_ns: int
    runs: int = 0
    batch_id: int = 0  # 0 while waiting

    def sort_key(self) -> tuple[int, int]:
        return (self.pool_due_at_ns, self.order)


@dataclass(slots=True)
class _Queue:
    """Waiting parts of one category, earliest `pool_due` first."""

    parts: list[_Part] = field(default_factory=list)

    def add(self, part: _Part) -> None:
        insort(self.parts, part, key=_Part.sort_key)

    def remove(self, part: _Part) -> None:
        self.parts.remove(part)

    def oldest_ready_at_ns(self) -> int:
        return min(part.ready_at_ns for part in self.parts)


class Scheduler:
    """Earliest deadline first within a derived window, over identical GPUs."""

    def __init__(self, plan: Plan, batches_run: int = 0) -> None:
        """`batches_run`: the number of the last batch before this scheduler took over."""
        self.plan = plan
        self._gpus = [Gpu(number) for number in range(plan.gpus)]
        self._idle_since: list[tuple[int, int]] = [(0, number) for number in range(plan.gpus)]
        self._queues = [_Queue() for _ in plan.categories]
        self._parts: dict[PartKey, _Part] = {}
        self._order = 0
        self._batches_run = batches_run
        self._blocked_ns = 0  # how long, in all, no GPU was free
        self._blocked_since_ns: int | None = None

    # --- the interface ----------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> tuple[Command, ...]:
        """Take one event at `now_ns`; return what to do about it, in order."""
        commands: list[Command] = []
        self._mark_blocked(now_ns)
        match event:
            case PartReady():
                self._part_ready(event, now_ns, commands)
            case PoolDueMoved():
                self._pool_due_moved(event)
            case PartWithdrawn():
                self._forget(event.key)
            case BatchDone():
                self._batch_done(event, now_ns)
            case BatchFailed():
                self._batch_failed(event, now_ns, commands)
            case GpuReady() | GpuLost() | GpuDrained():
                self._gpu_changed(event, now_ns, commands)
            case GoldenWanted():
                self._gpus[event.gpu].is_golden_wanted = True
            case GoldenDone():
                self._golden_done(event, now_ns, commands)
            case TimeReached():
                pass
        self._find_overdue(now_ns, commands)
        self._refuse_late(now_ns, commands)
        self._dispatch(now_ns, commands)
        self._run_goldens(now_ns, commands)
        self._mark_blocked(now_ns)
        return tuple(commands)

    def wakeup_at_ns(self) -> int | None:
        """When to send `TimeReached` if nothing else happens first."""
        wakeups = [gpu.overdue_at_ns for gpu in self._gpus if gpu.overdue_at_ns]
        has_free = any(gpu.is_free for gpu in self._gpus)
        for number, queue in enumerate(self._queues):
            if not queue.parts:
                continue
            wakeups.append(self._late_at_ns(queue.parts[0]))
            if has_free:
                wakeups.append(self._close_at_ns(number))
        return min(wakeups, default=None)

    @property
    def is_empty(self) -> bool:
        """Whether no part waits or runs and no golden is out."""
        busy = any(gpu.batch is not None or gpu.is_golden_out for gpu in self._gpus)
        return not self._parts and not busy

    def snapshot(self) -> Snapshot:
        """A frozen copy of the state."""
        return Snapshot(
            waiting=tuple(len(queue.parts) for queue in self._queues),
            gpu_states=tuple(gpu.state.value for gpu in self._gpus),
            gpu_batches=tuple(gpu.batch.batch_id if gpu.batch else 0 for gpu in self._gpus),
            batches_run=self._batches_run,
        )

    # --- parts ------------------------------------------------------------------------------

    def _part_ready(self, event: PartReady, now_ns: int, commands: list[Command]) -> None:
        if event.key in self._parts:
            return  # the line offers every open part again after a reconnect
        category = self.plan.categories[event.category]
        if event.pool_due_at_ns - self.plan.result_ns - category.wcet_ns[0] < now_ns:
            commands.append(RefusePart(event.key, "infeasible"))
            return
        if sum(len(queue.parts) for queue in self._queues) >= self.plan.waiting_max:
            commands.append(RefusePart(event.key, "full"))
            return
        self._order += 1
        part = _Part(
            key=event.key,
            category=event.category,
            order=self._order,
            ready_at_ns=event.ready_at_ns,
            pool_due_at_ns=event.pool_due_at_ns,
            blocked_mark_ns=self._blocked_ns,
        )
        self._parts[event.key] = part
        self._queues[event.category].add(part)

    def _pool_due_moved(self, event: PoolDueMoved) -> None:
        part = self._parts.get(event.key)
        if part is None:
            return
        if part.batch_id:  # a batch that runs is not recalled; a second run would need to know
            part.pool_due_at_ns = event.pool_due_at_ns
            return
        queue = self._queues[part.category]
        queue.remove(part)
        part.pool_due_at_ns = event.pool_due_at_ns
        queue.add(part)

    def _forget(self, key: PartKey) -> None:
        part = self._parts.pop(key, None)
        if part is not None and not part.batch_id:
            self._queues[part.category].remove(part)

    def _late_at_ns(self, part: _Part) -> int:
        """The first instant at which not even a batch of one would end in time."""
        wcet_ns = self.plan.categories[part.category].wcet_ns[0]
        return part.pool_due_at_ns - self.plan.result_ns - wcet_ns + 1

    def _refuse_late(self, now_ns: int, commands: list[Command]) -> None:
        for queue in self._queues:
            while queue.parts and self._late_at_ns(queue.parts[0]) <= now_ns:
                part = queue.parts[0]
                self._forget(part.key)
                commands.append(RefusePart(part.key, "late"))

    # --- batches ----------------------------------------------------------------------------

    def _batch_done(self, event: BatchDone, now_ns: int) -> None:
        gpu = self._gpus[event.gpu]
        if gpu.batch is None or gpu.batch.batch_id != event.batch_id:
            return  # of a GPU that was lost meanwhile; its parts went elsewhere
        for batch_part in gpu.batch.parts:
            self._forget(batch_part.key)
        self._release(gpu, now_ns)

    def _batch_failed(self, event: BatchFailed, now_ns: int, commands: list[Command]) -> None:
        gpu = self._gpus[event.gpu]
        if gpu.batch is None or gpu.batch.batch_id != event.batch_id:
            return
        batch = gpu.batch
        if event.is_gpu_fault:
            self._doubt(gpu, commands, is_fault=True)
        self._release(gpu, now_ns)
        self._put_back(batch, commands)

    def _put_back(self, batch: RunBatch, commands: list[Command]) -> None:
        """The parts of a batch that will not be answered wait again, where they still may."""
        for batch_part in batch.parts:
            part = self._parts.get(batch_part.key)
            if part is None or part.batch_id != batch.batch_id:
                continue
            part.batch_id = 0
            if part.runs >= RUNS_MAX:
                del self._parts[part.key]
                commands.append(RefusePart(part.key, "lost"))
            else:
                self._queues[part.category].add(part)

    def _release(self, gpu: Gpu, now_ns: int) -> None:
        gpu.batch, gpu.is_golden_out, gpu.overdue_at_ns = None, False, 0
        self._idle_since[gpu.number] = (now_ns, gpu.number)

    def _find_overdue(self, now_ns: int, commands: list[Command]) -> None:
        for gpu in self._gpus:
            if not gpu.overdue_at_ns or gpu.overdue_at_ns > now_ns:
                continue
            gpu.overdue_at_ns = 0  # seen; the call itself stays open and keeps the GPU occupied
            self._doubt(gpu, commands, is_fault=False)
            if gpu.batch is not None:
                self._put_back(gpu.batch, commands)

    @staticmethod
    def _doubt(gpu: Gpu, commands: list[Command], is_fault: bool) -> None:
        batch_id = gpu.batch.batch_id if gpu.batch else 0
        if gpu.step(GpuEvent.DOUBT) or is_fault:
            commands.append(SuspectGpu(gpu.number, batch_id, is_fault))

    def _gpu_changed(
        self, event: GpuReady | GpuLost | GpuDrained, now_ns: int, commands: list[Command]
    ) -> None:
        gpu = self._gpus[event.gpu]
        match event:
            case GpuReady():
                gpu.step(GpuEvent.READY)
            case GpuDrained():
                gpu.step(GpuEvent.DRAIN)
            case GpuLost():
                gpu.step(GpuEvent.LOST)
                gpu.is_golden_wanted = False
                batch = gpu.batch
                self._release(gpu, now_ns)
                if batch is not None:
                    self._put_back(batch, commands)

    # --- goldens ----------------------------------------------------------------------------

    def _run_goldens(self, now_ns: int, commands: list[Command]) -> None:
        """Goldens go to idle GPUs only, and never where a batch would have to wait for one."""
        for gpu in self._gpus:
            if not gpu.is_golden_wanted or not gpu.is_free:
                continue
            longest_ns = max(category.wcet_ns[0] for category in self.plan.categories)
            has_other = sum(other.is_free for other in self._gpus) > 1
            end_ns = now_ns + longest_ns
            if not has_other and any(
                queue.parts and self._close_at_ns(number) <= end_ns
                for number, queue in enumerate(self._queues)
            ):
                continue
            gpu.is_golden_wanted, gpu.is_golden_out = False, True
            gpu.overdue_at_ns = end_ns + self.plan.grace_ns
            commands.append(RunGolden(gpu.number))

    def _golden_done(self, event: GoldenDone, now_ns: int, commands: list[Command]) -> None:
        gpu = self._gpus[event.gpu]
        if not gpu.is_golden_out:
            return  # of a GPU that was lost meanwhile
        self._release(gpu, now_ns)
        if not event.ok:
            self._doubt(gpu, commands, is_fault=True)

    # --- choosing ---------------------------------------------------------------------------

    def _close_at_ns(self, number: int) -> int:
        queue, category = self._queues[number], self.plan.categories[number]
        if len(queue.parts) >= category.batch_max:
            return 0
        return close_at_ns(
            category,
            queue.oldest_ready_at_ns(),
            queue.parts[0].pool_due_at_ns,
            len(queue.parts),
            self.plan.result_ns + self.plan.timer_ns,
        )

    def _dispatch(self, now_ns: int, commands: list[Command]) -> None:
        while True:
            gpu = self._longest_idle()
            if gpu is None:
                return
            closing = [
                (self._close_at_ns(number), number)
                for number, queue in enumerate(self._queues)
                if queue.parts
            ]
            close_at, number = min(closing, default=(now_ns + 1, 0))
            if close_at > now_ns:
                return
            commands.append(self._run(gpu, number, now_ns))

    def _longest_idle(self) -> Gpu | None:
        free: Iterable[Gpu] = (gpu for gpu in self._gpus if gpu.is_free)
        return min(free, key=lambda gpu: self._idle_since[gpu.number], default=None)

    def _run(self, gpu: Gpu, number: int, now_ns: int) -> RunBatch:
        queue, category = self._queues[number], self.plan.categories[number]
        head = queue.parts[0]
        available_ns = head.pool_due_at_ns - self.plan.result_ns - now_ns
        size = min(category.cap_for(available_ns), len(queue.parts))
        chosen, queue.parts = queue.parts[:size], queue.parts[size:]
        self._batches_run += 1
        batch_id = self._batches_run
        members = []
        for part in chosen:
            part.batch_id = batch_id
            part.runs += 1
            waited_ns = now_ns - part.ready_at_ns
            queue_ns = min(max(0, waited_ns), self._blocked_ns - part.blocked_mark_ns)
            members.append(BatchPart(part.key, queue_ns, waited_ns - queue_ns))
        worst_end_at_ns = now_ns + category.wcet_ns[size - 1]
        batch = RunBatch(batch_id, gpu.number, number, tuple(members), worst_end_at_ns)
        gpu.batch = batch
        gpu.overdue_at_ns = worst_end_at_ns + self.plan.grace_ns
        return batch

    def _mark_blocked(self, now_ns: int) -> None:
        """Keep the sum of all time during which no GPU was free: what `queue` means in a row."""
        if self._blocked_since_ns is not None:
            self._blocked_ns += now_ns - self._blocked_since_ns
        is_blocked = not any(gpu.is_free for gpu in self._gpus)
        self._blocked_since_ns = now_ns if is_blocked else None
