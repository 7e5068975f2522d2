"""`takt sim nemesis`: faults at random instants of a real plant under load, counted by injection.

Results are written after every run of the plant, one entry a fault, so that a campaign may be taken
up again where it ended.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from appliance.processes import tied
from hil_sim.benchmark import PROJECT, RESULTS, machine
from hil_sim.nemesis import host
from hil_sim.nemesis.arena import Spec
from hil_sim.nemesis.faults import FAULTS, Fault
from hil_sim.nemesis.report import bad_of, line_of, write_report

DEFAULT_FILE: Final = RESULTS / "nemesis.json"
REPORT_FILE: Final = PROJECT / "docs" / "reliability.md"
RUN_LIMIT_S: Final = 300.0
SUM_OF: Final = (
    "owed", "frames_sent", "frames_dropped", "missing", "late", "late_own", "late_answers",
    "duplicate", "wrong", "in_doubt", "arrived_too_late", "pool", "fallback", "failsafe",
)  # fmt: skip


def load_results(path: Path) -> dict[str, Any]:
    """What earlier runs found; empty where there is none. Raises ValueError, OSError."""
    if not path.is_file():
        return {"benchmark": "nemesis", "faults": {}}
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def keep_results(path: Path, results: dict[str, Any]) -> None:
    """Write them; a reader sees the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=1) + "\n")
    partial.replace(path)


