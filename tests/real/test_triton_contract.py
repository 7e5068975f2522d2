"""What the fake claims to have from Triton, asked of the fake and of the real embedded 2.51 alike.

Every test runs twice, on the same model with the same times. Only what newer servers do, which no
server here can show, is asked of the fake alone.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from fake_triton.rig import FakeTriton
from test_embedded_triton import BATCH_MAX, SHAPE, Bench, bench_in, cleared, save_model
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as rpc

from deadline_batcher.shm import Segment, new_name

pytestmark = pytest.mark.real

C = grpc.StatusCode
SIZE = 65_536
PIXELS = SHAPE[0] * SHAPE[1] * SHAPE[2]
NONCES, SCORES, ECHOES = 8_192, 16_384, 24_576
HOLD_MS, HOLD_ROW_MS = 60, 30
LIMIT_S = 10.0
TAG = f"{os.getpid():08x}"[-8:]
_names = itertools.count(1)

Told = tuple[grpc.StatusCode, str]


@dataclass
class Server:
    """One of the two, and a bare stub on it."""

    kind: str
    stub: Any
    signalled: Callable[[signal.Signals], None]

    def ask(self, name: str, message: Any, limit_s: float = LIMIT_S) -> Any:
        return getattr(self.stub, name)(message, timeout=limit_s)

    def refused(self, name: str, message: Any, limit_s: float = LIMIT_S) -> Told:
        """The code and the text with which the server refuses."""
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(name, message, limit_s)
        return caught.value.code(), caught.value.details()

    def register(self, name: str, key: str, offset: int = 0, size: int = SIZE) -> Any:
        message = pb.SystemSharedMemoryRegisterRequest(
            name=name, key=f"/{key}", offset=offset, byte_size=size
        )
        return self.ask("SystemSharedMemoryRegister", message)

    def register_refused(self, name: str, key: str, offset: int = 0, size: int = SIZE) -> Told:
        message = pb.SystemSharedMemoryRegisterRequest(
            name=name, key=f"/{key}", offset=offset, byte_size=size
        )
        return self.refused("SystemSharedMemoryRegister", message)

    def unregister(self, name: str) -> Any:
        message = pb.SystemSharedMemoryUnregisterRequest(name=name)
        return self.ask("SystemSharedMemoryUnregister", message)

    def unregister_refused(self, name: str) -> Told:
        message = pb.SystemSharedMemoryUnregisterRequest(name=name)
        return self.refused("SystemSharedMemoryUnregister", message)

    def regions(self, name: str = "") -> dict[str, tuple[str, int, int]]:
        found = self.ask(
            "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name=name)
        ).regions
        return {key: (one.key, one.offset, one.byte_size) for key, one in found.items()}


def real_server(folder: Path) -> tuple[Bench, int, Callable[[signal.Signals], None]]:
    wcet_ns = {rows: (HOLD_MS + HOLD_ROW_MS * rows) * 1_000_000 for rows in range(1, BATCH_MAX + 1)}
    bench = bench_in(folder, wcet_ns=wcet_ns)
    bench.start()
    bench.wait_ready()
    server = bench.server()
    return bench, bench.port, server.send_signal


@pytest.fixture(scope="module", params=["fake", "2.51"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    yield from started(request.param, tmp_path_factory.mktemp("contract"))


@pytest.fixture(params=["fake", "2.51"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server of the test's own."""
    yield from started(request.param, tmp_path)


def started(kind: str, folder: Path) -> Iterator[Server]:
    if kind == "2.51":
        bench, port, signalled = real_server(folder)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Server(kind, rpc.GRPCInferenceServiceStub(channel), signalled)
        cleared(bench)
        return
    save_model(folder / "tile.onnx")
    with FakeTriton("tile", folder / "tile.onnx", BATCH_MAX) as fake:
        fake.say(hold_ms=HOLD_MS, hold_row_ms=HOLD_ROW_MS)
        with grpc.insecure_channel(f"127.0.0.1:{fake.port}") as channel:
            yield Server(kind, rpc.GRPCInferenceServiceStub(channel), fake.signal)


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(new_name(TAG, "contract"), SIZE)
    yield made
    made.unlink()


