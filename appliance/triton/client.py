"""One server's two connections: every call has a limit, none is ever cancelled in anger.

Triton 2.51 may crash when a call is cancelled (server#7368), so an inference call is bounded far
beyond any deadline: the deadline is the scheduler's, not the client's. Limits are nanoseconds like
every time here; `_seconds` alone turns them into what gRPC takes. Health and statistics have a
connection of their own, so that their stalling says nothing of inference, nor the other way round.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from appliance.triton.faults import Failure, Kind, failure_of
from appliance.triton.region import Region
from deadline_batcher.shm import is_of_the_dead

CONTROL_LIMIT_NS = 1_000_000_000
HEALTH_LIMIT_NS = 200_000_000
INFER_LIMIT_NS = 60_000_000_000
UNREGISTER_LIMIT_NS = 2_000_000_000
RECONNECT_MAX_MS = 500
_CHANNEL = (
    ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", RECONNECT_MAX_MS),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)

OnAnswer = Callable[[Failure | None], None]
"""Called on a gRPC thread once a call has ended: None, or what went wrong."""


def _seconds(limit_ns: int) -> float:
    """A limit as gRPC takes it."""
    return limit_ns / 1e9


class CallFailed(Exception):  # noqa: N818 - an outcome, told apart from a bug
    """A call did not succeed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Health(Enum):
    """Triton's own word. Only ABSENT and NOT_READY mean anything; silence is no answer."""

    READY = "ready"
    NOT_READY = "not ready"
    ABSENT = "not there"
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class Counters:
    """Triton's own sums for one model since the server started. Times in nanoseconds."""

    inference_count: int
    execution_count: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    success_ns: int


