"""`takt benchmark`: measure what the README claims, and write it down with n and the machine.

Benchmarks are not tests: they print, they do not judge by time. Each run is a whole `takt demo`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.cli import takt_version
from appliance.profiler import cpu_name
from hil_sim import scheduler_benchmark, shed_benchmark, soak_benchmark, timer_benchmark
from hil_sim.size_benchmark import size_figures

PROJECT = Path(__file__).resolve().parent.parent
RESULTS = PROJECT / "benchmarks" / "results"
README = PROJECT / "README.md"
_FIGURES = re.compile(r"(<!-- figures -->\n).*?(<!-- /figures -->)", re.DOTALL)
RULE_OF_THREE = 3.0


class BenchmarkError(Exception):
    """A run did not produce figures; the text is its output."""


@dataclass(frozen=True, slots=True)
class Run:
    """One demo: its JSON and what it printed."""

    figures: dict[str, Any]
    said: str


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "takt": takt_version(),
        "measured_on": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "load_before": os.getloadavg()[0],
    }


def demo(*words: str) -> Run:
    """Run `takt demo` with these options. Raises BenchmarkError if it gives no figures."""
    with tempfile.TemporaryDirectory(prefix="takt-bench-") as folder:
        file = Path(folder) / "demo.json"
        command = [sys.executable, "-m", "appliance.cli", "demo", "--no-ui", "--json", str(file)]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if not file.is_file():
            raise BenchmarkError(said)
        return Run(json.loads(file.read_text()), said)


def bound_text(failures: int, n: int) -> str:
    """What n says about the share of failures: with none seen, at most 3/n (95 %)."""
    if n == 0:
        return "n = 0 says nothing"
    if failures:
        return f"{failures} of {n}"
    return f"0 of {n}: at most {RULE_OF_THREE / n:.2g} at 95 % confidence"


def load(options: argparse.Namespace) -> dict[str, Any]:
    """Twelve lines at ten parts a second for a minute."""
    run = demo("--seconds", str(options.seconds))
    figures = run.figures
    owed = figures["parts"]["owed"]
    share = figures["answered_by"]["pool"] / owed if owed else 0.0
    print(f"parts            {owed} owed, {figures['parts']['uninspected']} UNINSPECTED")
    print(f"missed           {bound_text(figures['missed'], owed)}")
    print(f"lost, duplicate  {figures['lost']}, {figures['duplicate']}")
    print(f"by the pool      {share:.2%}")
    print(f"mean batch size  {figures['batches']['mean_size']}")
    print(f"latency ms       {figures['latency_ms']}")
    print(f"margin ms        {figures['margin_ms']}")
    return {"held": run.figures["held"], "pool_share": share, "figures": figures}


def kills(options: argparse.Namespace) -> dict[str, Any]:
    """SIGKILL of one Triton at a random instant under the same load, many times."""
    chance = random.Random(options.seed)
    runs = []
    for number in range(options.runs):
        gpu, at_s = chance.randrange(4), round(chance.uniform(3.0, 8.0), 3)
        words = ("--kill-triton", str(gpu), "--at", str(at_s), "--seconds", "12")
        run = demo(*words, "--seed", str(number + 1))
        figures = run.figures
        outcomes = figures["batches"]["outcomes"]
        caught = sum(count for outcome, count in outcomes.items() if outcome != "ok")
        one = {
            "gpu": gpu,
            "at_s": at_s,
            "owed": figures["parts"]["owed"],
            "missed": figures["missed"],
            "lost": figures["lost"],
            "duplicate": figures["duplicate"],
            "uninspected": figures["parts"]["uninspected"],
            "fallback": figures["answered_by"]["fallback"],
            "batches_caught": caught,
            "margin_min_ms": figures["margin_ms"]["min"],
            "held": run.figures["held"],
        }
        runs.append(one)
        print(f"{number + 1:3d} of {options.runs}  {one}", flush=True)
    bad = sum(run["missed"] + run["lost"] + run["duplicate"] for run in runs)
    owed = sum(run["owed"] for run in runs)
    caught_runs = sum(run["batches_caught"] > 0 for run in runs)
    print(f"kills            {len(runs)}, {caught_runs} of them cost a batch, which ran elsewhere")
    print(f"missed, lost or duplicate  {bound_text(bad, owed)} parts")
    failed_runs = sum(not run["held"] for run in runs)
    print(f"kills that cost a verdict  {bound_text(failed_runs, len(runs))} kills")
    return {"runs": runs, "bad_parts": bad, "owed": owed}


def start(options: argparse.Namespace) -> dict[str, Any]:
    """From the command to the first verdict, on a set-up machine."""
    times_s = []
    for _ in range(options.runs):
        run = demo("--seconds", "2")
        times_s.append(run.figures["first_verdict_s"])
        print(f"first verdict after {times_s[-1]:.2f} s", flush=True)
    times_s.sort()
    print(f"n {len(times_s)}, median {times_s[len(times_s) // 2]:.2f} s, most {times_s[-1]:.2f} s")
    return {"first_verdict_s": times_s}


def size(options: argparse.Namespace) -> dict[str, Any]:
    """What admission costs, and how hard the sizing proofs were tried (no plant is started)."""
    found = size_figures(options.seconds)
    print(json.dumps(found, indent=2))
    return found


def _rows(results: Path) -> Iterator[tuple[str, str]]:
    """(what, what was seen) for each result there is."""
    found = {file.stem: json.loads(file.read_text()) for file in sorted(results.glob("*.json"))}
    if "load" in found:
        result = found["load"]["result"]
        figures = result["figures"]
        owed = figures["parts"]["owed"]
        latency, margin = figures["latency_ms"], figures["margin_ms"]
        yield (
            "12 lines × 10 parts/s, deadline 150 ms, 60 s: missed",
            bound_text(figures["missed"] + figures["lost"] + figures["duplicate"], owed),
        )
        yield (
            "answered by the pool, mean batch size",
            (f"{result['pool_share']:.2%}, {figures['batches']['mean_size']}"),
        )
        yield (
            "exposure to verdict, p50 / p99 / most",
            (
                f"{latency['p50']:.0f} / {latency['p99']:.0f} / {latency['max']:.0f} ms; "
                f"least margin {margin['min']:.0f} ms"
            ),
        )
    if "kills" in found:
        result = found["kills"]["result"]
        kills_text = (
            f"{len(result['runs'])} kills, {bound_text(result['bad_parts'], result['owed'])}"
        )
        yield "SIGKILL of one Triton at a random instant: missed, lost or duplicate", kills_text
    if "start" in found:
        times_s = found["start"]["result"]["first_verdict_s"]
        middle_s, most_s = times_s[len(times_s) // 2], times_s[-1]
        yield (
            "command to first verdict, set-up machine",
            (f"median {middle_s:.1f} s, most {most_s:.1f} s, n = {len(times_s)}"),
        )


def write_figures(results: Path, document: Path) -> None:
    """Put the table of what was measured between the document's figure marks."""
    table = "".join(f"| {what} | {seen} |\n" for what, seen in _rows(results))
    text = document.read_text(encoding="utf-8")
    block = f"| | seen |\n|---|---|\n{table}"
    document.write_text(_FIGURES.sub(lambda m: f"{m[1]}{block}{m[2]}", text), encoding="utf-8")


