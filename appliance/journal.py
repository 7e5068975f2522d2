"""The journal process: takes record batches from every process and puts them on the disk.

A batch is acknowledged when its transaction is on the disk. When the disk refuses, batches are kept
in memory up to `limits.journal_backlog_s` and written when it works again; senders never wait.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import platform
import signal
import socket
import sqlite3
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import zmq

from appliance.journal_store import (
    JournalStore,
    RecordBatch,
    StoreError,
    event_values,
    parse_batch,
)
from appliance.plant import Plant
from appliance.plant_errors import PlantError, load_plant
from lines.journal_link import ACKNOWLEDGED, BATCH_ID, RECORDS
from lines.journal_schema import Value

COMMIT_EVERY_NS: Final = 50_000_000
RETRY_EVERY_NS: Final = 1_000_000_000
LOOK_EVERY_NS: Final = 1_000_000_000
"""How often the file is looked for under its name."""
SLOW_COMMIT_NS: Final = 1_000_000_000
DRAIN_MAX: Final = 256
"""Batches taken from the socket before a commit may run."""
HELD_BYTES_MAX: Final = 128 * 1024 * 1024
"""Record batches kept in memory while the disk refuses, whatever their age."""
OWN_EVENTS_MAX: Final = 1000
MESSAGE_BYTES_MAX: Final = 8 * 1024 * 1024
RECEIVE_HWM: Final = 64
IPC_PATH_BYTES_MAX: Final = 107
FULL_CODES: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
"""Refusals that say nothing against the file: the same one is tried again."""


@dataclass(slots=True)
class _Held:
    """A record batch that is not on the disk yet."""

    came_from: bytes
    payload_bytes: int
    records: RecordBatch
    came_at_ns: int


class Journal:
    """Batches in memory and how they get to the disk. Times are monotonic nanoseconds."""

    def __init__(self, store: JournalStore, backlog_ns: int) -> None:
        self._store = store
        self._backlog_ns = backlog_ns
        self._held: OrderedDict[bytes, _Held] = OrderedDict()
        self._held_bytes = 0
        self._events: list[tuple[Value, ...]] = []
        self._next_write_ns = 0
        self._refused = False
        self._look_at_ns = 0
        self._is_gone_told = False

    @property
    def write_due_at_ns(self) -> int | None:
        """When `write` next has something to do; None: nothing is held."""
        return self._next_write_ns if self._held or self._events else None

    def event(self, now_ns: int, kind: str, subject: str, detail: str) -> None:
        """Say it on stderr and keep it for the table of events."""
        _say(f"{kind} {subject} {detail}")
        if len(self._events) < OWN_EVENTS_MAX:
            self._events.append(event_values(now_ns, kind, subject, detail))

    def take(self, came_from: bytes, batch_id: bytes, payload: bytes, now_ns: int) -> None:
        """Hold a batch for the next transaction; one that is held already is only re-addressed."""
        held = self._held.get(batch_id)
        if held is not None:
            held.came_from = came_from
            return
        self._held[batch_id] = _Held(came_from, len(payload), parse_batch(payload), now_ns)
        self._held_bytes += len(payload)
        self._keep_limits(now_ns)

    def _keep_limits(self, now_ns: int) -> None:
        dropped = 0
        while self._held:
            oldest = next(iter(self._held.values()))
            is_stale = now_ns - oldest.came_at_ns > self._backlog_ns
            if not is_stale and self._held_bytes <= HELD_BYTES_MAX:
                break
            self._held.popitem(last=False)
            self._held_bytes -= oldest.payload_bytes
            dropped += 1
        if dropped:
            self.event(
                now_ns, "journal.memory_full", "", f"{dropped} batches dropped, oldest first"
            )

    def write(self, now_ns: int) -> list[tuple[bytes, bytes]]:
        """Write everything held in one transaction; whom to acknowledge which batch."""
        batches, events = dict(self._held), list(self._events)
        try:
            told = self._store.write((b.records for b in batches.values()), events, now_ns)
        except sqlite3.Error as error:
            self._refuse(error, now_ns)
            return []
        del self._events[: len(events)]
        self._held.clear()
        self._held_bytes = 0
        for line in told:
            _say(line)
        done_ns = time.monotonic_ns()
        if self._refused:
            self._refused = False
            self.event(done_ns, "journal.disk_back", str(self._store.path), f"{len(batches)} held")
        if done_ns - now_ns > SLOW_COMMIT_NS:
            self.event(done_ns, "journal.slow_disk", "", f"{(done_ns - now_ns) / 1e9:.1f} s")
        self._next_write_ns = now_ns + COMMIT_EVERY_NS
        return [(batch.came_from, batch_id) for batch_id, batch in batches.items()]

    def _refuse(self, error: sqlite3.Error, now_ns: int) -> None:
        self._next_write_ns = now_ns + RETRY_EVERY_NS
        code = getattr(error, "sqlite_errorcode", None)
        name = getattr(error, "sqlite_errorname", type(error).__name__)
        if not self._refused:
            self._refused = True
            self.event(now_ns, "journal.disk", str(self._store.path), f"{name}: {error}")
        self._keep_limits(now_ns)
        if code is not None and code & 0xFF in FULL_CODES:
            return
        try:
            path = self._store.begin_segment()
        except (sqlite3.Error, StoreError, OSError) as second:
            _say(f"journal.disk {self._store.path} {second}")
            return
        self.event(now_ns, "journal.segment", str(path), f"goes on here after {name}")

    def look(self, now_ns: int) -> None:
        """Once a second: whether the file is still there under its name; if not, begin another."""
        if now_ns < self._look_at_ns:
            return
        self._look_at_ns = now_ns + LOOK_EVERY_NS
        if not self._store.is_gone:
            self._is_gone_told = False
            return
        if not self._is_gone_told:
            self._is_gone_told = True
            detail = "deleted, moved or replaced while open: its rows are lost to the checker"
            self.event(now_ns, "journal.gone", str(self._store.path), detail)
        try:
            path = self._store.begin_segment()
        except (sqlite3.Error, StoreError, OSError) as error:
            _say(f"journal.gone {self._store.path} {error}")
            return
        self.event(now_ns, "journal.segment", str(path), "goes on here after the file was gone")


def _say(text: str) -> None:
    # A closed or full stderr must not stop the journal.
    with contextlib.suppress(OSError, ValueError):
        print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {text}", file=sys.stderr, flush=True)


def known_models(plant: Plant) -> dict[str, dict[str, str]]:
    """Every model file of the plant as name@sha12 → {model, role, file, sha256}.

    Raises OSError where one cannot be read.
    """
    known = {}
    for model in plant.model:
        for role, text in (("pool", model.pool), ("fallback", model.fallback)):
            digest = hashlib.sha256(plant.path(text).read_bytes()).hexdigest()
            known[f"{model.name}@{digest[:12]}"] = {
                "model": model.name,
                "role": role,
                "file": text,
                "sha256": digest,
            }
    return known


def plant_meta(plant: Plant, plant_file: Path) -> dict[str, str]:
    """What the journal's `meta` table says of plant, host and start. Raises OSError."""
    return {
        "plant": plant.plant.name,
        "plant_sha256": hashlib.sha256(plant_file.read_bytes()).hexdigest(),
        "plant_file": str(plant_file.absolute()),
        "models": json.dumps(known_models(plant), sort_keys=True),
        "lines": json.dumps([line.id for line in plant.line]),
        "host": platform.node(),
        "started_wall": datetime.now(UTC).isoformat(),
        "last_started_wall": datetime.now(UTC).isoformat(),
    }


