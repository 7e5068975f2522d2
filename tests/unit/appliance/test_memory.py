"""Locked memory, judged by the kernel's own account in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

TOUCH = """
import resource, sys
from appliance.memory import lock_memory, locked_bytes
trouble = lock_memory()
block = bytearray(16 * 1024 * 1024)
print(trouble or locked_bytes())
"""


def _told(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="locking everything needs root or an allowance")
def test_what_is_touched_later_is_locked_too() -> None:
    told = _told(TOUCH)
    if told.startswith("mlockall"):
        pytest.skip(f"root here may not lock memory: {told}")
    assert int(told) > 16 * 1024 * 1024


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user to be refused")
def test_a_small_allowance_locks_nothing_and_says_what_to_do() -> None:
    drop = "import os, resource; resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
    told = _told(drop + "os.geteuid = lambda: 1000\n" + TOUCH)
    assert told.startswith("at most 64 KiB") and "LimitMEMLOCK=infinity" in told