@pytest.fixture
def region(server: Server, segment: Segment) -> Iterator[str]:
    """The segment, registered under its own name."""
    server.register(segment.name, segment.name)
    yield segment.name
    end = time.monotonic() + 5
    while segment.name in server.regions():
        assert time.monotonic() < end
        try:
            server.unregister(segment.name)
        except grpc.RpcError as error:
            if "in use" not in error.details():
                raise
        time.sleep(0.02)


def view(segment: Segment, rows: int) -> tuple[Any, Any, Any, Any]:
    """Images, nonces, scores and echoes of a segment."""
    memory = segment.mapping
    return (
        np.frombuffer(memory, np.uint8, rows * PIXELS).reshape(rows, PIXELS),
        np.frombuffer(memory, np.int64, rows, NONCES),
        np.frombuffer(memory, np.float32, rows, SCORES),
        np.frombuffer(memory, np.int64, rows, ECHOES),
    )


def fill(segment: Segment, rows: int, brightest: int) -> None:
    """Row r's largest pixel is `brightest + r`, its nonce 100 * brightest + r; outputs poisoned."""
    images, nonces, scores, echoes = view(segment, rows)
    images[:] = 1
    images[:, 7] = np.arange(brightest, brightest + rows)
    nonces[:] = np.arange(100 * brightest, 100 * brightest + rows)
    scores[:], echoes[:] = np.nan, -1


def answers(segment: Segment, rows: int) -> tuple[list[float], list[int]]:
    _, _, scores, echoes = view(segment, rows)
    return scores.tolist(), echoes.tolist()


def right(rows: int, brightest: int) -> tuple[list[float], list[int]]:
    first = 100 * brightest
    return [float(brightest + row) for row in range(rows)], list(range(first, first + rows))


def call(
    region: str,
    rows: int = 1,
    *,
    model: str = "tile",
    shape: list[int] | None = None,
    image_bytes: int | None = None,
    image_offset: int = 0,
    kind: str = "UINT8",
    nonce_rows: int | None = None,
    score_bytes: int | None = None,
    score: str = "score",
    has_image: bool = True,
) -> Any:
    """A ModelInfer message on a region laid out as in `view`, good but for what is asked."""
    message = pb.ModelInferRequest(model_name=model, id="7")

    def place(tensor: Any, offset: int, size: int) -> None:
        tensor.parameters["shared_memory_region"].string_param = region
        tensor.parameters["shared_memory_byte_size"].int64_param = size
        if offset:
            tensor.parameters["shared_memory_offset"].int64_param = offset

    if has_image:
        size = rows * PIXELS if image_bytes is None else image_bytes
        image = message.inputs.add(name="image", datatype=kind, shape=shape or [rows, *SHAPE])
        place(image, image_offset, size)
    nonce = message.inputs.add(name="nonce", datatype="INT64", shape=[nonce_rows or rows, 1])
    place(nonce, NONCES, rows * 8)
    place(message.outputs.add(name=score), SCORES, score_bytes or rows * 4)
    place(message.outputs.add(name="nonce_echo"), ECHOES, rows * 8)
    return message


# --- saying what one is ------------------------------------------------------------------------


def test_it_is_live_ready_and_2_51(server: Server) -> None:
    assert server.ask("ServerLive", pb.ServerLiveRequest()).live
    assert server.ask("ServerReady", pb.ServerReadyRequest()).ready
    assert server.ask("ModelReady", pb.ModelReadyRequest(name="tile")).ready
    told = server.ask("ServerMetadata", pb.ServerMetadataRequest())
    assert (told.name, told.version) == ("triton", "2.51.0")
    assert {"system_shared_memory", "cuda_shared_memory", "statistics"} <= set(told.extensions)


def test_the_model_is_described(server: Server) -> None:
    told = server.ask("ModelMetadata", pb.ModelMetadataRequest(name="tile"))
    ends = [
        [(one.name, one.datatype, list(one.shape)) for one in end]
        for end in (told.inputs, told.outputs)
    ]
    assert ends == [
        [("image", "UINT8", [-1, *SHAPE]), ("nonce", "INT64", [-1, 1])],
        [("score", "FP32", [-1, 1]), ("nonce_echo", "INT64", [-1, 1])],
    ]