class TritonClient:
    """The connections for the life of one start of a server.

    on_disconnect: called once, on a gRPC thread, when an established connection is gone; within
    milliseconds of a server's death, whether or not anything was asked of it.
    """

    def __init__(self, url: str, on_disconnect: Callable[[], None] | None = None) -> None:
        self.url = url
        target = url.removeprefix("grpc://")
        self._channel = grpc.insecure_channel(target, options=_CHANNEL)
        self._health_channel = grpc.insecure_channel(target, options=_CHANNEL)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._health = service_pb2_grpc.GRPCInferenceServiceStub(self._health_channel)
        self._calls: dict[tuple[str, int, int, str], Any] = {}
        self._sent_at_ns: dict[int, int] = {}  # of the inference calls that have not ended
        self._numbers = itertools.count()
        self._on_disconnect = on_disconnect
        self._was_connected = False
        if on_disconnect is not None:
            self._channel.subscribe(self._connectivity_changed)

    @property
    def open_calls(self) -> int:
        """Inference calls that have not ended. Only at 0 is the server left alone by `close`."""
        return len(self._sent_at_ns)

    def oldest_ns(self, now_ns: int) -> int:
        """How long the oldest open inference call has been so; 0 if there is none."""
        sent = list(self._sent_at_ns.values())
        return now_ns - min(sent) if sent else 0

    def close(self) -> None:
        """Give the connections back. Only once no call is open, or the server is gone."""
        self._on_disconnect = None
        self._channel.close()
        self._health_channel.close()

    def _connectivity_changed(self, state: Any) -> None:
        if state is grpc.ChannelConnectivity.READY:
            self._was_connected = True
        elif self._was_connected and state is not grpc.ChannelConnectivity.CONNECTING:
            on_disconnect, self._on_disconnect = self._on_disconnect, None
            if on_disconnect is not None:
                on_disconnect()

    # --- control ----------------------------------------------------------------------------

    def _ask(self, stub: Any, name: str, message: Any, limit_ns: int) -> Any:
        try:
            return getattr(stub, name)(message, timeout=_seconds(limit_ns))
        except grpc.RpcError as error:
            failure = _failure(error)
            if failure.kind is Kind.UNANSWERED:  # of a control call: no inference hangs by it
                failure = failure._replace(kind=Kind.SILENT)
            raise CallFailed(failure) from None

    def health(self, model: str) -> Health:
        """What the server says of itself and one model."""
        try:
            for name, message in (
                ("ServerReady", pb.ServerReadyRequest()),
                ("ModelReady", pb.ModelReadyRequest(name=model)),
            ):
                if not self._ask(self._health, name, message, HEALTH_LIMIT_NS).ready:
                    return Health.NOT_READY
        except CallFailed as error:
            is_silent = error.failure.kind is not Kind.CONNECTION
            return Health.SILENT if is_silent else Health.ABSENT
        return Health.READY

    def version(self) -> str:
        """The server's version. Raises CallFailed."""
        told = self._ask(self._stub, "ServerMetadata", pb.ServerMetadataRequest(), CONTROL_LIMIT_NS)
        return str(told.version)

    def register(self, region: Region) -> None:
        """Register a region under its own, new name. Raises CallFailed, also if it was there."""
        message = pb.SystemSharedMemoryRegisterRequest(
            name=region.name, key=f"/{region.name}", offset=0, byte_size=region.size
        )
        self._ask(self._stub, "SystemSharedMemoryRegister", message, CONTROL_LIMIT_NS)

    def unregister(self, region: Region) -> None:
        """Unregister our own region by name; wait until it is absent. Raises CallFailed.

        Triton lets go of a region shortly after the answer that used it: until then 2.51 refuses,
        and a newer one says yes and keeps it.
        """
        end_ns = time.monotonic_ns() + UNREGISTER_LIMIT_NS
        while True:
            try:
                self._unregister(region.name)
                if region.name not in self.regions():
                    return
                failure = Failure(Kind.SERVER, f"{region.name} is still registered")
            except CallFailed as error:
                failure = error.failure
                if "in use" not in failure.text:
                    raise
            if time.monotonic_ns() > end_ns:
                raise CallFailed(failure)
            time.sleep(0.005)

    def _unregister(self, name: str) -> None:
        if not name:  # it would take every client's regions with it (server#3428)
            raise ValueError("a region is unregistered by its name")
        message = pb.SystemSharedMemoryUnregisterRequest(name=name)
        self._ask(self._stub, "SystemSharedMemoryUnregister", message, CONTROL_LIMIT_NS)

    def regions(self) -> list[str]:
        """The names that are registered. Raises CallFailed."""
        message = pb.SystemSharedMemoryStatusRequest()
        told = self._ask(self._stub, "SystemSharedMemoryStatus", message, CONTROL_LIMIT_NS)
        return list(told.regions)

    def unregister_old(self, prefix: str, retired: set[str]) -> set[str]:
        """Have the server let go of regions with this prefix whose process is dead, and of
        `retired` ones; returns those it still uses. Raises CallFailed.
        """
        kept = set()
        for name in self.regions():
            if not name.startswith(prefix) or not (name in retired or is_of_the_dead(name)):
                continue
            try:
                self._unregister(name)
            except CallFailed as error:
                if "in use" not in error.failure.text:
                    raise
                kept.add(name)
        return kept

    def counters(self, model: str) -> Counters:
        """The model's statistics. Raises CallFailed."""
        message = pb.ModelStatisticsRequest(name=model)
        found = self._ask(self._health, "ModelStatistics", message, HEALTH_LIMIT_NS)
        if not found.model_stats:
            raise CallFailed(Failure(Kind.SERVER, f"no statistics of {model}"))
        model_stats = found.model_stats[0]
        spent = model_stats.inference_stats
        return Counters(
            model_stats.inference_count,
            model_stats.execution_count,
            spent.queue.ns,
            spent.compute_input.ns,
            spent.compute_infer.ns,
            spent.compute_output.ns,
            spent.success.ns,
        )

    # --- inference --------------------------------------------------------------------------

    def infer(
        self,
        model: str,
        region: Region,
        slot: int,
        rows: int,
        shape: tuple[int, int, int],
        on_answer: OnAnswer,
    ) -> None:
        """Send one batch that lies in the region's slot. Never waits."""
        key = (region.name, slot, rows, model)
        message = self._calls.get(key)
        if message is None:
            message = self._calls[key] = _infer_message(model, region, slot, rows, shape)
        number = next(self._numbers)
        self._sent_at_ns[number] = time.monotonic_ns()

        def ended(call: Any) -> None:
            self._sent_at_ns.pop(number, None)
            code = call.code()
            is_good = code is grpc.StatusCode.OK
            on_answer(None if is_good else failure_of(code.name, call.details() or ""))

        try:
            future = self._stub.ModelInfer.future(message, timeout=_seconds(INFER_LIMIT_NS))
        except ValueError as error:  # its keeper has closed it this very instant
            self._sent_at_ns.pop(number, None)
            on_answer(Failure(Kind.CONNECTION, str(error)))
        else:
            future.add_done_callback(ended)


def _failure(error: Any) -> Failure:
    return failure_of(error.code().name, error.details() or "")


def _infer_message(
    model: str, region: Region, slot: int, rows: int, shape: tuple[int, int, int]
) -> Any:
    """The message for a batch in a slot: made once for each size, as nothing in it changes."""
    views = region.slots[slot]
    height, width, channels = shape
    message = pb.ModelInferRequest(model_name=model)

    def place(tensor: Any, offset: int, size: int) -> None:
        tensor.parameters["shared_memory_region"].string_param = region.name
        tensor.parameters["shared_memory_byte_size"].int64_param = size
        tensor.parameters["shared_memory_offset"].int64_param = offset

    image = message.inputs.add(name="image", datatype="UINT8", shape=[rows, *shape])
    place(image, views.image_offset, rows * height * width * channels)
    nonce = message.inputs.add(name="nonce", datatype="INT64", shape=[rows, 1])
    place(nonce, views.nonce_offset, rows * 8)
    place(message.outputs.add(name="score"), views.score_offset, rows * 4)
    place(message.outputs.add(name="nonce_echo"), views.echo_offset, rows * 8)
    return message
