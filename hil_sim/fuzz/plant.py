"""A small plant on the imitated machine: its processes, what restarts them, what is around it."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import zmq

from appliance.batcher import Batcher
from appliance.batcher_settings import BatcherSettings, Rescoring
from appliance.journal import Journal, serve
from appliance.journal_store import JournalStore
from appliance.triton import endpoint
from appliance.triton.goldens import Goldens
from appliance.triton.news import ServedModel
from appliance.triton.standing import Patience
from deadline_batcher import shm
from deadline_batcher.plan import Category, LineTiming, Plan, PolicySpec
from deadline_batcher.shedding import SHARE_ONE, ShedPlan
from deadline_batcher.sizing.load import Load, SizedCategory, Stream
from deadline_batcher.window import deeprt_window_ns
from fallback.route import RoutePlan
from fallback.session import identity
from hil_sim.fuzz import substitutes
from hil_sim.fuzz.audit import Audit
from hil_sim.fuzz.case import Case
from hil_sim.fuzz.engines import FACTS, FallbackTroubles, Server, Session, no_model
from hil_sim.fuzz.host import MS, Process
from hil_sim.fuzz.machine import Folder, Never
from hil_sim.fuzz.outside import Actuator, Camera, Habits
from lines.admission import Limits
from lines.process import LineProcess
from lines.settings import LineSettings, ModelIdentity

TAG = "0f0f0f0f"
RUN = Path("/fuzz")
BATCHER_AT = f"ipc://{RUN}/batcher.sock"
JOURNAL_AT = f"ipc://{RUN}/journal.sock"
POOL_WCET_NS = (5 * MS, 7 * MS, 9 * MS, 11 * MS)
FALLBACK_WCET_NS = 10 * MS
SERVER_START_NS = 300 * MS
RESTART_NS = (40 * MS, 300 * MS)
FAILED_START_NS = 100 * MS
SLOTS = 8
COMING = "coming"
"""Holds the place of a process that is dead and not started again yet."""
BACKLOG_S = 60.0
FALLBACK_MODEL = Path("model.onnx")
MODEL = identity("model", FACTS.sha256)


def frames_at(line: str) -> str:
    """Where cameras send."""
    return f"tcp://{line}:frames"


def verdicts_at(line: str) -> str:
    """Where the actuator gets its verdicts."""
    return f"tcp://{line}:verdicts"


def line_names(case: Case) -> list[str]:
    """In the plan's order."""
    return [f"line{number}" for number in range(case.lines)]


def line_settings(case: Case, line: str) -> LineSettings:
    """One line of the plant."""
    return LineSettings(
        line_id=line, plant_tag=TAG, camera=None, frames_endpoint=frames_at(line),
        verdicts_endpoint=verdicts_at(line), batcher_endpoint=BATCHER_AT,
        journal_endpoint=JOURNAL_AT, keys_folder=RUN, runtime_folder=RUN, model_name="model",
        pool_model=ModelIdentity(MODEL, FACTS.threshold, FACTS.labels),
        fallback_path=FALLBACK_MODEL, fallback_threads=1, fallback_concurrent_max=1,
        fallback_core=0,
        wcet_fallback_ns=FALLBACK_WCET_NS, warm_every_ns=400 * MS,
        deadline_ns=case.deadline_ms * MS, actuation_ns=5 * MS, output_ns=2 * MS, timer_ns=2 * MS,
        start_ns=MS, transport_min_ns=MS, transport_max_ns=20 * MS, fail_safe="reject",
        inhibit_outputs=False, slots=SLOTS, limits=Limits(1000, 1000), journal_backlog_s=BACKLOG_S,
        route_plan=route_plan(case), trial_latency_ns=case.deadline_ms * MS,
        trial_bands=(0.005, 0.005),
    )  # fmt: skip


def route_plan(case: Case) -> RoutePlan:
    """The shipped rules with times that fit into a second.

    Latency alone is no pressure here: a rule that waits as long as it may would never be trusted.
    """
    return RoutePlan(
        window_ns=600 * MS, window_parts_min=6, latency_percentile=90,
        latency_ns=case.deadline_ms * MS, hedge_permille=300, late_permille=300,
        beat_lost_ns=600 * MS, return_after_ns=20 * MS, return_after_max_ns=640 * MS,
        steady_ns=400 * MS, trial_frames=1,
    )  # fmt: skip


