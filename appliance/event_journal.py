"""The scheduler with its event journal: every event and its commands, one JSON line each.

A file that reaches its limit is followed by a new one at the next instant at which no part waits
or runs: the scheduler then begins afresh, so that each file replays by itself. If that instant
does not come before twice the limit, the journal pauses and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deadline_batcher import messages as m
from deadline_batcher.journal import encode_entry, encode_header
from deadline_batcher.plan import Plan
from deadline_batcher.scheduler import Scheduler, Snapshot

Tell = Callable[[str, str, str], None]
_AS_EVENT: dict[str, type[m.GpuReady | m.GpuLost | m.GpuDrained]] = {
    "READY": m.GpuReady,
    "SUSPECT": m.GpuLost,
    "LOST": m.GpuLost,
    "DRAINING": m.GpuDrained,
}


class EventJournal:
    """Same interface as the scheduler it holds."""

    def __init__(self, plan: Plan, epoch: int, path: Path, bytes_max: int, tell: Tell) -> None:
        self._plan = plan
        self._epoch = epoch
        self._path = path
        self._bytes_max = bytes_max
        self._tell = tell
        self._is_paused = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._begin(batches_run=0)

    def handle(self, event: m.Event, now_ns: int) -> tuple[m.Command, ...]:
        """What the scheduler orders, after it has been written down."""
        if self._written >= self._bytes_max and self._core.is_empty:
            self._follow(now_ns)
        commands = self._core.handle(event, now_ns)
        if self._written < 2 * self._bytes_max:
            self._write(encode_entry(now_ns, event, commands))
        elif not self._is_paused:
            self._is_paused = True
            detail = f"paused at {self._written} bytes: the scheduler was never empty"
            self._tell("limit.event_journal", str(self._path.name), detail)
        return commands

    def wakeup_at_ns(self) -> int | None:
        """See Scheduler."""
        return self._core.wakeup_at_ns()

    def snapshot(self) -> Snapshot:
        """See Scheduler."""
        return self._core.snapshot()

    def flush(self) -> None:
        """Hand what is written to the operating system."""
        self._file.flush()

    def close(self) -> None:
        """Flush and close."""
        self._file.close()

    def _begin(self, batches_run: int) -> None:
        if self._path.exists():
            self._path.replace(self._path.with_suffix(".1.jsonl"))
        self._file = self._path.open("w", encoding="utf-8")
        self._written = 0
        self._core = Scheduler(self._plan, batches_run)
        self._write(encode_header(self._plan, self._epoch, batches_run))

    def _follow(self, now_ns: int) -> None:
        before = self._core.snapshot()
        self._file.close()
        self._is_paused = False
        self._begin(before.batches_run)
        for gpu, state in enumerate(before.gpu_states):
            if state in _AS_EVENT:
                event = _AS_EVENT[state](gpu)
                self._write(encode_entry(now_ns, event, self._core.handle(event, now_ns)))

    def _write(self, line: str) -> None:
        self._file.write(line + "\n")
        self._written += len(line) + 1
