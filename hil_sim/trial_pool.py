"""Real embedded Tritons for the trial of their own batcher: started, loaded in open loop, ended."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import tritonclient.grpc as triton

from appliance.plant import LineSection, ModelSection, Plant, PlantSection, PoolSection
from appliance.triton.repository import OwnBatcher
from appliance.triton.server import TritonServer
from deadline_batcher.profile import Profile, Provenance
from hil_sim.trial_plants import Part, TrialPlant
from hil_sim.triton_model import Front, Setting

MODEL_FILE = Path(__file__).resolve().parent.parent / "models" / "trial" / "brightest.onnx"
PICTURE = (8, 8, 3)
HELD = struct.Struct("<qqqqq")
LEAD_NS = 50_000_000
WARM_ROUNDS = 3
WARM_DEADLINE_NS = 60_000_000_000
QUEUE_MAX = 10_000
DRAIN_LIMIT_S = 20.0
CALL_LIMIT_S = 60.0


class TrialError(Exception):
    """The trial could not be measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Overhead:
    """What this host added to the emulated times, in nanoseconds over a run.

    held: GPUs held beyond the emulated time; inside: Triton's execution beyond that (the way to
    the stub and back); outside: from client to server and back, once a batch; late: sent after
    the planned instant, once a batch.
    """

    held_ns: int
    inside_ns: int
    outside_ns: int
    late_ns: int
    emulated_ns: int

    @property
    def share(self) -> float:
        """All of it as a share of the emulated time."""
        added_ns = self.held_ns + self.inside_ns + self.outside_ns + self.late_ns
        return added_ns / self.emulated_ns if self.emulated_ns else 0.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """One run at one load."""

    sent: int
    missed: int
    errors: int
    latest_ns: int
    """The latest answer after its deadline; negative is the least margin."""
    batches: int
    busy: float
    """Share of the GPUs' time that was emulated work."""
    overhead: Overhead


