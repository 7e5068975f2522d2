"""One plant under load, for one kind of fault: started, hurt at random instants, ended, judged.

Runs as a process of its own, so that it may have its own mounts and its own network:
`python -m hil_sim.nemesis.arena SPEC.json RESULT.json`. What happened to a part is read from the
camera's log, the actuator's log and the journal alone; that a dead process was noticed and begun
again is the supervisor's word.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.console import Console

from appliance.planning import make_plan, profiles_of
from appliance.plant import Plant
from appliance.plant_errors import load_plant
from appliance.processes import answers, naming, session_members, tied
from appliance.profile_cache import keep_profiles, take_profiles
from appliance.profile_command import Stopped, profile_plant
from appliance.profiler import SHORT, ProfilerError
from appliance.supervisor import Supervisor, SupervisorError
from appliance.triton.fetch import embedded_server
from deadline_batcher.shm import SHM_FOLDER
from hil_sim.demo_plant import DemoPlant, line_ids, make_demo_plant
from hil_sim.evidence import read_evidence
from hil_sim.nemesis import host
from hil_sim.nemesis.cost import cost_of
from hil_sim.nemesis.records import Records

START_LIMIT_S: Final = 90.0
SETTLE_S: Final = 1.5
STEADY_S: Final = 1.0
CAMERA_PROCESSES: Final = 2
JOURNAL_MIB: Final = 48
SHM_MIB: Final = 192
FAR_LINE: Final = "line01"


class ArenaError(Exception):
    """The plant did not come up or did not end; the text says what was seen."""


class Ended(Exception):  # noqa: N818 - a wish, no error
    """Told to end."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One run. faults: in turn; seconds: no new injection after that long under load.

    rate: parts per second of each line.
    """

    faults: tuple[str, ...]
    injections: int
    seconds: float
    seed: int
    folder: str
    lines: int = 12
    rate: float = 5.0
    gpus: int = 4
    deadline_ms: float = 200.0


@dataclass(slots=True)
class Injection:
    """One fault. Instants are monotonic nanoseconds; 0: it did not come, or there is none.

    subject: the unit, GPU or line it was done to. ended_at_ns: the fault was over (SIGCONT, room
    on the disk again, …). noticed_at_ns: the first record that says so. ready_at_ns: the process
    that died says `ready` again. back_at_ns: what the fault took away is there again.
    """

    fault: str
    subject: str
    at_ns: int = 0
    ended_at_ns: int = 0
    noticed_at_ns: int = 0
    ready_at_ns: int = 0
    back_at_ns: int = 0
    note: str = ""


@dataclass(slots=True)
class Told:
    """What the supervisor said of a unit."""

    at_ns: int
    unit: str
    kind: str
    detail: str


@dataclass(slots=True)
class Result:
    """What one run brought. left: what it left behind on the host."""

    injections: list[dict[str, Any]] = field(default_factory=list)
    cost: dict[str, Any] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    error: str = ""


Inject = Callable[["Arena", Injection], None]
"""Does one fault and waits until what it took is there again; fills the injection in."""


class Arena:
    """A running plant and everything a fault may do to it."""

    def __init__(self, spec: Spec, needs: tuple[str, ...]) -> None:
        self.spec = spec
        self.chance = random.Random(spec.seed)
        self.folder = Path(spec.folder) / "plant"
        self.scratch = Path(spec.folder)
        self.stopping = threading.Event()
        self.told: list[Told] = []
        self.shim: host.Shim | None = None
        self.far: host.FarNetwork | None = None
        self._needs = needs
        self._cameras: list[subprocess.Popen[bytes]] = []
        self._actuators: list[subprocess.Popen[bytes]] = []
        self._helpers: list[subprocess.Popen[bytes]] = []
        self._is_private = os.environ.get("TAKT_NEMESIS_PRIVATE") == "1"
        self.plant: Plant
        self.supervisor: Supervisor
        self.records: Records

    # --- start ------------------------------------------------------------------------------

    def start(self) -> None:
        """The plant, its cameras and actuators; returns once the whole pool answers."""
        spec = self.spec
        if not self._is_private and set(self._needs) & set(host.OWN_HOST):
            raise ArenaError(
                f"{', '.join(spec.faults)}: not without mounts and a network of our own"
            )
        if self._is_private:
            host.loopback_up()
            host.mount_small(SHM_FOLDER, SHM_MIB)
        base_port = 5600 if self._is_private else _free_base_port(spec.lines, spec.gpus)
        demo = DemoPlant(spec.lines, spec.rate, base_port, spec.gpus, spec.deadline_ms, 8, None)
        plant_file = make_demo_plant(self.folder, demo, self.scratch / "run")
        if "network" in self._needs:
            self.far = host.FarNetwork()
            _move_line(plant_file, base_port, host.HERE_ADDRESS)
        if "disk" in self._needs:
            host.mount_small(self.folder / "journal", JOURNAL_MIB)
        self.plant = load_plant(plant_file)
        embedded_server(lambda _: None)
        if not take_profiles(self.plant):
            profile_plant(self.plant, plant_file, SHORT, Console(), self.stopping)
            keep_profiles(self.plant)
        make_plan(self.plant, profiles_of(self.plant))
        self.records = Records(self.plant)
        environment = dict(os.environ)
        if "compiler" in self._needs:
            self.shim = host.Shim(self.scratch)
            os.environ.update(self.shim.environment())
        self.supervisor = Supervisor(self.plant, plant_file, on_event=self._on_event)
        self.supervisor.start()
        self.wait(lambda: all(answers(line.frames) for line in self.plant.line), "the lines")
        self.wait(lambda: len(self.records.ready_gpus()) == spec.gpus, "the pool")
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        self._start_clients(plant_file)
        self.wait(lambda: self.records.lines_answered(0) == spec.lines, "answers for every line")

    def _on_event(self, unit: str, kind: str, detail: str) -> None:
        self.told.append(Told(time.monotonic_ns(), unit, kind, detail))

    def _start_clients(self, plant_file: Path) -> None:
        ids = line_ids(self.spec.lines)
        here = [one for one in ids if self.far is None or one != FAR_LINE]
        groups = [(here, False)] + ([([FAR_LINE], True)] if self.far else [])
        anchor_ns = time.monotonic_ns() + 2_500_000_000
        for group, is_far in groups:
            told = ["--plant", str(plant_file), "--lines"]
            words = ["hil_sim.actuators", *told, ",".join(group)]
            self._actuators.append(self._client(words, is_far))
            count = 1 if is_far else CAMERA_PROCESSES
            for number in range(count):
                share = ",".join(group[number::count])
                words = ["hil_sim.cameras", *told, share, "--rate", str(self.spec.rate)]
                words += ["--seconds", "86400", "--start-at-ns", str(anchor_ns)]
                # One set of pictures for all: equal pictures must get equal scores.
                self._cameras.append(self._client([*words, "--seed", "1"], is_far))

    def _client(self, words: list[str], is_far: bool) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", *words]
        if is_far and self.far is not None:
            command = self.far.inside(command)
        name = words[0].rpartition(".")[2] + ("-far" if is_far else "")
        number = len(self._cameras) + len(self._actuators)
        path = self.folder / "logs" / f"{name}{number}.log"
        with path.open("wb") as log:
            return subprocess.Popen(
                tied(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    # --- for faults -------------------------------------------------------------------------

    def pause(self, seconds: float) -> None:
        """Wait. Raises Ended when told to end."""
        end_s = time.monotonic() + seconds
        while True:
            if self.stopping.is_set():
                raise Ended
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, 0.05))

    def wait(self, is_there: Callable[[], Any], what: str, limit_s: float = START_LIMIT_S) -> Any:
        """The first true value. Raises ArenaError after `limit_s`, and Ended."""
        value = self.within(is_there, limit_s)
        if not value:
            raise ArenaError(f"{what}: not within {limit_s:g} s; see {self.folder}/logs")
        return value

    def within(self, is_there: Callable[[], Any], limit_s: float) -> Any:
        """The first true value, or the last false one after `limit_s`."""
        end_s = time.monotonic() + limit_s
        while not (value := is_there()) and time.monotonic() < end_s:
            self.pause(0.02)
        return value

    def leader(self, unit: str) -> int:
        """The unit's own process; 0 while it has none."""
        return next(iter(self.supervisor.processes(unit)), 0)

    def processes(self, unit: str, names: tuple[str, ...]) -> list[int]:
        """Processes of a unit whose name begins so: `tritonserver`, `triton_python`, `python`."""
        found = []
        for pid in self.supervisor.processes(unit):
            with contextlib.suppress(OSError):
                said = Path(f"/proc/{pid}/comm").read_text()
                if said.startswith(names):
                    found.append(pid)
        return found

    def beside(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a program of another user of this host; ends with the arena at the latest."""
        made = subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        self._helpers.append(made)
        return made

    def end_beside(self, program: subprocess.Popen[bytes]) -> None:
        """End one of those, with its children."""
        for one in session_members(program.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        program.wait()

    def said(self, unit: str, kind: str, since_ns: int) -> int:
        """When the supervisor said of the unit that it died, or was restarted; 0: not yet."""
        mine = (one for one in list(self.told) if one.unit == unit and one.kind == kind)
        return next((one.at_ns for one in mine if one.at_ns >= since_ns), 0)

    # --- the end ----------------------------------------------------------------------------

    def stop(self) -> list[str]:
        """End everything; what is left of it on the host."""
        for program in self._helpers:
            if program.poll() is None:
                self.end_beside(program)
        if self.shim is not None:
            self.shim.tell(0, 0)
        # An actuator that left before the last verdict came would be a verdict that never came.
        _end(self._cameras)
        if self._cameras:
            time.sleep(SETTLE_S)
        _end(self._actuators)
        if hasattr(self, "supervisor"):
            self.supervisor.stop(purge=True)
        if hasattr(self, "records"):
            self.records.close()
        left = self._left()
        if self.far is not None:
            self.far.close()
        return left

    def _left(self) -> list[str]:
        if not hasattr(self, "plant"):
            return []
        runtime = self.plant.path(self.plant.paths.runtime)
        left = [f"process {pid}" for pid in naming(str(self.folder))]
        left += [f"process {pid}" for pid in naming(f"takt-{self.plant.tag}-")]
        left += [f"shm {path.name}" for path in SHM_FOLDER.glob(f"takt-{self.plant.tag}-*")]
        return left + [f"socket {path.name}" for path in runtime.iterdir() if path.is_socket()]


def _end(clients: list[subprocess.Popen[bytes]]) -> None:
    for client in clients:
        client.terminate()
    for client in clients:
        try:
            client.wait(5)
        except subprocess.TimeoutExpired:
            client.kill()
            client.wait()


def _free_base_port(lines: int, gpus: int) -> int:
    for _ in range(200):
        base = random.randrange(20_000, 32_000)
        wanted = [base + k for n in range(lines + 1) for k in (n, 100 + n)]
        wanted += [base + 200 + gpu for gpu in range(gpus)]
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in wanted:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return base
    raise ArenaError("no free ports")


def _move_line(plant_file: Path, base_port: int, address: str) -> None:
    """Put the first line's two sockets on the link to the far network."""
    text = plant_file.read_text()
    for port in (base_port + 1, base_port + 101):
        text = text.replace(f'"tcp://127.0.0.1:{port}"', f'"tcp://{address}:{port}"')
    plant_file.write_text(text)


@contextlib.contextmanager
def _until_told(arena: Arena) -> Iterator[None]:
    def on_signal(_number: int, _frame: FrameType | None) -> None:
        arena.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    yield


def run(spec: Spec) -> Result:
    """Start, hurt as often as asked (or as there is time), end and judge."""
    from hil_sim.nemesis.faults import FAULTS

    needs = {need for name in spec.faults for need in FAULTS[name].needs}
    arena, result, done = Arena(spec, tuple(sorted(needs))), Result(), list[Injection]()
    try:
        with _until_told(arena):
            arena.start()
            arena.pause(STEADY_S)
            end_s = time.monotonic() + spec.seconds
            while len(done) < spec.injections and time.monotonic() < end_s:
                # A random phase of every period there is: parts, beats, goldens, commits.
                arena.pause(arena.chance.uniform(0.3, 1.3))
                injection = Injection(spec.faults[len(done) % len(spec.faults)], "")
                done.append(injection)
                FAULTS[injection.fault].inject(arena, injection)
                if injection.back_at_ns == 0:
                    result.error = result.error or f"injection {len(done)}: not back in time"
                    break
            arena.pause(SETTLE_S)
    except (Ended, Stopped):
        result.error = "told to end"
        done = [one for one in done if one.back_at_ns]
    except (ArenaError, host.HostError, SupervisorError, ProfilerError) as error:
        result.error = str(error)
    finally:
        result.left = arena.stop()
    if hasattr(arena, "plant") and done:
        evidence = read_evidence(
            arena.plant.path(arena.plant.paths.journal), arena.plant.path(arena.plant.paths.logs)
        )
        result.cost = cost_of(evidence, done)
    result.injections = [asdict(one) for one in done]
    return result


def main(argv: list[str]) -> int:
    """The arena's process."""
    spec = Spec(**json.loads(Path(argv[0]).read_text()))
    found = run(spec)
    Path(argv[1]).write_text(json.dumps(asdict(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