def test_an_unknown_model_is_not_ready_and_each_rpc_has_its_own_refusal(server: Server) -> None:
    assert not server.ask("ModelReady", pb.ModelReadyRequest(name="nope")).ready
    unknown = (C.NOT_FOUND, "Request for unknown model: 'nope' is not found")
    assert server.refused("ModelMetadata", pb.ModelMetadataRequest(name="nope")) == unknown
    assert server.refused("ModelInfer", call("nowhere", model="nope")) == unknown
    assert server.refused("ModelStatistics", pb.ModelStatisticsRequest(name="nope")) == (
        C.INVALID_ARGUMENT,
        "requested model 'nope' is not available",
    )


def test_statistics_count_rows_and_executions(
    server: Server, segment: Segment, region: str
) -> None:
    def counted() -> tuple[int, int]:
        message = pb.ModelStatisticsRequest(name="tile")
        (stats,) = server.ask("ModelStatistics", message).model_stats
        return stats.inference_count, stats.execution_count

    before = counted()
    fill(segment, 3, 10)
    server.ask("ModelInfer", call(region, 3))
    # The real server counts after it has answered.
    end_s = time.monotonic() + 5
    while (after := counted()) == before and time.monotonic() < end_s:
        time.sleep(0.01)
    assert (after[0] - before[0], after[1] - before[1]) == (3, 1)


# --- registering -------------------------------------------------------------------------------


def test_register_status_unregister(server: Server, segment: Segment) -> None:
    server.register("here", segment.name)
    assert server.regions("here") == {"here": (f"/{segment.name}", 0, SIZE)}
    assert "here" in server.regions()
    server.unregister("here")
    assert server.refused(
        "SystemSharedMemoryStatus", pb.SystemSharedMemoryStatusRequest(name="here")
    ) == (C.NOT_FOUND, "Unable to find system shared memory region: 'here'")
    server.unregister("here")  # an unknown one is no error
    server.register("here", segment.name)  # and a name may come again
    server.unregister("here")


def test_what_cannot_be_registered(server: Server, segment: Segment) -> None:
    assert server.register_refused("gone", "no-such-key") == (
        C.INTERNAL,
        "Unable to open shared memory region: '/no-such-key'",
    )
    invalid = "failed to register shared memory region 'bad': "
    for offset, size in ((0, SIZE + 1), (10, SIZE), (SIZE, 10)):
        told = server.register_refused("bad", segment.name, offset, size)
        assert told == (C.INVALID_ARGUMENT, f"{invalid}invalid args")
    code, text = server.register_refused("bad", segment.name, 0, 0)
    assert (code, text.startswith(invalid)) == (C.INVALID_ARGUMENT, True)
    assert "bad" not in server.regions()


def test_a_name_that_is_taken_is_refused_whatever_the_key(
    server: Server, segment: Segment, region: str
) -> None:
    taken = (C.ALREADY_EXISTS, f"shared memory region '{region}' already in manager")
    assert server.register_refused(region, segment.name) == taken
    assert server.register_refused(region, "no-such-key") == taken


def test_one_key_under_two_names_is_refused(server: Server, segment: Segment, region: str) -> None:
    told = server.register_refused("second", segment.name)
    assert told == (C.INTERNAL, f"Invalid shared memory region: '/{segment.name}'")


def test_a_recreated_key_leaves_the_server_on_the_old_pages(
    server: Server, segment: Segment, region: str
) -> None:
    """Case 1: healthy, fast, wrong for ever."""
    segment.unlink()
    fresh = Segment.create(segment.name, SIZE)
    try:
        fill(fresh, 1, 11)
        fill(segment, 1, 22)
        server.ask("ModelInfer", call(region))
        assert answers(segment, 1) == right(1, 22)
        assert np.isnan(answers(fresh, 1)[0][0]), "nothing reaches what the key names now"
        told = server.register_refused(region, segment.name)
        assert told[0] == C.ALREADY_EXISTS
        server.unregister(region)
        server.register(region, segment.name)
        server.ask("ModelInfer", call(region))
        assert answers(fresh, 1) == right(1, 11)
    finally:
        fresh.unlink()


