"""A small real plant for tests: its folder, its units as processes, its records, its end."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import zmq
import zmq.auth
from plant_wire import Actuator, Camera, Client, Header, Load, until

from appliance.plant_errors import load_plant
from appliance.processes import naming, tied
from appliance.units import plant_units
from deadline_batcher.profile import Profile, Provenance
from deadline_batcher.shm import start_ticks
from hil_sim.demo_plant import MODEL, DemoPlant, make_demo_plant

MS = 1_000_000
FALLBACK_WORST_NS = 60 * MS
_OWNER = re.compile(r"takt-[0-9a-f]{8}-(?:triton-slot\d+|[a-z0-9]+)-(\d+)-(\d+)-")


def free_base_port(lines: int = 3, gpus: int = 2) -> int:
    """A port from which on everything that a demo plant listens on is free."""
    for _ in range(200):
        base = random.randrange(20_000, 32_000)
        wanted = [base + k for n in range(lines + 1) for k in (n, 100 + n)]
        wanted += [base + 200 + gpu for gpu in range(gpus)]
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in wanted:
                held.enter_context(socket.create_server(("127.0.0.1", port)))
            return base
    raise AssertionError("no free ports")


class Rig:
    """A plant folder and its units, each a real process. Use as a context."""

    def __init__(
        self,
        folder: Path,
        *,
        lines: int = 2,
        gpus: int = 1,
        deadline_ms: float = 500,
        change: Callable[[str], str] = lambda text: text,
    ) -> None:
        demo = DemoPlant(lines, 5.0, free_base_port(lines, gpus), gpus, deadline_ms, 4, None)
        self.folder = folder / "plant"
        self.plant_file = make_demo_plant(self.folder, demo, folder / "run")
        self.plant_file.write_text(change(self.plant_file.read_text()))
        self._profiles()
        self.plant = load_plant(self.plant_file)
        self.commands = {
            unit.name: unit.command for unit in plant_units(self.plant, self.plant_file)
        }
        self.units: dict[str, subprocess.Popen[bytes]] = {}
        self.clients: list[Client | Actuator | Load] = []
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()

    def _profiles(self) -> None:
        pool = {rows: (80 + 20 * rows) * MS for rows in range(1, 5)}
        for engine, wcet_ns in (("pool", pool), ("fallback", {1: FALLBACK_WORST_NS})):
            suffix = "" if engine == "pool" else "-fallback"
            Profile(
                model=MODEL,
                engine=engine,
                origin="published",
                margin=1.0,
                rule="written by hand",
                wcet_ns=wcet_ns,
                provenance=Provenance(model_sha256="", device="test", cores=2),
            ).save(self.folder / "profiles" / f"{MODEL}{suffix}.json")

    # --- units ------------------------------------------------------------------------------

    def start(self, *names: str, seconds: float = 30.0) -> None:
        """Start units (all at once) and wait until each says that it is ready."""
        said = {name: len(self.log(name)) for name in names}
        for name in names:
            with self._log_path(name).open("ab") as log:
                self.units[name] = subprocess.Popen(
                    tied(self.commands[name]),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
        for name in names:
            until(lambda name=name: self._is_ready(name, said[name]), seconds, f"{name} ready")

    def _is_ready(self, name: str, said: int) -> bool:
        assert self.units[name].poll() is None, self.log(name)
        if name == "journal":
            try:
                self.query("select 1 from parts limit 1")
            except sqlite3.Error:
                return False
            return (self.folder / "run" / "journal.sock").exists()
        return "ready" in self.log(name)[said:]

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def log(self, name: str) -> str:
        path = self._log_path(name)
        return path.read_text(errors="replace") if path.exists() else ""

    def kill(self, name: str) -> None:
        """SIGKILL, and wait for the end."""
        self.units[name].kill()
        self.units.pop(name).wait(5)

    def stop(self, *names: str) -> None:
        """SIGTERM all of them; they must end well and soon."""
        names = tuple(name for name in names if name in self.units)
        for name in names:
            self.units[name].send_signal(signal.SIGTERM)
        for name in names:
            assert self.units[name].wait(10) == 0, self.log(name)
            del self.units[name]

    def family(self, name: str) -> list[psutil.Process]:
        """What a unit has started: for a Triton the server, then its stubs."""
        return psutil.Process(self.units[name].pid).children(recursive=True)

    # --- records ----------------------------------------------------------------------------

    def query(self, sql: str, *values: Any) -> list[Header]:
        """Rows of the journal."""
        path = self.folder / "journal" / "journal.sqlite"
        with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
            base.row_factory = sqlite3.Row
            return [dict(row) for row in base.execute(sql, values)]

    def row(self, line: str, session: str, seq: int) -> Header:
        """The journal's one row of a part; waits for it."""
        sql = "select * from parts where line = ? and session = ? and seq = ?"
        rows = until(lambda: self.query(sql, line, session, seq), 10, f"row of {line} {seq}")
        return dict(rows[0])

    def events(self, kind: str, unit: str = "%") -> list[Header]:
        """The journal's events of a kind."""
        return self.query("select * from events where kind = ? and unit like ?", kind, unit)

    # --- clients ----------------------------------------------------------------------------

    def secret(self, role: str, name: str) -> tuple[bytes, bytes]:
        """Public and secret key of a client of the demo plant."""
        path = self.folder / "secrets" / role / f"{name}.key_secret"
        public, secret = zmq.auth.load_certificate(path)
        assert secret is not None
        return public, secret

    def client(self, endpoint: str, keys: tuple[bytes, bytes]) -> Client:
        """A bare connection with this key pair."""
        server, _ = zmq.auth.load_certificate(self.folder / "keys" / "server.key")
        made = Client(self.context, endpoint, server, keys)
        self.clients.append(made)
        return made

    def camera(self, line: str, name: str | None = None, says: str | None = None) -> Camera:
        """A camera of a line with the key of `name`, that calls itself `says`."""
        name = name or f"camera-{line}"
        frames = self.plant.line_named(line).frames
        return Camera(self.client(frames, self.secret("cameras", name)), line, says or name)

    def actuator(self, line: str, name: str | None = None, **habits: bool) -> Actuator:
        """An actuator of a line, on a thread of its own, that has said hello."""
        name = name or line
        verdicts = self.plant.line_named(line).verdicts
        made = Actuator(self.client(verdicts, self.secret("actuators", name)), line, name, **habits)
        self.clients.append(made)
        return made

    def load(self, line: str, rate: float) -> Load:
        """Good pictures at a rate until stopped, on a thread of its own."""
        made = Load(self.camera(line), rate)
        self.clients.append(made)
        return made

    # --- the end ----------------------------------------------------------------------------

    def orphans(self) -> list[str]:
        """This plant's names in shared memory whose owner is dead (ledgers outlive theirs)."""
        names = [path.name for path in Path("/dev/shm").glob(f"takt-{self.plant.tag}-*")]
        owners = {name: _OWNER.match(name) for name in names if "-ledger-" not in name}
        return [n for n, o in owners.items() if o is None or start_ticks(int(o[1])) != int(o[2])]

    def traces(self) -> list[str]:
        """What this plant has left on the host."""
        left = [path.name for path in Path("/dev/shm").glob(f"takt-{self.plant.tag}-*")]
        left = [name for name in left if "-ledger-" not in name]
        left += [f"process {pid}" for pid in naming(str(self.folder))]
        return left + [f"process {pid}" for pid in naming(f"takt-{self.plant.tag}-")]

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            for client in reversed(self.clients):
                client.close()
            self.context.destroy(0)
            lines = [name for name in self.units if name.startswith("line-")]
            self.stop(*lines)
            self.stop(*[name for name in self.units if name != "journal"])
            self.stop("journal")
            assert kind is not None or self.traces() == []
        finally:
            for unit in self.units.values():
                unit.kill()
                unit.wait(5)
            for path in Path("/dev/shm").glob(f"takt-{self.plant.tag}-*"):
                path.unlink(missing_ok=True)


