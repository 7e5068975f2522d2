"""One case from start to judgement: load with faults, then quiet, then everything must be whole."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from appliance.triton.endpoint import SLOTS as REGION_SLOTS
from hil_sim.fuzz import faults as faults_
from hil_sim.fuzz.audit import Audit
from hil_sim.fuzz.case import Case
from hil_sim.fuzz.host import MS, Spinning, World
from hil_sim.fuzz.plant import SLOTS, Plant, line_names, line_settings
from hil_sim.fuzz.steps import Stepper
from hil_sim.fuzz.substitutes import Change, Machine, substituted
from lines import process
from lines.journal_schema import EVENTS, PARTS

LATE_MAX_NS = 300_000
"""How late a loop runs at most after it was woken: far inside `timer_ns`."""
SLACK_NS = 4 * LATE_MAX_NS
BEGIN_NS = 350 * MS
"""Until the plant has started and its GPUs are proved."""
WHOLE_AGAIN_NS = 12_000 * MS
"""From the last fault's end until everything must be whole: a silent link is found after 1 s, a
hung golden after 5 s, a lost GPU is proved for 5 s."""
DRAIN_NS = 4_000 * MS
LOOK_NS = 25 * MS
AFTER_EFFECT_NS = 150 * MS
BUSY_SHARE = 0.75
"""With more of the fallback's time asked for than this, it may be busy when it is needed."""


@dataclass(slots=True)
class Result:
    """What came of a case. `mistakes` is empty where the promise held."""

    case: Case
    mistakes: list[str]
    trace: int
    verdict_trace: int
    counts: Counter[str]
    story: list[str] = field(default_factory=list)
    whole_again_ns: int = 0
    """From the last fault's end until everything was whole."""
    steps_reached: list[str] = field(default_factory=list)
    """The steps at which a process was killed as planned."""

    @property
    def is_good(self) -> bool:
        """Whether every promise held."""
        return not self.mistakes


