"""The probe's parent never waits; its child reads NVML through the real pynvml.

The imitated NVML (fake_nvml.c) stands beside a contract test that runs where a GPU is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from appliance.monitor.gpu_probe import DRIVER, GpuProbe, throttle_names
from appliance.monitor.readings import GpuReading

READING = GpuReading(
    1, 0, "GPU-1", "L4", 60, 2000, 2040, ("hardware slowdown",), 1, 2, 0, 0, ("x (process 3)",)
)
CC = shutil.which("cc")


def _python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _until(probe: GpuProbe, limit_s: float = 5.0) -> list[GpuReading]:
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        began_s = time.monotonic()
        found = probe.look()
        assert time.monotonic() - began_s < 0.5, "looking must not wait"
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no reading: {probe.trouble}")


def test_readings_cross_the_pipe_whole() -> None:
    line = json.dumps([{**READING.as_json(), "bus": "0000:3b:00"}])
    probe = GpuProbe(1, 5, "", _python(f"import time; print({line!r}, flush=True); time.sleep(60)"))
    try:
        assert _until(probe) == [READING]
        assert probe.buses == {"0000:3b:00": 0}
    finally:
        probe.close()


def test_nonsense_is_said_and_skipped() -> None:
    line = json.dumps([{**READING.as_json(), "bus": "b"}])
    code = f"import time; print('[1]\\n{{\\nx', flush=True); print({line!r}, flush=True); time.sleep(60)"  # noqa: E501
    probe = GpuProbe(1, 5, "", _python(code))
    try:
        assert _until(probe) == [READING]
    finally:
        probe.close()


def test_a_silent_child_is_killed_and_another_started() -> None:
    probe = GpuProbe(0.1, 0.3, "", _python("import time; time.sleep(60)"))
    try:
        probe.look()
        first = probe._child
        assert first is not None
        end_s = time.monotonic() + 5
        while first.poll() is None and time.monotonic() < end_s:
            assert probe.look() == []
            time.sleep(0.05)
        assert first.poll() is not None
        assert "killed" in probe.trouble
        end_s = time.monotonic() + 5
        while (probe._child is None or probe._child is first) and time.monotonic() < end_s:
            probe.look()
            time.sleep(0.05)
        assert probe._child is not None and probe._child is not first
    finally:
        probe.close()


def test_children_that_cannot_die_are_left_and_never_more_than_three(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    class Stuck(real):  # type: ignore[misc, valid-type]
        """In an uninterruptible call: SIGKILL does not end it."""

        def send_signal(self, _number: int) -> None:
            return

        def __init__(self, *told: object, **named: object) -> None:
            super().__init__(*told, **named)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Stuck)
    probe = GpuProbe(0.02, 0.06, "", _python("import time; time.sleep(60)"))
    end_s = time.monotonic() + 1.5
    while time.monotonic() < end_s:
        probe.look()
        time.sleep(0.01)
    assert probe.abandoned == 3
    assert len(started) == 3
    for one in started:
        os.kill(one.pid, 9)
        one.wait()


def test_idle_clocks_are_no_trouble_and_unknown_reasons_are_shown() -> None:
    assert throttle_names(0x3) == ()
    assert throttle_names(0x8 | 0x1) == ("hardware slowdown",)
    assert throttle_names(1 << 40) == ("reason 0x10000000000",)


@pytest.fixture(scope="module")
def fake_nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if CC is None:
        pytest.skip("no C compiler: the imitated NVML cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    target = str(folder / "libnvidia-ml.so.1")
    subprocess.run([CC, "-shared", "-fPIC", "-o", target, str(source)], check=True)
    return folder


def test_the_child_reads_through_pynvml(fake_nvml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml))
    probe = GpuProbe(0.1, 10, "takt-none-")
    try:
        (reading, *_) = _until(probe, 10)
        assert (reading.uuid, reading.temperature_c, reading.sm_clock_mhz) == ("GPU-fake", 91, 1200)
        assert reading.throttle == ("hardware slowdown", "hardware thermal slowdown")
        assert (reading.memory_used_mib, reading.memory_total_mib) == (6144, 24576)
        assert (reading.ecc_corrected, reading.ecc_uncorrected) == (0, 0)  # not supported
        assert probe.buses == {"0000:3b:00": 0}
    finally:
        probe.close()


def test_a_driver_that_hangs_hangs_only_the_child(
    fake_nvml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(fake_nvml))
    monkeypatch.setenv("FAKE_NVML_HANG", "1")
    probe = GpuProbe(0.1, 0.5, "takt-none-")
    try:
        end_s = time.monotonic() + 5
        while "killed" not in probe.trouble and time.monotonic() < end_s:
            began_s = time.monotonic()
            assert probe.look() == []
            assert time.monotonic() - began_s < 0.5
            time.sleep(0.05)
        assert "killed" in probe.trouble
    finally:
        probe.close()


@pytest.mark.skipif(not DRIVER.exists(), reason="NO GPU HERE: NVML's contract was not tested")
def test_a_real_driver_gives_what_the_imitated_one_does() -> None:
    probe = GpuProbe(0.2, 10, "takt-none-")
    try:
        (reading, *_) = _until(probe, 10)
        assert reading.uuid.startswith("GPU-") and reading.memory_total_mib > 0
        assert 0 < reading.temperature_c < 120 and reading.sm_clock_max_mhz > 0
        assert all(len(bus.split(":")) == 3 for bus in probe.buses)
    finally:
        probe.close()