def run_arena(spec: Spec, folder: Path) -> dict[str, Any]:
    """One run of the plant in a process, and namespaces, of its own."""
    told, found = folder / "spec.json", folder / "result.json"
    told.write_text(json.dumps(asdict(spec)))
    arena = [sys.executable, "-m", "hil_sim.nemesis.arena", str(told), str(found)]
    command = host.in_own_namespaces(arena)
    is_private = command != arena
    environment = {**os.environ, "TAKT_NEMESIS_PRIVATE": str(int(is_private))}
    with (folder / "arena.log").open("wb") as log:
        process = subprocess.Popen(
            tied(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            process.wait(RUN_LIMIT_S + spec.seconds)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as ended:
            process.terminate()
            with_result = _ended_well(process)
            if isinstance(ended, KeyboardInterrupt) or not with_result:
                raise
    if not found.is_file():
        said = (folder / "arena.log").read_text(errors="replace")[-2000:]
        return {"injections": [], "cost": {}, "left": [], "error": f"the arena failed: {said}"}
    result: dict[str, Any] = json.loads(found.read_text())
    return result


def _ended_well(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True


def add_run(entry: dict[str, Any], result: dict[str, Any], seed: int) -> None:
    """Add what one run brought to its fault's entry."""
    cost = result["cost"]
    entry["injections"] += result["injections"]
    entry["runs"].append(
        {
            "at": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "seed": seed,
            "injections": len(result["injections"]),
            "cost": cost,
            "left": result["left"],
            "error": result["error"],
            "load": os.getloadavg()[0],
        }
    )
    for name in SUM_OF:
        entry["sum"][name] = entry["sum"].get(name, 0) + cost.get(name, 0)
    entry["sum"]["left"] = entry["sum"].get("left", 0) + len(result["left"])
    entry["sum"]["errors"] = entry["sum"].get("errors", 0) + bool(result["error"])


def campaign(names: Sequence[str], options: argparse.Namespace, results: dict[str, Any]) -> bool:
    """Bring one fault, or several in turn, to the wanted injections; whether nothing was broken."""
    name = "+".join(names)
    faults: list[Fault] = [FAULTS[one] for one in names]
    why_not = host.missing(tuple(need for fault in faults for need in fault.needs))
    what = "; ".join(fault.what for fault in faults)
    entry = results["faults"].setdefault(
        name, {"what": what, "injections": [], "runs": [], "sum": {}, "machine": machine()}
    )
    if why_not is not None:
        entry["skipped"] = why_not
        print(f"SKIPPED {name}: {why_not}", flush=True)
        keep_results(options.json, results)
        return True
    entry.pop("skipped", None)
    empty_runs = 0
    while len(entry["injections"]) < options.injections and empty_runs < 2:
        seed = options.seed * 1000 + len(entry["runs"])
        wanted = options.injections - len(entry["injections"])
        with tempfile.TemporaryDirectory(prefix="takt-nemesis-") as folder:
            spec = Spec(
                tuple(names), wanted, options.seconds, seed, folder, options.lines, options.rate,
                options.gpus, options.deadline_ms,
            )  # fmt: skip
            began_s = time.monotonic()
            result = run_arena(spec, Path(folder))
            if options.keep is not None and (result["error"] or bad_of(result["cost"])):
                _keep(Path(folder), options.keep / f"{name}-{seed}")
        add_run(entry, result, seed)
        keep_results(options.json, results)
        count = len(result["injections"])
        empty_runs = 0 if count else empty_runs + 1
        took_s = time.monotonic() - began_s
        print(f"{name}: {count} injections in {took_s:.0f} s {result['error']}", flush=True)
    print(line_of(name, entry), flush=True)
    return not bad_of(entry["sum"])


def _keep(folder: Path, into: Path) -> None:
    into.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cp", "-r", str(folder), str(into)], check=False)
    print(f"kept: {into}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt sim nemesis",
        description="Hurt a real plant of twelve lines under load, many times, and let the "
        "checker decide from the camera's log, the actuator's log and the journal.",
        epilog="example: takt sim nemesis --fault kill-batcher --injections 30",
    )
    add = parser.add_argument
    add("--fault", action="append", choices=FAULTS, metavar="NAME", help="only this; repeatable")
    add("--mixed", action="store_true", help="these faults in turn, in one run of the plant")
    add("--injections", type=int, default=5, help="of each fault, earlier runs included (5)")
    add("--seconds", type=float, default=90.0, help="under load in one run of the plant (90)")
    add("--json", type=Path, default=DEFAULT_FILE, metavar="FILE", help="results, taken up again")
    add("--fresh", action="store_true", help="forget what the file holds of these faults")
    add("--list", action="store_true", help="the faults, and which this host cannot do")
    add("--report", action="store_true", help="write docs/reliability.md from the results, only")
    add("--lines", type=int, default=12)
    add("--rate", type=float, default=5.0, help="parts per second of each line (5)")
    add("--gpus", type=int, default=4)
    add("--deadline-ms", type=float, default=200.0, help="from exposure to the gate (200)")
    add("--seed", type=int, default=1, help="of the instants")
    add("--keep", type=Path, metavar="DIR", help="keep the folders of runs with a finding there")
    return parser


def list_faults() -> None:
    """Every fault, what it does, and why this host cannot do it."""
    width = max(map(len, FAULTS))
    for name, fault in FAULTS.items():
        why_not = host.missing(fault.needs)
        print(f"{name:<{width}}  {fault.what}" + (f"   SKIPPED: {why_not}" if why_not else ""))


def main(argv: Sequence[str]) -> int:
    """Exit 0 nothing broken, 1 a finding, 2 wrong use."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.list:
        list_faults()
        return 0
    for name, least, most in (("injections", 1, 100_000), ("lines", 1, 99), ("gpus", 1, 16)):
        if not least <= getattr(options, name) <= most:
            parser.error(f"--{name} {getattr(options, name)}: from {least} to {most}")
    try:
        results = load_results(options.json)
    except (ValueError, OSError) as error:
        print(f"takt sim nemesis: {options.json}: {error}", file=sys.stderr)
        return 2
    if options.report:
        write_report(results, REPORT_FILE)
        print(f"written: {REPORT_FILE}")
        return 0
    names = options.fault or list(FAULTS)
    held = True
    try:
        for chosen in [names] if options.mixed else [[name] for name in names]:
            if options.fresh:
                results["faults"].pop("+".join(chosen), None)
            held = campaign(chosen, options, results) and held
    except KeyboardInterrupt:
        return 130
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
