"""Trains the two tile models, or measures the committed ones again, and writes the model card."""

import argparse
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tile_card import CARD_FILE, FALLBACK_FILE, POOL_FILE, auroc, measure, scores_of, timings
from tile_set import (
    HOLDOUT_SEED,
    TRAIN_SEED,
    Sample,
    make_gate_pictures,
    make_samples,
    read_samples,
    split,
)

HOLDOUT_SHARE = 0.15
DRAWN_COUNT = 1500
HOLDOUT_DRAWN = 200
GATE_CANDIDATES = 600
NAME = "tile-defects"

EXAMPLE = """example:
  python models/train.py --tiles ../shared/data/tiles --epochs 26
  python models/train.py --tiles ../shared/data/tiles --evaluate-only
  python models/train.py --gate-pictures candidates.npz
"""


def _say(line: str) -> None:
    """One line of progress, at once."""
    print(line, flush=True)


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="models/train.py",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    here = Path(__file__).resolve().parent
    parser.add_argument("--tiles", type=Path, help="folder that holds train/ and test/")
    parser.add_argument(
        "--out", type=Path, default=here, help="folder of the model files (default: models)"
    )
    parser.add_argument(
        "--epochs", type=int, default=26, help="passes for the pool model (default: 26)"
    )
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of split, weights and views (default: 1)"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads for training (default: 2)")
    parser.add_argument(
        "--evaluate-only",
        action="store_true",
        help="measure the files in --out again (no PyTorch needed) and print the card's figures",
    )
    parser.add_argument(
        "--gate-pictures",
        type=Path,
        metavar="NPZ",
        help="only draw 600 pictures for `takt gate --make-baseline` and write them there",
    )
    arguments = parser.parse_args(argv)
    if arguments.tiles is None and arguments.gate_pictures is None:
        parser.error("--tiles is needed, or --gate-pictures")
    return arguments


def _train(arguments: argparse.Namespace) -> dict[str, Any]:
    """Train, export and quantise both models into --out; gives the card's entry on training."""
    import torch  # only here: measuring must work where PyTorch is not installed
    from tile_learning import Course, export, quantise, teach
    from tile_nets import fallback_net, pool_net

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    learning, holdout = split(
        read_samples(arguments.tiles / "train"), HOLDOUT_SHARE, arguments.seed
    )
    _say(
        f"{len(learning)} photographs to learn from, {len(holdout)} held out; "
        f"drawing {DRAWN_COUNT} pictures"
    )
    drawn, drawn_holdout = (
        make_samples(TRAIN_SEED, DRAWN_COUNT),
        make_samples(HOLDOUT_SEED, HOLDOUT_DRAWN),
    )
    out: Path = arguments.out
    with tempfile.TemporaryDirectory() as scratch:
        scratch_folder = Path(scratch)
        pool_path, fallback_path = scratch_folder / POOL_FILE, scratch_folder / FALLBACK_FILE
        student_path = scratch_folder / "student.onnx"
        _say("pool model")
        course = Course(arguments.epochs, seed=arguments.seed)
        pool = teach(pool_net(), learning, drawn, course=course, say=_say)
        export(pool, pool_path)
        _say("fallback model, taught by the pool model")
        course = Course(arguments.epochs * 4 // 3, rate=4e-3, seed=arguments.seed + 1)
        student = teach(fallback_net(), learning, drawn, course=course, say=_say, teacher=pool)
        export(student, student_path)
        quantise(student_path, fallback_path, [*learning, *drawn[:200]])
        held_out = _finish(scratch_folder, (learning, holdout, drawn_holdout))
        for name in (POOL_FILE, FALLBACK_FILE):
            shutil.copyfile(scratch_folder / name, out / name)
    return {
        "command": "python models/train.py --tiles ../shared/data/tiles"
        f" --epochs {arguments.epochs} --seed {arguments.seed}",
        "seed": arguments.seed,
        "epochs": {"pool": arguments.epochs, "fallback": arguments.epochs * 4 // 3},
        "photographs": _counts(learning),
        "held_out_photographs": _counts(holdout),
        "held_out_auroc": held_out,
        "procedural": {"learned": DRAWN_COUNT, "held_out": HOLDOUT_DRAWN, "first_seed": TRAIN_SEED},
        "torch": torch.__version__,
    }


def _finish(
    folder: Path, samples: tuple[list[Sample], list[Sample], list[Sample]]
) -> dict[str, float]:
    """Give both models in `folder` their thresholds and metadata; AUROC on held-out photographs.

    `samples` are the learned and the held-out photographs and the held-out procedural pictures. The
    threshold comes from all three: the few held-out photographs alone put the thresholds of the two
    far apart on a flat curve, and so made pool and fallback disagree.
    """
    from tile_learning import choose_threshold, describe

    learning, holdout, drawn = samples
    defect = np.array([sample.is_defect for sample in holdout])
    held_out: dict[str, float] = {}
    for role, file, name in (
        ("pool", POOL_FILE, NAME),
        ("fallback", FALLBACK_FILE, f"{NAME}-int8"),
    ):
        threshold = choose_threshold(folder / file, [*learning, *holdout], drawn)
        describe(folder / file, name, threshold)
        held_out[role] = round(auroc(scores_of(folder / file, holdout), defect), 4)
        _say(f"{name}: threshold {threshold}, AUROC on held-out photographs {held_out[role]}")
    return held_out


def _counts(samples: list[Sample]) -> dict[str, int]:
    """Samples of each kind."""
    return {
        kind: sum(s.kind == kind for s in samples) for kind in sorted({s.kind for s in samples})
    }


def evaluate(models: Path, tiles: Path) -> dict[str, Any]:
    """The card's figures of the model files in `models`, from the photographs in `tiles`."""
    return measure(models, read_samples(tiles / "test"), read_samples(tiles / "train"))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; 0 when done, 2 on wrong use."""
    arguments = _arguments(argv)
    begun = time.monotonic()
    if arguments.gate_pictures is not None:
        np.savez_compressed(arguments.gate_pictures, images=make_gate_pictures(GATE_CANDIDATES))
        return 0
    try:
        if arguments.evaluate_only:
            card: dict[str, Any] = {}
        else:
            arguments.out.mkdir(parents=True, exist_ok=True)
            card = {"training": _train(arguments)}
        card |= evaluate(arguments.out, arguments.tiles)
    except (OSError, ValueError) as problem:
        print(f"train.py: {problem}", file=sys.stderr)
        return 2
    if not arguments.evaluate_only:
        card["training"]["minutes"] = round((time.monotonic() - begun) / 60, 1)
        card["timing"] = timings(arguments.out)
        (arguments.out / CARD_FILE).write_text(json.dumps(card, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(card, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
