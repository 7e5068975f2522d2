"""Camera time on this host's clock, at literal instants: never late, and early when in doubt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lines.clock import SAMPLES_MIN, WINDOW_NS, Capture, ClockMap

MS = 1_000_000
S = 1000 * MS
OFFSET = 1_764_493_200 * S
"""The camera's clock is this much ahead of ours: nothing may depend on it."""


def clock() -> ClockMap:
    return ClockMap(transport_min_ns=1 * MS, transport_max_ns=20 * MS)


def see(
    core: ClockMap, captured_ms: int, transport_ms: int, kind: str = "utc", offset_ns: int = OFFSET
) -> Capture:
    """A frame captured at `captured_ms` on our clock, as a camera with that offset stamps it."""
    captured_ns = captured_ms * MS
    return core.map(captured_ns + offset_ns, kind, captured_ns + transport_ms * MS)


def warm(core: ClockMap, start_ms: int = 0, transport_ms: int = 1) -> None:
    """All but one of the samples that are needed, 10 ms apart."""
    for k in range(SAMPLES_MIN - 1):
        see(core, start_ms + 10 * k, transport_ms)


def assumed(captured_ms: int, transport_ms: int) -> Capture:
    return Capture((captured_ms + transport_ms - 20) * MS, "none", False)


def test_the_first_seven_frames_are_taken_as_early_as_transport_allows() -> None:
    core = clock()
    for k in range(SAMPLES_MIN - 1):
        assert see(core, 10 * k, 3) == assumed(10 * k, 3)
    assert see(core, 70, 1) == Capture(70 * MS, "utc", False)


def test_the_fastest_transport_seen_separates_offset_from_transport() -> None:
    core = clock()
    warm(core)
    assert see(core, 100, 9, "ptp") == Capture(100 * MS, "ptp", False)


def test_without_a_fast_frame_capture_is_thought_later_by_what_none_could_show() -> None:
    core = clock()
    warm(core, transport_ms=4)
    # the fastest of all took 4 ms, of which 1 is known: 3 ms too late, and no way to know
    assert see(core, 100, 9).captured_at_ns == 103 * MS


def test_capture_is_never_after_arrival() -> None:
    core = ClockMap(transport_min_ns=0, transport_max_ns=20 * MS)
    warm(core)
    assert see(core, 100, 0, offset_ns=OFFSET).captured_at_ns == 100 * MS
    ahead = core.map(OFFSET + 500 * MS, "utc", 120 * MS)  # a stamp from the future
    assert ahead.captured_at_ns == 120 * MS


def test_a_frame_under_way_longer_than_allowed_is_late() -> None:
    core = clock()
    warm(core)
    assert not see(core, 100, 20).is_late
    assert see(core, 110, 21) == Capture(110 * MS, "utc", True)


def test_a_camera_without_a_clock_is_never_mapped_and_never_late() -> None:
    core = clock()
    for k in range(20):
        assert see(core, 100 * k, 15, "none") == assumed(100 * k, 15)


def test_a_camera_clock_that_steps_back_begins_anew() -> None:
    core = clock()
    warm(core)
    see(core, 70, 1)
    stepped = OFFSET - 5 * S
    for k in range(SAMPLES_MIN - 1):
        assert see(core, 80 + 10 * k, 2, offset_ns=stepped) == assumed(80 + 10 * k, 2)
    mapped = see(core, 150, 1, offset_ns=stepped)
    assert mapped == Capture(150 * MS, "utc", False)


def test_a_clock_that_steps_forward_is_followed_at_once() -> None:
    core = clock()
    warm(core)
    stepped = see(core, 100, 1, offset_ns=OFFSET + 3600 * S)
    assert stepped == Capture(100 * MS, "utc", False)


def test_a_slow_camera_clock_is_followed_as_old_minima_leave_the_window() -> None:
    core = clock()
    # it loses 50 µs each second: after the window, 3 ms
    errors_ns = []
    for second in range(200):
        captured_ns = second * S
        stamp_ns = captured_ns + OFFSET - 50_000 * second
        mapped = core.map(stamp_ns, "ptp", captured_ns + 1 * MS)
        if second >= SAMPLES_MIN:
            errors_ns.append(mapped.captured_at_ns - captured_ns)
    assert all(-60 * 50_000 <= error <= 0 for error in errors_ns)
    assert errors_ns[-1] == -60 * 50_000


def test_a_fast_camera_clock_is_followed_frame_by_frame() -> None:
    core = clock()
    for second in range(200):
        captured_ns = second * S
        stamp_ns = captured_ns + OFFSET + 50_000 * second
        mapped = core.map(stamp_ns, "ptp", captured_ns + 1 * MS)
    assert mapped.captured_at_ns == captured_ns


def test_after_a_pause_as_long_as_the_window_the_samples_are_gathered_anew() -> None:
    core = clock()
    warm(core)
    see(core, 70, 1)
    # one slow frame alone would be taken for the fastest, and its part 8 ms later than it is
    after_ms = 71 + 1 + WINDOW_NS // MS
    for k in range(SAMPLES_MIN - 1):
        assert see(core, after_ms + 10 * k, 9) == assumed(after_ms + 10 * k, 9)
    assert see(core, after_ms + 70, 1) == Capture((after_ms + 70) * MS, "utc", False)


@given(
    offset=st.integers(-(2**62), 2**62),
    transports=st.lists(st.integers(1 * MS, 20 * MS), min_size=SAMPLES_MIN, max_size=60),
)
@settings(deadline=None)
def test_capture_is_early_or_right_once_a_frame_was_as_fast_as_can_be(
    offset: int, transports: list[int]
) -> None:
    core = clock()
    for k, transport_ns in enumerate([1 * MS, *transports]):
        captured_ns = k * 100 * MS
        mapped = core.map(captured_ns + offset, "utc", captured_ns + transport_ns)
        assert mapped.captured_at_ns <= captured_ns
        assert not mapped.is_late
        if k >= SAMPLES_MIN - 1:
            assert mapped.captured_at_ns == captured_ns


def test_a_small_step_back_is_late_only_until_eight_frames_agree() -> None:
    clock = ClockMap(1_000_000, 20_000_000)
    step_ns, qualities = 0, []
    for k in range(60):
        if k == 20:
            step_ns = -60_000_000  # less than the 100 ms between frames: stamps still rise
        at_ns = 10**12 + k * 100_000_000
        capture = clock.map(at_ns - 5_000_000 + step_ns, "ptp", at_ns)
        qualities.append("late" if capture.is_late else capture.quality)
        assert capture.stepped_ns == (60_000_000 if k == 27 else 0)
    assert qualities[20:27] == ["late"] * 7
    assert qualities[27:35] == ["none"] * 8
    assert qualities[35:] == ["ptp"] * 25


def test_a_network_that_is_slow_and_varies_is_no_step() -> None:
    clock = ClockMap(1_000_000, 20_000_000)
    for k in range(20):
        clock.map(10**12 + k * 100_000_000 - 5_000_000, "ptp", 10**12 + k * 100_000_000)
    for k in range(20, 40):
        at_ns = 10**12 + k * 100_000_000
        capture = clock.map(at_ns - 40_000_000 - (k % 2) * 30_000_000, "ptp", at_ns)
        assert capture.is_late and not capture.stepped_ns
