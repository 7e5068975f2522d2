"""Measures what the pool does about faults, by the fake: prints one JSON object.

python tests/fake_triton/measure.py --n 30
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "real"))

from plant_wire import until

from appliance.triton.standing import Patience
from fake_triton.bench import MS, Pool

HOLD_MS, HOLD_ROW_MS = 40.0, 5.0
SHIPPED = Patience(free_losses=1_000_000)
"""But for the back-off: the same GPU is hit again and again on purpose."""
SHORT = Patience(free_losses=1_000_000, readmit_ns=1_000_000_000)
"""Where only what comes before the proof is measured."""


def summary(values_ms: list[float]) -> dict[str, Any]:
    """n, median and largest."""
    kept = sorted(values_ms)
    return {
        "n": len(kept),
        "median_ms": round(kept[len(kept) // 2], 1),
        "max_ms": round(kept[-1], 1),
    }


def made(worst_ms: dict[int, float], **more: Any) -> Pool:
    """A pool whose worst cases are these (by rows), and whose grace is the largest of them."""
    base = worst_ms[1]
    per_row = max(0.0, (worst_ms[4] - worst_ms[1]) / 3)
    return Pool(
        hold_ms=(HOLD_MS, HOLD_ROW_MS),
        wcet_ms=(base - per_row, per_row),
        grace_ms=max(20.0, worst_ms[4]),
        budget_ms=600,
        rate=12,
        **more,
    )


def batch_times(parts: int) -> dict[int, float]:
    """The 99.9th percentile of what a batch takes, by rows, in ms (the largest seen below 1000)."""
    with made(dict.fromkeys(range(1, 5), 300.0), patience=SHORT) as pool:
        until(lambda: len(pool.line.parts) >= parts, 600, "parts")
        rows = list(pool.journal.rows["batches"])
    took: dict[int, list[float]] = {size: [] for size in range(1, 5)}
    for row in rows:
        if row["answered_at_ns"] and row["batch_id"] > 0:
            took[row["size"]].append((row["answered_at_ns"] - row["sent_at_ns"]) / MS)
    worst, floor = {}, 0.0
    for size, times in sorted(took.items()):
        kept = sorted(times)
        at = kept[min(len(kept) - 1, int(0.999 * len(kept)))] if kept else 0.0
        floor = worst[size] = max(floor, at, HOLD_MS + HOLD_ROW_MS * size)
    print(json.dumps({size: len(times) for size, times in took.items()}), file=sys.stderr)
    return worst


def injected(
    pool: Pool,
    count: int,
    kinds: tuple[str, ...],
    harm: Callable[[], None],
    heal: Callable[[], None],
) -> dict[str, Any]:
    """Harm GPU 0 so often, at random phases: how soon it was seen (after the harm; after the
    batch that showed it was sent), how soon it was back after it was healed.
    """
    seen_ms, back_ms = [], []
    shown: list[dict[str, Any]] = []
    for _ in range(count):
        until(lambda: set(pool.states()) == {"READY"}, 90, "both READY")
        time.sleep(random.uniform(0.5, 1.5))
        before = {kind: len(pool.events(kind, 0)) for kind in kinds}
        at_ns = time.monotonic_ns()
        harm()

        def first(before: dict[str, int] = before) -> list[dict[str, Any]]:
            return [event for kind in kinds for event in pool.events(kind, 0)[before[kind] :]]

        event = until(first, 30, f"{kinds}")[0]
        shown.append(event)
        seen_ms.append((event["at_ns"] - at_ns) / MS)
        heal()
        healed_s = time.monotonic()
        until(lambda: pool.states()[0] == "READY", 90, "READY again")
        back_ms.append((time.monotonic() - healed_s) * 1e3)
    told = {"seen": summary(seen_ms), "back": summary(back_ms)}
    time.sleep(0.5)
    sent = {str(row["batch_id"]): row["sent_at_ns"] for row in pool.journal.rows["batches"]}
    ages = [
        (event["at_ns"] - sent[event["detail"].split(":")[0]]) / MS
        for event in shown
        if event["kind"] == "gpu.suspect" and event["detail"].split(":")[0] in sent
    ]
    return {**told, "age of its oldest batch when seen": summary(ages)} if ages else told


def faults(worst_ms: dict[int, float], count: int, only_hangs: bool) -> dict[str, Any]:
    """Each fault in turn on one pool."""
    told: dict[str, Any] = {}

    def start() -> None:
        fake.start()
        pool.calm(0)

    with made(worst_ms, patience=SHORT) as pool:
        fake = pool.fakes[0]

        if not only_hangs:
            told["SIGKILL under load"] = injected(pool, count, ("gpu.lost",), fake.kill, start)
        told["SIGSTOP, continued after 1 s"] = injected(
            pool, count, ("gpu.suspect",),
            lambda: fake.signal(signal.SIGSTOP),
            lambda: (time.sleep(1), fake.signal(signal.SIGCONT))[1],
        )  # fmt: skip
        told["every inference hangs (dead stub), let go after 1 s"] = injected(
            pool, count, ("gpu.suspect",),
            lambda: fake.rule("ModelInfer", "hang"),
            lambda: (time.sleep(1), fake.behave())[1],
        )  # fmt: skip
        told["parts"] = pool.endings()
        if only_hangs:
            return told
        rate, pool.line.rate = pool.line.rate, 0
        told["SIGKILL while idle"] = injected(pool, count, ("gpu.lost",), fake.kill, start)
        pool.line.rate = rate
        told["parts"] = pool.endings()
    with made(worst_ms, patience=SHIPPED) as pool:
        fake = pool.fakes[0]
        few = max(3, count // 5)
        told["SIGKILL, the shipped proof"] = injected(pool, few, ("gpu.lost",), fake.kill, start)
        frozen = []
        for _ in range(few):
            until(lambda: set(pool.states()) == {"READY"}, 90, "both READY")
            asked, began_s = len(pool.restarts), time.monotonic()
            fake.signal(signal.SIGSTOP)
            until(lambda asked=asked: len(pool.restarts) > asked, 60, "restart")
            until(lambda: pool.states()[0] == "READY", 60, "READY")
            frozen.append((time.monotonic() - began_s) * 1e3)
        told["SIGSTOP for ever: from the signal to READY by a new start"] = summary(frozen)
        told["parts, the shipped proof"] = pool.endings()
    return told


def lies(count: int) -> dict[str, Any]:
    """How many parts a lying GPU answers until re-scoring finds it, at the default share."""
    wrong = []
    with Pool(permille=5, rate=40, hold_ms=(4.0, 1.0), patience=SHORT) as pool:
        spare = [zlib.crc32(picture.tobytes()) for picture in pool.model.goldens._pictures]
        for endpoint in pool.batcher._endpoints:  # else the second time it stays out
            endpoint._standing.patience = replace(SHORT, disagreements=1_000_000)
        for _ in range(count):
            until(lambda: set(pool.states()) == {"READY"}, 90, "both READY")
            mark, seen = len(pool.line.parts), len(pool.events("gpu.disagreed", 0))
            pool.fakes[0].rule("ModelInfer", "wrong", by=0.1, spare=spare)
            until(lambda seen=seen: len(pool.events("gpu.disagreed", 0)) > seen, 300, "found")
            time.sleep(0.2)
            lied = [p for p in pool.line.parts[mark:] if p.ended == "wrong"]
            wrong.append(len(lied))
    kept = sorted(wrong)
    return {
        "n": count,
        "wrong answers until found": {"median": kept[len(kept) // 2], "max": kept[-1], "all": kept},
    }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=30)
    parser.add_argument("--parts", type=int, default=3000)
    parser.add_argument("--only-hangs", action="store_true")
    parser.add_argument("--lies", type=int, default=10)
    told = parser.parse_args()
    worst_ms = batch_times(told.parts)
    found: dict[str, Any] = {"p99.9 batch time by rows, ms": worst_ms}
    if told.n:
        found["faults"] = faults(worst_ms, told.n, told.only_hangs)
    if told.lies:
        found["a GPU right on goldens, wrong on parts, 5 of 1000 re-scored"] = lies(told.lies)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
