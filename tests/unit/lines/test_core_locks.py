"""How many fallback runs go on at once on this host, whatever becomes of who holds a core."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lines.threads import CoreLocks

LIMIT_S = 0.2


@contextmanager
def held_by_another(folder: Path, core: int) -> Iterator[None]:
    """As by a line that was stopped in the middle of a run."""
    handle = os.open(folder / f"fallback-core{core}.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(handle)


def entered_after_s(locks: CoreLocks) -> float:
    began_s = time.monotonic()
    with locks:
        return time.monotonic() - began_s


def test_a_free_core_is_taken_at_once_whichever_it_is(tmp_path: Path) -> None:
    locks = CoreLocks(tmp_path, 2, 0, 30.0)
    with held_by_another(tmp_path, 0):
        assert entered_after_s(locks) < 15.0
        with locks, CoreLocks(tmp_path, 3, 2, 30.0):
            pass


def test_no_more_runs_than_cores_while_their_holders_live(tmp_path: Path) -> None:
    """The second waits for the first, and takes the core that comes free, not a certain one."""
    first, second = CoreLocks(tmp_path, 1, 0, 30.0), CoreLocks(tmp_path, 1, 0, 30.0)
    entered = threading.Event()

    def run() -> None:
        with second:
            entered.set()

    with first:
        thread = threading.Thread(target=run)
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(30)
    thread.join()


def test_a_core_that_comes_free_is_found_though_another_stays_held(tmp_path: Path) -> None:
    locks = CoreLocks(tmp_path, 2, 0, 30.0)
    entered = threading.Event()

    def run() -> None:
        with locks:
            entered.set()

    with held_by_another(tmp_path, 0):
        with held_by_another(tmp_path, 1):
            thread = threading.Thread(target=run)
            thread.start()
            assert not entered.wait(0.1)
        assert entered.wait(15), "waits for core 0 although core 1 is free"
        thread.join()


def test_a_stopped_holder_keeps_nobody_longer_than_a_runs_worst_case(tmp_path: Path) -> None:
    locks = CoreLocks(tmp_path, 1, 0, LIMIT_S)
    with held_by_another(tmp_path, 0):
        assert LIMIT_S <= entered_after_s(locks) < LIMIT_S + 15
    assert entered_after_s(locks) < LIMIT_S, "and takes it properly again once it is free"
