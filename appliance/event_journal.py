"""The scheduler with its event journal: every event and its commands, one JSON line each.

Nothing here may hurt the scheduler: a thread of its own writes, and a disk that is full, gone or
slow pauses the journal, is told once, and costs no part. A file that reaches its limit, or that
could not be written, is followed by a new one at the next instant at which no part waits or runs:
the scheduler then begins afresh, so that each file replays by itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from deadline_batcher import messages as m
from deadline_batcher.journal import encode_entry, encode_header
from deadline_batcher.overrun import Overruns
from deadline_batcher.plan import Plan
from deadline_batcher.scheduler import Scheduler, Snapshot

Tell = Callable[[str, str, str], None]
LINES_WAITING_MAX = 50_000
WRITE_EVERY_S = 0.1
AGAIN_AFTER_NS = 10_000_000_000
_AS_EVENT: dict[str, type[m.GpuReady | m.GpuLost | m.GpuDrained]] = {
    "READY": m.GpuReady,
    "SUSPECT": m.GpuLost,
    "LOST": m.GpuLost,
    "DRAINING": m.GpuDrained,
}


class _Writer:
    """Appends lines to a new file. `trouble` says why it stopped, once it has."""

    def __init__(self, path: Path) -> None:
        self.trouble = ""
        self._path = path
        self._lines: deque[str] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event journal", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        """Queue one line. Never waits."""
        if len(self._lines) >= LINES_WAITING_MAX:
            self.trouble = self.trouble or f"{LINES_WAITING_MAX} lines behind the disk"
        if not self.trouble:
            self._lines.append(line)

    def end(self, wait_s: float) -> None:
        """Write what is queued and close, if that takes no longer than `wait_s`."""
        self._ending.set()
        self._thread.join(wait_s)

    def _run(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._path.replace(self._path.with_suffix(".1.jsonl"))
            with self._path.open("w", encoding="utf-8") as file:
                while True:
                    is_last = self._ending.wait(WRITE_EVERY_S)
                    while self._lines:
                        file.write(self._lines.popleft() + "\n")
                    file.flush()
                    if is_last:
                        return
        except OSError as error:
            self.trouble = error.strerror or str(error)
            self._lines.clear()


class EventJournal:
    """Same interface as the scheduler it holds."""

    def __init__(self, plan: Plan, epoch: int, path: Path, bytes_max: int, tell: Tell) -> None:
        self._plan = plan
        self._epoch = epoch
        self._path = path
        self._bytes_max = bytes_max
        self._tell = tell
        self._told_at_ns: int | None = None
        self._begin(batches_run=0, overruns=())

    def handle(self, event: m.Event, now_ns: int) -> tuple[m.Command, ...]:
        """What the scheduler orders; written down as far as the disk allows."""
        self._look_after(now_ns)
        commands = self._core.handle(event, now_ns)
        if self._written < 2 * self._bytes_max and not self._writer.trouble:
            self._write(encode_entry(now_ns, event, commands))
        return commands

    def wakeup_at_ns(self) -> int | None:
        """See Scheduler."""
        return self._core.wakeup_at_ns()

    def snapshot(self) -> Snapshot:
        """See Scheduler."""
        return self._core.snapshot()

    def close(self) -> None:
        """Write what is left."""
        self._writer.end(wait_s=0.3)

    def _look_after(self, now_ns: int) -> None:
        is_full = self._written >= self._bytes_max
        trouble = self._writer.trouble
        if self._written >= 2 * self._bytes_max:
            trouble = f"{self._written} bytes, and the scheduler was never empty"
        if trouble and self._told_at_ns is None:
            self._told_at_ns = now_ns
            self._tell("limit.event_journal", self._path.name, f"paused: {trouble}")
        is_time = self._told_at_ns is None or now_ns - self._told_at_ns >= AGAIN_AFTER_NS
        if (is_full or trouble) and is_time and self._core.is_empty:
            self._follow(now_ns)

    def _begin(self, batches_run: int, overruns: Sequence[Overruns]) -> None:
        self._writer = _Writer(self._path)
        self._written = 0
        self._told_at_ns = None
        self._core = Scheduler(self._plan, batches_run, overruns)
        self._write(encode_header(self._plan, self._epoch, batches_run, overruns))

    def _follow(self, now_ns: int) -> None:
        before = self._core.snapshot()
        self._writer.end(wait_s=0.0)
        self._begin(before.batches_run, before.gpu_overruns)
        for gpu, state in enumerate(before.gpu_states):
            if state in _AS_EVENT:
                event = _AS_EVENT[state](gpu)
                self._write(encode_entry(now_ns, event, self._core.handle(event, now_ns)))

    def _write(self, line: str) -> None:
        self._writer.put(line)
        self._written += len(line) + 1