class TrialPool:
    """One Triton per GPU under one setting of its own batcher. Use as a context."""

    def __init__(self, plant: TrialPlant, setting: Setting, folder: Path) -> None:
        self.plant = plant
        self.setting = setting
        self._folder = folder
        self._ports = _free_ports(plant.gpus)
        self._servers: list[TritonServer] = []
        self._clients: list[Any] = []

    def __enter__(self) -> TrialPool:
        plant = self._plant_file()
        try:
            for slot in range(self.plant.gpus):
                server = TritonServer(plant, slot, own_batchers=self._own_batchers())
                self._servers.append(server)
                server.start()
            for server, port in zip(self._servers, self._ports, strict=True):
                server.wait_ready()
                self._clients.append(triton.InferenceServerClient(f"127.0.0.1:{port}"))
            self._warm_up()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.close()
        for server in self._servers:
            with contextlib.suppress(Exception):
                server.stop()

    def _warm_up(self) -> None:
        """Connections, and every model on every GPU a few times: none of it is measured."""
        space_ns = max(times[1] for times in wcet_of(self.plant).values())
        models = [one.name for one in self.plant.models] * WARM_ROUNDS
        parts = [
            Part(turn * space_ns, WARM_DEADLINE_NS, model, 1)
            for turn, model in enumerate(models)
            for _ in self._clients
        ]
        self.load(parts, len(self._clients), "round-robin", stop_at_miss=False)

    def _plant_file(self) -> Plant:
        models = [
            ModelSection(
                name=one.name,
                pool=str(MODEL_FILE),
                fallback=str(MODEL_FILE),
                profile=f"{one.name}.json",
                batch_max=min(one.batch_max, self.setting.cap),
            )
            for one in self.plant.models
        ]
        for one in self.plant.models:
            Profile(
                model=one.name,
                engine="pool",
                origin="emulated",
                margin=1.0,
                rule=f"{one.fixed_ms:g} ms + {one.part_ms:g} ms a part, {self.plant.stretch:g} x",
                wcet_ns=dict(enumerate(one.wcet_ns(self.plant.stretch), start=1)),
                provenance=Provenance(model_sha256="", device=self.plant.name, cores=1),
            ).save(self._folder / f"{one.name}.json")
        return Plant(
            plant=PlantSection(name="trial"),
            pool=PoolSection(
                endpoints=[f"grpc://127.0.0.1:{port}" for port in self._ports], embedded=True
            ),
            model=models,
            line=[
                LineSection(
                    id="line01",
                    model=models[0].name,
                    frames="tcp://127.0.0.1:1",
                    verdicts="tcp://127.0.0.1:2",
                    cycle_time_ms=100,
                    deadline_ms=150,
                )
            ],
            folder=self._folder,
        )

    def _own_batchers(self) -> dict[str, OwnBatcher]:
        plant, setting = self.plant, self.setting
        urgencies = {
            one.name: sorted({lines.urgency for lines in plant.lines if lines.model == one.name})
            for one in plant.models
        }
        several = len(plant.models) > 1
        return {
            one.name: OwnBatcher(
                delay_us=round(setting.delay_ms * plant.stretch * 1e3),
                levels=max(urgencies[one.name]) if setting.with_priorities else 0,
                among_models=urgencies[one.name][0] if setting.with_priorities and several else 0,
                queue_max=QUEUE_MAX if setting.with_queue_limit else 0,
                emulate=self._folder / f"{one.name}.json",
            )
            for one in plant.models
        }

    def load(
        self, parts: Sequence[Part], gpus: int, front: Front, stop_at_miss: bool = True
    ) -> Loaded:
        """Send the parts in open loop to the first `gpus` Tritons. Raises TrialError."""
        held_from = self._held_sizes()
        before = self._counters(gpus)
        sender = _Sender(self._clients[:gpus], self.plant, self.setting, front)
        began_ns = time.monotonic_ns()
        gc.collect()
        gc.disable()
        try:
            sender.send(parts, stop_at_miss)
        finally:
            gc.enable()
        took_ns = time.monotonic_ns() - began_ns
        held = self._held_since(held_from)
        after = self._counters(gpus)
        spent = [one - other for one, other in zip(after, before, strict=True)]
        return sender.outcome(held, spent, took_ns * gpus)

    def _held_logs(self) -> list[Path]:
        return [
            self._folder / "triton" / f"slot{slot}" / f"held-{model.name}.bin"
            for slot in range(self.plant.gpus)
            for model in self.plant.models
        ]

    def _held_sizes(self) -> list[int]:
        return [path.stat().st_size for path in self._held_logs()]

    def _held_since(self, sizes: Sequence[int]) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path, size in zip(self._held_logs(), sizes, strict=True):
            found += HELD.iter_unpack(path.read_bytes()[size:])
        return found

    def _counters(self, gpus: int) -> tuple[int, int, int]:
        """Parts answered, their time in the servers, and the executions' own time."""
        parts = served_ns = executed_ns = 0
        for client in self._clients[:gpus]:
            for one in client.get_inference_statistics().model_stats:
                parts += one.inference_stats.success.count
                served_ns += one.inference_stats.success.ns
                executed_ns += sum(
                    size.compute_input.ns + size.compute_infer.ns + size.compute_output.ns
                    for size in one.batch_stats
                )
        return parts, served_ns, executed_ns


