"""The gate's committed pictures and the scores that the models are expected to give for them."""

from __future__ import annotations

import datetime
import hashlib
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnxruntime as ort

from fallback.parity import Doubles, Expected, Limits, check_pair, single_scores
from fallback.session import Pictures, Session

INPUTS_FILE: Final = "inputs.npz"
BASELINE_FILE: Final = "baseline.json"
ROWS: Final = 64
ROLES: Final = ("pool", "fallback")


class UsageError(Exception):
    """The gate was called wrongly or a file is not what it should be; the text says which."""


@dataclass(frozen=True, slots=True)
class GateSet:
    """The committed pictures uint8 [rows, 224, 224, 1] and what each model is expected to say.

    `pair_differ` counts all rows on which the two disagreed, those in a guard band too: on another
    processor such a row may leave its band, and that alone is no finding.
    """

    pictures: Pictures
    expected: dict[str, Expected]
    pair_differ: int
    made: dict[str, str]


def read_pictures(path: Path) -> Pictures:
    """`images` of an .npz file. Raises UsageError where it is not uint8 [rows, 224, 224, 1]."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            pictures = archive["images"]
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path}: no pictures to be read: {error}") from None
    if pictures.dtype != np.uint8 or pictures.ndim != 4 or len(pictures) < 2:
        raise UsageError(f"{path}: images must be uint8 [rows, height, width, channels]")
    if len({row.tobytes() for row in pictures}) != len(pictures):
        raise UsageError(f"{path}: two pictures are the same, so mixed-up rows could not be told")
    return np.asarray(pictures, np.uint8)


def read_gate_set(folder: Path) -> GateSet:
    """Pictures and baseline of `folder`. Raises UsageError."""
    pictures = read_pictures(folder / INPUTS_FILE)
    path = folder / BASELINE_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        expected = {
            role: Expected(
                np.asarray(entry["outputs"]["score"], np.float64),
                float(entry["threshold"]),
                str(entry["sha256"]),
            )
            for role, entry in ((role, content["models"][role]) for role in ROLES)
        }
        inputs, pair_differ, made = (
            str(content["inputs_sha256"]),
            int(content["pair_differ"]),
            content["made"],
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path}: no baseline to be read: {error!r}") from None
    if any(entry.scores.shape != (len(pictures),) for entry in expected.values()):
        raise UsageError(f"{path}: its scores are not those of {len(pictures)} pictures")
    if inputs != _pictures_sha256(pictures):
        raise UsageError(
            f"{folder}: {INPUTS_FILE} holds other pictures than {BASELINE_FILE} was made with"
        )
    return GateSet(pictures, expected, pair_differ, made)


def _pictures_sha256(pictures: Pictures) -> str:
    """Hash of the pixels, not of the file: compression may differ between zlib versions."""
    return hashlib.sha256(np.ascontiguousarray(pictures).tobytes()).hexdigest()


def _choose(scores: Doubles, threshold: float, count: int, taken: set[int]) -> None:
    """Add to `taken` the `count` rows closest to the threshold that are not in it yet."""
    for row in np.argsort(np.abs(scores - threshold), kind="stable"):
        if count == 0:
            return
        if int(row) not in taken:
            taken.add(int(row))
            count -= 1


def make_baseline(
    source: Path, folder: Path, models: dict[str, Path], limits: dict[str, Limits], made_by: str
) -> None:
    """Choose 64 pictures of `source`, a third borderline, and keep them with both models' scores.

    Raises UsageError or SessionError.
    """
    candidates = read_pictures(source)
    if len(candidates) < ROWS:
        raise UsageError(f"{source}: {len(candidates)} pictures, at least {ROWS} needed")
    sessions = {role: Session(models[role], 1) for role in ROLES}
    scores = {role: single_scores(session, candidates)[0] for role, session in sessions.items()}
    taken: set[int] = set()
    for role, session in sessions.items():
        _choose(scores[role], session.facts.threshold, 11, taken)
    # The rest spreads over the whole range of scores, sure verdicts on both sides included.
    ranked = [
        int(row) for row in np.argsort(scores["pool"], kind="stable") if int(row) not in taken
    ]
    spread = np.linspace(0, len(ranked) - 1, ROWS - len(taken)).round().astype(int)
    rows = np.array(sorted(taken | {ranked[place] for place in spread}))
    pictures = np.asarray(candidates[rows], np.uint8)
    thresholds = {role: session.facts.threshold for role, session in sessions.items()}
    kept = {role: scores[role][rows] for role in ROLES}
    pair = check_pair(kept, thresholds, limits, len(rows))
    content = {
        "made": {
            "by": made_by,
            "on": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "with": f"takt gate --make-baseline, onnxruntime {ort.__version__}, CPU, batch 1",
        },
        "inputs_sha256": _pictures_sha256(pictures),
        "pair_differ": pair.figures["differ"],
        "models": {
            role: {
                "name": session.facts.name,
                "sha256": session.facts.sha256,
                "threshold": session.facts.threshold,
                "outputs": {"score": [round(float(score), 7) for score in kept[role]]},
            }
            for role, session in sessions.items()
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / INPUTS_FILE, images=pictures)
    (folder / BASELINE_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
