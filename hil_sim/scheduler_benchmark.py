"""`takt benchmark scheduler`: what one part costs the scheduler, from 12 to 500 lines.

The plant grows by lines at a constant load of the pool: cycle times grow with the lines. A part's
cost is that of its arrival, plus its share of the events at which batches end and of the wake-ups.
"""

from __future__ import annotations

import heapq
import time
from typing import Any

from deadline_batcher import messages as m
from deadline_batcher.plan import PolicySpec
from deadline_batcher.scheduler import Scheduler
from hil_sim.scenario import Scenario, ScenarioLine, ScenarioModel, arrivals_of

LINES = (12, 24, 48, 100, 200, 500)
GPUS = 4
LOAD_SHARE = 0.85
HORIZON_S = 10.0
_MODELS = (
    ScenarioModel(name="detector", wcet_ms=tuple(12 + 6 * b for b in range(1, 17))),
    ScenarioModel(name="classifier", wcet_ms=tuple(3 + 0.8 * b for b in range(1, 33))),
    ScenarioModel(name="segmenter", wcet_ms=tuple(20.0 + 9 * b for b in range(1, 9))),
)
_TIMES_MS = {"detector": (60.0, 120.0), "classifier": (20.0, 40.0), "segmenter": (200.0, 300.0)}


def plant_of(lines: int) -> Scenario:
    """That many lines of three models, in turn."""
    grown = lines / 12
    made = []
    for number in range(lines):
        model = _MODELS[number % 3].name
        cycle_ms, deadline_ms = _TIMES_MS[model]
        made.append(
            ScenarioLine(
                id=f"line{number:03d}",
                model=model,
                cycle_time_ms=cycle_ms * grown,
                deadline_ms=deadline_ms,
                jitter=0.05,
            )
        )
    return Scenario(name=f"{lines} lines", gpus=(GPUS,), model=_MODELS, line=tuple(made))


def costs_ns(lines: int, policy: str) -> list[float]:
    """The cost of every part of one run, ascending."""
    scenario = plant_of(lines)
    load = LOAD_SHARE * scenario.bound(GPUS)
    arrivals = arrivals_of(scenario, load, 1, HORIZON_S)
    scheduler = Scheduler(scenario.plan(GPUS, load, PolicySpec(policy)))
    for gpu in range(GPUS):
        scheduler.handle(m.GpuReady(gpu), 0)
    found = [0.0] * len(arrivals)
    ends: list[tuple[int, int, m.RunBatch]] = []
    number, shared_ns = 0, 0
    while number < len(arrivals):
        at_ns = arrivals[number].at_ns
        event: m.Event = m.TimeReached()
        members: tuple[m.BatchPart, ...] = ()
        wakeup_ns = scheduler.wakeup_at_ns()
        now_ns = min(at_ns, ends[0][0] if ends else at_ns, wakeup_ns or at_ns)
        if now_ns == at_ns:
            arrival = arrivals[number]
            key = m.PartKey(arrival.line, number)
            event = m.PartReady(key, arrival.category, at_ns, arrival.due_ns)
            number += 1
        elif ends and now_ns == ends[0][0]:
            batch = heapq.heappop(ends)[2]
            members = batch.parts
            event = m.BatchDone(batch.batch_id, batch.gpu)
        began_ns = time.thread_time_ns()
        commands = scheduler.handle(event, now_ns)
        scheduler.wakeup_at_ns()
        took_ns = time.thread_time_ns() - began_ns
        if isinstance(event, m.PartReady):
            found[event.key.part] += took_ns
        elif members:
            for member in members:
                found[member.key.part] += (took_ns + shared_ns) / len(members)
            shared_ns = 0
        else:
            shared_ns += took_ns
        for command in commands:
            if isinstance(command, m.RunBatch):
                heapq.heappush(ends, (command.worst_end_at_ns, command.batch_id, command))
    return sorted(found)


def report(policy: str = "takt") -> dict[str, Any]:
    """Print and return microseconds a part, for every number of lines."""
    rows = []
    for lines in LINES:
        found = costs_ns(lines, policy)
        row = {
            "lines": lines,
            "parts": len(found),
            "p50_us": round(found[len(found) // 2] / 1000, 2),
            "p99_us": round(found[int(0.99 * len(found))] / 1000, 2),
            "mean_us": round(sum(found) / len(found) / 1000, 2),
        }
        rows.append(row)
        print(
            f"{lines:4d} lines  n {row['parts']}  p50 {row['p50_us']} us  "
            f"p99 {row['p99_us']} us  mean {row['mean_us']} us",
            flush=True,
        )
    growth = rows[-1]["mean_us"] / rows[0]["mean_us"]
    print(f"{LINES[-1]} lines cost {growth:.2f} times what {LINES[0]} do for each part")
    return {"policy": policy, "rows": rows}