def test_unregister_in_flight_is_refused_and_the_name_goes_on(
    server: Server, segment: Segment, region: str
) -> None:
    """Case 4, as before PR#7743."""
    fill(segment, 4, 33)
    flying = server.stub.ModelInfer.future(call(region, 4), timeout=LIMIT_S)
    time.sleep(0.05)
    assert server.unregister_refused(region) == (
        C.INTERNAL,
        f"Cannot unregister shared memory region '{region}', it is currently in use.",
    )
    assert region in server.regions()
    told = server.register_refused(region, segment.name)
    assert told == (C.ALREADY_EXISTS, f"shared memory region '{region}' already in manager")
    flying.result()
    assert answers(segment, 4) == right(4, 33)


def test_unregister_without_a_name_takes_every_region_with_it(
    server: Server, segment: Segment
) -> None:
    """Case 5: why nothing here may ever send it."""
    server.register("mine", segment.name)
    other = Segment.create(new_name(TAG, "contract"), SIZE)
    try:
        server.register("theirs", other.name)
        server.unregister("")
        assert server.regions() == {}
    finally:
        other.unlink()


# --- inference ---------------------------------------------------------------------------------


def test_every_row_of_every_size_big_small_big(
    server: Server, segment: Segment, region: str
) -> None:
    for rows in (BATCH_MAX, 2, BATCH_MAX, 1, 3, 5, 4):
        fill(segment, rows, 20 * rows)
        server.ask("ModelInfer", call(region, rows))
        assert answers(segment, rows) == right(rows, 20 * rows)


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        (
            {"shape": [1, 8, 9, 4], "image_bytes": 288},
            C.INVALID_ARGUMENT,
            "unexpected shape for input 'image' for model 'tile'. Expected [-1,8,9,3], got "
            "[1,8,9,4]. NOTE: Setting a non-zero max_batch_size",
        ),
        ({"rows": 7}, C.INVALID_ARGUMENT, "batch-size must be <= 6 for 'tile'"),
        (
            {"image_bytes": 100},
            C.INVALID_ARGUMENT,
            "input byte size mismatch for input 'image' for model 'tile'. Expected 216, got 100",
        ),
        (
            {"kind": "INT8"},
            C.INVALID_ARGUMENT,
            "inference input 'image' data-type is 'INT8', but model 'tile' expects 'UINT8'",
        ),
        ({"image_offset": SIZE}, C.INVALID_ARGUMENT, "Invalid offset for shared memory region: "),
        (
            {"image_offset": SIZE - 100},
            C.INVALID_ARGUMENT,
            "Invalid offset + byte size for shared memory region: ",
        ),
        (
            {"rows": 2, "score_bytes": 4},
            C.INTERNAL,
            "shared memory size specified with the request for output 'score' (4 bytes) should be "
            "at least 8 bytes to hold the results",
        ),
        ({"has_image": False}, C.INVALID_ARGUMENT, "expected 2 inputs but got 1 inputs"),
        (
            {"rows": 2, "nonce_rows": 1},
            C.INVALID_ARGUMENT,
            "input 'image' batch size does not match other inputs for 'tile'",
        ),
        (
            {"score": "nope"},
            C.INVALID_ARGUMENT,
            "unexpected inference output 'nope' for model 'tile'",
        ),
    ],
)
def test_a_wrong_call_is_refused_and_the_next_is_right(
    server: Server,
    segment: Segment,
    region: str,
    changes: dict[str, Any],
    code: grpc.StatusCode,
    text: str,
) -> None:
    fill(segment, BATCH_MAX, 5)
    told = server.refused("ModelInfer", call(region, **changes))
    assert told[0] == code
    assert text in told[1]
    fill(segment, 2, 50)
    server.ask("ModelInfer", call(region, 2))
    assert answers(segment, 2) == right(2, 50)


def test_an_unknown_region_has_its_own_words(server: Server) -> None:
    told = server.refused("ModelInfer", call("nowhere"))
    assert told == (C.NOT_FOUND, "Unable to find shared memory region: 'nowhere'")


