"""Thresholds, holds and silence, with literal times."""

from __future__ import annotations

from dataclasses import replace

from appliance.monitor.judge import Judge, Thresholds
from appliance.monitor.readings import GpuReading, HostReading

S = 1_000_000_000
BOUNDS = Thresholds(
    cpu_some=500,
    memory_full=50,
    io_some=400,
    steal=50,
    gpu_temperature_c=85,
    gpu_memory=950,
    raise_after_ns=3 * S,
    clear_after_ns=10 * S,
    silent_after_ns=3 * S,
)
CALM = HostReading(0, 100, 0, 0, 0, {})
COOL = GpuReading(0, 0, "GPU-1", "L4", 60, 2000, 2040, (), 4000, 24000, 0, 0, ())


def _judge(gpus: tuple[int, ...] = (0,)) -> Judge:
    return Judge(BOUNDS, gpus, began_ns=0)


def test_pressure_counts_after_it_was_held_and_names_the_culprit() -> None:
    judge = _judge()
    pressed = replace(CALM, cpu_some=501, culprits={"cpu": "stress (process 7), 99 % of a core"})
    assert judge.host(replace(pressed, at_ns=10 * S)) == []
    assert judge.host(replace(pressed, at_ns=13 * S - 1)) == []
    (found,) = judge.host(replace(pressed, at_ns=13 * S))
    assert (found.subject, found.kind, found.is_raised) == ("host", "cpu-pressure", True)
    assert "stress (process 7)" in found.detail and "50 % of the time" in found.detail
    assert judge.host(replace(pressed, at_ns=14 * S)) == []  # once
    assert judge.standing() == (("host", "cpu-pressure"),)


def test_a_sign_that_comes_and_goes_is_not_called_gone() -> None:
    judge = _judge()
    for second in (0, 3):
        judge.host(replace(CALM, at_ns=second * S, steal=51))
    assert judge.standing() == (("host", "cpu-steal"),)
    assert judge.host(replace(CALM, at_ns=4 * S)) == []
    assert judge.host(replace(CALM, at_ns=13 * S, steal=51)) == []  # again, before it was over
    assert judge.host(replace(CALM, at_ns=15 * S)) == []
    assert judge.host(replace(CALM, at_ns=25 * S - 1)) == []
    (found,) = judge.host(replace(CALM, at_ns=25 * S))
    assert (found.kind, found.is_raised) == ("cpu-steal", False)
    assert judge.standing() == ()


def test_exactly_at_the_threshold_is_allowed() -> None:
    judge = _judge()
    for second in range(20):
        look = replace(CALM, at_ns=second * S, cpu_some=500, io_some=400, memory_full=50, steal=50)
        assert judge.host(look) == []


def test_heat_clocks_memory_and_company_of_a_gpu() -> None:
    judge = _judge()
    ill = replace(
        COOL, temperature_c=85, throttle=("hardware slowdown",), memory_used_mib=22900,
        others=("python (process 9)",),
    )  # fmt: skip
    judge.gpu(replace(ill, at_ns=1 * S))
    found = judge.gpu(replace(ill, at_ns=4 * S))
    assert [one.kind for one in found] == ["hot", "throttled", "memory-full", "shared"]
    assert not any(one.is_doubt for one in found)
    assert "hardware slowdown" in found[1].detail and "python (process 9)" in found[3].detail


def test_an_uncorrected_memory_error_is_a_fault_at_once_and_an_old_one_is_not() -> None:
    judge = _judge()
    assert judge.gpu(replace(COOL, at_ns=1 * S, ecc_uncorrected=2)) == []
    (found,) = judge.gpu(replace(COOL, at_ns=2 * S, ecc_uncorrected=3))
    assert (found.kind, found.is_doubt, found.is_fault) == ("memory-error", True, True)
    assert judge.gpu(replace(COOL, at_ns=3 * S, ecc_uncorrected=3)) == []


def test_silence_about_a_gpu_is_a_doubt_and_speech_ends_it() -> None:
    judge = _judge((0, 1))
    judge.gpu(replace(COOL, at_ns=1 * S))
    judge.gpu(replace(COOL, gpu=1, at_ns=1 * S))
    assert judge.tick(4 * S - 1) == []
    judge.gpu(replace(COOL, gpu=1, at_ns=4 * S - 1))
    (found,) = judge.tick(4 * S)
    assert (found.subject, found.kind, found.is_doubt) == ("gpu0", "monitor-silent", True)
    assert judge.tick(5 * S) == []
    (over,) = judge.gpu(replace(COOL, at_ns=6 * S))
    assert (over.kind, over.is_raised) == ("monitor-silent", False)


def test_a_gpu_that_was_never_heard_of_is_silent() -> None:
    assert [one.subject for one in _judge((0, 1)).tick(3 * S)] == ["gpu0", "gpu1"]


def test_xids_that_spoil_answers_are_faults_and_others_only_told() -> None:
    judge = _judge((0, 1))
    (fatal,) = judge.xid(1, 79, "fallen off the bus")
    assert (fatal.subject, fatal.kind, fatal.is_fault) == ("gpu1", "xid-79", True)
    (mild,) = judge.xid(0, 13, "a program's own error")
    assert not mild.is_doubt
    assert [one.subject for one in judge.xid(None, 0, "?")] == ["gpu0", "gpu1"]  # which one is open
