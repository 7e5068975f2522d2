"""Decides which parts run together, where and when. Pure: it never waits, reads or sends.

The batching rule itself is a policy (deadline_batcher/policies); here is what all rules share.
Promises, for every event sequence:
- a batch is ordered only if its worst case on that GPU ends, with `result_ns` to spare, by the
  earliest `pool_due` in it as known at that instant (a policy whose published rule does not look
  at deadlines says `may_end_late`);
- nothing is given to a GPU that is not READY and free; one batch a GPU;
- a part is in at most one place: waiting, in one batch, or gone; none is forgotten: each ends in
  a batch that was done, a refusal, or its line's withdrawal.

Iteration follows insertion order only, so that a journal replays alike in every process. An event
costs O(log parts + GPUs) and one choice of the policy, whatever the number of lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from deadline_batcher.board import Board, Entry, Part
from deadline_batcher.late_heads import LateHeads
from deadline_batcher.messages import (
    BatchDone,
    BatchFailed,
    BatchPart,
    Command,
    Event,
    GoldenDone,
    GoldenWanted,
    GpuDoubted,
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
from deadline_batcher.overrun import Overruns
from deadline_batcher.plan import Plan
from deadline_batcher.policies import make_policy
from deadline_batcher.policies.policy import Choice, Hold
from deadline_batcher.pool import Gpu, GpuEvent, Pool

RUNS_MAX = 3
"""How often a part may be put into a batch: once, and again after a lost or doubtful GPU."""


class Snapshot(NamedTuple):
    """A frozen copy of the state, for metrics and the console."""

    waiting: tuple[int, ...]  # per category
    gpu_states: tuple[str, ...]
    gpu_batches: tuple[int, ...]  # batch in flight per GPU, 0 for none
    batches_run: int
    gpu_overruns: tuple[Overruns, ...]


class Scheduler:
    """Feeds a policy with what waits and what is free, and orders what it chooses."""

    def __init__(self, plan: Plan, batches_run: int = 0, overruns: Sequence[Overruns] = ()) -> None:
        """`batches_run`, `overruns` (by GPU): as in the snapshot of the scheduler before."""
        self.plan = plan
        self._policy = make_policy(plan)
        self._board = Board(plan, self._policy.is_by_due)
        self._late = LateHeads(self._board, plan.result_ns)
        self._pool = Pool(plan, self._board, self._late, overruns)
        self._parts: dict[PartKey, Part] = {}
        self._waiting = 0
        self._hold_until_ns: int | None = None
        self._order = 0
        self._batches_run = batches_run
        self._blocked_ns = 0  # how long, in all, no GPU was free
        self._blocked_since_ns: int | None = None
        self._is_golden_wanted = False

    # --- the interface ----------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> tuple[Command, ...]:
        """Take one event at `now_ns`; return what to do about it, in order."""
        commands: list[Command] = []
        pool = self._pool
        if pool.quiet_at_ns is not None and pool.quiet_at_ns <= now_ns:
            pool.wear_off(now_ns)
        self._mark_blocked(now_ns)
        match event:
            case PartReady():
                self._part_ready(event, now_ns, commands)
            case BatchDone():
                self._batch_done(event, now_ns, commands)
            case TimeReached():
                pass
            case PoolDueMoved():
                self._pool_due_moved(event)
            case PartWithdrawn():
                self._forget(event.key)
            case BatchFailed():
                self._batch_failed(event, now_ns, commands)
            case GpuReady() | GpuLost() | GpuDrained():
                self._gpu_changed(event, now_ns, commands)
            case GpuDoubted():
                self._gpu_doubted(event, commands)
            case GoldenWanted():
                pool.gpus[event.gpu].is_golden_wanted = self._is_golden_wanted = True
                pool.gpus[event.gpu].golden = (event.category, event.rows)
            case GoldenDone():
                self._golden_done(event, now_ns, commands)
        if pool.overdue_at_ns is not None and pool.overdue_at_ns <= now_ns:
            self._find_overdue(now_ns, commands)
        self._refuse_late(now_ns, commands)
        self._dispatch(now_ns, commands)
        self._refuse_late(now_ns, commands)  # first come first served hides late parts behind
        if self._is_golden_wanted:
            self._run_goldens(now_ns, commands)
        self._mark_blocked(now_ns)
        return tuple(commands)

    def wakeup_at_ns(self) -> int | None:
        """When to send `TimeReached` if nothing else happens first."""
        wakeups = (self._pool.overdue_at_ns, self._hold_until_ns, self._late.next_at_ns())
        return min((at_ns for at_ns in wakeups if at_ns is not None), default=None)

    @property
    def is_empty(self) -> bool:
        """Whether no part waits or runs and no golden is out."""
        busy = any(gpu.batch is not None or gpu.is_golden_out for gpu in self._pool.gpus)
        return not self._parts and not busy

    def snapshot(self) -> Snapshot:
        """A frozen copy of the state."""
        gpus = self._pool.gpus
        return Snapshot(
            waiting=tuple(len(queue) for queue in self._board.queues),
            gpu_states=tuple(gpu.state.value for gpu in gpus),
            gpu_batches=tuple(gpu.batch.batch_id if gpu.batch else 0 for gpu in gpus),
            batches_run=self._batches_run,
            gpu_overruns=tuple(gpu.overruns for gpu in gpus),
        )

    # --- parts ------------------------------------------------------------------------------

    def _part_ready(self, event: PartReady, now_ns: int, commands: list[Command]) -> None:
        if event.key in self._parts:
            return  # the line offers every open part again after a reconnect
        lone_ns = self._late.lone_ns[event.category]
        if event.pool_due_at_ns - self.plan.result_ns - lone_ns < now_ns:
            commands.append(RefusePart(event.key, "infeasible"))
            return
        if self._waiting >= self.plan.waiting_max:
            commands.append(RefusePart(event.key, "full"))
            return
        self._order += 1
        part = Part(
            event.key,
            event.category,
            self._order,
            event.ready_at_ns,
            event.pool_due_at_ns,
            self._blocked_ns,
        )
        self._parts[event.key] = part
        self._wait(part)

    def _wait(self, part: Part) -> None:
        queue = self._board.queues[part.category]
        queue.add(part)
        self._waiting += 1
        self._board.returned += part.runs > 0
        self._board.occupied[part.category] = None
        self._policy.waits(part)
        if queue.head is part:
            self._late.head_changed(part.category)

    def _leave(self, part: Part) -> None:
        queue = self._board.queues[part.category]
        was_head = queue.head is part
        queue.remove(part)
        self._waiting -= 1
        self._board.returned -= part.runs > 0
        if was_head:
            self._late.head_changed(part.category)

    def _pool_due_moved(self, event: PoolDueMoved) -> None:
        part = self._parts.get(event.key)
        if part is None:
            return
        if part.batch_id:  # a batch that runs is not recalled; a second run would need to know
            part.pool_due_at_ns = event.pool_due_at_ns
            return
        self._leave(part)
        part.pool_due_at_ns = event.pool_due_at_ns
        self._wait(part)

    def _forget(self, key: PartKey) -> None:
        part = self._parts.pop(key, None)
        if part is not None and not part.batch_id:
            self._leave(part)

    def _refuse_late(self, now_ns: int, commands: list[Command]) -> None:
        heap = self._late.heap
        if not heap or heap[0][0] > now_ns:
            return
        while (part := self._late.head_if_late(now_ns)) is not None:
            self._forget(part.key)
            self._policy.missed(part, now_ns)
            commands.append(RefusePart(part.key, "late"))

    # --- batches ----------------------------------------------------------------------------

    def _batch_done(self, event: BatchDone, now_ns: int, commands: list[Command]) -> None:
        gpu = self._pool.gpus[event.gpu]
        batch = gpu.batch
        if batch is None or batch.batch_id != event.batch_id:
            return  # of a GPU that was lost meanwhile; its parts went elsewhere
        for batch_part in batch.parts:
            self._forget(batch_part.key)
        self._pool.release(gpu, now_ns)
        ended_at_ns = event.answered_at_ns or now_ns
        if ended_at_ns > batch.worst_end_at_ns:
            commands += self._pool.overran(gpu, batch, ended_at_ns, now_ns)

    def _batch_failed(self, event: BatchFailed, now_ns: int, commands: list[Command]) -> None:
        gpu = self._pool.gpus[event.gpu]
        if gpu.batch is None or gpu.batch.batch_id != event.batch_id:
            return
        batch = gpu.batch
        if event.is_gpu_fault:
            self._doubt(gpu, commands, is_fault=True)
        self._pool.release(gpu, now_ns)
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
                self._wait(part)

    def _find_overdue(self, now_ns: int, commands: list[Command]) -> None:
        for gpu in self._pool.gpus:
            if not gpu.overdue_at_ns or gpu.overdue_at_ns > now_ns:
                continue
            gpu.overdue_at_ns = 0  # seen; the call itself stays open and keeps the GPU occupied
            self._doubt(gpu, commands, is_fault=False)
            if gpu.batch is not None:
                self._put_back(gpu.batch, commands)
        self._pool.changed()

    def _gpu_doubted(self, event: GpuDoubted, commands: list[Command]) -> None:
        gpu = self._pool.gpus[event.gpu]
        self._doubt(gpu, commands, event.is_fault)
        if event.is_fault and gpu.batch is not None:
            gpu.overdue_at_ns = 0  # its answer will not be trusted, however soon it comes
            self._put_back(gpu.batch, commands)
            self._pool.changed()

    def _doubt(self, gpu: Gpu, commands: list[Command], is_fault: bool) -> None:
        batch_id = gpu.batch.batch_id if gpu.batch else 0
        changed = gpu.step(GpuEvent.DOUBT)
        if changed or is_fault:
            commands.append(SuspectGpu(gpu.number, batch_id, is_fault))
        if changed:
            self._pool.changed()

    def _gpu_changed(
        self, event: GpuReady | GpuLost | GpuDrained, now_ns: int, commands: list[Command]
    ) -> None:
        gpu = self._pool.gpus[event.gpu]
        match event:
            case GpuReady():
                gpu.step(GpuEvent.READY)
            case GpuDrained():
                gpu.step(GpuEvent.DRAIN)
            case GpuLost():
                gpu.step(GpuEvent.LOST)
                gpu.is_golden_wanted = False
                batch = gpu.batch
                self._pool.release(gpu, now_ns)
                if batch is not None:
                    self._put_back(batch, commands)
        self._pool.changed()

    # --- goldens ----------------------------------------------------------------------------

    def _run_goldens(self, now_ns: int, commands: list[Command]) -> None:
        """Goldens go to idle GPUs only, and never where a batch would have to wait for one; one of
        several pictures only beside another idle GPU, if there are others.
        """
        for gpu in self._pool.gpus:
            if not gpu.is_golden_wanted or not gpu.is_free:
                continue
            category, rows = gpu.golden
            if rows > 1 and len(self._board.free) < min(2, self.plan.gpus):
                continue
            end_ns = now_ns + self._board.wcet_on[gpu.number][category][rows - 1]
            if len(self._board.free) < 2 and any(
                self._last_start_ns(number) <= end_ns for number in self._board.occupied
            ):
                continue
            gpu.is_golden_wanted, gpu.is_golden_out = False, True
            gpu.overdue_at_ns = end_ns + self.plan.grace_ns
            commands.append(RunGolden(gpu.number, category, rows))
            self._pool.changed()
        self._is_golden_wanted = any(gpu.is_golden_wanted for gpu in self._pool.gpus)

    def _last_start_ns(self, number: int) -> int:
        """The latest start of what waits in a category, with one more part."""
        queue, wcet_ns = self._board.queues[number], self._board.wcet[number]
        longest_ns = wcet_ns[min(len(queue), len(wcet_ns) - 1)]
        return queue.head.pool_due_at_ns - self.plan.result_ns - self.plan.timer_ns - longest_ns

    def _golden_done(self, event: GoldenDone, now_ns: int, commands: list[Command]) -> None:
        gpu = self._pool.gpus[event.gpu]
        if not gpu.is_golden_out:
            return  # of a GPU that was lost meanwhile
        self._pool.release(gpu, now_ns)
        if not event.ok:
            self._doubt(gpu, commands, is_fault=True)

    # --- choosing ---------------------------------------------------------------------------

    def _dispatch(self, now_ns: int, commands: list[Command]) -> None:
        self._hold_until_ns = None
        board, pool = self._board, self._pool
        aside: dict[int, list[Entry]] = {}
        while board.free and board.occupied:
            if pool.is_inflated and pool.is_better_busy and not self._policy.may_end_late:
                aside = board.set_aside(now_ns)
            choice = self._policy.choose(board, now_ns) if board.occupied else Hold()
            if aside:
                board.put_in_front(aside)
            if isinstance(choice, Hold):
                if choice.until_ns is not None:
                    self._hold_until_ns = max(choice.until_ns, now_ns + 1)
                return
            self._run(choice, len(aside.pop(choice.category, ())), now_ns, commands)
            aside = {}

    def _run(self, choice: Choice, behind: int, now_ns: int, commands: list[Command]) -> None:
        """`behind`: how many parts stand in front of the first that the policy saw."""
        number, size = choice.category, choice.size
        queue, first = self._board.queues[number], behind + choice.first
        chosen = queue.take(first, size)
        self._waiting -= size
        if choice.is_dropping:
            for part in queue.take(behind, choice.first):
                del self._parts[part.key]
                self._waiting -= 1
                self._board.returned -= part.runs > 0
                commands.append(RefusePart(part.key, "shed"))
        if not behind and (choice.is_dropping or not first):
            self._late.head_changed(number)
        self._batches_run += 1
        batch_id = self._batches_run
        members = []
        for part in chosen:
            part.batch_id = batch_id
            self._board.returned -= part.runs > 0
            part.runs += 1
            waited_ns = now_ns - part.ready_at_ns
            queue_ns = min(max(0, waited_ns), self._blocked_ns - part.blocked_mark_ns)
            members.append(BatchPart(part.key, queue_ns, waited_ns - queue_ns))
        worst_end_at_ns = now_ns + self._board.wcet_on[choice.gpu][number][size - 1]
        if not self._policy.may_end_late:
            # With queues by due, the first is the earliest.
            assert worst_end_at_ns + self.plan.result_ns <= chosen[0].pool_due_at_ns
        batch = RunBatch(batch_id, choice.gpu, number, tuple(members), worst_end_at_ns)
        gpu = self._pool.gpus[choice.gpu]
        gpu.batch, gpu.started_at_ns = batch, now_ns
        gpu.overdue_at_ns = worst_end_at_ns + self.plan.grace_ns
        self._pool.changed()
        commands.append(batch)

    def _mark_blocked(self, now_ns: int) -> None:
        """Keep the sum of all time during which no GPU was free: what `queue` means in a row."""
        if self._blocked_since_ns is not None:
            self._blocked_ns += now_ns - self._blocked_since_ns
        self._blocked_since_ns = None if self._board.free else now_ns
