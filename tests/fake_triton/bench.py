"""The appliance's own Batcher and Endpoints against fakes, with one line that knows the truth."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import zmq
from onnx import TensorProto, helper

from appliance.batcher import Batcher
from appliance.batcher_settings import BatcherSettings, Rescoring
from appliance.rescore import Rescorer
from appliance.triton.endpoint import Server
from appliance.triton.goldens import Goldens
from appliance.triton.news import ServedModel
from appliance.triton.restart import RestartSocket, ask_restart, socket_path
from appliance.triton.standing import Patience
from deadline_batcher import link
from deadline_batcher.plan import Category, Plan
from deadline_batcher.shedding import SHARE_ONE, ShedPlan
from deadline_batcher.shm import Segment, new_name
from deadline_batcher.sizing.load import Load, SizedCategory, Stream
from fake_triton.rig import FakeTriton
from lines.slots import SlotWriter, slot_stride

MS = 1_000_000
SHAPE = (24, 24, 1)
PICTURE_BYTES = 24 * 24
BATCH_MAX = 4
SLOTS = 64
TOLERANCE = 1e-3
EAGER = Patience(
    free_losses=1_000_000,
    failing_ns=2_000_000_000,
    readmit_ns=1_000_000_000,
    golden_limit_ns=2_000_000_000,
)
"""No back-off and a short proof: a test of what is done, not of how long it takes."""


def save_model(path: Path) -> None:
    """The score is the mean pixel, from 0 to 1: anybody can say what is right."""
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["pixels", "axes"], ["mean"], keepdims=0),
        helper.make_node("Div", ["mean", "most"], ["share"]),
        helper.make_node("Unsqueeze", ["share", "one"], ["score"]),
        helper.make_node("Identity", ["nonce"], ["nonce_echo"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mean",
        [
            value("image", TensorProto.UINT8, ["batch", *SHAPE]),
            value("nonce", TensorProto.INT64, ["batch", 1]),
        ],
        [
            value("score", TensorProto.FLOAT, ["batch", 1]),
            value("nonce_echo", TensorProto.INT64, ["batch", 1]),
        ],
        [
            helper.make_tensor("axes", TensorProto.INT64, [3], [1, 2, 3]),
            helper.make_tensor("one", TensorProto.INT64, [1], [1]),
            helper.make_tensor("most", TensorProto.FLOAT, [], [255.0]),
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    helper.set_model_props(model, {"takt.threshold": "0.5", "takt.name": "mean"})
    onnx.save(model, path)


def unshedding(plan: Plan, gpus: int) -> ShedPlan:
    """One slow line on a pool that could carry many: nothing is ever shed."""
    category = plan.categories[0]
    second_ns = 1000 * MS
    stream = Stream("line01", 0, second_ns, second_ns, second_ns, MS, 1)
    sized = SizedCategory(category.name, category.wcet_ns, category.window_ns)
    return ShedPlan(
        load=Load((sized,), (stream,), plan.timer_ns, category.wcet_ns[0]),
        tests=(),
        capacity=tuple(1000 * SHARE_ONE * count for count in range(gpus + 1)),
        rate_window_ns=second_ns,
        rate_margin_permille=50,
        peak_hold_ns=second_ns,
        suspect_ns=second_ns,
        return_after_ns=second_ns,
        return_step_ns=second_ns,
    )


@dataclass
class Part:
    """A part of the line: what is right, and how it ended."""

    number: int
    slot: int
    generation: int
    nonce: int
    truth: float
    due_at_ns: int
    offered_at_ns: int
    ended: str = ""  # right, wrong, foreign, refused REASON, due
    gpu: int = -1
    ended_at_ns: int = 0
    batch_size: int = 0


class Line:
    """Offers parts at a rate and judges every answer, on a thread of its own."""

    def __init__(
        self, context: Any, endpoint: str, tag: str, rate: float, budget_ms: float
    ) -> None:
        self.parts: list[Part] = []
        self.rate = rate
        self.burst = 3  # parts at one instant, so that batches of several are usual
        self._budget_ns = round(budget_ms * MS)
        self._endpoint, self._context = endpoint, context
        name = new_name(tag, "line")
        self._segment = Segment.create(name, SLOTS * slot_stride(PICTURE_BYTES))
        self._slots = SlotWriter(self._segment, SLOTS, PICTURE_BYTES)
        self._ending = threading.Event()
        self.trouble: BaseException | None = None
        self._open: dict[int, Part] = {}
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop offering; wait until every part has ended."""
        self._ending.set()
        self._thread.join(10)
        self._segment.unlink()
        if self.trouble is not None:
            raise self.trouble

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.trouble = error

    def _run(self) -> None:
        socket = self._context.socket(zmq.DEALER)
        socket.set(zmq.ROUTING_ID, b"line01")
        socket.set(zmq.LINGER, 0)
        socket.connect(self._endpoint)
        hello = link.Hello(
            line="line01", model="mean", segment=self._segment.name,
            slot_count=SLOTS, slot_bytes=PICTURE_BYTES,
        )  # fmt: skip
        socket.send(link.pack_hello(hello))
        next_s = time.monotonic()
        draw = np.random.default_rng(5)
        while not self._ending.is_set() or self._open:
            if socket.poll(max(0, min(5, 1e3 * (next_s - time.monotonic())))):
                self._take(link.unpack(socket.recv()), socket, hello)
            now_ns = time.monotonic_ns()
            for part in [one for one in self._open.values() if one.due_at_ns <= now_ns]:
                socket.send(link.pack(link.Withdrawn(part.number)))
                self._end(part, "due", now_ns)
            if time.monotonic() >= next_s and not self._ending.is_set() and self.rate:
                next_s = max(next_s + 1 / self.rate, time.monotonic() - 0.05)
                for _ in range(self.burst):
                    self._offer(socket, draw, now_ns)
        socket.close()

    def _offer(self, socket: Any, draw: np.random.Generator, now_ns: int) -> None:
        slot = self._slots.take()
        if slot is None:
            return
        base = int(draw.integers(20, 236))
        picture = draw.integers(base - 15, base + 16, PICTURE_BYTES).astype(np.uint8)
        nonce = int(draw.integers(0, 2**62))
        generation = self._slots.write(slot, picture, nonce)
        number = len(self.parts) + 1
        truth = float(picture.mean()) / 255
        due_at_ns = now_ns + self._budget_ns
        part = Part(number, slot, generation, nonce, truth, due_at_ns, now_ns)
        self.parts.append(part)
        self._open[number] = part
        told = link.Part(number, slot, generation, nonce, now_ns, due_at_ns, due_at_ns + 100 * MS)
        socket.send(link.pack(told))

    def _take(self, message: Any, socket: Any, hello: link.Hello) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(message, link.Who):
            socket.send(link.pack_hello(hello))
        elif isinstance(message, link.Refused):
            part = self._open.get(message.part)
            if part is not None:
                self._end(part, f"refused {link.REFUSALS[message.reason]}", now_ns)
        elif isinstance(message, link.Result):
            part = self._open.get(message.part)
            if part is None:
                known = self.parts[message.part - 1]
                assert known.ended == "due", f"answered twice: {known}"
                return
            part.gpu, part.batch_size = message.gpu, message.batch_size
            if (message.nonce_echo, message.generation) != (part.nonce, part.generation):
                self._end(part, "foreign", now_ns)
            else:
                is_right = abs(message.score - part.truth) <= TOLERANCE
                self._end(part, "right" if is_right else "wrong", now_ns)

    def _end(self, part: Part, how: str, now_ns: int) -> None:
        part.ended, part.ended_at_ns = how, now_ns
        del self._open[part.number]
        self._slots.release(part.slot)


