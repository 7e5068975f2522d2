"""`takt gate`: proves that the models of pool and fallback still answer as they did, and alike.

A fixed set of pictures, borderline ones among them, runs through both models on the CPU with ONNX
Runtime and is compared with a committed baseline. FP32 results differ between processors only in
the last digits; INT8 results differ more, since a rounding that falls the other way moves a whole
quantisation step through the layers behind it. So the INT8 model has tolerances of its own.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from fallback.gate_set import (
    BASELINE_FILE,
    ROLES,
    GateSet,
    UsageError,
    make_baseline,
    read_gate_set,
)
from fallback.parity import (
    STATS,
    Doubles,
    Figures,
    Finding,
    Limits,
    Outcome,
    Tolerance,
    check_batches,
    check_errors,
    check_flips,
    check_latency,
    check_nonces,
    check_pair,
    single_scores,
)
from fallback.session import Session, SessionError

OUTPUTS: Final = ("score",)

DESCRIPTION: Final = """Compare the pool's and the fallback's model with the committed baseline and
with each other, on the CPU. Exit 0: all is well; 1: a finding, in plain words; 2: wrong use."""
EXAMPLE: Final = """examples:
  takt gate
  takt gate --fallback new-int8.onnx --int8-atol 0.05 --json gate.json
  takt gate --check-error-stat score=p99 --runs 0

tolerances: the chosen statistic of |score - expected| - rtol * |expected| must be at most atol.
  FP32 differs between processors in the last digits (1e-5); atol 0.001 leaves room for other
  versions of ONNX Runtime. INT8 may move by quantisation steps on a processor without VNNI;
  its atol 0.05 is far below what a wrong scale, layer or picture order does.
