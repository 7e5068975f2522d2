"""Cores and class, judged by the kernel in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, os, threading, time
from appliance.placement import place
other = threading.Thread(target=time.sleep, args=(0.5,))
other.start()
refused = place({cores}, {priority})
print(json.dumps([refused, os.sched_getscheduler(0), sorted(os.sched_getaffinity(0)),
                  os.sched_getscheduler(other.native_id), sorted(os.sched_getaffinity(other.native_id))]))
"""  # noqa: E501


def _told(cores: list[int], priority: int) -> list[object]:
    code = CODE.format(cores=cores, priority=priority)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told: list[object] = json.loads(done.stdout)
    return told


def test_nothing_asked_nothing_changed() -> None:
    refused, scheduler, cores, *_ = _told([], 0)
    assert (refused, scheduler, cores) == ([], os.SCHED_OTHER, sorted(os.sched_getaffinity(0)))


@pytest.mark.skipif(os.geteuid() != 0, reason="a real-time class needs root or an allowance")
def test_the_class_is_the_calling_threads_alone_and_the_cores_are_all_threads() -> None:
    refused, scheduler, cores, others_scheduler, others_cores = _told([0], 5)
    if refused:
        pytest.skip(f"root here may not: {refused}")
    assert (scheduler, cores) == (os.SCHED_FIFO, [0])
    assert (others_scheduler, others_cores) == (os.SCHED_OTHER, [0])


def test_a_core_that_is_not_there_is_refused_and_harmless() -> None:
    refused, *_ = _told([4000], 0)
    assert isinstance(refused, list) and refused[0].startswith("cores 4000")