class Journal:
    """Takes what the batcher records and acknowledges it."""

    def __init__(self, context: Any, endpoint: str) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {"batches": [], "events": [], "triton": []}
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(endpoint)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            if self._socket.poll(20):
                who, _, batch_id, payload = self._socket.recv_multipart()
                told = json.loads(payload)
                for name in self.rows:
                    self.rows[name] += told.get(name, [])
                self._socket.send_multipart([who, b"A", batch_id])
        self._socket.close()

    def close(self) -> None:
        """End the thread."""
        self._ending.set()
        self._thread.join(5)


class Pool:
    """Fakes, a Batcher on them, a line. Use as a context; everything is started by then."""

    def __init__(
        self,
        gpus: int = 2,
        *,
        rate: float = 10.0,
        budget_ms: float = 1200.0,
        hold_ms: tuple[float, float] = (8.0, 2.0),
        wcet_ms: tuple[float, float] = (150.0, 10.0),
        grace_ms: float = 250.0,
        patience: Patience = EAGER,
        version: str = "2.51",
        permille: int = 0,
        **more: Any,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="bn-"))
        self.tag = f"{abs(hash(self.folder)) % 2**32:08x}"
        save_model(self.folder / "mean.onnx")
        self.model = ServedModel("mean", BATCH_MAX, Goldens(self.folder / "mean.onnx"))
        self.fakes = [FakeTriton("mean", self.folder / "mean.onnx", BATCH_MAX) for _ in range(gpus)]
        self.hold_ms = hold_ms
        self.restarts: list[tuple[int, str, int]] = []  # gpu, why, at_ns
        self._rate, self._budget_ms = rate, budget_ms
        wcet_ns = tuple(
            round((wcet_ms[0] + wcet_ms[1] * rows) * MS) for rows in range(1, BATCH_MAX + 1)
        )
        plan = Plan(
            (Category("mean", wcet_ns, 30 * MS),),
            gpus,
            result_ns=5 * MS,
            timer_ns=5 * MS,
            grace_ns=round(grace_ms * MS),
            waiting_max=256,
        )
        self.settings = BatcherSettings(
            plan=plan,
            shed=unshedding(plan, gpus),
            plant_tag=self.tag,
            lines=("line01",),
            models=(self.model,),
            servers=tuple(
                Server(fake.url, version, partial(ask_restart, socket_path(self.folder, gpu)))
                for gpu, fake in enumerate(self.fakes)
            ),
            link_endpoint=f"ipc://{self.folder}/b.sock",
            journal_endpoint=f"ipc://{self.folder}/j.sock",
            journal_backlog_s=60,
            event_journal=self.folder / "events.jsonl",
            event_journal_bytes_max=1 << 26,
            rescore=Rescoring(f"ipc://{self.folder}/r.sock", permille, 0.01),
            patience=patience,
            **more,
        )  # fmt: skip
        self._context: Any = zmq.Context()
        self._ending = threading.Event()

    def __enter__(self) -> Pool:
        for gpu, fake in enumerate(self.fakes):
            fake.start()
            self.calm(gpu)
        self._rescorer = Rescorer(self.settings.rescore.endpoint, [self.folder / "mean.onnx"])
        self._rescoring = threading.Thread(target=self._rescorer.run, daemon=True)
        self._rescoring.start()
        self.journal = Journal(self._context, self.settings.journal_endpoint)
        self.batcher = Batcher(self.settings)
        self._thread = threading.Thread(target=self.batcher.run, args=(lambda: None,), daemon=True)
        self._thread.start()
        self._units = [
            threading.Thread(target=self._unit, args=(gpu,), daemon=True)
            for gpu in range(len(self.fakes))
        ]
        for unit in self._units:
            unit.start()
        self.line = Line(
            self._context, self.settings.link_endpoint, self.tag, self._rate, self._budget_ms
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        try:
            self.line.close()
        finally:
            self.batcher.stop()
            self._thread.join(10)
            self._rescorer.stop()
            self._rescoring.join(5)
            self.journal.close()
            for unit in self._units:
                unit.join(5)
            for fake in self.fakes:
                fake.__exit__()
            self._context.destroy(0)
            shutil.rmtree(self.folder, ignore_errors=True)

    def calm(self, gpu: int) -> None:
        """The GPU's usual times."""
        self.fakes[gpu].say(hold_ms=self.hold_ms[0], hold_row_ms=self.hold_ms[1])

    def _unit(self, gpu: int) -> None:
        """What `takt triton N` does when it is asked: the server is killed and started anew."""
        while not self._ending.is_set():
            with RestartSocket(socket_path(self.folder, gpu)) as asked:
                while (why := asked.asked()) is None and not self._ending.is_set():
                    time.sleep(0.02)
            if why is not None:
                self.restarts.append((gpu, why, time.monotonic_ns()))
                self.fakes[gpu].kill()
                self.fakes[gpu].start()
                self.calm(gpu)

    # --- looking ----------------------------------------------------------------------------

    def events(self, kind: str, gpu: int | None = None) -> list[dict[str, Any]]:
        """The events of a kind (of a GPU) so far."""
        return [
            row
            for row in list(self.journal.rows["events"])
            if row["kind"] == kind and (gpu is None or row["subject"] == f"gpu{gpu}")
        ]

    def states(self) -> Sequence[str]:
        """The scheduler's states of the GPUs."""
        return self.batcher._core.snapshot().gpu_states

    def endings(self, since: int = 0) -> dict[str, int]:
        """How parts have ended, those after `since`."""
        counted: dict[str, int] = {}
        for part in self.line.parts[since:]:
            if part.ended:
                counted[part.ended] = counted.get(part.ended, 0) + 1
        return counted