@contextlib.contextmanager
def sole_instance(lock_path: Path) -> Iterator[bool]:
    """Hold the lock file while inside; False where another process has it.

    ZeroMQ lets a second process bind the same ipc path and takes the first one's peers away.
    """
    fd = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


@contextlib.contextmanager
def stop_signals() -> Iterator[socket.socket]:
    """A socket that becomes readable on SIGTERM or SIGINT, for a poller."""
    readable, written = socket.socketpair()
    readable.setblocking(False)
    written.setblocking(False)
    previous_fd = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    before = {s: signal.signal(s, lambda *_: None) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield readable
    finally:
        signal.set_wakeup_fd(previous_fd)
        for number, action in before.items():
            signal.signal(number, action)
        readable.close()
        written.close()


def _receive(router: zmq.Socket[bytes], journal: Journal, now_ns: int) -> None:
    for _ in range(DRAIN_MAX):
        try:
            frames = router.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return
        if len(frames) == 4 and frames[1] == RECORDS and len(frames[2]) == BATCH_ID.size:
            journal.take(frames[0], frames[2], frames[3], now_ns)
        else:
            journal.event(now_ns, "journal.malformed", "", f"{len(frames)} frames, not a batch")


def _acknowledge(router: zmq.Socket[bytes], done: Sequence[tuple[bytes, bytes]]) -> None:
    for came_from, batch_id in done:
        # A sender that is gone or does not read sends the batch again or has ended.
        with contextlib.suppress(zmq.Again, zmq.ZMQError):
            router.send_multipart([came_from, ACKNOWLEDGED, batch_id], zmq.NOBLOCK)


def serve(router: zmq.Socket[bytes], journal: Journal, stop: socket.socket) -> None:
    """Run until `stop` is readable, then write what is held once more."""
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(stop, zmq.POLLIN)
    while True:
        due = journal.write_due_at_ns
        wait_ns = 1_000_000_000 if due is None else max(0, due - time.monotonic_ns())
        ready = dict(poller.poll(min(1000, -(-wait_ns // 1_000_000))))
        now_ns = time.monotonic_ns()
        if router in ready:
            _receive(router, journal, now_ns)
        stopping = stop.fileno() in ready
        journal.look(now_ns)
        due = journal.write_due_at_ns
        if due is not None and (stopping or now_ns >= due):
            _acknowledge(router, journal.write(now_ns))
        if stopping:
            return


def _router(context: zmq.Context[zmq.Socket[bytes]], path: Path) -> zmq.Socket[bytes]:
    router = context.socket(zmq.ROUTER)
    router.set(zmq.LINGER, 100)
    router.set(zmq.RCVHWM, RECEIVE_HWM)
    router.set(zmq.ROUTER_MANDATORY, 1)
    router.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
    router.bind(f"ipc://{path}")
    return router


def run(plant: Plant, plant_file: Path) -> int:
    """The journal of this plant until SIGTERM; the exit status."""
    runtime, folder = plant.path(plant.paths.runtime), plant.path(plant.paths.journal)
    address = runtime / "journal.sock"
    if len(os.fsencode(address)) > IPC_PATH_BYTES_MAX:
        _say(f"{address}: longer than {IPC_PATH_BYTES_MAX} bytes; set a shorter paths.runtime")
        return 2
    runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with sole_instance(runtime / "journal.lock") as is_sole, stop_signals() as stop:
        if not is_sole:
            _say(f"{runtime / 'journal.lock'}: another journal of this plant is running")
            return 1
        try:
            store = JournalStore(folder, plant_meta(plant, plant_file))
        except (StoreError, OSError, sqlite3.Error) as error:
            _say(f"journal.cannot_start {folder} {error}")
            return 1
        journal = Journal(store, round(plant.limits.journal_backlog_s * 1e9))
        journal.event(time.monotonic_ns(), "journal.started", str(store.path), f"pid {os.getpid()}")
        context = zmq.Context()
        try:
            serve(_router(context, address), journal, stop)
        finally:
            context.destroy()
            store.close()
            address.unlink(missing_ok=True)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """`takt journal`."""
    parser = argparse.ArgumentParser(
        prog="takt journal",
        description="Keep the records of every process of a plant in its journal.",
        epilog="example: takt journal --plant plant.toml",
    )
    parser.add_argument("--plant", type=Path, required=True, help="the plant file")
    options = parser.parse_args(argv)
    try:
        plant = load_plant(options.plant)
    except PlantError as error:
        print(error, file=sys.stderr)
        return 2
    return run(plant, options.plant)


if __name__ == "__main__":
    sys.exit(main())
