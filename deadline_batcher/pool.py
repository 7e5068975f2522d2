"""The pool as the scheduler sees it: one table of states, one batch in flight a GPU.

Rules for editing: every (state, event) pair stands in TRANSITIONS; a missing pair is a bug and
raises. `READY` alone may be given work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from deadline_batcher.board import Board
from deadline_batcher.late_heads import LateHeads
from deadline_batcher.messages import Command, DrainGpu, Overrun, RunBatch
from deadline_batcher.overrun import (
    DRAIN_AFTER,
    FAR_MORE,
    NO_OVERRUNS,
    QUIET_NS,
    Overruns,
    inflated,
)
from deadline_batcher.plan import Plan


class GpuState(Enum):
    """Where a GPU stands."""

    WARMING = "WARMING"
    READY = "READY"
    SUSPECT = "SUSPECT"
    LOST = "LOST"
    DRAINING = "DRAINING"


class GpuEvent(Enum):
    """What may happen to a GPU."""

    READY = "ready"
    LOST = "lost"
    DOUBT = "doubt"
    DRAIN = "drain"


S, E = GpuState, GpuEvent
TRANSITIONS: dict[tuple[GpuState, GpuEvent], GpuState] = {
    (S.WARMING, E.READY): S.READY,
    (S.WARMING, E.LOST): S.LOST,
    (S.WARMING, E.DOUBT): S.WARMING,
    (S.WARMING, E.DRAIN): S.DRAINING,
    (S.READY, E.READY): S.READY,
    (S.READY, E.LOST): S.LOST,
    (S.READY, E.DOUBT): S.SUSPECT,
    (S.READY, E.DRAIN): S.DRAINING,
    (S.SUSPECT, E.READY): S.READY,
    (S.SUSPECT, E.LOST): S.LOST,
    (S.SUSPECT, E.DOUBT): S.SUSPECT,
    (S.SUSPECT, E.DRAIN): S.DRAINING,
    (S.LOST, E.READY): S.READY,
    (S.LOST, E.LOST): S.LOST,
    (S.LOST, E.DOUBT): S.LOST,
    (S.LOST, E.DRAIN): S.DRAINING,
    (S.DRAINING, E.READY): S.READY,
    (S.DRAINING, E.LOST): S.LOST,
    (S.DRAINING, E.DOUBT): S.DRAINING,
    (S.DRAINING, E.DRAIN): S.DRAINING,
}


@dataclass(slots=True)
class Gpu:
    """One GPU: its state and the batch it was given, with the instant it becomes overdue."""

    number: int
    state: GpuState = GpuState.WARMING
    batch: RunBatch | None = None
    overdue_at_ns: int = 0  # 0: nothing to watch
    is_golden_wanted: bool = False
    golden: tuple[int, int] = (0, 1)  # category and rows of the one that is wanted
    is_golden_out: bool = False
    started_at_ns: int = 0  # its batch
    overruns: Overruns = NO_OVERRUNS

    @property
    def is_free(self) -> bool:
        """Whether it may be given a batch now."""
        return self.state is GpuState.READY and self.batch is None and not self.is_golden_out

    def step(self, event: GpuEvent) -> bool:
        """Follow the table; returns whether the state changed."""
        after = TRANSITIONS[self.state, event]
        changed = after is not self.state
        self.state = after
        return changed


class Pool:
    """All GPUs, and what the board and the late heads know of them.

    overdue_at_ns: the earliest of all GPUs. quiet_at_ns: when inflation wears off next.
    is_inflated: some GPU is. is_better_busy: a GPU that is READY is less inflated than the one
    offered first.
    """

    def __init__(
        self, plan: Plan, board: Board, late: LateHeads, overruns: Sequence[Overruns]
    ) -> None:
        """`overruns`: what is known of each GPU from before; may be empty."""
        self.gpus = [Gpu(number) for number in range(plan.gpus)]
        for gpu, learnt in zip(self.gpus, overruns, strict=False):
            gpu.overruns = learnt
        self.overdue_at_ns: int | None = None
        self.quiet_at_ns: int | None = None
        self.is_inflated = self.is_better_busy = False
        self._plan, self._board, self._late = plan, board, late
        self._idle_since_ns = [0] * plan.gpus
        self._profile_ns = board.wcet
        self._least_permille = 0
        self._inflate()

    def changed(self) -> None:
        """Write anew what the board says of the GPUs; there are few, and it is seldom."""
        free: list[int] = []
        ready: list[int] = []
        ends_ns: list[int] = []
        overdue_at_ns: int | None = None
        for gpu in self.gpus:
            at_ns = gpu.overdue_at_ns
            if at_ns and (overdue_at_ns is None or at_ns < overdue_at_ns):
                overdue_at_ns = at_ns
            if gpu.is_free:
                free.append(gpu.number)
            if gpu.state is GpuState.READY:
                ready.append(gpu.number)
                if gpu.batch:
                    ends_ns.append(gpu.batch.worst_end_at_ns)
                elif gpu.is_golden_out and at_ns:
                    ends_ns.append(at_ns - self._plan.grace_ns)
        if len(free) > 1:
            free.sort(key=self._idle_since_ns.__getitem__)  # stable: then by number
        ends_ns.sort()
        board = self._board
        board.free, board.ready, board.ends_ns = free, ready, ends_ns
        self.overdue_at_ns = overdue_at_ns
        if self.is_inflated:
            self._offer_best()

    def release(self, gpu: Gpu, now_ns: int) -> None:
        """Nothing runs on this GPU any more."""
        gpu.batch, gpu.is_golden_out, gpu.overdue_at_ns = None, False, 0
        self._idle_since_ns[gpu.number] = now_ns
        self.changed()

    # --- overruns ---------------------------------------------------------------------------

    def overran(self, gpu: Gpu, batch: RunBatch, ended_at_ns: int, now_ns: int) -> list[Command]:
        """This GPU's batch ended late: it is promised with less from now on, or not at all."""
        wcet_ns = self._plan.categories[batch.category].wcet_ns[len(batch.parts) - 1]
        gpu.overruns = gpu.overruns.and_one(ended_at_ns - gpu.started_at_ns, wcet_ns, now_ns)
        late_ns = ended_at_ns - batch.worst_end_at_ns
        permille = gpu.overruns.inflation_permille
        commands: list[Command] = [Overrun(gpu.number, batch.batch_id, late_ns, permille)]
        if self._is_to_drain(gpu, now_ns):
            commands.append(DrainGpu(gpu.number, gpu.overruns.count(now_ns)))
            gpu.step(GpuEvent.DRAIN)
            # Counted anew once it is back; its inflation stays.
            gpu.overruns = gpu.overruns._replace(recent_at_ns=())
        self._inflate()
        return commands

    def wear_off(self, now_ns: int) -> None:
        """Lessen the inflation of GPUs that were quiet for long."""
        for gpu in self.gpus:
            gpu.overruns = gpu.overruns.worn_off(now_ns)
        self._inflate()

    def _is_to_drain(self, gpu: Gpu, now_ns: int) -> bool:
        """Whether its overruns take this GPU out.

        Only while it has far more of them than all others together: what slows every GPU is the
        host, and fewer GPUs would carry more. Only while every other is READY: a plant is sized for
        the loss of one.
        """
        count = gpu.overruns.count(now_ns)
        if count < DRAIN_AFTER or gpu.state not in (GpuState.READY, GpuState.SUSPECT):
            return False
        others = [other for other in self.gpus if other is not gpu]
        if not others or any(other.state is not GpuState.READY for other in others):
            return False
        return count > FAR_MORE * sum(other.overruns.count(now_ns) for other in others)

    def _inflate(self) -> None:
        """Reckon every GPU's worst cases anew."""
        made = {0: self._profile_ns}
        slow = [gpu for gpu in self.gpus if gpu.overruns.inflation_permille]
        for gpu in slow:
            permille = gpu.overruns.inflation_permille
            if permille not in made:
                made[permille] = [inflated(ns, permille) for ns in self._profile_ns]
        self._board.wcet_on = [made[gpu.overruns.inflation_permille] for gpu in self.gpus]
        self.is_inflated = bool(slow)
        quiet = [gpu.overruns.quiet_since_ns + QUIET_NS for gpu in slow]
        self.quiet_at_ns = min(quiet, default=None)
        if not slow:
            self._board.wcet, self.is_better_busy = self._profile_ns, False
            self._best_is(0)
        self.changed()

    def _offer_best(self) -> None:
        """Least inflated first. What is late is reckoned with the best GPU there is."""
        board = self._board
        permille = [gpu.overruns.inflation_permille for gpu in self.gpus]
        board.free.sort(key=permille.__getitem__)  # stable: then longest idle
        least_permille = min((permille[number] for number in board.ready), default=0)
        self._best_is(least_permille)
        if board.free:
            board.wcet = board.wcet_on[board.free[0]]
            self.is_better_busy = permille[board.free[0]] > least_permille

    def _best_is(self, permille: int) -> None:
        if permille != self._least_permille:
            self._least_permille = permille
            self._late.best_changed([inflated(ns[:1], permille)[0] for ns in self._profile_ns])
