"""The supervisor with real children: tiny programs that die, hang, flood and leave a mess."""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from appliance.plant import (
    LimitsSection,
    LineSection,
    ModelSection,
    Plant,
    PlantSection,
    PoolSection,
)
from appliance.supervisor import Supervisor, SupervisorError
from appliance.units import Unit, plant_units
from lines.ledger import Ledger

SLEEPS = "import time; time.sleep(60)"
STUBBORN = (
    "import signal,subprocess,sys,time;"
    "signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], process_group=0);"
    "print('up', flush=True);"
    "time.sleep(60)"
)
Start = Callable[..., tuple[Supervisor, "queue.Queue[tuple[str, str, str]]"]]


def free_port() -> int:
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    return Plant(
        plant=PlantSection(name="bench"),
        pool=PoolSection(endpoints=[f"grpc://127.0.0.1:{free_port()}"], embedded=True),
        limits=LimitsSection(log_bytes_max=64 * 1024, log_files_max=3),
        model=[ModelSection(name="m", pool="m.onnx", fallback="f.onnx", profile="p.json")],
        line=[
            LineSection(
                id="line01",
                model="m",
                frames=f"tcp://127.0.0.1:{free_port()}",
                verdicts=f"tcp://127.0.0.1:{free_port()}",
                cycle_time_ms=100,
                deadline_ms=150,
            )
        ],
        folder=tmp_path,
    )


def program(name: str, text: str, stage: int = 0, backoff_s: float = 0.05) -> Unit:
    return Unit(name, [sys.executable, "-c", text], backoff_s, backoff_s * 4, stage)


@pytest.fixture
def start(plant: Plant) -> Iterator[Start]:
    running: list[Supervisor] = []

    def started(*units: Unit) -> tuple[Supervisor, queue.Queue[tuple[str, str, str]]]:
        events: queue.Queue[tuple[str, str, str]] = queue.Queue()
        supervisor = Supervisor(
            plant,
            plant.folder / "plant.toml",
            units=units,
            on_event=lambda *event: events.put(event),
        )
        running.append(supervisor)
        supervisor.start()
        return supervisor, events

    yield started
    for supervisor in running:
        supervisor.stop(purge=True)


def wait_for(events: queue.Queue[tuple[str, str, str]], unit: str, kind: str) -> str:
    """The detail of the next such event. Fails after 10 s."""
    end = time.monotonic() + 10
    while True:
        event = events.get(timeout=max(0.01, end - time.monotonic()))
        if event[:2] == (unit, kind):
            return event[2]


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end, "what the test waits for did not happen within 10 s"
        time.sleep(0.01)


def log_of(plant: Plant, unit: str) -> str:
    return (plant.folder / "logs" / f"{unit}.log").read_text()


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def pid_in(detail: str) -> int:
    return int(detail.split()[1].rstrip(";"))


def test_a_dead_unit_is_restarted_and_its_last_words_are_kept(plant: Plant, start: Start) -> None:
    _, events = start(program("batcher", "print('last words'); raise SystemExit(7)"))
    assert wait_for(events, "batcher", "started").startswith("process ")
    assert wait_for(events, "batcher", "died").startswith("exit 7 after ")
    wait_for(events, "batcher", "restarted")
    wait_for(events, "batcher", "died")
    assert log_of(plant, "batcher").count("last words\n") == 2
    assert "batcher died: exit 7" in log_of(plant, "run")


def test_back_off_doubles_to_its_maximum(start: Start) -> None:
    _, events = start(program("triton-0", "raise SystemExit(1)", backoff_s=0.02))
    said = [wait_for(events, "triton-0", "died").rpartition("again in ")[2] for _ in range(5)]
    assert said == ["0.02 s", "0.04 s", "0.08 s", "0.08 s", "0.08 s"]


def test_a_unit_starts_in_a_session_of_its_own_without_a_terminal(
    plant: Plant, start: Start
) -> None:
    text = (
        "import os,sys,time\nassert sys.stdin.read() == ''\n"
        "assert os.getsid(0) == os.getpid() == os.getpgid(0)\nprint('so it is', flush=True)\n"
        "time.sleep(60)"
    )
    supervisor, _ = start(program("journal", text))
    wait_until(lambda: "so it is" in log_of(plant, "journal"))
    assert supervisor.alive() == {"journal": True}


