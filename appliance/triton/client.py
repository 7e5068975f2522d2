"""One connection to one Triton: every call has a bound, none is ever cancelled in anger.

Triton 2.51 may crash when a call is cancelled (server#7368), so an inference call is bounded far
beyond any deadline: the deadline is the scheduler's, not the client's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from appliance.triton.region import Region

CONTROL_LIMIT_S = 1.0
INFER_LIMIT_S = 60.0
UNREGISTER_LIMIT_S = 2.0
RECONNECT_MAX_MS = 500

OnAnswer = Callable[[str | None], None]
"""Called on a gRPC thread once a call has ended: None, or what went wrong."""


class CallFailed(Exception):  # noqa: N818 - an outcome, told apart from a bug
    """A control call did not succeed; the text is the server's."""


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
    """One channel for the life of one start of a server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._client = triton.InferenceServerClient(
            url.removeprefix("grpc://"),
            channel_args=[
                ("grpc.max_reconnect_backoff_ms", RECONNECT_MAX_MS),
                ("grpc.initial_reconnect_backoff_ms", 50),
                ("grpc.min_reconnect_backoff_ms", 50),
                ("grpc.keepalive_time_ms", 5_000),
                ("grpc.keepalive_timeout_ms", 2_000),
                ("grpc.http2.max_pings_without_data", 0),
                ("grpc.use_local_subchannel_pool", 1),
                ("grpc.enable_retries", 0),
            ],
        )
        self._tensors: dict[tuple[str, int, int, str], tuple[list[Any], list[Any]]] = {}

    def close(self) -> None:
        """Give the channel back. Only once no call is open, or the server is gone."""
        self._client.close()

    def is_ready(self, model: str) -> bool:
        """Triton's own word: only ever a negative signal."""
        try:
            return bool(
                self._client.is_server_live(client_timeout=CONTROL_LIMIT_S)
                and self._client.is_model_ready(model, client_timeout=CONTROL_LIMIT_S)
            )
        except InferenceServerException:
            return False

    def version(self) -> str:
        """The server's version. Raises CallFailed."""
        try:
            return str(self._client.get_server_metadata(client_timeout=CONTROL_LIMIT_S).version)
        except InferenceServerException as error:
            raise CallFailed(str(error)) from None

    def register(self, region: Region) -> None:
        """Register a region under its own, new name. Raises CallFailed, also if it was there."""
        try:
            self._client.register_system_shared_memory(
                region.name, f"/{region.name}", region.size, client_timeout=CONTROL_LIMIT_S
            )
        except InferenceServerException as error:
            raise CallFailed(str(error)) from None

    def unregister(self, region: Region) -> None:
        """Unregister our own region by name; wait until it is absent. Raises CallFailed.

        Triton lets go of a region shortly after the answer that used it: until then it refuses.
        """
        end_s = time.monotonic() + UNREGISTER_LIMIT_S
        while True:
            try:
                self._client.unregister_system_shared_memory(
                    region.name, client_timeout=CONTROL_LIMIT_S
                )
                known = self._client.get_system_shared_memory_status(client_timeout=CONTROL_LIMIT_S)
            except InferenceServerException as error:
                if "in use" not in str(error) or time.monotonic() > end_s:
                    raise CallFailed(str(error)) from None
            else:
                if region.name not in known.regions:
                    return
                if time.monotonic() > end_s:
                    raise CallFailed(f"{region.name} is still registered")
            time.sleep(0.005)

    def counters(self, model: str) -> Counters:
        """The model's statistics. Raises CallFailed."""
        try:
            found = self._client.get_inference_statistics(model, client_timeout=CONTROL_LIMIT_S)
        except InferenceServerException as error:
            raise CallFailed(str(error)) from None
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
        inputs, outputs = self._tensors_for(model, region, slot, rows, shape)

        def ended(result: Any, error: Any) -> None:
            on_answer(None if error is None else str(error))

        self._client.async_infer(
            model, inputs, ended, outputs=outputs, client_timeout=INFER_LIMIT_S
        )

    def _tensors_for(
        self, model: str, region: Region, slot: int, rows: int, shape: tuple[int, int, int]
    ) -> tuple[list[Any], list[Any]]:
        key = (region.name, slot, rows, model)
        known = self._tensors.get(key)
        if known is not None:
            return known
        views = region.slots[slot]
        height, width, channels = shape
        image = triton.InferInput("image", [rows, *shape], "UINT8")
        image_bytes = rows * height * width * channels
        image.set_shared_memory(region.name, image_bytes, views.image_offset)
        nonce = triton.InferInput("nonce", [rows, 1], "INT64")
        nonce.set_shared_memory(region.name, rows * 8, views.nonce_offset)
        score = triton.InferRequestedOutput("score")
        score.set_shared_memory(region.name, rows * 4, views.score_offset)
        echo = triton.InferRequestedOutput("nonce_echo")
        echo.set_shared_memory(region.name, rows * 8, views.echo_offset)
        self._tensors[key] = ([image, nonce], [score, echo])
        return self._tensors[key]
