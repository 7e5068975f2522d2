"""The real `tritonserver` 2.51 as a unit: started, asked, killed and cleared away."""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper

from appliance.plant import Plant
from appliance.plant_errors import load_plant
from appliance.triton.restart import ask_restart, socket_path
from deadline_batcher.profile import Profile, Provenance

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
SHAPE = (8, 9, 3)
BATCH_MAX = 6
PLANT = """
[plant]
name = "bench"
[pool]
endpoints = ["grpc://127.0.0.1:{port}"]
embedded = true
{emulate}
[[model]]
name = "tile"
pool = "tile.onnx"
fallback = "tile.onnx"
profile = "p.json"
batch_max = 6
[[line]]
id = "line01"
model = "tile"
frames = "tcp://127.0.0.1:1"
verdicts = "tcp://127.0.0.1:2"
cycle_time_ms = 100
deadline_ms = 150
"""


def save_model(path: Path) -> None:
    """Score is the largest pixel; keeps the contract."""
    nodes = [
        helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["pixels", "axes"], ["largest"], keepdims=0),
        helper.make_node("Unsqueeze", ["largest", "one"], ["score"]),
        helper.make_node("Identity", ["nonce"], ["nonce_echo"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "tile",
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
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


@dataclass
class Bench:
    """A plant folder of one embedded server, and its unit once it runs."""

    plant: Plant
    port: int
    unit: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        plant_file = str(self.plant.folder / "plant.toml")
        with (self.plant.folder / "unit.log").open("w") as log:
            self.unit = subprocess.Popen(
                [sys.executable, "-m", "appliance.triton.server", "0", "--plant", plant_file],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        return self.unit

    def wait_ready(self) -> float:
        began = time.monotonic()
        while "ready on" not in self.log():
            assert self.unit is not None
            assert self.unit.poll() is None, self.log()
            assert time.monotonic() - began < 20, self.log()
            time.sleep(0.01)
        return time.monotonic() - began

    def log(self) -> str:
        return (self.plant.folder / "unit.log").read_text()

    def server(self) -> psutil.Process:
        assert self.unit is not None
        (server,) = psutil.Process(self.unit.pid).children()
        assert server.name() == "tritonserver"
        return server

    def traces(self) -> list[str]:
        """What is left of this plant: shared memory, processes, the port."""
        left = [path.name for path in Path("/dev/shm").glob(f"takt-{self.plant.tag}-*")]
        for process in psutil.process_iter(["cmdline"]):
            if f"takt-{self.plant.tag}-" in " ".join(process.info["cmdline"] or []):
                left.append(f"process {process.pid}")
        with socket.socket() as trial:
            if trial.connect_ex(("127.0.0.1", self.port)) == 0:
                left.append(f"port {self.port}")
        return left


def bench_in(folder: Path, *, wcet_ns: dict[int, int] | None = None) -> Bench:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    emulate = ""
    if wcet_ns is not None:
        emulate = 'emulate = "l4.json"'
        Profile(
            model="tile",
            engine="pool",
            origin="published",
            margin=1.0,
            rule="as published",
            wcet_ns=wcet_ns,
            provenance=Provenance(model_sha256="", device="L4", cores=1),
        ).save(folder / "l4.json")
    save_model(folder / "tile.onnx")
    (folder / "plant.toml").write_text(PLANT.format(port=port, emulate=emulate))
    return Bench(load_plant(folder / "plant.toml"), port)


def ended(bench: Bench) -> None:
    if bench.unit is not None and bench.unit.poll() is None:
        bench.unit.terminate()
        bench.unit.wait(5)


def cleared(bench: Bench) -> None:
    """A test that failed half-way must not leave its region to the next."""
    ended(bench)
    for path in Path("/dev/shm").glob(f"takt-{bench.plant.tag}-*"):
        path.unlink(missing_ok=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = bench_in(tmp_path)
    yield made
    cleared(made)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A server that holds each batch for 12 ms and 6 ms a row."""
    wcet_ns = {size: (12 + 6 * size) * 1_000_000 for size in range(1, BATCH_MAX + 1)}
    made = bench_in(tmp_path_factory.mktemp("running"), wcet_ns=wcet_ns)
    made.start()
    made.wait_ready()
    yield made
    cleared(made)


@pytest.fixture(scope="module")
def client(running: Bench) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
    yield made
    made.close()


def infer(client: triton.InferenceServerClient, rows: int, seed: int) -> tuple[int, int]:
    """One batch with tensors in the message, every row checked; start and end of the call."""
    draw = np.random.default_rng(seed)
    image = draw.integers(0, 200, [rows, *SHAPE], np.uint8)
    nonce = draw.integers(0, 2**62, [rows, 1], np.int64)
    inputs = [
        triton.InferInput("image", image.shape, "UINT8"),
        triton.InferInput("nonce", nonce.shape, "INT64"),
    ]
    inputs[0].set_data_from_numpy(image)
    inputs[1].set_data_from_numpy(nonce)
    began_ns = time.monotonic_ns()
    result = client.infer("tile", inputs, client_timeout=5)
    ended_ns = time.monotonic_ns()
    assert np.array_equal(result.as_numpy("nonce_echo"), nonce)
    assert np.array_equal(result.as_numpy("score")[:, 0], image.reshape(rows, -1).max(axis=1))
    return began_ns, ended_ns


def test_it_is_ready_soon_and_leaves_nothing(bench: Bench) -> None:
    unit = bench.start()
    assert bench.wait_ready() < 10
    assert len(bench.traces()) == 4, "one region, server, stub and port: the check can see them"
    began = time.monotonic()
    unit.send_signal(signal.SIGTERM)
    assert unit.wait(5) == 0
    assert time.monotonic() - began < 1.0
    assert bench.traces() == []


def test_it_listens_on_loopback_alone(running: Bench) -> None:
    listening = [c.laddr for c in running.server().net_connections() if c.status == "LISTEN"]
    assert [(where.ip.removeprefix("::ffff:"), where.port) for where in listening] == [
        ("127.0.0.1", running.port)
    ]


def test_every_batch_size_gives_every_row_its_own(client: triton.InferenceServerClient) -> None:
    assert client.get_server_metadata().version == "2.51.0"
    # Up, down and mixed: a row beyond the first that is wrong shows after a larger batch.
    sizes = [*range(1, BATCH_MAX + 1), *range(BATCH_MAX, 0, -1), 6, 2, 6, 1]
    for seed, rows in enumerate(sizes):
        infer(client, rows, seed)


def test_a_batch_beyond_the_cap_is_refused(client: triton.InferenceServerClient) -> None:
    with pytest.raises(triton.InferenceServerException, match="batch-size must be <= 6"):
        infer(client, BATCH_MAX + 1, 0)
    infer(client, 1, 0)


@pytest.mark.parametrize("rows", [1, 3, BATCH_MAX])
def test_emulation_holds_a_batch_for_the_profile_s_time(
    client: triton.InferenceServerClient, rows: int
) -> None:
    took_ms = []
    for seed in range(21):
        began_ns, ended_ns = infer(client, rows, seed)
        took_ms.append((ended_ns - began_ns) / 1e6)
    profile_ms = 12 + 6 * rows
    assert min(took_ms) >= profile_ms
    assert statistics.median(took_ms) < profile_ms + 15


def test_a_port_in_use_is_a_clear_error(bench: Bench) -> None:
    with socket.create_server(("127.0.0.1", bench.port)):
        assert bench.start().wait(20) == 1
    assert f"triton-0: 127.0.0.1:{bench.port} is in use by " in bench.log()
    assert f"(process {os.getpid()}); stop it or change the port" in bench.log()


def test_the_same_slot_twice_is_refused(running: Bench) -> None:
    second = subprocess.run(
        [*psutil.Process(running.unit.pid if running.unit else 0).cmdline()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 1
    assert "triton-0 of this plant runs already" in second.stderr
    assert running.server().is_running()


@pytest.mark.parametrize("victim", ["tritonserver", "triton_python_backend_stub"])
def test_a_killed_process_of_the_server_ends_the_unit(bench: Bench, victim: str) -> None:
    unit = bench.start()
    bench.wait_ready()
    family = [bench.server(), *bench.server().children()]
    # The kernel keeps fifteen letters of a name.
    (dying,) = [one for one in family if victim.startswith(one.name()[:15])]
    began = time.monotonic()
    dying.kill()
    assert unit.wait(5) == 1
    assert time.monotonic() - began < 1.0
    assert f"(process {dying.pid}) died; ending" in bench.log()
    assert bench.traces() == []


def test_a_unit_that_is_asked_for_a_new_start_ends(bench: Bench) -> None:
    where = socket_path(bench.plant.path(bench.plant.paths.runtime), 0)
    assert not ask_restart(where, "too early"), "nobody listens before the server is ready"
    unit = bench.start()
    bench.wait_ready()
    until_bound = time.monotonic() + 5
    while not where.exists():
        assert time.monotonic() < until_bound
        time.sleep(0.01)
    assert ask_restart(where, "goldens fail")
    assert unit.wait(5) == 1
    assert "a new start is wanted (goldens fail); ending" in bench.log()
    assert bench.traces() == []
    assert not where.exists()


def test_what_a_killed_unit_leaves_is_cleared_by_the_next(bench: Bench) -> None:
    unit = bench.start()
    bench.wait_ready()
    server = bench.server()
    (region,) = Path("/dev/shm").glob(f"takt-{bench.plant.tag}-*")
    unit.kill()
    unit.wait(5)
    server.wait(5)
    assert region.exists(), "the kernel ends the server with its unit, its region stays"
    bench.start()
    bench.wait_ready()
    assert not region.exists()
    ended(bench)
    assert bench.traces() == []


def test_a_model_that_cannot_start_ends_the_unit(bench: Bench) -> None:
    (bench.plant.folder / "tile.onnx").write_bytes(b"not a model")
    assert bench.start().wait(20) == 1
    assert "tile.onnx is not a usable ONNX model" in bench.log()
    assert bench.traces() == []
