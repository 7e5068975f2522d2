"""What the scheduler is told (events, past tense) and what it orders (commands, imperative).

Parts are named by `PartKey`; pixels never come here. Instants are integer nanoseconds on one
monotonic clock. Every `RunBatch` is answered by exactly one `BatchDone` or `BatchFailed`.
"""

from __future__ import annotations

from typing import NamedTuple


class PartKey(NamedTuple):
    """One part: the line's number in the plan, and the number that line gave the part."""

    line: int
    part: int


# --- events ---------------------------------------------------------------------------------


class PartReady(NamedTuple):
    """A picture waits in its slot; an answer is useful until `pool_due_at_ns`."""

    key: PartKey
    category: int
    ready_at_ns: int
    pool_due_at_ns: int


class PoolDueMoved(NamedTuple):
    """The line's fallback needs to start at another instant than said before."""

    key: PartKey
    pool_due_at_ns: int


class PartWithdrawn(NamedTuple):
    """The line has its verdict, or no longer wants one from the pool."""

    key: PartKey


class BatchDone(NamedTuple):
    """The endpoint answered the whole batch, at `answered_at_ns` (0: at this very instant)."""

    batch_id: int
    gpu: int
    answered_at_ns: int = 0


class BatchFailed(NamedTuple):
    """The call ended without an answer. `is_gpu_fault`: the endpoint is to blame, not the parts."""

    batch_id: int
    gpu: int
    is_gpu_fault: bool


class GpuReady(NamedTuple):
    """Goldens passed: the GPU may serve."""

    gpu: int


class GpuLost(NamedTuple):
    """The endpoint is gone (connection, process, goldens)."""

    gpu: int


class GpuDrained(NamedTuple):
    """The operator wants the GPU empty."""

    gpu: int


class GpuDoubted(NamedTuple):
    """Something beside the pool (the monitor) gives doubts about a GPU.

    `is_fault`: about every batch size.
    """

    gpu: int
    is_fault: bool


class GoldenWanted(NamedTuple):
    """It is time for a golden batch of `rows` pictures on this GPU, between two batches."""

    gpu: int
    category: int = 0
    rows: int = 1


class GoldenDone(NamedTuple):
    """The golden on this GPU ended; `ok` if every row was right."""

    gpu: int
    ok: bool


class TimeReached(NamedTuple):
    """Nothing happened, but `wakeup_at_ns` has come."""


Event = (
    PartReady
    | PoolDueMoved
    | PartWithdrawn
    | BatchDone
    | BatchFailed
    | GpuReady
    | GpuLost
    | GpuDrained
    | GpuDoubted
    | GoldenWanted
    | GoldenDone
    | TimeReached
)

# --- commands -------------------------------------------------------------------------------


class BatchPart(NamedTuple):
    """A part in a batch and where its wait went: no GPU free (queue), or chosen (window)."""

    key: PartKey
    queue_ns: int
    window_ns: int


class RunBatch(NamedTuple):
    """Run these parts together on this GPU now; at worst done by `worst_end_at_ns`."""

    batch_id: int
    gpu: int
    category: int
    parts: tuple[BatchPart, ...]
    worst_end_at_ns: int


class RefusePart(NamedTuple):
    """The pool cannot answer this part in time (`reason`: infeasible, late, full, lost or shed)."""

    key: PartKey
    reason: str


class RunGolden(NamedTuple):
    """Run a golden batch of `rows` pictures on this idle GPU now; no batch waits for it."""

    gpu: int
    category: int = 0
    rows: int = 1


class SuspectGpu(NamedTuple):
    """A batch (or a golden, batch_id 0) failed or is overdue: no work until goldens pass again."""

    gpu: int
    batch_id: int
    is_fault: bool  # False: merely overdue


class Overrun(NamedTuple):
    """A batch was answered `late_ns` after its worst-case end; the GPU's worst cases are from now
    on inflated by `inflation_permille`.
    """

    gpu: int
    batch_id: int
    late_ns: int
    inflation_permille: int


class DrainGpu(NamedTuple):
    """After `overruns` late batches in a short time: no work until the GPU is readmitted."""

    gpu: int
    overruns: int


Command = RunBatch | RefusePart | RunGolden | SuspectGpu | Overrun | DrainGpu
