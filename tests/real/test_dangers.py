"""The most dangerous things a Triton does, seen from outside: against one that can be told to.

Each of these was met in the field (see docs/reliability.md) and goes unnoticed until a wrong part
has passed. The tests ask only what must be true, of the appliance's own client and processes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_triton.rig import FakeTriton
from plant_rig import Rig
from plant_wire import until

from appliance.triton.client import CallFailed, TritonClient
from appliance.triton.region import Region
from deadline_batcher.shm import SHM_FOLDER
from hil_sim.demo_plant import MODEL

pytestmark = pytest.mark.real

ONNX = Path(__file__).resolve().parents[2] / "models" / f"{MODEL}.onnx"
TAG = "0dd0c0de"
SHAPE = (224, 224, 1)
PICTURE_BYTES = 224 * 224
CONTROL_MOST_S = 8.0
"""Far above what any control call may take, far below a wait for ever."""


@pytest.fixture
def fake() -> Iterator[FakeTriton]:
    with FakeTriton(MODEL, ONNX, 4) as made:
        yield made
    for path in SHM_FOLDER.glob(f"takt-{TAG}-*"):
        path.unlink()


def region_of(name: str | None = None) -> Region:
    made = Region(TAG, 0, 2, 4, PICTURE_BYTES)
    if name is not None:
        (SHM_FOLDER / made.name).rename(SHM_FOLDER / name)
        made.name = name
    return made


def within(limit_s: float, work: Callable[[], Any]) -> Any:
    """What `work` raised, or its value; fails if it does not end at all."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    assert outcome, f"waits for ever: {work} has not ended after {limit_s:g} s"
    return outcome[0]


def test_a_region_made_anew_under_its_old_name_is_never_taken_for_registered(
    fake: FakeTriton,
) -> None:
    """The server would go on reading the pages of the old one: healthy, fast, and wrong."""
    client = TritonClient(fake.url)
    old = region_of()
    client.register(old)
    (SHM_FOLDER / old.name).unlink()
    new = region_of(old.name)
    with pytest.raises(CallFailed):
        client.register(new)


@pytest.mark.parametrize("rpc", ["SystemSharedMemoryRegister", "ServerMetadata"])
def test_a_server_that_hangs_holds_no_control_call(fake: FakeTriton, rpc: str) -> None:
    client, region = TritonClient(fake.url), region_of()
    fake.rule(rpc, "hang")
    call = client.version if rpc == "ServerMetadata" else lambda: client.register(region)
    assert isinstance(within(CONTROL_MOST_S, call), CallFailed)
    fake.behave(rpc)
    within(CONTROL_MOST_S, call)


def test_a_slow_inference_is_waited_for_and_never_cut_short(fake: FakeTriton) -> None:
    """Calls cancelled by a tight limit crashed servers before #8078: ours ends long after `due`."""
    client, region = TritonClient(fake.url), region_of()
    client.register(region)
    fake.rule("ModelInfer", "delay", ms=2500)
    ended, answers = threading.Event(), []

    def on_answer(failure: object) -> None:
        answers.append(failure)
        ended.set()

    client.infer(MODEL, region, 0, 1, SHAPE, on_answer)
    assert ended.wait(20)
    assert answers == [None], "the call was cut short while the server worked on it"


def test_a_server_that_says_ready_and_answers_nothing_gets_no_part(tmp_path: Path) -> None:
    """Triton says ready with a dead stub behind it; only an inference shows that it works."""
    with Rig(tmp_path, lines=1, deadline_ms=600) as rig:
        port = int(rig.plant.pool.endpoints[0].rpartition(":")[2])
        with FakeTriton(MODEL, ONNX, 4, port=port) as fake:
            fake.rule("ModelInfer", "hang")
            rig.start("journal", "batcher", "line-line01")
            gate = rig.actuator("line01")
            load = rig.load("line01", 5.0)
            until(lambda: fake.say()["calls"].get("ModelInfer"), 30, "an inference as a proof")
            load.grown(8)
            assert rig.events("gpu.ready") == [], "believed a server that never answered"
            load.close()
            rows = until(lambda: rig.query("select * from parts"), 10)
            assert {row["answered_by"] for row in rows} == {"fallback"}
            # Once it does answer, it is let in.
            fake.behave()
            until(lambda: rig.events("gpu.ready"), 60, "in the pool once it answers")
            gate.close()
            rig.stop("line-line01", "batcher")