def shed_plan(case: Case, plan: Plan) -> ShedPlan:
    """A pool of which each GPU carries 0.9 of itself."""
    category = plan.categories[0]
    streams = tuple(
        Stream(line, 0, timing.cycle_ns, timing.deadline_ns, timing.deadline_ns, 4 * MS, 1 + place)
        for place, (line, timing) in enumerate(zip(line_names(case), plan.lines, strict=True))
    )
    sized = SizedCategory(category.name, category.wcet_ns, category.window_ns)
    return ShedPlan(
        load=Load((sized,), streams, plan.timer_ns, category.wcet_ns[0]),
        tests=(), capacity=tuple(SHARE_ONE * 9 // 10 * gpus for gpus in range(case.gpus + 1)),
        rate_window_ns=500 * MS, rate_margin_permille=50, peak_hold_ns=500 * MS,
        suspect_ns=200 * MS, return_after_ns=80 * MS, return_step_ns=20 * MS,
    )  # fmt: skip


def plan_of(case: Case) -> Plan:
    """What the scheduler is told."""
    settings = line_settings(case, "line0")
    deadline_ns = settings.deadline_ns - 20 * MS - 10 * MS - FALLBACK_WCET_NS
    return Plan(
        categories=(Category("model", POOL_WCET_NS, deeprt_window_ns([deadline_ns])),),
        gpus=case.gpus, result_ns=2 * MS, timer_ns=2 * MS, grace_ns=20 * MS, waiting_max=64,
        policy=PolicySpec(case.policy),
        lines=tuple(LineTiming(0, case.cycle_ms * MS, deadline_ns) for _ in range(case.lines)),
    )  # fmt: skip


def patience(case: Case) -> Patience:
    """The shipped limits, with the times after a loss of the case."""
    return Patience(
        readmit_ns=case.readmit_ms * MS, quarantine_first_ns=200 * MS,
        quarantine_max_ns=800 * MS,
    )  # fmt: skip


_goldens: list[Goldens] = []


def goldens_of_run() -> Goldens:
    """The shipped goldens, right answers computed once, in order anew for every run."""
    if not _goldens:
        _goldens.append(Goldens(FALLBACK_MODEL))
    goldens = copy.copy(_goldens[0])
    goldens._random = Random(0)
    return goldens


class Plant:
    """Processes that come back by themselves, and the world around them."""

    def __init__(self, case: Case, machine: substitutes.Machine) -> None:
        self.case = case
        self.machine = machine
        self.world = machine.world
        self.lines = line_names(case)
        self.settings = {line: line_settings(case, line) for line in self.lines}
        self.fallbacks = {line: FallbackTroubles() for line in self.lines}
        self.servers = [Server(self.world, gpu, POOL_WCET_NS) for gpu in range(case.gpus)]
        self.lives: dict[str, Process] = {}
        self.starts: dict[str, int] = {}
        self._restart = self.world.stream("restart")
        machine.servers = {f"gpu{server.gpu}": server for server in self.servers}
        machine.make_session = self._session
        self.cameras: dict[str, Camera] = {}
        self.actuators: dict[str, Actuator] = {}

    # --- processes --------------------------------------------------------------------------

    def start_all(self, audit: Audit) -> None:
        """Everything begins at once, in an order of the seed."""
        names = ["journal", "batcher", *self.lines]
        self._restart.shuffle(names)
        for name in names:
            self.start(name)
        random = self.world.stream("habits")
        for line in self.lines:
            habits = Habits(
                cycle_ns=self.case.cycle_ms * MS,
                jitter_ns=random.choice((0, MS, 8 * MS)),
                clock=random.choice(("ptp", "utc", "none")),
                skew_ppm=random.choice((0, 50, -200)),
                transport_ns=MS + random.randrange(3 * MS),
                keeps_session=random.random() < 0.5,
                bad_share=random.choice((0.0, 0.0, 0.1)),
            )
            self.cameras[line] = Camera(self.machine.network, line, frames_at(line), habits)
            self.actuators[line] = Actuator(
                self.machine.network, line, verdicts_at(line), audit.on_actuator
            )
        audit.cameras = self.cameras

    def start(self, name: str) -> None:
        """Start a process now."""
        self.starts[name] = self.starts.get(name, 0) + 1
        kind = "line" if name in self.lines else name
        life = self.world.process(name, kind)
        self.lives[name] = life
        main: Callable[[Process], None] = {
            "line": self._line, "batcher": self._batcher, "journal": self._journal,
        }[kind]  # fmt: skip
        self.world.note(name, "starts")
        self.world.spawn(life, lambda: self._live(life, main), "main")

    def _live(self, life: Process, main: Callable[[Process], None]) -> None:
        try:
            main(life)
            self.world.kill(life, "has ended, as it was told")
        except (shm.SharedMemoryError, sqlite3.Error) as error:
            self.world.kill(life, f"cannot start: {error}")

    def look_after(self) -> None:
        """Restart who is dead; called again and again."""
        for name, life in self.lives.items():
            if life.is_dead:
                self.lives[name] = self.world.process(name, COMING)
                self.world.after(self._restart.randrange(*RESTART_NS), partial(self.start, name))

    def kill(self, name: str, why: str) -> None:
        """SIGKILL of whatever runs under this name now."""
        if self.lives[name].kind != COMING:
            self.world.kill(self.lives[name], why)

    def _line(self, life: Process) -> None:
        shm.sweep(TAG)
        life.subject = LineProcess(self.settings[life.name])
        life.subject.run(lambda: None)

    def _batcher(self, life: Process) -> None:
        shm.sweep(TAG)
        plan = plan_of(self.case)
        life.subject = Batcher(
            BatcherSettings(
                plan=plan, shed=shed_plan(self.case, plan), plant_tag=TAG, lines=tuple(self.lines),
                models=(ServedModel("model", len(POOL_WCET_NS), goldens_of_run()),),
                servers=self._servers(), rescore=Rescoring(f"ipc://{RUN}/rescore.sock", 0, 0.1),
                patience=patience(self.case), link_endpoint=BATCHER_AT,
                journal_endpoint=JOURNAL_AT, journal_backlog_s=BACKLOG_S,
                event_journal=RUN / "events.jsonl", event_journal_bytes_max=200_000,
            )
        )  # fmt: skip
        life.subject.run(lambda: None)

    def _servers(self) -> tuple[endpoint.Server, ...]:
        return tuple(
            endpoint.Server(f"gpu{server.gpu}", "", partial(self._restart_server, server))
            for server in self.servers
        )

    def _restart_server(self, server: Server, why: str) -> bool:
        server.die()
        self.world.after(SERVER_START_NS, server.start)
        return True

    def _journal(self, life: Process) -> None:
        store = JournalStore(Folder(), {})  # type: ignore[arg-type]
        journal = Journal(store, round(BACKLOG_S * 1e9))
        life.subject = journal
        context = substitutes.Context(self.machine.network)
        router = context.socket(zmq.ROUTER)
        router.set(zmq.RCVHWM, 64)
        router.bind(JOURNAL_AT)
        serve(router, journal, Never())  # type: ignore[arg-type]

    def _session(self, path: Path, threads: int) -> Session:
        life = self.world.here
        if life.kind != "line":
            return no_model(path, threads)
        random = self.world.stream(f"session {life.name} {life.pid}")
        return Session(self.world, FALLBACK_WCET_NS, random, self.fallbacks[life.name])

    # --- looking ----------------------------------------------------------------------------

    def line(self, name: str) -> LineProcess | None:
        """The running line, or None."""
        life = self.lives[name]
        return life.subject if isinstance(life.subject, LineProcess) else None

    @property
    def batcher(self) -> Batcher | None:
        """The running batcher, or None."""
        subject = self.lives["batcher"].subject
        return subject if isinstance(subject, Batcher) else None
