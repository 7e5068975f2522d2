"""No call without a limit, and each limit the one that is meant: what gRPC is told, captured."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from appliance.triton import client as module
from appliance.triton.client import CallFailed, Health, TritonClient
from appliance.triton.faults import Kind
from appliance.triton.region import Region

SHAPE = (4, 4, 1)


class Refusal(grpc.RpcError):
    """What a stub raises."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = lambda: code
        self.details = lambda: text


class Wire:
    """Every RPC of one server: what came, with which limit; what is answered."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float | None, Any]] = []
        self.answers: dict[str, Any] = {
            "ServerReady": pb.ServerReadyResponse(ready=True),
            "ModelReady": pb.ModelReadyResponse(ready=True),
            "ServerMetadata": pb.ServerMetadataResponse(version="2.51.0"),
            "SystemSharedMemoryRegister": pb.SystemSharedMemoryRegisterResponse(),
            "SystemSharedMemoryUnregister": pb.SystemSharedMemoryUnregisterResponse(),
            "SystemSharedMemoryStatus": pb.SystemSharedMemoryStatusResponse(),
            "ModelStatistics": pb.ModelStatisticsResponse(model_stats=[pb.ModelStatistics()]),
        }

    def stub(self, _channel: Any) -> Any:
        return SimpleNamespace(
            ModelInfer=SimpleNamespace(future=self._infer),
            **{name: self._answering(name) for name in self.answers},
        )

    def _answering(self, name: str) -> Any:
        def answer(message: Any, timeout: float | None = None) -> Any:
            self.calls.append((name, timeout, message))
            if isinstance(self.answers[name], Exception):
                raise self.answers[name]
            return self.answers[name]

        return answer

    def _infer(self, message: Any, timeout: float | None = None) -> Any:
        self.calls.append(("ModelInfer", timeout, message))
        return SimpleNamespace(add_done_callback=lambda ended: None)

    def limits(self) -> dict[str, float | None]:
        return {name: limit for name, limit, _ in self.calls}


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Wire:
    made = Wire()
    monkeypatch.setattr(service_pb2_grpc, "GRPCInferenceServiceStub", made.stub)
    return made


@pytest.fixture
def client(wire: Wire) -> Iterator[TritonClient]:
    made = TritonClient("grpc://127.0.0.1:1")
    yield made
    made.close()


@pytest.fixture
def region() -> Iterator[Region]:
    made = Region("00000000", 0, 2, 3, 16)
    yield made
    made.unlink()


def test_every_call_has_the_limit_that_is_meant(
    wire: Wire, client: TritonClient, region: Region
) -> None:
    client.health("m")
    client.version()
    client.register(region)
    client.unregister(region)
    client.unregister_old("takt-", set())
    client.counters("m")
    client.infer("m", region, 0, 2, SHAPE, lambda _: None)
    assert wire.limits() == {
        "ServerReady": 0.2,
        "ModelReady": 0.2,
        "ModelStatistics": 0.2,
        "ServerMetadata": 1.0,
        "SystemSharedMemoryRegister": 1.0,
        "SystemSharedMemoryUnregister": 1.0,
        "SystemSharedMemoryStatus": 1.0,
        "ModelInfer": 60.0,
    }


@given(st.integers(1, 10**14))
def test_a_limit_keeps_its_length(limit_ns: int) -> None:
    assert round(module._seconds(limit_ns) * 1e9) == pytest.approx(limit_ns, rel=1e-12)


def test_the_message_names_each_tensor_s_place(
    wire: Wire, client: TritonClient, region: Region
) -> None:
    client.infer("m", region, 1, 3, SHAPE, lambda _: None)
    client.infer("m", region, 1, 3, SHAPE, lambda _: None)
    (_, _, message), (_, _, again) = wire.calls
    assert again is message, "made once"
    slot = region.slots[1]
    places = {
        tensor.name: (
            tensor.parameters["shared_memory_offset"].int64_param,
            tensor.parameters["shared_memory_byte_size"].int64_param,
        )
        for tensor in (*message.inputs, *message.outputs)
    }
    assert places == {
        "image": (slot.image_offset, 48),
        "nonce": (slot.nonce_offset, 24),
        "score": (slot.score_offset, 12),
        "nonce_echo": (slot.echo_offset, 24),
    }
    assert client.open_calls == 2


def test_a_client_closed_this_very_instant_is_a_failed_call_and_no_crash(region: Region) -> None:
    client = TritonClient("grpc://127.0.0.1:1")
    client.close()
    ended: list[Any] = []
    client.infer("m", region, 0, 1, SHAPE, ended.append)
    (failure,) = ended
    assert failure.kind is Kind.CONNECTION
    assert client.open_calls == 0


def test_health_is_only_ever_a_no(wire: Wire, client: TritonClient) -> None:
    code = grpc.StatusCode
    assert client.health("m") is Health.READY
    wire.answers["ModelReady"] = pb.ModelReadyResponse(ready=False)
    assert client.health("m") is Health.NOT_READY
    wire.answers["ServerReady"] = Refusal(code.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert client.health("m") is Health.SILENT
    wire.answers["ServerReady"] = Refusal(code.UNAVAILABLE, "Connection refused")
    assert client.health("m") is Health.ABSENT


def test_a_control_call_without_an_answer_is_silence_and_no_hung_inference(
    wire: Wire, client: TritonClient
) -> None:
    wire.answers["ServerMetadata"] = Refusal(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline")
    with pytest.raises(CallFailed) as caught:
        client.version()
    assert caught.value.failure.kind is Kind.SILENT


def test_a_region_is_never_unregistered_without_its_name(wire: Wire, client: TritonClient) -> None:
    with pytest.raises(ValueError, match="by its name"):
        client._unregister("")
    assert wire.calls == []


def test_only_regions_of_the_dead_and_retired_ones_are_let_go(
    wire: Wire, client: TritonClient, region: Region
) -> None:
    told = pb.SystemSharedMemoryStatusResponse()
    dead = "takt-00000000-gpu0-1-1-7"
    for name in (region.name, dead, "takt-00000000-gpu1-1-1-7", "somebody-else"):
        told.regions[name].name = name
    wire.answers["SystemSharedMemoryStatus"] = told
    assert client.unregister_old("takt-00000000-gpu0-", set()) == set()
    named = [m.name for name, _, m in wire.calls if name == "SystemSharedMemoryUnregister"]
    assert named == [dead]
    wire.answers["SystemSharedMemoryUnregister"] = Refusal(
        grpc.StatusCode.INTERNAL,
        f"Cannot unregister shared memory region '{region.name}', it is currently in use.",
    )
    kept = client.unregister_old("takt-00000000-gpu0-", {region.name})
    assert kept == {region.name, dead}