class Run:
    """The phases of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.world = World(str(case.seed), case.tick_ns, LATE_MAX_NS)
        self.machine = Machine(self.world)
        self.stepper = Stepper(self.world)
        settings = {line: line_settings(case, line) for line in line_names(case)}
        self.plant = Plant(case, self.machine)
        self.audit = Audit(self.world, settings, SLACK_NS, self._is_excused)
        self.begins_ns = self.world.now_ns + BEGIN_NS
        self.kills = []
        for fault in case.faults:
            if fault.kind == "kill-step":
                kill = faults_.kill_at(self.plant, fault, self.begins_ns + fault.at_ms * MS)
                self.stepper.plan(kill)
                self.kills.append(kill)

    def play(self, more: Sequence[Callable[[], Sequence[Change]]] = ()) -> Result:
        """Run it. `more`: bugs planted on purpose."""
        whole_ns = 0
        layers = [self._limits, *more, self.audit.wrappers, self.stepper.wrappers]
        try:
            with substituted(self.machine, layers):
                try:
                    whole_ns = self._phases()
                except Spinning as error:
                    self.world.mistakes.append(str(error))
                finally:
                    for process in self.world.processes:
                        self.world.kill(process, "the run is over")
        finally:
            self.machine.disk.close()
        return Result(
            case=self.case,
            mistakes=list(self.world.mistakes),
            trace=self.world.trace,
            verdict_trace=zlib.crc32(repr(self.audit.verdict_trace).encode()),
            counts=self.audit.counts,
            story=list(self.world.story),
            whole_again_ns=whole_ns,
            steps_reached=[f"{kill.when} {kill.step}" for kill in self.kills if kill.is_reached],
        )

    def _phases(self) -> int:
        world, case, plant = self.world, self.case, self.plant
        plant.start_all(self.audit)
        self._look()
        for camera in plant.cameras.values():
            camera.begin(self.begins_ns)
        ends_ns = self.begins_ns + case.load_ms * MS
        for fault in case.faults:
            at_ns = self.begins_ns + fault.at_ms * MS
            ends_ns = max(ends_ns, at_ns + fault.for_ms * MS)
            world.at(at_ns, partial(faults_.begin, plant, fault))
        world.run(ends_ns)
        for kill in self.kills:
            kill.is_done = True  # the faults have stopped
        for camera in plant.cameras.values():
            camera.slower = 3
        quiet_ns = world.now_ns
        self._recover(quiet_ns)
        whole_ns = world.now_ns - quiet_ns
        for camera in plant.cameras.values():
            camera.end()
        self._drain()
        if not world.mistakes:
            rows = self._rows(PARTS.name)
            self.audit.finish(rows, self._rows(EVENTS.name))
        return whole_ns

    def _limits(self) -> list[Change]:
        return [(process, "JOURNAL_ROWS_MAX", self.case.journal_rows_max)]

    # --- watching ---------------------------------------------------------------------------

    def _look(self) -> None:
        """Again and again: restart the dead, check every bound."""
        self.world.after(LOOK_NS, self._look)
        self.plant.look_after()
        for name in self.plant.lines:
            line = self.plant.line(name)
            if line is None or not hasattr(line, "_intake"):
                continue
            open_parts = len(line._book.numbers())
            held = {
                "open parts": (open_parts, SLOTS + 300),
                "free slots": (line._slots.free_count, SLOTS),
                "verdicts without ack": (line._output.unacked_count, 4096),
                "journal rows": (line._journal.rows_held, self.case.journal_rows_max),
            }
            for what, (count, limit) in held.items():
                if count > limit:
                    self.world.mistake(8, f"{name}: {count} {what}, at most {limit}")
        batcher = self.plant.batcher
        if batcher is not None and hasattr(batcher, "_lines"):
            offers, limit = len(batcher._lines._offers), SLOTS * len(self.plant.lines)
            if offers > limit:
                self.world.mistake(8, f"the batcher holds {offers} offers of {limit} slots")

    def _is_excused(self, line: str, at_ns: int) -> bool:
        """Whether a fault of the line's own engines or load explains that nobody answered."""
        plant, case = self.plant, self.case
        run_ns = plant.settings[line].wcet_fallback_ns + plant.settings[line].start_ns
        if run_ns > BUSY_SHARE * case.cycle_ms * MS:
            return True
        for fault in case.faults:
            own = fault.kind.startswith(("fallback-f", "fallback-w", "camera-", "link-"))
            is_everybodys = fault.kind == "decode-slow"
            if not is_everybodys and (not own or plant.lines[fault.target] != line):
                continue
            begins_ns = self.begins_ns + fault.at_ms * MS
            ends_ns = begins_ns + fault.for_ms * MS + AFTER_EFFECT_NS
            if begins_ns - AFTER_EFFECT_NS <= at_ns <= ends_ns:
                return True
        return False

    # --- when the faults have stopped -------------------------------------------------------

    def _recover(self, quiet_ns: int) -> None:
        world = self.world
        while not world.mistakes:
            missing = self._missing(quiet_ns)
            if not missing:
                return
            if world.now_ns - quiet_ns > WHOLE_AGAIN_NS:
                waited = f"{WHOLE_AGAIN_NS / 1e9:.0f} s after the last fault"
                world.mistake(7, f"{waited}: {'; '.join(missing)}")
                return
            world.run(world.now_ns + LOOK_NS)

    def _missing(self, quiet_ns: int) -> list[str]:
        """What is not whole yet."""
        plant = self.plant
        missing = [f"{name} is not back" for name, life in plant.lives.items()
                   if life.is_dead or life.subject is None]  # fmt: skip
        batcher = plant.batcher
        if batcher is not None and hasattr(batcher, "_lines"):
            states = batcher._core.snapshot().gpu_states
            missing += [f"gpu{k} {state}" for k, state in enumerate(states) if state != "READY"]
        for line in plant.lines:
            if self.audit.pool_answered_at_ns.get(line, 0) < quiet_ns:
                missing.append(f"{line}: no part answered by the pool")
        return missing

    def _drain(self) -> None:
        """Without load everything empties."""
        world = self.world
        end_ns = world.now_ns + DRAIN_NS
        while not world.mistakes:
            world.run(world.now_ns + 2 * LOOK_NS)
            full = self._full()
            if not full:
                return
            if world.now_ns > end_ns:
                world.mistake(8, f"never empty again: {'; '.join(full)}")

    def _full(self) -> list[str]:
        plant, full = self.plant, []
        for name in plant.lines:
            line = plant.line(name)
            if line is None:
                return [f"{name} is not there"]
            if line._core.open_count or line._book.numbers():
                full.append(f"{name}: parts {line._book.numbers()} are open")
            if line._slots.free_count != SLOTS:
                full.append(f"{name}: {line._slots.free_count} of {SLOTS} slots are free")
            if any(rows for rows in line._journal._rows["parts"]):
                full.append(f"{name}: part rows wait")
            if any(b'"part_id"' in batch.payload for batch in line._journal._batches.values()):
                full.append(f"{name}: part rows without acknowledgement")
        batcher = plant.batcher
        if batcher is None:
            return ["the batcher is not there"]
        if batcher._lines._offers:
            full.append(f"batcher: {len(batcher._lines._offers)} offers")
        if any(batcher._core.snapshot().waiting):
            full.append("batcher: parts wait")
        for endpoint in batcher._endpoints:
            server = plant.servers[endpoint.gpu]
            region = endpoint.live.region if endpoint.live else None
            if region is None:
                full.append(f"gpu{endpoint.gpu}: lost again")
                continue
            busy = sum(name == region.name for name, _ in server.writing)
            if len(region._free) + busy < REGION_SLOTS:
                full.append(f"gpu{endpoint.gpu}: {len(region._free)} of {REGION_SLOTS} slots free")
        return full

    def _rows(self, table: str) -> list[dict[str, Any]]:
        names = {PARTS.name: PARTS, EVENTS.name: EVENTS}[table].columns
        sql = f"SELECT {', '.join(column.name for column in names)} FROM {table}"
        rows = self.machine.disk.rows(sql)
        return [dict(zip((c.name for c in names), row, strict=True)) for row in rows]


def play(case: Case, more: Sequence[Callable[[], Sequence[Change]]] = ()) -> Result:
    """Run one case."""
    return Run(case).play(more)
