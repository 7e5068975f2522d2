"""`takt check-journal`: whether the promise held, from the journal and the logs alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from appliance.plant_errors import PlantError, load_plant
from hil_sim import routes
from hil_sim.evidence import Evidence, EvidenceError, read_evidence
from hil_sim.findings import Report
from hil_sim.promise import check
from hil_sim.summary import reconcile, summarise
from lines.journal_schema import JOURNAL_FILE

FINDINGS_SHOWN_MAX: Final = 20
PROMISES: Final = {
    1: "every owed part got one verdict in time",
    2: "no doubt became a PASS or FAIL",
    3: "every PASS and FAIL shows where it comes from",
    4: "no loss cost a verdict",
}

COUNTED_APART: Final = {
    "arrived_too_late": "parts arrived after their verdict was due: not late, not missed",
    "unconfirmed": "verdicts sent after the last that an actuator wrote down",
    "unlogged": "acknowledged parts that no camera's log shows",
    "unproved": "pool answers whose batch went unwritten when the batcher was killed",
    "idle_lines": "lines of the plant without a part",
}


def judge(evidence: Evidence) -> Report:
    """The report on a run that was read."""
    return check(
        evidence.parts,
        evidence.camera_log,
        evidence.actuator_log,
        models=evidence.models,
        events=evidence.events,
        lines=evidence.lines,
        batches=evidence.batches,
    )


def as_json(evidence: Evidence, report: Report) -> dict[str, Any]:
    """Findings, counts, figures and reconciliation for a machine."""
    return {
        "held": report.is_clean,
        "is_partial": report.is_partial,
        "absent": report.absent,
        "promises": {str(number): held for number, held in report.promises.items()},
        "counts": dict(report.counts),
        "found": dict(report.found),
        "findings": [asdict(finding) for finding in report.findings],
        "figures": summarise(evidence, report),
        "routes": routes.as_json(routes.routes_of(evidence.parts, evidence.events)),
        "reconciliation": reconcile(evidence),
    }


def as_text(evidence: Evidence, report: Report) -> str:
    """The same for a person."""
    counts = report.counts
    out = [
        f"{counts['rows']} parts, {counts['owed']} owed: {counts['pass']} PASS, "
        f"{counts['fail']} FAIL, {counts['uninspected']} UNINSPECTED, "
        f"{counts['restart']} UNINSPECTED(restart)"
    ]
    out += [f"{counts[name]} {text}" for name, text in COUNTED_APART.items() if counts[name]]
    for number, text in PROMISES.items():
        held = report.promises[number]
        word = "not decided" if held is None else "held" if held else "BROKEN"
        out.append(f"promise {number}: {word:11} ({text})")
    told = routes.routes_of(evidence.parts, evidence.events)
    if told is not None:
        out.append(routes.as_text(told))
    for row in reconcile(evidence):
        out.append(
            f"{row['gpu']} start {row['endpoint_epoch']}: {row['batches']} batches, "
            f"{row['ours_s']:.3f} s by us, {row['triton_s']:.3f} s by Triton: ratio {row['ratio']}"
        )
    out += [str(finding) for finding in report.findings[:FINDINGS_SHOWN_MAX]]
    total = sum(report.found.values())
    if total > FINDINGS_SHOWN_MAX:
        out.append(f"… and {total - FINDINGS_SHOWN_MAX} more findings; --json has them")
    if evidence.lines is None:
        out.append(
            "an older journal: it does not name the plant's lines, a missing one goes unseen"
        )
    for text in report.absent:
        out.append(f"PARTIAL: {text}")
    if evidence.camera_log is None or evidence.actuator_log is None:
        absent = [
            name
            for name, log in (("camera", evidence.camera_log), ("actuator", evidence.actuator_log))
            if log is None
        ]
        out.append(
            f"PARTIAL: no {' and no '.join(absent)} log: what was owed is the journal's word"
        )
    out.append("the promise held" if report.is_clean else f"{total} findings")
    return "\n".join(out)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="takt check-journal",
        description="Decide from journal and logs whether the promise held. Exit 0 held, 1 not.",
        epilog="example: takt check-journal --plant plant.toml --json report.json",
    )
    parser.add_argument("--journal", type=Path, help="the journal's folder or file")
    parser.add_argument("--logs", type=Path, help="folder of camera-*.jsonl and actuator-*.jsonl")
    parser.add_argument("--plant", type=Path, help="plant file or its folder, for both")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything here; - prints")
    return parser


def _places(options: argparse.Namespace) -> tuple[Path, Path | None]:
    """Journal and logs. Raises PlantError, EvidenceError."""
    journal, logs = options.journal, options.logs
    plant_file = options.plant
    if journal is None and plant_file is None:
        here = Path("journal") / JOURNAL_FILE
        if not here.exists():
            raise EvidenceError(f"no {here} here; give --journal or --plant")
        journal = here.parent
    if plant_file is not None:
        if plant_file.is_dir():
            plant_file = plant_file / "plant.toml"
        plant = load_plant(plant_file)
        journal = journal or plant.path(plant.paths.journal)
        logs = logs or plant.path(plant.paths.logs)
    if options.logs is not None and not options.logs.is_dir():
        raise EvidenceError(f"{options.logs}: no such folder")
    return journal, logs


def main(argv: Sequence[str] | None = None) -> int:
    """`takt check-journal`: 0 the promise held, 1 a finding, 2 wrong use."""
    options = _parser().parse_args(argv)
    try:
        evidence = read_evidence(*_places(options))
    except (PlantError, EvidenceError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    report = judge(evidence)
    if options.json is not None:
        text = json.dumps(as_json(evidence, report), indent=2) + "\n"
        if str(options.json) == "-":
            print(text, end="")
            return 0 if report.is_clean else 1
        options.json.write_text(text)
    print(as_text(evidence, report))
    return 0 if report.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
