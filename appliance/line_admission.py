"""The batcher's admission at work: what the shedding core is told, and whom it tells what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.line_links import LineLinks
from deadline_batcher import link
from deadline_batcher import shedding as sh

Tell = Callable[[str, str, str], None]


class LineAdmission:
    """`turn` once a turn of the batcher's loop."""

    def __init__(
        self, plan: sh.ShedPlan, line_ids: Sequence[str], lines: LineLinks, tell: Tell
    ) -> None:
        self._plan = plan
        self._line_ids = line_ids
        self._lines = lines
        self._tell = tell
        self._core = sh.Shedding(plan)
        self._seen: sh.GpusSeen | None = None
        tell("capacity.from", "pool", plan.capacity_from)

    @property
    def gpus_ready(self) -> int:
        """GPUs that lines may count on: READY, or in doubt for a little while."""
        return self._core.gpus

    def turn(self, gpu_states: Sequence[str], now_ns: int) -> bool:
        """Take what is new and obey the core; whether lines may count on another number of GPUs."""
        gpus_before = self._core.gpus
        doubtful = sum(state == "SUSPECT" for state in gpu_states)
        seen = sh.GpusSeen(sum(state == "READY" for state in gpu_states), doubtful)
        if seen != self._seen:
            self._seen = seen
            self._feed(seen, now_ns)
        while self._lines.loads:
            self._feed(sh.LoadSeen(*self._lines.loads.popleft()), now_ns)
        wakeup_ns = self._core.wakeup_at_ns()
        if wakeup_ns is not None and now_ns >= wakeup_ns:
            self._feed(sh.TimeReached(), now_ns)
        while self._lines.greeted:
            self._admit(self._lines.greeted.popleft())
        return self._core.gpus != gpus_before

    def wakeup_at_ns(self) -> int | None:
        """When `turn` next has something to do by itself."""
        return self._core.wakeup_at_ns()

    def _feed(self, event: sh.ShedEvent, now_ns: int) -> None:
        for command in self._core.handle(event, now_ns):
            self._obey(command)

    def _obey(self, command: sh.ShedCommand) -> None:
        core = self._core
        carried = f"{core.gpus} GPUs carry {core.carried_count} of {len(self._line_ids)} lines"
        match command:
            case sh.ShedLine():
                self._tell("route.shed", self._name(command.line), f"{command.reason}: {carried}")
                self._admit(command.line)
            case sh.UnshedLine():
                self._tell("route.unshed", self._name(command.line), carried)
                self._admit(command.line)
            case sh.TellRate():
                planned_ns = self._plan.load.streams[command.line].cycle_ns
                kind = "rate.above" if command.cycle_ns else "rate.normal"
                told = f"a part every {command.cycle_ns / 1e6:.1f} ms; " if command.cycle_ns else ""
                told += f"the plant file says every {planned_ns / 1e6:g} ms"
                self._tell(kind, self._name(command.line), told)
            case sh.TellCapacity():
                kind = "capacity.short" if command.is_short else "capacity.enough"
                able = f"{command.gpus} GPUs carry {command.carried} of {len(self._line_ids)} lines"
                share = command.share / sh.SHARE_ONE
                self._tell(kind, "pool", f"{able}; all lines need {share:.2f} GPUs at least")

    def _admit(self, line: int) -> None:
        core = self._core
        reason = core.reason(line)
        number = link.SHED_REASONS.index(reason)
        lines = len(self._line_ids)
        told = link.Carried(not reason, number, core.gpus, core.carried_count, lines)
        self._lines.admit(line, told, self.gpus_ready)

    def _name(self, line: int) -> str:
        return self._line_ids[line]