class _Sender:
    """Sends in open loop: every part at its planned instant, whatever is still outstanding."""

    def __init__(
        self, clients: Sequence[Any], plant: TrialPlant, setting: Setting, front: Front
    ) -> None:
        self._clients = clients
        self._front = front
        self._with_priorities = setting.with_priorities
        weighs = front == "least-work"
        self._weight = {m: times[0] if weighs else 1 for m, times in wcet_of(plant).items()}
        self._outstanding = [0] * len(clients)
        self._image = triton.InferInput("image", [1, *PICTURE], "UINT8")
        self._image.set_data_from_numpy(np.full((1, *PICTURE), 51, np.uint8))
        self._nonce = triton.InferInput("nonce", [1, 1], "INT64")
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._answered = 0
        self._missed = 0
        self._errors: list[str] = []
        self._latest_ns = -(1 << 62)
        self._client_ns = 0
        self._late_ns = 0
        self._sent = 0

    def send(self, parts: Sequence[Part], stop_at_miss: bool) -> None:
        start_ns = time.monotonic_ns() + LEAD_NS
        count = len(self._clients)
        for number, part in enumerate(parts):
            planned_ns = start_ns + part.arrives_at_ns
            while (left_ns := planned_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / 1e9)
            if self._errors or (stop_at_miss and self._missed):
                break
            gpu = number % count
            if self._front != "round-robin":
                gpu = min(range(count), key=lambda n: (self._outstanding[n], (n - number) % count))
            self._send_one(gpu, number, part, planned_ns)
        self._drain()

    def _send_one(self, gpu: int, number: int, part: Part, planned_ns: int) -> None:
        weight = self._weight[part.model]
        with self._lock:
            self._outstanding[gpu] += weight
        self._sent += 1
        self._nonce.set_data_from_numpy(np.array([[number]], np.int64))
        sent_ns = time.monotonic_ns()
        self._late_ns += sent_ns - planned_ns

        def ended(result: Any, error: Any) -> None:
            done_ns = time.monotonic_ns()
            mistake = None if error is None else str(error)
            if mistake is None and int(result.as_numpy("nonce_echo")[0, 0]) != number:
                mistake = "an answer carries another part's nonce"
            after_due_ns = done_ns - planned_ns - part.deadline_ns
            with self._ended:
                self._outstanding[gpu] -= weight
                self._answered += 1
                self._client_ns += done_ns - sent_ns
                self._latest_ns = max(self._latest_ns, after_due_ns)
                self._missed += after_due_ns > 0
                if mistake is not None:
                    self._errors.append(mistake)
                self._ended.notify()

        self._clients[gpu].async_infer(
            part.model,
            [self._image, self._nonce],
            ended,
            priority=part.urgency if self._with_priorities else 0,
            client_timeout=CALL_LIMIT_S,
        )

    def _drain(self) -> None:
        end_s = time.monotonic() + DRAIN_LIMIT_S
        with self._ended:
            while self._answered < self._sent:
                if not self._ended.wait(end_s - time.monotonic()):
                    left = self._sent - self._answered
                    raise TrialError(f"{left} parts unanswered {DRAIN_LIMIT_S:g} s after the last")

    def outcome(
        self, held: Sequence[tuple[int, ...]], spent: Sequence[int], gpus_ns: int
    ) -> Loaded:
        if self._errors:
            raise TrialError(self._errors[0])
        parts, served_ns, executed_ns = spent
        if parts != self._sent:
            raise TrialError(f"{self._sent} parts sent, Triton counts {parts}")
        emulated_ns = sum(one[3] for one in held)
        batches = len(held)
        per_part = batches / max(1, self._sent)
        return Loaded(
            sent=self._sent,
            missed=self._missed,
            errors=0,
            latest_ns=self._latest_ns,
            batches=batches,
            busy=emulated_ns / gpus_ns,
            overhead=Overhead(
                held_ns=sum(one[2] - one[1] for one in held) - emulated_ns,
                inside_ns=executed_ns - sum(one[2] - one[0] for one in held),
                outside_ns=round((self._client_ns - served_ns) * per_part),
                late_ns=round(self._late_ns * per_part),
                emulated_ns=emulated_ns,
            ),
        )


def wcet_of(plant: TrialPlant) -> Mapping[str, tuple[int, ...]]:
    """Model name → stretched times of its batch sizes."""
    return {model.name: model.wcet_ns(plant.stretch) for model in plant.models}


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            one = held.enter_context(socket.socket())
            one.bind(("127.0.0.1", 0))
            found.append(int(one.getsockname()[1]))
        return found
