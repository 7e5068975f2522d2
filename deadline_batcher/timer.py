"""A timer on the monotonic clock that a poll loop can wait for, and how late it fires.

asyncio's clock rounds to a millisecond; a timerfd wakes about 0.03 ms late on an idle core.
`os.timerfd_create` exists from Python 3.13 on; before that the C library is called directly.
"""

from __future__ import annotations

import ctypes
import os
import struct
import time

_TFD_TIMER_ABSTIME = 1
_TFD_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
_NS_PER_S = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class Timer:
    """One absolute instant at a time. `fileno()` becomes readable when it has come.

    lateness_ns: how late each of the last LATENESS_KEPT instants was served.
    """

    LATENESS_KEPT = 4096

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._handle = self._libc.timerfd_create(time.CLOCK_MONOTONIC, _TFD_NONBLOCK_CLOEXEC)
        if self._handle < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._armed_at_ns: int | None = None
        self.lateness_ns: list[int] = []

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return int(self._handle)

    def arm(self, at_ns: int | None) -> None:
        """Fire at this instant (at once if it is past), or not at all."""
        if at_ns == self._armed_at_ns:
            return
        self._armed_at_ns = at_ns
        instant = max(1, at_ns) if at_ns is not None else 0
        spec = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(instant // _NS_PER_S, instant % _NS_PER_S))
        if self._libc.timerfd_settime(self._handle, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def read(self, now_ns: int) -> int | None:
        """The instant that has come, if one has: never later than what the core is told."""
        try:
            os.read(self._handle, 8)
        except BlockingIOError:
            return None
        at_ns, self._armed_at_ns = self._armed_at_ns, None
        if at_ns is not None:
            if len(self.lateness_ns) >= self.LATENESS_KEPT:
                del self.lateness_ns[: self.LATENESS_KEPT // 2]
            self.lateness_ns.append(max(0, now_ns - at_ns))
        return at_ns

    def take_lateness(self) -> str | None:
        """How late instants were served since last asked, for a record; None if none was."""
        ordered = sorted(self.lateness_ns)
        self.lateness_ns.clear()
        if not ordered:
            return None
        p99, p999 = (ordered[int(share * (len(ordered) - 1))] / 1e6 for share in (0.99, 0.999))
        worst = ordered[-1] / 1e6
        return f"n {len(ordered)} p99 {p99:.3f} ms p99.9 {p999:.3f} ms max {worst:.3f} ms"

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._handle)


class Signal:
    """An eventfd: a thread rings, the poll loop wakes."""

    def __init__(self) -> None:
        self._handle = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._handle

    def ring(self) -> None:
        """Wake the loop. Safe from any thread."""
        os.write(self._handle, struct.pack("=Q", 1))

    def clear(self) -> None:
        """Forget rings so far."""
        try:
            os.read(self._handle, 8)
        except BlockingIOError:
            return
