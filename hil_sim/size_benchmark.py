"""What sizing costs, and how hard its proofs were tried: figures for `takt benchmark`."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from deadline_batcher.plan import PolicySpec
from deadline_batcher.sizing.admission import admit
from deadline_batcher.sizing.load import Load, SizedCategory, Stream
from hil_sim.size_certify import CERTIFIERS
from hil_sim.size_evidence import Setting, first_phases, look
from hil_sim.size_reference import RULES, Pool, arrivals_of, random_load

MS = 1_000_000
ROUNDS = 200
PARTS = 150


def mixed_load(lines: int, rng: random.Random | None = None) -> Load:
    """A third each of three models, at a load that scales with nothing but the lines.

    rng: every line gets a cycle time of its own, so that nothing can be counted together.
    """
    shapes = ((12.0, 6.0, 16, 120), (3.0, 0.8, 32, 60), (20.0, 9.0, 8, 300))
    categories = tuple(
        SizedCategory(f"m{k}", tuple(round((a + b * n) * MS) for n in range(1, cap + 1)))
        for k, (a, b, cap, _) in enumerate(shapes)
    )
    streams = []
    for number in range(lines):
        kind = number % 3
        deadline_ns = shapes[kind][3] * MS
        cycle_ns = round(15 * lines * MS) + (rng.randrange(5 * lines * MS) if rng else 0)
        jitter_ns = rng.randrange(10 * MS) if rng else 2 * MS
        streams.append(
            Stream(f"l{number}", kind, cycle_ns, deadline_ns, deadline_ns, jitter_ns, number % 9)
        )
    windows = (30 * MS, 15 * MS, 60 * MS)
    return Load(categories, tuple(streams), MS, categories[2].wcet_ns[0]).windowed(windows)


def admission_figures(rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Milliseconds of one admission: a line added, slowed, sped up, or a GPU lost."""
    found = []
    for lines in (12, 200):
        rng = random.Random(lines)
        times_ms = []
        for number in range(rounds):
            load = mixed_load(lines, rng if number % 2 else None)
            changed = load.streams[rng.randrange(lines)]
            factor = rng.choice((1, 2, 3, 6))
            load = load.with_cycle(changed.name, changed.cycle_ns * 2 // factor)
            gpus = rng.randint(1, 4)
            began_ns = time.perf_counter_ns()
            admit(load, gpus)
            times_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
        times_ms.sort()
        found.append(
            {
                "lines": lines,
                "n": rounds,
                "p50_ms": round(statistics.median(times_ms), 3),
                "p99_ms": round(times_ms[int(0.99 * rounds)], 3),
                "max_ms": round(times_ms[-1], 3),
            }
        )
    return found


def soundness_figures(seconds: float, seed: int = 1) -> dict[str, int]:
    """Random plants, raised to the largest rate that a test still passes, then simulated: how many
    sets, certificates and runs, and how many of them were late (none may be)."""
    counts: Counter[str] = Counter()
    ends_at = time.process_time() + seconds
    while time.process_time() < ends_at:
        seed += 1
        rng = random.Random(seed)
        load, gpus = random_load(rng), rng.randint(1, 4)
        counts["plants"] += 1
        for name, certify in CERTIFIERS.items():
            if certify(load, gpus) is None:
                continue
            factor = 16
            while factor < 200 and certify(load.at(factor + 2, 16), gpus) is not None:
                factor += 2
            raised = load.at(factor, 16)
            proof = certify(raised, gpus)
            if proof is None:
                continue
            counts[f"certificates {name}"] += 1
            setting = Setting(PolicySpec(proof.policy), proof.caps, proof.windows_ns, 0)
            for phases in first_phases(raised, 6, seed):
                sight = look(raised, setting, gpus, phases, PARTS)
                counts["shipped runs"] += 1
                counts["late"] += min(sight.margins_ns) < 0
            if name != "windows":
                late = _plain_late(raised.capped(proof.caps), gpus, name, seed)
                counts["plain runs"] += len(late)
                counts["late"] += sum(late)
    return dict(counts)


def _plain_late(load: Load, gpus: int, mode: str, seed: int) -> list[bool]:
    late = []
    for run in range(4):
        rng = random.Random(seed * 16 + run)
        horizon_ns = min(
            12 * max(one.cycle_ns for one in load.streams),
            300 * min(one.cycle_ns for one in load.streams),
        )
        pool = Pool(replace(load), gpus, mode, rng.choice(RULES), rng)
        late.append(pool.least_margin_ns(arrivals_of(load, horizon_ns, rng)) < 0)
    return late


def size_figures(seconds: float = 60.0) -> dict[str, Any]:
    """Everything, for a results file."""
    return {"admission": admission_figures(), "soundness": soundness_figures(seconds)}