def test_what_a_dead_unit_had_started_is_ended_with_it(start: Start) -> None:
    supervisor, events = start(program("line-a", STUBBORN))
    leader = psutil.Process(pid_in(wait_for(events, "line-a", "started")))
    wait_until(lambda: len(leader.children()) == 1)
    child = leader.children()[0].pid
    leader.kill()
    wait_for(events, "line-a", "died")
    assert not lives(child)
    supervisor.stop()


@pytest.mark.slow
def test_stop_kills_what_does_not_listen_within_two_seconds(plant: Plant, start: Start) -> None:
    supervisor, events = start(
        program("line-a", STUBBORN), program("batcher", STUBBORN, 1), program("journal", SLEEPS, 2)
    )
    pids = [pid_in(wait_for(events, name, "started")) for name in ("line-a", "batcher", "journal")]
    wait_until(lambda: "up" in log_of(plant, "line-a") and "up" in log_of(plant, "batcher"))
    family = [child.pid for pid in pids for child in psutil.Process(pid).children()]
    assert len(family) == 2
    began = time.monotonic()
    supervisor.stop()
    assert time.monotonic() - began < 2.0
    assert [pid for pid in pids + family if lives(pid)] == []


def test_stop_ends_lines_before_the_journal(plant: Plant, start: Start) -> None:
    polite = (
        "import signal,sys,time;signal.signal(signal.SIGTERM,lambda *a:sys.exit(0));"
        "print('up',flush=True);time.sleep(60)"
    )
    names = {"journal": 2, "batcher": 1, "line-a": 0}
    supervisor, events = start(*(program(name, polite, stage) for name, stage in names.items()))
    for name in names:
        wait_until(lambda name=name: "up" in log_of(plant, name))  # type: ignore[misc]
    supervisor.stop()
    ended = [unit for unit, kind, _ in iter_queue(events) if kind == "ended"]
    assert ended == ["line-a", "batcher", "journal"]