def test_the_answer_of_an_abandoned_call_is_written_all_the_same(
    server: Server, segment: Segment, region: str
) -> None:
    """Case 2: the client's deadline frees the client, not the slot."""
    fill(segment, 4, 44)
    told = server.refused("ModelInfer", call(region, 4), limit_s=0.05)
    assert told[0] == C.DEADLINE_EXCEEDED
    assert answers(segment, 4)[1] == [-1] * 4
    time.sleep(0.6)
    assert answers(segment, 4) == right(4, 44)


def test_calls_take_turns_on_the_one_gpu(server: Server, segment: Segment, region: str) -> None:
    fill(segment, 1, 60)
    began = time.monotonic()
    both = [server.stub.ModelInfer.future(call(region), timeout=LIMIT_S) for _ in range(2)]
    for one in both:
        one.result()
    assert time.monotonic() - began >= 2 * (HOLD_MS + HOLD_ROW_MS) / 1e3


# --- signals -----------------------------------------------------------------------------------


def test_stopped_it_is_silent_and_continued_it_serves(mortal: Server, segment: Segment) -> None:
    mortal.register(segment.name, segment.name)
    mortal.signalled(signal.SIGSTOP)
    for name, message in (
        ("ServerLive", pb.ServerLiveRequest()),
        ("ModelInfer", call(segment.name)),
    ):
        assert mortal.refused(name, message, limit_s=0.3)[0] == C.DEADLINE_EXCEEDED
    mortal.signalled(signal.SIGCONT)
    assert mortal.ask("ServerLive", pb.ServerLiveRequest()).live
    fill(segment, 2, 70)
    mortal.ask("ModelInfer", call(segment.name, 2))
    assert answers(segment, 2) == right(2, 70)


def test_killed_the_call_in_flight_ends_at_once_and_the_next_is_refused(
    mortal: Server, segment: Segment
) -> None:
    mortal.register(segment.name, segment.name)
    fill(segment, 4, 80)
    flying = mortal.stub.ModelInfer.future(call(segment.name, 4), timeout=LIMIT_S)
    time.sleep(0.05)
    began = time.monotonic()
    mortal.signalled(signal.SIGKILL)
    assert flying.exception() is not None
    assert time.monotonic() - began < 0.5
    assert flying.code() == C.UNAVAILABLE
    time.sleep(0.2)
    told = mortal.refused("ServerLive", pb.ServerLiveRequest())
    assert (told[0], "Connection refused" in told[1]) == (C.UNAVAILABLE, True)
    assert answers(segment, 4)[1] == [-1] * 4


# --- what only the fake can show ---------------------------------------------------------------


@pytest.fixture
def newer(tmp_path: Path) -> Iterator[tuple[FakeTriton, Server]]:
    save_model(tmp_path / "tile.onnx")
    with FakeTriton("tile", tmp_path / "tile.onnx", BATCH_MAX) as fake:
        fake.say(hold_ms=HOLD_MS, hold_row_ms=HOLD_ROW_MS)
        with grpc.insecure_channel(f"127.0.0.1:{fake.port}") as channel:
            yield fake, Server("fake", rpc.GRPCInferenceServiceStub(channel), fake.signal)


def test_deferred_unregister_says_ok_and_the_name_stays(
    newer: tuple[FakeTriton, Server], segment: Segment
) -> None:
    """Case 4, as since PR#7743 (read, not measured)."""
    fake, server = newer
    fake.say(variant="deferred")
    server.register("here", segment.name)
    fill(segment, 4, 33)
    flying = server.stub.ModelInfer.future(call("here", 4), timeout=LIMIT_S)
    time.sleep(0.05)
    server.unregister("here")
    assert "here" in server.regions(), "the status does not show that it is leaving"
    assert server.register_refused("here", segment.name)[0] == C.ALREADY_EXISTS
    flying.result()
    assert server.regions() == {}


def test_without_client_shared_memory_registering_is_refused(
    newer: tuple[FakeTriton, Server], segment: Segment
) -> None:
    """Case 6, PR#8721 (its exact words are not known here)."""
    fake, server = newer
    fake.say(variant="no-client-shm")
    assert "not allowed" in server.register_refused("here", segment.name)[1]
