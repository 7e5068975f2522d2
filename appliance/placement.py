"""Where and how a process that owes verdicts runs: its cores, and its loop in a real-time class."""

from __future__ import annotations

import os
from collections.abc import Sequence


def place(cores: Sequence[int], realtime_priority: int) -> list[str]:
    """Keep this process on `cores` (none: anywhere), its calling thread in SCHED_FIFO (0: not).

    Call it from the thread that owns the deadlines: the real-time class is that thread's alone,
    so that a decoder or an engine never outranks another line's loop. Returns what was refused and
    why; the process runs on without it.
    """
    refused = []
    if cores:
        try:
            for thread in os.listdir("/proc/self/task"):
                os.sched_setaffinity(int(thread), cores)
        except (OSError, ValueError) as error:
            refused.append(f"cores {', '.join(map(str, cores))}: {error}")
    if realtime_priority:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(realtime_priority))
        except OSError as error:
            refused.append(
                f"real-time class: {error.strerror}; run as root, or give the service "
                f"LimitRTPRIO={realtime_priority}"
            )
    return refused
