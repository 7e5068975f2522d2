"""What the gate checks of one model, and of the pool's and the fallback's model together.

Nothing here prints or exits: each check gives figures for the report and findings in plain words.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from fallback.session import Nonces, Pictures, Session

Doubles = npt.NDArray[np.float64]
Verdicts = npt.NDArray[np.bool_]
Figure = float | int | str
Figures = dict[str, Figure]

STATS = ("max", "mean", "median", "p95", "p99")
LARGEST_BATCH = 16
ROUNDS = 3
FIRST_NONCE = 7_000_000_001
"""Above 32 bits, so that a nonce squeezed through an int32 or a float32 does not survive."""


@dataclass(frozen=True, slots=True)
class Tolerance:
    """`stat` over rows of |score - expected| - rtol * |expected| must be at most `atol`."""

    atol: float
    rtol: float
    stat: str = "max"

    def excess(self, found: Doubles, expected: Doubles) -> float:
        """The statistic, to be compared with `atol`; not a number where a score is not one."""
        beyond = np.abs(found - expected) - self.rtol * np.abs(expected)
        return statistic(beyond, self.stat)


@dataclass(frozen=True, slots=True)
class Limits:
    """What is let pass for one model.

    `batch_atol`: largest difference of a row's score between batch sizes. `guard`: rows whose
    expected score is closer than this to the threshold may change their verdict, up to `flips`
    rows; outside of it no row may.
    """

    tolerance: Tolerance
    batch_atol: float
    guard: float
    flips: int


@dataclass(frozen=True, slots=True)
class Expected:
    """What the baseline holds of one model: scores [rows], threshold and the file's hash."""

    scores: Doubles
    threshold: float
    sha256: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong: which role (`pool`, `fallback`, `pair`), check, output and row."""

    role: str
    check: str
    text: str
    output: str | None = None
    row: int | None = None


@dataclass(slots=True)
class Outcome:
    """Figures by name, and the findings, of some checks."""

    figures: Figures = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def statistic(values: Doubles, stat: str) -> float:
    """One number of STATS over `values`."""
    if stat == "max":
        return float(values.max())
    if stat == "mean":
        return float(values.mean())
    return float(np.percentile(values, {"median": 50, "p95": 95, "p99": 99}[stat]))


def nonces_for(rows: npt.NDArray[np.int64]) -> Nonces:
    """A different nonce for each row number, the same in every run."""
    return FIRST_NONCE + rows * 1_000_003


def run_rows(
    session: Session, pictures: Pictures, rows: npt.NDArray[np.int64]
) -> tuple[Doubles, Nonces]:
    """Scores and echoed nonces [len(rows)] of one batch. Raises ValueError on a wrong row count."""
    scores, echo = session.run(pictures[rows], nonces_for(rows))
    if len(scores) != len(rows) or len(echo) != len(rows):
        raise ValueError(f"{len(rows)} rows in, {len(scores)} scores and {len(echo)} nonces out")
    return scores.astype(np.float64), echo


def single_scores(session: Session, pictures: Pictures) -> tuple[Doubles, Nonces]:
    """Scores and echoed nonces of every picture run alone, the reference of the other checks."""
    answers = [run_rows(session, pictures, np.array([row])) for row in range(len(pictures))]
    return np.concatenate([a[0] for a in answers]), np.concatenate([a[1] for a in answers])


def check_errors(role: str, found: Doubles, expected: Expected, limits: Limits) -> Outcome:
    """Compare scores with the baseline's."""
    outcome = Outcome()
    error = np.abs(found - expected.scores)
    for stat in STATS:
        outcome.figures[f"error_{stat}"] = statistic(error, stat)
    tolerance = limits.tolerance
    excess = tolerance.excess(found, expected.scores)
    if not excess <= tolerance.atol:  # written so that NaN is a finding
        worst = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
        text = (
            f"{tolerance.stat} error of score is {excess:.6f} beyond rtol {tolerance.rtol:g}, "
            f"allowed {tolerance.atol:g}; worst is row {worst}: {found[worst]:.6f}, "
            f"expected {expected.scores[worst]:.6f}"
        )
        outcome.findings.append(Finding(role, "error", text, "score", worst))
    return outcome


def check_nonces(role: str, echo: Nonces, rows: npt.NDArray[np.int64], where: str) -> list[Finding]:
    """Every nonce must come back unchanged: another part's row has no tolerance."""
    wrong = np.flatnonzero(echo != nonces_for(rows))
    if not len(wrong):
        return []
    first = int(wrong[0])
    text = (
        f"{len(wrong)} of {len(rows)} nonces came back changed {where}; first is row "
        f"{int(rows[first])}: {int(echo[first])}, sent {int(nonces_for(rows)[first])}"
    )
    return [Finding(role, "nonce", text, "nonce_echo", int(rows[first]))]


def check_flips(
    role: str, found: Doubles, threshold: float, expected: Expected, limits: Limits
) -> Outcome:
    """Compare verdicts with the baseline's; only rows inside the guard band may differ, and few."""
    flipped = (found >= threshold) != (expected.scores >= expected.threshold)
    close = np.abs(expected.scores - expected.threshold) < limits.guard
    inside, outside = np.flatnonzero(flipped & close), np.flatnonzero(flipped & ~close)
    outcome = Outcome({"flips": int(flipped.sum()), "guard_rows": int(close.sum())})
    for row in outside[:5]:
        text = (
            f"verdict of row {row} changed: score {found[row]:.4f} at threshold {threshold:g}, was "
            f"{expected.scores[row]:.4f} at {expected.threshold:g}, outside the "
            f"guard band {limits.guard:g}"
        )
        outcome.findings.append(Finding(role, "flip", text, "score", int(row)))
    if len(outside) > 5:
        outcome.findings.append(
            Finding(role, "flip", f"and {len(outside) - 5} more verdicts changed")
        )
    if len(inside) > limits.flips:
        text = f"{len(inside)} verdicts changed inside the guard band, allowed {limits.flips}"
        outcome.findings.append(Finding(role, "flip", text, "score", int(inside[0])))
    return outcome