"""


def project_folder() -> Path:
    """Nearest folder above this file that holds `models/`, else the working folder."""
    for folder in Path(__file__).resolve().parents:
        if (folder / "models").is_dir():
            return folder
    return Path.cwd()


def build_parser() -> argparse.ArgumentParser:
    """The command line of `takt gate`."""
    models = project_folder() / "models"
    parser = argparse.ArgumentParser(
        prog="takt gate",
        description=DESCRIPTION,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--pool",
        type=Path,
        metavar="FILE",
        default=models / "tile-defects.onnx",
        help="the pool's model",
    )
    add(
        "--fallback",
        type=Path,
        metavar="FILE",
        default=models / "tile-defects-int8.onnx",
        help="the fallback's model (INT8)",
    )
    add(
        "--baseline",
        type=Path,
        metavar="DIR",
        default=models / "gate",
        help="inputs.npz and baseline.json",
    )
    for prefix, who, atol, rtol in (
        ("", "pool", "0.001", "0.001"),
        ("int8-", "fallback", "0.05", "0"),
    ):
        _add_tolerances(parser, prefix, who, atol, rtol)
    add(
        "--guard",
        type=float,
        default=0.005,
        metavar="F",
        help="half guard band, pool (default: 0.005)",
    )
    add(
        "--int8-guard",
        type=float,
        default=0.05,
        metavar="F",
        help="half guard band, fallback (default: 0.05)",
    )
    add(
        "--flips",
        type=int,
        default=0,
        metavar="N",
        help="verdicts that may change in the band, pool",
    )
    add(
        "--int8-flips",
        type=int,
        default=4,
        metavar="N",
        help="the same for the fallback (default: 4)",
    )
    add(
        "--pair-flips",
        type=int,
        metavar="N",
        help="rows outside the bands on which the two may disagree (default: the baseline's)",
    )
    add("--runs", type=int, default=100, metavar="N", help="timed runs, three times (0: none)")
    add(
        "--p50-ratio",
        type=float,
        default=1.5,
        metavar="F",
        help="most at p50 against a bare session",
    )
    add(
        "--p99-ratio",
        type=float,
        default=4.0,
        metavar="F",
        help="most at p99, which is noisy (default: 4)",
    )
    add("--json", type=Path, metavar="FILE", help="write the report there; - for standard output")
    add(
        "--make-baseline",
        type=Path,
        metavar="NPZ",
        help="choose 64 pictures of NPZ (see models/train.py --gate-pictures), keep them and both "
        "models' scores in --baseline, and stop",
    )
    add(
        "--made-by",
        default="model engineer",
        metavar="TEXT",
        help="who made the baseline, kept in it",
    )
    return parser


def _add_tolerances(
    parser: argparse.ArgumentParser, prefix: str, who: str, atol: str, rtol: str
) -> None:
    """Three repeatable flags, each a plain value or OUTPUT=VALUE, for the model of `who`."""
    kinds = (("atol", atol), ("rtol", rtol), ("check-error-stat", "max"))
    for name, default in kinds:
        among = f", one of {', '.join(STATS)}" if name == "check-error-stat" else ""
        parser.add_argument(
            f"--{prefix}{name}",
            action="append",
            default=[],
            metavar="[OUTPUT=]VALUE",
            help=f"{who}: {name} of an output{among} (default: {default})",
        )
    parser.set_defaults(**{f"{prefix}defaults".replace("-", "_"): dict(kinds)})


def _per_output(values: list[str], default: str, flag: str) -> str:
    """Last value given for `score`, by name or plainly. Raises UsageError on another output."""
    chosen = default
    for text in values:
        output, _, value = text.rpartition("=")
        if output and output not in OUTPUTS:
            raise UsageError(
                f"{flag} {text}: no output {output!r} has a tolerance, only {', '.join(OUTPUTS)} "
                "(nonce_echo must be identical)"
            )
        chosen = value
    return chosen


def _not_negative(text: str, flag: str) -> float:
    """A finite number of at least 0. Raises UsageError."""
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{flag}: {text!r} is not a number") from None
    if not 0.0 <= number < float("inf"):
        raise UsageError(f"{flag}: {text} must be 0 or more")
    return number


def _limits(arguments: argparse.Namespace, prefix: str, batch_atol: float) -> Limits:
    """Limits of one model from its flags."""
    values = vars(arguments)
    dashed = prefix.replace("_", "-")
    chosen = {
        name: _per_output(values[prefix + name.replace("-", "_")], default, f"--{dashed}{name}")
        for name, default in values[f"{prefix}defaults"].items()
    }
    stat = chosen["check-error-stat"]
    if stat not in STATS:
        raise UsageError(f"--{dashed}check-error-stat: {stat!r} is none of {', '.join(STATS)}")
    tolerance = Tolerance(
        _not_negative(chosen["atol"], f"--{dashed}atol"),
        _not_negative(chosen["rtol"], f"--{dashed}rtol"),
        stat,
    )
    guard = _not_negative(str(values[f"{prefix}guard"]), f"--{dashed}guard")
    return Limits(tolerance, batch_atol, guard, values[f"{prefix}flips"])


def check_model(
    role: str, path: Path, gate_set: GateSet, limits: Limits, arguments: argparse.Namespace
) -> tuple[Outcome, Doubles, float]:
    """All checks of one model alone; with its scores at batch 1 and its threshold."""
    session = Session(path, 1)
    expected = gate_set.expected[role]
    whole = Outcome()
    if session.facts.shape != gate_set.pictures.shape[1:]:
        raise UsageError(
            f"{path}: takes pictures of {session.facts.shape}, the baseline's are others"
        )
    scores, echo = single_scores(session, gate_set.pictures)
    whole.figures["same_file"] = int(session.facts.sha256 == expected.sha256)
    whole.findings += check_nonces(role, echo, np.arange(len(scores)), "alone")
    parts = [
        check_errors(role, scores, expected, limits),
        check_flips(role, scores, session.facts.threshold, expected, limits),
        check_batches(role, session, gate_set.pictures, scores, limits.batch_atol),
    ]
    if arguments.runs:
        most = (arguments.p50_ratio, arguments.p99_ratio)
        timing = check_latency(
            role, session, path, gate_set.pictures, runs=arguments.runs, most=most
        )
        parts.append(timing)
    for part in parts:
        whole.figures |= part.figures
        whole.findings += part.findings
    return whole, scores, session.facts.threshold


def _models_and_limits(
    arguments: argparse.Namespace,
) -> tuple[dict[str, Path], dict[str, Limits]]:
    """Model file and limits of each role.

    Batches of another size may sum in another order: last digits in FP32, and in INT8 the float
    layers around the quantised ones, now and then with a step of the quantiser behind them.
    """
    models = {"pool": arguments.pool, "fallback": arguments.fallback}
    limits = {
        "pool": _limits(arguments, "", 1e-4),
        "fallback": _limits(arguments, "int8_", 1e-3),
    }
    return models, limits


def compare(arguments: argparse.Namespace) -> dict[str, Outcome]:
    """Run every check; an outcome each for `pool`, `fallback` and `pair`."""
    if min(arguments.runs, arguments.flips, arguments.int8_flips, arguments.pair_flips or 0) < 0:
        raise UsageError("a number of runs or flips must be 0 or more")
    gate_set = read_gate_set(arguments.baseline)
    models, limits = _models_and_limits(arguments)
    outcomes: dict[str, Outcome] = {}
    scores: dict[str, Doubles] = {}
    thresholds: dict[str, float] = {}
    for role in ROLES:
        checked = check_model(role, models[role], gate_set, limits[role], arguments)
        outcomes[role], scores[role], thresholds[role] = checked
    allowed = gate_set.pair_differ if arguments.pair_flips is None else arguments.pair_flips
    outcomes["pair"] = check_pair(scores, thresholds, limits, allowed)
    return outcomes


def _table(columns: dict[str, Figures]) -> list[str]:
    """Figures by name, a column for each role."""
    names = list(dict.fromkeys(name for figures in columns.values() for name in figures))
    lines = [f"{'':<22}" + "".join(f"{role:>14}" for role in columns)]
    for name in names:
        cells = [figures.get(name, "") for figures in columns.values()]
        shown = [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in cells]
        lines.append(f"{name:<22}" + "".join(f"{cell:>14}" for cell in shown))
    return lines


def _report(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """The report as plain values."""
    findings = [asdict(finding) for outcome in outcomes.values() for finding in outcome.findings]
    figures = {role: outcome.figures for role, outcome in outcomes.items()}
    return {"passed": not findings, "figures": figures, "findings": findings}


def _spoken(finding: Finding) -> str:
    """One finding as a line."""
    output = f", output {finding.output}" if finding.output else ""
    return f"FINDING {finding.role}{output} ({finding.check}): {finding.text}"


def main(argv: list[str] | None = None) -> int:
    """Run `takt gate`: 0 where all is well, 1 with a finding, 2 on wrong use."""
    arguments = build_parser().parse_args(argv)
    try:
        if arguments.make_baseline is not None:
            models, limits = _models_and_limits(arguments)
            folder: Path = arguments.baseline
            make_baseline(arguments.make_baseline, folder, models, limits, arguments.made_by)
            print(f"wrote {folder / BASELINE_FILE}")
            return 0
        outcomes = compare(arguments)
        report = _report(outcomes)
        text = json.dumps(report, indent=2)
        if arguments.json is not None and str(arguments.json) != "-":
            arguments.json.write_text(text + "\n", encoding="utf-8")
    except (UsageError, SessionError, OSError) as problem:
        print(f"takt gate: {problem}", file=sys.stderr)
        return 2
    if str(arguments.json) == "-":
        print(text)
    else:
        findings = [finding for outcome in outcomes.values() for finding in outcome.findings]
        lines = [*_table({role: outcome.figures for role, outcome in outcomes.items()})]
        lines += [_spoken(finding) for finding in findings] or [
            "PASS: the models answer as the baseline says"
        ]
        print("\n".join(lines))
    return 0 if report["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