def scheduler(options: argparse.Namespace) -> dict[str, Any]:
    """What one part costs the scheduler, from 12 to 500 lines (no plant is started)."""
    return scheduler_benchmark.report()


def shedding(options: argparse.Namespace) -> dict[str, Any]:
    """How long it takes to say which lines are on the pool, from 12 to 500 lines."""
    return shed_benchmark.report()


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Whether memory, descriptors, threads or shared memory grow over --seconds (3600 is apt)."""
    return soak_benchmark.report(options.seconds, options.rate)


def timer(options: argparse.Namespace) -> dict[str, Any]:
    """How late timers are served, ordinary and real-time class, alone and beside busy programs."""
    return timer_benchmark.report(options.seconds)


BENCHMARKS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "load": load,
    "kills": kills,
    "start": start,
    "scheduler": scheduler,
    "shedding": shedding,
    "size": size,
    "soak": soak,
    "timer": timer,
}
COMMANDS = {"triton-batcher": "hil_sim.triton_trial"}
"""Benchmarks with options of their own."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt benchmark",
        description="Measure what the README claims; results go to benchmarks/results/.",
        epilog="example: takt benchmark kills --runs 20; triton-batcher has options of its own",
    )
    names = "; ".join(f"{name}: {run.__doc__}" for name, run in BENCHMARKS.items())
    parser.add_argument("name", choices=BENCHMARKS, help=names)
    parser.add_argument("--runs", type=int, default=20, help="of kills and start (20)")
    parser.add_argument("--seconds", type=float, default=60, help="of load, soak and timer (60)")
    parser.add_argument("--rate", type=float, default=5, help="parts/s a line, of soak (5)")
    parser.add_argument("--seed", type=int, default=1, help="of the random instants")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="where the results go"
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 measured, 1 a run gave no figures, 2 wrong use."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in COMMANDS:
        code: int = importlib.import_module(COMMANDS[words[0]]).main(words[1:])
        return code
    options = _parser().parse_args(words)
    here = machine()
    print(f"{options.name}: {here}")
    try:
        found = BENCHMARKS[options.name](options)
    except (BenchmarkError, OSError) as error:
        print(f"takt benchmark: a run gave no figures:\n{error}", file=sys.stderr)
        return 1
    options.results.mkdir(parents=True, exist_ok=True)
    file = options.results / f"{options.name}.json"
    told = {"benchmark": options.name, "machine": here, "result": found}
    file.write_text(json.dumps(told, indent=2) + "\n")
    print(f"written: {file}")
    if options.results == RESULTS:
        write_figures(RESULTS, README)
    return 0