def batch_plan(rows: int) -> list[npt.NDArray[np.int64]]:
    """Rows of each batch: sizes 16 down to 1 and up to 16 again, never the same row twice in one.

    Big, small, big: a buffer that keeps the rows of an earlier batch shows when the next is smaller
    or larger. Batches start at different rows, so that no row always has the same place.
    """
    largest = min(LARGEST_BATCH, rows)
    sizes = [*range(largest, 0, -1), *range(2, largest + 1)]
    return [(np.arange(size) + 5 * turn) % rows for turn, size in enumerate(sizes)]


def check_batches(
    role: str, session: Session, pictures: Pictures, alone: Doubles, batch_atol: float
) -> Outcome:
    """Every row's score must be the same in every company as alone, and every nonce its own."""
    outcome = Outcome()
    worst = 0.0
    for rows in batch_plan(len(pictures)):
        where = f"in a batch of {len(rows)}"
        try:
            scores, echo = run_rows(session, pictures, rows)
        except Exception as error:  # onnxruntime's own classes share no public base
            outcome.findings.append(Finding(role, "batch", f"cannot run {where}: {error}"))
            break
        outcome.findings += check_nonces(role, echo, rows, where)
        error_here = np.abs(scores - alone[rows])
        at = int(np.argmax(np.where(np.isnan(error_here), np.inf, error_here)))
        worst = max(worst, float(error_here[at]))
        if not error_here[at] <= batch_atol:
            text = (
                f"row {int(rows[at])} scores {scores[at]:.6f} {where} at place {at}, "
                f"{alone[rows[at]]:.6f} alone: rows depend on each other or are mixed up"
            )
            outcome.findings.append(Finding(role, "batch", text, "score", int(rows[at])))
        if len(outcome.findings) >= 5:
            break
    outcome.figures["batch_error_max"] = worst
    return outcome


def check_pair(
    found: dict[str, Doubles], thresholds: dict[str, float], limits: dict[str, Limits], allowed: int
) -> Outcome:
    """Pool and fallback must give the same verdicts, apart from rows in either's guard band."""
    fail = {role: found[role] >= thresholds[role] for role in found}
    close = np.zeros(len(found["pool"]), bool)
    for role, scores in found.items():
        close |= np.abs(scores - thresholds[role]) < limits[role].guard
    differ = fail["pool"] != fail["fallback"]
    clear = np.flatnonzero(differ & ~close)
    outcome = Outcome(
        {
            "differ": int(differ.sum()),
            "differ_outside_guard": len(clear),
            "guard_rows": int(close.sum()),
        }
    )
    if len(clear) > allowed:
        first = int(clear[0])
        text = (
            f"pool and fallback disagree on {len(clear)} rows outside their guard bands, allowed "
            f"{allowed}; first is row {first}: pool {found['pool'][first]:.4f} at "
            f"{thresholds['pool']:g}, fallback {found['fallback'][first]:.4f} at "
            f"{thresholds['fallback']:g}"
        )
        outcome.findings.append(Finding("pair", "flip", text, "score", first))
    return outcome


def _bare_session(path: Path) -> ort.InferenceSession:
    """ONNX Runtime on one thread and nothing of ours around it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def check_latency(
    role: str,
    session: Session,
    path: Path,
    pictures: Pictures,
    *,
    runs: int,
    most: tuple[float, float],
) -> Outcome:
    """Time our session against a bare one, in turns, so that both see the same machine.

    Only the ratio is judged: milliseconds of a shared machine say little of the model. Each ratio
    is the middle one of three rounds, because one pause of the machine makes a p99.
    `most` is the largest ratio allowed at p50 and at p99.
    """
    bare = _bare_session(path)
    _round(session, bare, pictures, 5)
    rounds = [_round(session, bare, pictures, runs) for _ in range(ROUNDS)]
    outcome = Outcome()
    for percentile, limit in zip((50, 99), most, strict=True):
        ours, plain = (
            np.array([np.percentile(spent[side], percentile) for spent in rounds])
            for side in (0, 1)
        )
        ratio = float(np.median(ours / plain))
        outcome.figures[f"p{percentile}_ms"] = float(np.median(ours))
        outcome.figures[f"p{percentile}_ratio"] = ratio
        if ratio > limit:
            text = (
                f"p{percentile} of a run is {ratio:.2f} times that of a bare onnxruntime session "
                f"({np.median(ours):.2f} ms and {np.median(plain):.2f} ms), allowed {limit:g} times"
            )
            outcome.findings.append(Finding(role, "latency", text))
    return outcome


def _round(
    session: Session, bare: ort.InferenceSession, pictures: Pictures, runs: int
) -> tuple[list[float], list[float]]:
    """Milliseconds of `runs` runs of one picture each, ours and bare in turns."""
    ours: list[float] = []
    plain: list[float] = []
    for turn in range(runs):
        row = np.array([turn % len(pictures)])
        picture, nonces = pictures[row], nonces_for(row)
        feed = {"image": picture, "nonce": nonces.reshape(-1, 1)}
        begun = time.perf_counter_ns()
        session.run(picture, nonces)
        between = time.perf_counter_ns()
        bare.run(["score", "nonce_echo"], feed)
        ended = time.perf_counter_ns()
        ours.append((between - begun) / 1e6)
        plain.append((ended - between) / 1e6)
    return ours, plain
