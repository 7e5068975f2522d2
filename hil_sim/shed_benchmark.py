"""`takt benchmark shedding`: how long it takes to say which lines are on the pool.

Every decision follows a change of the pool or of a measured rate, and is made with all lines'
offered loads; with the sufficient tests as well as without, for the tests are what takes time.
"""

from __future__ import annotations

import random
import time
from typing import Any

from deadline_batcher.shedding import GpusSeen, LoadSeen, Shedding, ShedPlan, proportional
from deadline_batcher.sizing.admission import TESTS
from deadline_batcher.sizing.load import Load, SizedCategory, Stream

LINES = (12, 24, 48, 100, 200, 500)
GPUS = 4
DECISIONS = 300
LIMIT_LINES, LIMIT_MS = 12, 5.0
"""What has to be kept: so many lines in so many milliseconds."""
MS, S = 1_000_000, 1_000_000_000
_CATEGORIES = (
    SizedCategory("detector", tuple((12 + 6 * b) * MS for b in range(1, 17))),
    SizedCategory("classifier", tuple((3 * MS + 800_000 * b) for b in range(1, 33))),
    SizedCategory("segmenter", tuple((20 + 9 * b) * MS for b in range(1, 9))),
)
_TIMES_MS = ((60, 120), (20, 40), (200, 300))


def plan_of(lines: int, tests: tuple[str, ...]) -> ShedPlan:
    """That many lines of three models in turn; cycle times grow with the lines."""
    streams = []
    for number in range(lines):
        cycle_ms, needed_ms = _TIMES_MS[number % 3]
        cycle_ns, needed_ns = cycle_ms * MS * lines // 12, needed_ms * MS
        streams.append(
            Stream(f"l{number}", number % 3, cycle_ns, needed_ns, needed_ns, 5 * MS, number)
        )
    load = Load(_CATEGORIES, tuple(streams), 5 * MS, 29 * MS)
    capacity = proportional(load, GPUS, 1)
    return ShedPlan(load, tests, capacity, 10 * S, 50, 60 * S, 0, 2 * S, 250 * MS)


def times_ms(lines: int, tests: tuple[str, ...], seed: int = 1) -> list[float]:
    """How long each decision took, ascending: a GPU lost or back, or a line at another rate."""
    rng = random.Random(seed)
    core = Shedding(plan_of(lines, tests))
    counts = [0] * lines
    core.handle(GpusSeen(GPUS, 0), 0)
    now_ns, found, gpus = 0, [], GPUS
    for turn in range(DECISIONS):
        if turn % 3 == 0:  # what changes the measured rates, before the change that is timed
            for _ in range(24):
                now_ns += 250 * MS
                line = rng.randrange(lines)
                counts[line] += rng.randint(1, 8)
                core.handle(LoadSeen(line, counts[line]), now_ns)
        now_ns += 250 * MS
        gpus = rng.choice([count for count in range(1, GPUS + 1) if count != gpus])
        began_ns = time.thread_time_ns()
        core.handle(GpusSeen(gpus, 0), now_ns)
        found.append((time.thread_time_ns() - began_ns) / 1e6)
    return sorted(found)


def report() -> dict[str, Any]:
    """Print and return milliseconds a decision, for every number of lines."""
    rows: list[dict[str, Any]] = []
    for lines in LINES:
        for tests in ((), tuple(TESTS)):
            found = times_ms(lines, tests)
            row = {
                "lines": lines,
                "tests": list(tests),
                "decisions": len(found),
                "p50_ms": round(found[len(found) // 2], 4),
                "p99_ms": round(found[int(0.99 * len(found))], 4),
                "max_ms": round(found[-1], 4),
            }
            rows.append(row)
            told = "with every sufficient test" if tests else "by capacity"
            print(
                f"{lines:4d} lines {told:27} n {len(found)}  p50 {row['p50_ms']} ms  "
                f"p99 {row['p99_ms']} ms  max {row['max_ms']} ms",
                flush=True,
            )
    worst = max(row["max_ms"] for row in rows if row["lines"] == LIMIT_LINES)
    held = worst <= LIMIT_MS
    word = "held" if held else "NOT held"
    print(f"{LIMIT_LINES} lines: at most {worst} ms, {LIMIT_MS} allowed: {word}")
    return {"rows": rows, "limit_ms": LIMIT_MS, "worst_ms": worst, "held": held}
