"""The fake's process: gRPC behind the proxy, one GPU, and a socket by which a test tells it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import ctypes
import json
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc as rpc

from fake_triton.behaviour import Rule, State
from fake_triton.inference import Job, Model, job_of
from fake_triton.memory import Manager, Refused
from fake_triton.proxy import Proxy

C = grpc.StatusCode
GONE = 3600.0


class Triton(rpc.GRPCInferenceServiceServicer):
    """The service."""

    def __init__(self, state: State, model: Model, proxy: Proxy) -> None:
        self.state, self.model, self.proxy = state, model, proxy
        self.memory = Manager()
        self.calls: Counter[str] = Counter()
        self.released = asyncio.Event()
        self.late: set[asyncio.Task[None]] = set()
        self._gpu = asyncio.Lock()

    async def _begin(self, name: str, context: Any) -> Rule | None:
        """Count the call and do what a rule for any RPC says; the rule, if there is one."""
        self.calls[name] += 1
        self.memory.variant = self.state.variant
        rule = self.state.rule(name)
        if rule is None:
            return None
        if rule.fault == "hang":
            await self.released.wait()
        elif rule.fault == "delay":
            await asyncio.sleep(rule.ms / 1e3)
        elif rule.fault == "error":
            await asyncio.sleep(rule.ms / 1e3)
            await context.abort(C[rule.code], rule.text)
        return rule

    async def ServerLive(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("ServerLive", context)
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("ServerReady", context)
        return pb.ServerReadyResponse(ready=self.state.is_ready)

    async def ModelReady(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("ModelReady", context)
        is_ours = call.name == self.model.name
        return pb.ModelReadyResponse(ready=is_ours and self.state.is_ready)

    async def ServerMetadata(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("ServerMetadata", context)
        extensions = [
            "model_repository",
            "system_shared_memory",
            "cuda_shared_memory",
            "statistics",
        ]
        return pb.ServerMetadataResponse(
            name="triton", version=self.state.version, extensions=extensions
        )

    async def ModelMetadata(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("ModelMetadata", context)
        if call.name != self.model.name:
            text = f"Request for unknown model: '{call.name}' is not found"
            await context.abort(C.NOT_FOUND, text)
        told = pb.ModelMetadataResponse(name=call.name, versions=["1"], platform="python")
        told.inputs.add(name="image", datatype="UINT8", shape=[-1, *self.model.shape])
        told.inputs.add(name="nonce", datatype="INT64", shape=[-1, 1])
        told.outputs.add(name="score", datatype="FP32", shape=[-1, 1])
        told.outputs.add(name="nonce_echo", datatype="INT64", shape=[-1, 1])
        return told

    async def ModelStatistics(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("ModelStatistics", context)
        if call.name not in ("", self.model.name):
            text = f"requested model '{call.name}' is not available"
            await context.abort(C.INVALID_ARGUMENT, text)
        told = pb.ModelStatisticsResponse()
        told.model_stats.add(
            name=self.model.name,
            version="1",
            inference_count=self.model.inferences,
            execution_count=self.model.executions,
        )
        return told

    async def SystemSharedMemoryRegister(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("SystemSharedMemoryRegister", context)
        try:
            self.memory.register(call.name, call.key, call.offset, call.byte_size)
        except Refused as no:
            await context.abort(no.code, no.text)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("SystemSharedMemoryUnregister", context)
        try:
            self.memory.unregister(call.name)
        except Refused as no:
            await context.abort(no.code, no.text)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def SystemSharedMemoryStatus(self, call: Any, context: Any) -> Any:  # noqa: N802
        await self._begin("SystemSharedMemoryStatus", context)
        try:
            found = self.memory.status(call.name)
        except Refused as no:
            await context.abort(no.code, no.text)
        told = pb.SystemSharedMemoryStatusResponse()
        for region in found:
            one = told.regions[region.name]
            one.name, one.key, one.byte_size = region.name, region.key, region.byte_size
            one.offset = region.offset
        return told

    async def ModelInfer(self, call: Any, context: Any) -> Any:  # noqa: N802
        rule = await self._begin("ModelInfer", context)
        try:
            job = job_of(call, self.model, self.memory)
        except Refused as no:
            await context.abort(no.code, no.text)
        # The execution goes on whatever becomes of the call, as the server's does.
        work = asyncio.ensure_future(self._execute(job, rule))
        self.late.add(work)
        work.add_done_callback(self.late.discard)
        if rule is not None and rule.fault == "late_write":
            await asyncio.sleep(rule.ms / 1e3)
        else:
            try:
                await asyncio.shield(work)
            except Refused as no:
                await context.abort(no.code, no.text)
        if rule is not None and rule.fault == "frozen":
            await asyncio.sleep(GONE)
        told = pb.ModelInferResponse(model_name=call.model_name, model_version="1", id=call.id)
        told.outputs.add(name="score", datatype="FP32", shape=[job.rows, 1])
        told.outputs.add(name="nonce_echo", datatype="INT64", shape=[job.rows, 1])
        return told

    async def _execute(self, job: Job, rule: Rule | None) -> None:
        self.memory.use(job.regions)
        try:
            async with self._gpu:
                end_s = time.monotonic() + self._hold_s(job, rule)
                job.read()
                outputs = await asyncio.to_thread(job.compute, rule)
                await asyncio.sleep(max(0.0, end_s - time.monotonic()))
            self.model.executions += 1
            self.model.inferences += job.rows
            if rule is not None and rule.fault == "late_write":
                await asyncio.sleep(2 * rule.ms / 1e3)
            if rule is None or rule.fault not in ("no_write", "reset"):
                job.write(outputs)
            if rule is not None and rule.fault == "reset":
                self.proxy.reset()
        finally:
            self.memory.leave(job.regions)

    def _hold_s(self, job: Job, rule: Rule | None) -> float:
        hold_ms = self.state.hold_ms + self.state.hold_row_ms * job.rows
        if rule is not None and rule.fault == "decay":
            hold_ms += rule.ms * rule.calls
        return hold_ms / 1e3

    def tell(self, told: dict[str, Any]) -> dict[str, Any]:
        """One message of the test, and the answer."""
        match told.pop("do", "set"):
            case "set":
                self.state.tell(told)
            case "release":
                self.released.set()
                self.released = asyncio.Event()
            case "reset":
                self.proxy.reset()
            case "silence":
                self.proxy.silence(told["is_silent"])
            case "goaway":
                self.proxy.goaway(told["code"], told["last_stream"], told["text"])
        return {
            "calls": dict(self.calls),
            "regions": {name: region.key for name, region in self.memory.regions.items()},
            "accepted": self.proxy.accepted,
            "executions": self.model.executions,
        }


async def serve(port: int, folder: Path, model: Model) -> None:
    """Run until killed."""
    proxy = Proxy(str(folder / "grpc"))
    triton = Triton(State(), model, proxy)
    server = grpc.aio.server(
        options=[
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", 1000),
            ("grpc.http2.max_ping_strikes", 0),
        ]
    )
    rpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    server.add_insecure_port(f"unix:{folder}/grpc")
    await server.start()

    async def told(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while line := await reader.readline():
                try:
                    answer = triton.tell(json.loads(line))
                except Exception as error:
                    answer = {"error": repr(error)}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()

    await asyncio.start_unix_server(told, str(folder / "control"))
    await proxy.listen(port)
    print("fake ready", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """`server.py --port N --folder DIR --model NAME --onnx FILE --batch-max N`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--batch-max", type=int, required=True)
    told = parser.parse_args()
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)  # ends with its test
    model = Model(told.model, told.onnx, told.batch_max)
    asyncio.run(serve(told.port, told.folder, model))


if __name__ == "__main__":
    main()
