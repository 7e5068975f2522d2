"""GPU memory as warm-up sees it: before the first batch, and after the first of each size."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from appliance.gpu_facts import GpuFacts
from appliance.profile_runs import Endpoint, GpuMemory, warm_up


class Fake:
    """An endpoint whose runtime keeps what its largest batch took, and a model of three sizes."""

    name, gpu = "gpu0", 0

    def __init__(self, has_gpu: bool = True) -> None:
        self.has_gpu, self.used_mib, self.runs = has_gpu, 600, 0

    def gpu_facts(self) -> GpuFacts | None:
        return GpuFacts("L4", "550", "", self.used_mib, 23_034) if self.has_gpu else None

    def time_run(self, _model: Any, size: int) -> int:
        self.runs += 1
        # What comes after the first round is not the size's own.
        self.used_mib = max(self.used_mib, 600 + 100 * size) + (self.runs > 3) * 5_000
        return 1_000_000 + self.runs % 7


MODEL: Any = SimpleNamespace(sizes=range(1, 4), section=SimpleNamespace(name="m"))


def quiet(_what: str, _done: int, _total: int) -> None:
    """No progress."""


def test_memory_before_and_after_the_first_batch_of_each_size() -> None:
    endpoint: Any = Fake()
    warm = warm_up(endpoint, MODEL, 20, 30, quiet)
    assert warm.memory == GpuMemory(23_034, 600, {1: 700, 2: 800, 3: 900})


def test_no_gpu_no_figures() -> None:
    endpoint: Any = Fake(has_gpu=False)
    assert warm_up(endpoint, MODEL, 20, 30, quiet).memory == GpuMemory()


def test_of_two_endpoints_the_larger_use_and_the_smaller_gpu_count() -> None:
    one, other = GpuMemory(24_000, 600, {1: 700, 2: 900}), GpuMemory(23_000, 500, {1: 750, 2: 800})
    assert one.largest(other) == GpuMemory(23_000, 500, {1: 750, 2: 900})
    assert GpuMemory().largest(one) == one == one.largest(GpuMemory())


def test_an_embedded_server_has_no_gpu(monkeypatch: Any) -> None:
    monkeypatch.setattr("appliance.profile_runs.gpu_facts", lambda gpu: Fake().gpu_facts())
    endpoint = object.__new__(Endpoint)
    endpoint.gpu = 0
    for has_gpu in (True, False):
        endpoint._has_gpu = has_gpu
        assert (endpoint.gpu_facts() is not None) == has_gpu
