"""Measures committed models with ONNX Runtime alone and writes what a model card states.

No PyTorch here: anybody with the installed appliance and the pictures can repeat the figures.
"""

import hashlib
import platform
import time
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tile_set import MEASURE_SEED, SAME_TILE, Sample, likeness, make_samples, preprocess

POOL_FILE: Final = "tile-defects.onnx"
FALLBACK_FILE: Final = "tile-defects-int8.onnx"
CARD_FILE: Final = "tile-defects.card.json"
PROCEDURAL_COUNT: Final = 300
CITATION: Final = "Huang, Qiu, Yuan: Saliency of magnetic tile surface defects"

Scores: TypeAlias = NDArray[np.float64]
Truth: TypeAlias = NDArray[np.bool_]


def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Session on one thread of the CPU, as a line's fallback runs it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def scores_of(path: Path, samples: list[Sample]) -> Scores:
    """P(defect) of every sample, float64 [count]."""
    session = open_session(path)
    scores: list[float] = []
    for sample in samples:
        image = preprocess(sample.pixels)[None, :, :, None]
        score = session.run(["score"], {"image": image, "nonce": np.zeros((1, 1), np.int64)})[0]
        scores.append(float(score[0, 0]))
    return np.asarray(scores, np.float64)


def threshold_of(path: Path) -> float:
    """Score at and above which the model's verdict is FAIL."""
    return float(open_session(path).get_modelmeta().custom_metadata_map["takt.threshold"])


def auroc(scores: Scores, defect: Truth) -> float:
    """Share of (defective, good) pairs ranked rightly; a tie counts half."""
    bad, good = scores[defect][:, None], scores[~defect][None, :]
    return float(((bad > good) + 0.5 * (bad == good)).mean())


def auroc_interval(scores: Scores, defect: Truth, rounds: int = 2000) -> tuple[float, float]:
    """95 % interval of the AUROC by resampling good and defective parts apart."""
    rng = np.random.default_rng(1)
    bad, good = scores[defect], scores[~defect]
    truth = np.concatenate([np.ones(len(bad), bool), np.zeros(len(good), bool)])
    found = [
        auroc(np.concatenate([rng.choice(bad, len(bad)), rng.choice(good, len(good))]), truth)
        for _ in range(rounds)
    ]
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def best_threshold(real: tuple[Scores, Truth], made: tuple[Scores, Truth]) -> float:
    """Threshold with the best balanced accuracy over photographs and drawn pictures together.

    Photographs count twice: they are the harder and the truer ones. Of equally good thresholds the
    middle one is taken, as far as possible from either kind of mistake.
    """
    grid = np.linspace(0.02, 0.98, 193)
    worth = np.array([2.0 * _balanced(*real, t) + _balanced(*made, t) for t in grid])
    # The samples are few, so the curve is smoothed before its top is believed.
    smooth = np.convolve(np.pad(worth, 4, mode="edge"), np.full(9, 1 / 9), mode="valid")
    top = grid[smooth >= smooth.max() - 1e-9]
    return round(float((top[0] + top[-1]) / 2), 4)