def iter_queue(events: queue.Queue[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    while not events.empty():
        yield events.get()


def test_children_die_with_a_killed_supervisor(tmp_path: Path) -> None:
    text = (
        "import subprocess,sys,time\n"
        "from appliance.processes import tied\n"
        "child = subprocess.Popen(tied([sys.executable, '-c', 'import time; time.sleep(60)']))\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    root = Path(__file__).resolve().parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, cwd=root
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.1)
        assert lives(child)
        parent.kill()
    wait_until(lambda: not lives(child))


def test_kill_unit_takes_the_inner_group_where_there_is_one(plant: Plant, start: Start) -> None:
    supervisor, events = start(program("triton-0", STUBBORN), program("batcher", SLEEPS))
    triton = pid_in(wait_for(events, "triton-0", "started"))
    wait_until(lambda: "up" in log_of(plant, "triton-0"))
    server = psutil.Process(triton).children()[0].pid
    assert supervisor.kill_unit("triton-0") == [server]
    wait_until(lambda: not lives(server))
    assert lives(triton)
    supervisor.kill_unit("batcher", signal.SIGKILL)
    assert wait_for(events, "batcher", "died").startswith("killed by SIGKILL")
    with pytest.raises(KeyError):
        supervisor.kill_unit("triton-9")


@pytest.mark.slow
def test_a_flood_neither_stalls_the_others_nor_fills_the_disk(plant: Plant, start: Start) -> None:
    flood = "import os\nwhile True: os.write(1, b'warning: storm\\n' * 4096)"
    steady = (
        "import time\nbegan = time.monotonic()\n"
        "for n in range(20):\n    print(n, flush=True)\n    time.sleep(0.05)\n"
        "print(f'took {time.monotonic() - began:.2f}', flush=True)\ntime.sleep(60)"
    )
    supervisor, _ = start(program("line-a", flood), program("line-b", steady))
    wait_until(lambda: "took" in log_of(plant, "line-b"))
    assert float(log_of(plant, "line-b").rpartition("took ")[2]) < 2.0
    supervisor.stop()
    files = sorted((plant.folder / "logs").glob("line-a.log*"))
    assert [file.name for file in files] == ["line-a.log", "line-a.log.1", "line-a.log.2"]
    assert all(file.stat().st_size <= 64 * 1024 for file in files)
    assert "bytes of output dropped so far" in "".join(file.read_text() for file in files)


def test_a_second_run_of_the_same_plant_is_refused(plant: Plant, start: Start) -> None:
    start(program("batcher", SLEEPS))
    with pytest.raises(SupervisorError, match=f"under process {os.getpid()}; stop that one first"):
        start(program("batcher", SLEEPS))


def test_all_ports_in_use_are_named_at_once(plant: Plant, start: Start) -> None:
    frames, endpoint = (
        int(url.rpartition(":")[2]) for url in (plant.line[0].frames, plant.pool.endpoints[0])
    )
    with (
        socket.create_server(("127.0.0.1", frames)),
        socket.create_server(("127.0.0.1", endpoint)),
        pytest.raises(SupervisorError) as refusal,
    ):
        start(program("batcher", SLEEPS))
    said = str(refusal.value).splitlines()
    assert len(said) == 2
    assert f"line line01 frames: 127.0.0.1:{frames} is in use by " in said[0]
    assert f"(process {os.getpid()})" in said[0]
    assert f"triton-0: 127.0.0.1:{endpoint} is in use by " in said[1]
    # The refusal holds nothing back: the next start succeeds.
    start(program("batcher", SLEEPS))


def test_stop_removes_sockets_and_shared_memory(plant: Plant, start: Start) -> None:
    supervisor, events = start(program("batcher", SLEEPS))
    wait_for(events, "batcher", "started")
    dead = f"/dev/shm/takt-{plant.tag}-slots-999999999-1-1"
    ledger, settled = (f"/dev/shm/takt-{plant.tag}-ledger-line0{k}" for k in (1, 2))
    Path(dead).write_bytes(b"x")
    Ledger(plant.tag, "line01").accept(1, {"part_id": "p"})  # its row is in no journal yet
    Ledger(plant.tag, "line02")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(plant.folder / "run" / "b.sock"))
    supervisor.stop()
    assert not (plant.folder / "run" / "b.sock").exists()
    assert not Path(dead).exists()
    assert not Path(settled).exists()
    assert Path(ledger).exists()
    supervisor.stop(purge=True)
    assert not Path(ledger).exists()


def test_a_listener_that_raises_does_not_end_the_plant(plant: Plant) -> None:
    def broken(*_event: str) -> None:
        raise RuntimeError("the console is gone")

    unit = program("batcher", "print('alive'); raise SystemExit(1)")
    supervisor = Supervisor(plant, plant.folder / "plant.toml", units=[unit], on_event=broken)
    supervisor.start()
    try:
        wait_until(lambda: log_of(plant, "batcher").count("alive\n") >= 2)
    finally:
        supervisor.stop()
    assert "the console is gone" in log_of(plant, "batcher")


def test_a_program_that_does_not_exist_is_an_event_not_the_end(start: Start) -> None:
    _, events = start(Unit("batcher", ["/nonexistent/batcher"], 0.05, 0.05))
    assert wait_for(events, "batcher", "died").startswith("exit 1 after ")
    wait_for(events, "batcher", "restarted")


def test_the_units_of_a_plant(plant: Plant) -> None:
    units = plant_units(plant, plant.folder / "plant.toml")
    names = ["triton-0", "journal", "monitor", "rescore", "batcher", "line-line01"]
    assert [unit.name for unit in units] == names
    assert units[0].command[1:5] == ["-m", "appliance.cli", "triton", "0"]
    assert [(unit.backoff_min_s, unit.backoff_max_s) for unit in units] == [
        (0.5, 10.0),
        (0.2, 0.2),
        (1.0, 10.0),
        (1.0, 30.0),
        (0.2, 0.2),
        (0.2, 0.2),
    ]
    assert [unit.stage for unit in units] == [1, 2, 0, 0, 1, 0]
