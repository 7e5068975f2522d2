"""Keep a process's pages in memory: a fallback that was swapped out is not warm.

Pages are locked as they are touched (MCL_ONFAULT), so reserved but unused address space costs
nothing.
"""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4


def lock_memory() -> str | None:
    """Lock what this process has and will touch. Returns None, or why not and what to do.

    Where the allowance is finite nothing is locked: an allocation beyond it would fail later, in
    the middle of a part.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:
        return (
            f"at most {soft // 1024} KiB may be locked; give the service LimitMEMLOCK=infinity, "
            "or swapping may delay its answers"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) != 0:
        return f"mlockall: {os.strerror(ctypes.get_errno())}"
    return None


def locked_bytes() -> int:
    """How much of this process is locked now, by the kernel's account."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1]) * 1024
    return 0
