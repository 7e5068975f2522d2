"""Shared memory: names never used twice, and swept only when their owner is dead."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deadline_batcher import shm
from deadline_batcher.shm import SHM_FOLDER, Segment, SharedMemoryError, new_name, start_ticks

TAG = f"{os.getpid() & 0xFFFFFFFF:08x}"
OTHER = f"{(os.getpid() + 1) & 0xFFFFFFFF:08x}"
CHILD = """
import sys
from deadline_batcher.shm import Segment, new_name
segment = Segment.create(new_name(sys.argv[1], "slots"), 64)
print(segment.name, flush=True)
sys.stdin.read()
"""


READER = """
import sys
from deadline_batcher.shm import Segment
assert Segment.attach(sys.argv[1], 64).view[0] == 7
"""


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for tag in (TAG, OTHER):
        for path in SHM_FOLDER.glob(f"takt-{tag}-*"):
            path.unlink()


def test_a_name_carries_its_owner_and_is_never_given_twice() -> None:
    first, second = new_name(TAG, "slots"), new_name(TAG, "slots")
    assert first != second
    assert first.startswith(f"takt-{TAG}-slots-{os.getpid()}-{start_ticks(os.getpid())}-")


def test_a_segment_is_created_whole_private_and_exclusively() -> None:
    segment = Segment.create(new_name(TAG, "slots"), 8192)
    status = (SHM_FOLDER / segment.name).stat()
    assert (status.st_size, status.st_blocks * 512, status.st_mode & 0o777) == (8192, 8192, 0o600)
    segment.view[8191] = 7
    with pytest.raises(SharedMemoryError, match="never used twice"):
        Segment.create(segment.name, 8192)
    assert segment.view[8191] == 7


def test_what_one_maps_another_sees() -> None:
    segment = Segment.create(new_name(TAG, "slots"), 64)
    reader, writer = Segment.attach(segment.name, 64), Segment.attach(segment.name, 64, True)
    writer.view[5] = 9
    assert (segment.view[5], reader.view[5]) == (9, 9)
    with pytest.raises(TypeError):
        reader.view[5] = 1


def test_a_reader_that_ends_takes_no_name_with_it() -> None:
    """The mapping would live on and all look well, until the next restart."""
    segment = Segment.create(new_name(TAG, "slots"), 64)
    segment.view[0] = 7
    words = [sys.executable, "-c", READER, segment.name]
    subprocess.run(words, check=True, cwd=Path(shm.__file__).parents[1])
    assert (SHM_FOLDER / segment.name).exists(), "the reader's end took the name"


def test_only_who_made_a_segment_unlinks_it() -> None:
    segment = Segment.create(new_name(TAG, "slots"), 64)
    Segment.attach(segment.name, 64).unlink()
    assert (SHM_FOLDER / segment.name).exists()
    segment.unlink()
    assert not (SHM_FOLDER / segment.name).exists()
    segment.view[0] = 1  # the mapping stays
    segment.unlink()


@pytest.mark.parametrize("size", [63, 65])
def test_another_size_than_expected_is_not_attached(size: int) -> None:
    segment = Segment.create(new_name(TAG, "slots"), 64)
    with pytest.raises(SharedMemoryError, match=f"holds 64 bytes, not {size}"):
        Segment.attach(segment.name, size)
    with pytest.raises(SharedMemoryError, match="No such file"):
        Segment.attach(segment.name + "0", 64)


def test_memory_that_cannot_be_had_is_refused_at_once_and_leaves_no_name() -> None:
    name = new_name(TAG, "slots")
    with pytest.raises(SharedMemoryError, match="cannot be allocated"):
        Segment.create(name, 2**50)
    assert not (SHM_FOLDER / name).exists()


def test_a_sweep_removes_what_the_dead_left_and_nothing_of_the_living() -> None:
    mine = Segment.create(new_name(TAG, "slots"), 64)
    foreign = f"takt-{OTHER}-slots-{os.getpid()}-1-1"
    ledger = f"takt-{TAG}-ledger-line01"
    reused = f"takt-{TAG}-slots-{os.getpid()}-1-77"  # our pid, another process's start
    for name in (foreign, ledger, reused):
        (SHM_FOLDER / name).write_bytes(b"x")
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, TAG],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(shm.__file__).parents[1],
    ) as child:
        assert child.stdout is not None and child.stdin is not None
        of_child = child.stdout.readline().strip()
        assert shm.sweep(TAG) == [reused]
        assert (SHM_FOLDER / of_child).exists()
        child.stdin.close()
        child.wait()
    assert shm.sweep(TAG) == [of_child]
    left = {path.name for path in SHM_FOLDER.glob(f"takt-{TAG}-*")}
    assert left == {mine.name, ledger}
    assert (SHM_FOLDER / foreign).exists()


def test_a_process_that_is_not_there_has_no_start() -> None:
    assert start_ticks(2**22 + 1) is None
    assert isinstance(start_ticks(os.getpid()), int)
