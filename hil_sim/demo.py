"""`takt demo`: a whole plant on this machine: real servers, sockets, processes, and a checker."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.live import Live

from appliance.planning import PlanningError, make_plan, profiles_of
from appliance.plant import Plant, plant_tag
from appliance.plant_errors import PlantError, load_plant
from appliance.processes import answers, tied
from appliance.profile_cache import keep_profiles, take_profiles
from appliance.profile_command import Stopped, profile_plant
from appliance.profiler import SHORT, ProfilerError
from appliance.supervisor import Supervisor, SupervisorError
from appliance.triton.fetch import embedded_server
from appliance.triton.libpython import FetchError
from deadline_batcher.shm import SHM_FOLDER, start_ticks
from hil_sim.check_journal import as_json, as_text, judge
from hil_sim.demo_plant import DemoError, DemoPlant, line_ids, make_demo_plant
from hil_sim.demo_view import JournalView, plain, table
from hil_sim.evidence import EvidenceError, read_evidence

START_LIMIT_S = 60.0
ANCHOR_AFTER_S = 2.5
SETTLE_S = 0.6
CAMERA_PROCESSES = 2
SCRATCH_PREFIX = "takt-demo-"


def sweep_dead_demos() -> None:
    """Remove what demos left that were killed before they could: folders and shared memory."""
    for scratch in Path(tempfile.gettempdir()).glob(f"{SCRATCH_PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            pid, ticks = map(int, (scratch / "owner").read_text().split())
            if start_ticks(pid) != ticks:
                tag = plant_tag(scratch / "plant", "demo")
                for path in SHM_FOLDER.glob(f"takt-{tag}-*"):
                    path.unlink(missing_ok=True)
                shutil.rmtree(scratch, ignore_errors=True)


class Demo:
    """One run. Everything it starts ends with `stop`."""

    def __init__(self, options: argparse.Namespace, console: Console) -> None:
        self.options = options
        self.console = console
        self.stopping = threading.Event()
        sweep_dead_demos()
        self._scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX))
        (self._scratch / "owner").write_text(f"{os.getpid()} {start_ticks(os.getpid())}")
        self._supervisor: Supervisor | None = None
        self._clients: list[subprocess.Popen[bytes]] = []
        self._logs: list[object] = []
        self.folder: Path = options.keep.absolute() if options.keep else self._scratch / "plant"
        self._started_s = time.monotonic()

    # --- making -----------------------------------------------------------------------------

    def make(self) -> tuple[Plant, Path]:
        """The plant folder and its profiles. Raises DemoError, PlantError, FetchError, …"""
        options = self.options
        if options.keep and self.folder.exists() and any(self.folder.iterdir()):
            raise DemoError(f"{self.folder} is not empty; --keep wants a new or an empty folder")
        emulate = options.emulate
        if emulate is not None and not emulate.is_file():
            raise DemoError(f"{emulate}: no such profile")
        demo = DemoPlant(
            options.lines,
            options.rate,
            options.base_port,
            options.gpus,
            options.deadline_ms,
            options.batch_max,
            emulate.absolute() if emulate else None,
            options.realtime_priority,
        )
        plant_file = make_demo_plant(self.folder, demo, self._scratch / "run")
        plant = load_plant(plant_file)
        embedded_server(self._say)
        self._profiles(plant, plant_file)
        make_plan(plant, profiles_of(plant))
        return plant, plant_file

    def _profiles(self, plant: Plant, plant_file: Path) -> None:
        if not self.options.profile_again and take_profiles(plant):
            return
        self._say("measuring worst-case execution times, once for this machine and model")
        profile_plant(plant, plant_file, SHORT, self.console, self.stopping)
        keep_profiles(plant)

    # --- running ----------------------------------------------------------------------------

    def run(self, plant: Plant, plant_file: Path) -> None:
        """Start everything, send the pictures, kill what is to be killed, show it."""
        options = self.options
        self._supervisor = Supervisor(plant, plant_file)
        self._supervisor.start()
        journal = plant.path(plant.paths.journal) / "journal.sqlite"
        view = JournalView(journal, line_ids(options.lines), options.gpus)
        try:
            sockets = [line.frames for line in plant.line]
            self._say(f"starting {options.lines} lines and {options.gpus} Tritons")
            self._wait(lambda: all(answers(url) for url in sockets), "the lines")
            self._wait(lambda: view.ready_gpus() == options.gpus, "the pool")
            anchor_ns = time.monotonic_ns() + round(ANCHOR_AFTER_S * 1e9)
            self._start_clients(plant_file, anchor_ns)
            self._watch(view, anchor_ns)
        finally:
            view.close()

    def _start_clients(self, plant_file: Path, anchor_ns: int) -> None:
        options = self.options
        told = ["--plant", str(plant_file)]
        self._client("actuators", ["hil_sim.actuators", *told])
        ids = line_ids(options.lines)
        shares = [ids[k::CAMERA_PROCESSES] for k in range(CAMERA_PROCESSES)]
        for number, share in enumerate(filter(None, shares)):
            words = [
                "hil_sim.cameras",
                *told,
                *("--lines", ",".join(share)),
                *("--rate", str(options.rate), "--seconds", str(options.seconds)),
                *("--start-at-ns", str(anchor_ns), "--seed", str(options.seed + number)),
            ]
            if options.images:
                words += ["--images", str(options.images.absolute())]
            self._client(f"cameras{number}", words)

    def _client(self, name: str, words: list[str]) -> None:
        log = (self.folder / "logs" / f"{name}.log").open("wb")
        self._logs.append(log)
        command = tied([sys.executable, "-m", *words])
        self._clients.append(
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        )

    def _watch(self, view: JournalView, anchor_ns: int) -> None:
        options = self.options
        kill_at_s = options.at if options.kill_triton is not None else None
        note, said_s = "", 0.0
        show = Live(console=self.console, auto_refresh=False) if self._is_live else None
        with show or contextlib.nullcontext():
            while any(client.poll() is None for client in self._clients[1:]):
                elapsed_s = max(0.0, (time.monotonic_ns() - anchor_ns) / 1e9)
                if kill_at_s is not None and elapsed_s >= kill_at_s:
                    kill_at_s = None
                    note = self._kill(options.kill_triton, elapsed_s)
                if show is not None:
                    picture = table(view.figures(), elapsed_s, options.seconds, note)
                    show.update(picture, refresh=True)
                elif elapsed_s - said_s >= 5:
                    said_s = elapsed_s
                    self._say(plain(view.figures(), elapsed_s))
                remaining_s = kill_at_s - elapsed_s if kill_at_s is not None else 1.0
                self._pause(min(0.5 if show else 1.0, max(0.01, remaining_s)))
        self._pause(SETTLE_S)

    @property
    def _is_live(self) -> bool:
        return bool(self.console.is_terminal and not self.options.no_ui)

    def _kill(self, number: int, elapsed_s: float) -> str:
        assert self._supervisor is not None
        killed = self._supervisor.kill_unit(f"triton-{number}", signal.SIGKILL)
        text = f"triton-{number} killed (SIGKILL, {len(killed)} processes) at {elapsed_s:.2f} s"
        if not self._is_live:
            self._say(text)
        return text

    # --- ending -----------------------------------------------------------------------------

    def verdict(self, plant: Plant) -> int:
        """Stop the plant, let the checker decide; the exit code."""
        self._stop_clients()
        self._stop_supervisor()
        logs = self.folder / "logs"
        evidence = read_evidence(plant.path(plant.paths.journal), logs)
        report = judge(evidence)
        judged = as_json(evidence, report)
        figures = {**judged.pop("figures"), **judged}
        sent_at_ns = [row.sent_at_ns for row in evidence.parts if row.sent_at_ns]
        if sent_at_ns:
            first_s = min(sent_at_ns) / 1e9 - self._started_s
            figures["first_verdict_s"] = round(first_s, 3)
            self._say(f"first verdict {first_s:.1f} s after the command")
        self._say(as_text(evidence, report))
        if self.options.json:
            self.options.json.write_text(json.dumps(figures, indent=2) + "\n")
        if self.options.keep:
            self._say(f"kept: {self.folder}")
        return 0 if report.is_clean else 1

    def _stop_clients(self) -> None:
        for client in reversed(self._clients):
            if client.poll() is None:
                client.terminate()
        for client in self._clients:
            try:
                client.wait(0.7)
            except subprocess.TimeoutExpired:
                client.kill()
                client.wait()
        self._clients = []

    def _stop_supervisor(self) -> None:
        if self._supervisor is not None:
            self._supervisor.stop(purge=True)
            self._supervisor = None

    def stop(self) -> None:
        """End everything that still runs and remove what is not to be kept."""
        self._stop_clients()
        self._stop_supervisor()
        shutil.rmtree(self._scratch, ignore_errors=True)

    # --- small things -----------------------------------------------------------------------

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _pause(self, seconds: float) -> None:
        if self.stopping.wait(seconds):
            raise Stopped

    def _wait(self, is_there: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + START_LIMIT_S
        while not is_there():
            if time.monotonic() > end_s:
                raise DemoError(
                    f"{what} did not come up within {START_LIMIT_S:g} s; see {self.folder}/logs "
                    f"(run again with --keep DIR to keep them)"
                )
            self._pause(0.1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt demo",
        description="Run a whole plant on this machine: camera lines over ZeroMQ, deadline "
        "batches, real Triton servers, one verdict for every part; the checker decides.",
        epilog="example: takt demo --seconds 60 --kill-triton 2 --at 20",
    )
    add = parser.add_argument
    add("--lines", type=int, default=12, help="camera lines (12)")
    add("--rate", type=float, default=10.0, help="parts per second of each line (10)")
    add("--seconds", type=float, default=60.0, help="how long pictures are sent (60)")
    add("--deadline-ms", type=float, default=150.0, help="from exposure to the gate (150)")
    add("--gpus", type=int, default=4, help="Triton servers (4)")
    add("--batch-max", type=int, default=8, help="largest batch (8)")
    add("--images", type=Path, metavar="DIR", help="pictures to send (free/ is good); else made")
    add(
        "--base-port",
        type=int,
        default=5600,
        help="(5600) frames +1…, verdicts +101…, Tritons +200…",
    )
    add("--kill-triton", type=int, metavar="N", help="SIGKILL Triton N (0 is the first)")
    add("--at", type=float, default=20.0, metavar="S", help="when, seconds after the start (20)")
    add("--emulate", type=Path, metavar="PROFILE", help="hold batches for this profile's times")
    add(
        "--realtime-priority",
        type=int,
        default=0,
        metavar="N",
        help="loops of lines and batcher in SCHED_FIFO with this priority (0: not; needs root)",
    )
    add("--json", type=Path, metavar="FILE", help="write the figures there")
    add("--keep", type=Path, metavar="DIR", help="leave plant file, keys, journal and logs in DIR")
    add("--no-ui", action="store_true", help="plain lines, no live table")
    add("--profile-again", action="store_true", help="measure, whatever the cache holds")
    add("--seed", type=int, default=1, help="of the pictures")
    return parser


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    for name, least, most in (
        ("lines", 1, 99),
        ("rate", 0.1, 200.0),
        ("seconds", 1, 86_400),
        ("deadline_ms", 20, 60_000),
        ("gpus", 1, 64),
        ("batch_max", 1, 32),
        ("base_port", 1024, 65_000),
        ("realtime_priority", 0, 90),
    ):
        value = getattr(options, name)
        if not least <= value <= most:
            parser.error(f"--{name.replace('_', '-')} {value:g}: from {least:g} to {most:g}")
    if options.kill_triton is not None and not 0 <= options.kill_triton < options.gpus:
        parser.error(f"--kill-triton {options.kill_triton}: from 0 to {options.gpus - 1}")
    if options.kill_triton is not None and not 0 <= options.at < options.seconds:
        parser.error(f"--at {options.at:g}: from 0 to less than --seconds {options.seconds:g}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        parser.error(f"--json {options.json}: no such folder")
    if options.images is not None and not options.images.is_dir():
        parser.error(f"--images {options.images}: no such folder")


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 only if the promise held; 1 a finding; 2 wrong use; 130 after Ctrl-C."""
    parser = _parser()
    options = parser.parse_args(argv)
    _check(parser, options)
    demo = Demo(options, Console())

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        demo.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, on_signal)
    try:
        plant, plant_file = demo.make()
        demo.run(plant, plant_file)
        return demo.verdict(plant)
    except Stopped:
        return 130
    except (DemoError, PlantError, PlanningError, FetchError) as error:
        print(f"takt demo: {error}", file=sys.stderr)
        return 2
    except (SupervisorError, ProfilerError, EvidenceError, OSError) as error:
        print(f"takt demo: {error}", file=sys.stderr)
        return 1
    finally:
        demo.stop()
