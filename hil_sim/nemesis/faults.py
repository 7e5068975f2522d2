"""The kinds of fault, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hil_sim.nemesis import hardships as h
from hil_sim.nemesis import signals as s
from hil_sim.nemesis.arena import Inject
from hil_sim.nemesis.signals import SERVER, STUB


@dataclass(frozen=True, slots=True)
class Bound:
    """What is promised of a time between two instants of an injection.

    batches: the limit in 99.9th-percentile batch times, where `limit_s` is 0.
    """

    begin: str
    end: str
    limit_s: float
    batches: int = 0

    @property
    def what(self) -> str:
        """For a table."""
        name = {"noticed_at_ns": "noticed", "ready_at_ns": "ready", "back_at_ns": "back"}[self.end]
        if self.batches:
            return f"{name} in {self.batches} batches"
        limit = f"{self.limit_s:g} s" if self.limit_s >= 1 else f"{self.limit_s * 1e3:g} ms"
        return f"{name} in {limit}"


LINE_BACK = Bound("at_ns", "ready_at_ns", 2.0)
UNIT_BACK = Bound("at_ns", "ready_at_ns", 3.0)
DEAD_SERVER = Bound("at_ns", "noticed_at_ns", 0.020)
DEAD_STUB = Bound("at_ns", "noticed_at_ns", 0.0, batches=2)
ON_THE_POOL = Bound("ready_at_ns", "back_at_ns", 10.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind. needs: of the host, see `host.missing`; `disk`: a small one for the journal."""

    what: str
    inject: Inject
    needs: tuple[str, ...] = ()
    bounds: tuple[Bound, ...] = ()


FAULTS: Final[dict[str, Fault]] = {
    "kill-line": Fault("SIGKILL of a line's process", s.kill_line, bounds=(LINE_BACK,)),
    "kill-batcher": Fault("SIGKILL of the batcher", s.kill_batcher, bounds=(UNIT_BACK,)),
    "kill-journal": Fault("SIGKILL of the journal", s.kill_journal, bounds=(UNIT_BACK,)),
    "kill-monitor": Fault("SIGKILL of the monitor", s.kill_monitor),
    "kill-triton": Fault(
        "SIGKILL of a Triton server", s.kill_of_triton(SERVER), bounds=(DEAD_SERVER, ON_THE_POOL)
    ),
    "kill-stub": Fault(
        "SIGKILL of a Triton's Python stub", s.kill_of_triton(STUB), bounds=(DEAD_STUB, ON_THE_POOL)
    ),
    "kill-keeper": Fault(
        "SIGKILL of the process that keeps a Triton",
        s.kill_of_triton(()),
        bounds=(DEAD_SERVER, ON_THE_POOL),
    ),
    "stop-line": Fault("SIGSTOP of a line, 0.2 to 3 s", s.stop_line),
    "stop-batcher": Fault("SIGSTOP of the batcher, 0.2 to 3 s", s.stop_batcher),
    "stop-journal": Fault("SIGSTOP of the journal, 0.2 to 3 s", s.stop_journal),
    "stop-monitor": Fault("SIGSTOP of the monitor, 0.2 to 3 s", s.stop_monitor),
    "stop-triton": Fault("SIGSTOP of a Triton server, 0.2 to 3 s", s.stop_of_triton(SERVER, True)),
    "stop-stub": Fault("SIGSTOP of a Python stub, 0.2 to 3 s", s.stop_of_triton(STUB, True)),
    "hang-triton": Fault(
        "SIGSTOP of a Triton server for ever", s.stop_of_triton(SERVER, False), bounds=(DEAD_STUB,)
    ),
    "hang-stub": Fault(
        "SIGSTOP of a Python stub for ever", s.stop_of_triton(STUB, False), bounds=(DEAD_STUB,)
    ),
    "cpu-hog": Fault("a busy loop on every core, 3 to 6 s", h.beside(h.hog)),
    "training": Fault("a training job beside the pool, 3 to 6 s", h.beside(h.training)),
    "io-load": Fault("two programs that write and fsync, 3 to 6 s", h.beside(h.loader)),
    "shm-full": Fault("/dev/shm full for 2 to 4 s", h.shm_full, ("shm",)),
    "disk-full": Fault("the journal's disk full for 3 to 6 s", h.disk_full, ("disk",)),
    "slow-fsync": Fault("each fsync 0.05 to 3 s slower, 3 to 6 s", h.slow_fsync, ("compiler",)),
    "clock-step": Fault("wall clock ±37 s, ±1 h, −56 years", h.clock_step, ("compiler",)),
    "net-drop": Fault("a line's link drops every packet, 0.1 to 4 s", h.net_drop, ("network",)),
    "wrong-key": Fault("connections with unknown keys", h.wrong_key),
    "rotated-key": Fault("a camera's key replaced, 2 to 4 s", h.rotated_key),
    "log-storm": Fault("a flood on a line's standard error", h.log_storm),
    "bad-frames": Fault("garbage with the camera's own key", h.bad_frames),
}