def all_in_time(rig: Rig, load: Load, actuator: Actuator) -> list[Header]:
    """Every accepted part of a load has one row, one verdict, and that in time; the rows."""
    acked = set(load.acked)
    line = load.camera.line
    for key in acked:
        part_id = load.sent[key]
        actuator.wait(lambda part_id=part_id: actuator.of(part_id), what=f"verdict on {part_id}")
    rows = {(row["session"], row["seq"]): row for row in _rows_of(rig, line, acked)}
    for key in acked:
        (verdict,) = actuator.of(load.sent[key])
        agree(verdict, rows[key])
    return [rows[key] for key in acked]


def _rows_of(rig: Rig, line: str, keys: set[tuple[str, int]]) -> list[Header]:
    def found() -> list[Header]:
        rows = rig.query("select * from parts where line = ?", line)
        return rows if keys <= {(row["session"], row["seq"]) for row in rows} else []

    return list(until(found, 15, f"rows of {line}")) if keys else []


def agree(verdict: Header, row: Header) -> None:
    """Verdict and row say the same, and it left in time."""
    for name in ("part_id", "verdict", "reason", "action", "answered_by", "score", "model"):
        assert verdict[name] == row[name], name
    assert bool(row["simulated"]) is verdict["simulated"]
    assert verdict["sent_ns"] == row["sent_at_ns"]
    assert verdict["deadline_ns"] == row["deadline_at_ns"]
    assert 0 < row["sent_at_ns"] <= row["due_at_ns"], row
    assert verdict["margin_ns"] == row["due_at_ns"] - row["sent_at_ns"]