def _balanced(scores: Scores, defect: Truth, threshold: float) -> float:
    """Mean of the shares of defective parts rejected and of good parts passed."""
    fail = scores >= threshold
    return float((fail[defect].mean() + (~fail[~defect]).mean()) / 2)


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def cpu_name() -> str:
    """The processor's own name for itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _timing(path: Path, batch: int, runs: int = 300) -> dict[str, float]:
    """Milliseconds a run at `batch` rows on one thread: median and 99th percentile."""
    session = open_session(path)
    rng = np.random.default_rng(batch)
    image = rng.integers(0, 256, size=(batch, 224, 224, 1), dtype=np.uint8)
    feed = {"image": image, "nonce": np.zeros((batch, 1), np.int64)}
    spent: list[float] = []
    for _ in range(runs + 20):
        begun = time.perf_counter_ns()
        session.run(None, feed)
        spent.append((time.perf_counter_ns() - begun) / 1e6)
    steady = spent[20:]
    return {
        "p50": round(float(np.median(steady)), 3),
        "p99": round(float(np.percentile(steady, 99)), 3),
    }


def _figures(
    path: Path, real: list[Sample], made: list[Sample]
) -> tuple[dict[str, Any], NDArray[np.bool_]]:
    """The card's entry of one model, and its FAIL verdicts on the test photographs."""
    threshold = threshold_of(path)
    defect = np.array([sample.is_defect for sample in real])
    scores = scores_of(path, real)
    fail = scores >= threshold
    low, high = auroc_interval(scores, defect)
    made_defect = np.array([sample.is_defect for sample in made])
    made_right = (scores_of(path, made) >= threshold) == made_defect
    kinds = sorted({sample.kind for sample in real if sample.is_defect})
    caught = {
        kind: {
            "rejected": int(sum(f for f, s in zip(fail, real, strict=True) if s.kind == kind)),
            "of": sum(s.kind == kind for s in real),
        }
        for kind in kinds
    }
    entry: dict[str, Any] = {
        "file": path.name,
        "sha256": file_sha256(path),
        "bytes": path.stat().st_size,
        "threshold": threshold,
        "test_auroc": round(auroc(scores, defect), 4),
        "test_auroc_95": [round(low, 4), round(high, 4)],
        "test_accuracy": round(float((fail == defect).mean()), 4),
        "test_confusion": {
            "defect_rejected": int((fail & defect).sum()),
            "defect_passed": int((~fail & defect).sum()),
            "good_passed": int((~fail & ~defect).sum()),
            "good_rejected": int((fail & ~defect).sum()),
        },
        "test_rejected_by_kind": caught,
        "procedural_accuracy": round(float(made_right.mean()), 4),
        "procedural_right": int(made_right.sum()),
    }
    return entry, fail


def _new_tiles(path: Path, test: list[Sample], train: list[Sample]) -> dict[str, Any]:
    """AUROC on those test photographs that look like no tile of the training folder."""
    nearest = likeness(test, train).max(axis=1)
    kept = [sample for sample, near in zip(test, nearest, strict=True) if near <= SAME_TILE]
    defect = np.array([sample.is_defect for sample in kept])
    value = round(auroc(scores_of(path, kept), defect), 4)
    return {"auroc": value, "good": int((~defect).sum()), "defect": int(defect.sum())}


def measure(models: Path, test: list[Sample], train: list[Sample]) -> dict[str, Any]:
    """Everything of the card that follows from the model files and the pictures.

    Of `train` only the looks count, to tell which test photographs show a tile seen in training.
    """
    made = make_samples(MEASURE_SEED, PROCEDURAL_COUNT)
    pool, pool_fail = _figures(models / POOL_FILE, test, made)
    fallback, fallback_fail = _figures(models / FALLBACK_FILE, test, made)
    pool["test_new_tiles"] = _new_tiles(models / POOL_FILE, test, train)
    fallback["test_new_tiles"] = _new_tiles(models / FALLBACK_FILE, test, train)
    same = int((pool_fail == fallback_fail).sum())
    return {
        "test_pictures": {
            "count": len(test),
            "good": sum(not s.is_defect for s in test),
            "defect": sum(s.is_defect for s in test),
        },
        "procedural_pictures": {
            "count": len(made),
            "first_seed": MEASURE_SEED,
            "size": [640, 480],
            "jpeg": 90,
        },
        "pool": pool,
        "fallback": fallback,
        "agreement": {"same_verdict": same, "of": len(test), "share": round(same / len(test), 4)},
        "citation": CITATION,
    }


def timings(models: Path) -> dict[str, Any]:
    """Run times of both models here: true of the processor named and of no other."""
    entry: dict[str, Any] = {
        "cpu": cpu_name(),
        "onnxruntime": onnxruntime.__version__,
        "threads": 1,
        "unit": "ms a run",
    }
    for role, name in (("pool", POOL_FILE), ("fallback", FALLBACK_FILE)):
        entry[role] = {f"batch_{batch}": _timing(models / name, batch) for batch in (1, 8)}
    return entry
