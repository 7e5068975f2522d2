"""Camera time → this host's monotonic clock. Pure.

    captured_at = camera time + min over a window of (arrival - camera time) - transport_min

never after arrival. The smallest difference seen is the fastest transport, so clock offset and
transport are told apart without trusting either clock's absolute value. A camera clock that steps
back behind its last stamp starts the window anew; so do STEPPED_MIN late frames in a row whose
differences agree, because a slow network varies and a stepped clock does not. Until SAMPLES_MIN
differences are in the window, and for cameras without a usable clock, capture is taken as
`arrival - transport_max`: early, never late.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

SAMPLES_MIN = 8
WINDOW_NS = 60_000_000_000
STEPPED_MIN = 8


class Capture(NamedTuple):
    """When a frame was captured, on our clock, and how that is known (ptp, utc or none)."""

    captured_at_ns: int
    quality: str
    is_late: bool
    stepped_ns: int = 0  # not 0: the camera's clock was found to have stepped back by that much


class ClockMap:
    """One camera session's clock against ours."""

    def __init__(self, transport_min_ns: int, transport_max_ns: int) -> None:
        self._transport_min_ns = transport_min_ns
        self._transport_max_ns = transport_max_ns
        self._minima: deque[tuple[int, int]] = deque()  # (arrival, difference), rising
        self._arrivals: deque[int] = deque(maxlen=SAMPLES_MIN)
        self._last_captured_ns: int | None = None
        self._late_differences: list[int] = []

    def map(self, captured_ns: int, clock: str, arrived_at_ns: int) -> Capture:
        """Where on our clock the camera's stamp lies."""
        assumed = Capture(arrived_at_ns - self._transport_max_ns, "none", False)
        if clock == "none":
            return assumed
        if self._last_captured_ns is not None and captured_ns < self._last_captured_ns:
            self._minima.clear()
            self._arrivals.clear()
        self._last_captured_ns = captured_ns
        self._add(arrived_at_ns, arrived_at_ns - captured_ns)
        if len(self._arrivals) < SAMPLES_MIN or self._arrivals[0] < arrived_at_ns - WINDOW_NS:
            return assumed
        mapped_ns = captured_ns + self._minima[0][1] - self._transport_min_ns
        is_late = mapped_ns < arrived_at_ns - self._transport_max_ns
        stepped_ns = self._stepped_ns(arrived_at_ns - captured_ns, is_late)
        if stepped_ns:
            self._minima.clear()
            self._arrivals.clear()
            return assumed._replace(stepped_ns=stepped_ns)
        return Capture(min(mapped_ns, arrived_at_ns), clock, is_late)

    def _stepped_ns(self, difference_ns: int, is_late: bool) -> int:
        """By how much the clock has stepped back, once enough late frames in a row agree."""
        if not is_late:
            self._late_differences.clear()
            return 0
        self._late_differences.append(difference_ns)
        if len(self._late_differences) < STEPPED_MIN:
            return 0
        least_ns, most_ns = min(self._late_differences), max(self._late_differences)
        self._late_differences.pop(0)
        if most_ns - least_ns > self._transport_max_ns:
            return 0
        self._late_differences.clear()
        return least_ns - self._minima[0][1]

    def _add(self, arrived_at_ns: int, difference_ns: int) -> None:
        self._arrivals.append(arrived_at_ns)
        while self._minima and self._minima[0][0] < arrived_at_ns - WINDOW_NS:
            self._minima.popleft()
        while self._minima and self._minima[-1][1] >= difference_ns:
            self._minima.pop()
        self._minima.append((arrived_at_ns, difference_ns))
