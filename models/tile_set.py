"""Pictures to learn from: tile photographs with masks, procedural pictures, split and augmentation.

Everything here is numpy and OpenCV. `preprocess` is the one definition, for training and for
measurement, of what happens to a picture before it reaches a model; the line process does the same.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

PROJECT: Final = Path(__file__).resolve().parents[1]
if str(PROJECT) not in sys.path:
    sys.path.insert(0, str(PROJECT))

from hil_sim.pictures import DEFECT_KINDS, FREE, KINDS, draw_defect, make_masked_picture  # noqa: E402

SIDE: Final = 224
"""Width and height of a model's input, in pixels."""
TRAIN_SEED: Final = 10_000_000
HOLDOUT_SEED: Final = 15_000_000
MEASURE_SEED: Final = 20_000_000
GATE_SEED: Final = 25_000_000
SAME_TILE: Final = 0.5
"""Likeness from which two photographs count as one tile: 99.5 % of all pairs are under 0.4."""
HYBRID_SHARE: Final = 0.25
"""Share of good views that get a drawn defect, which ties both kinds of picture together."""
HYBRID_KINDS: Final = ("crack", "crack", "blowhole", "break", "fray", "uneven")
"""Cracks twice: they come from few tiles, and a new tile's crack is what a model misses first."""

Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Sample:
    """A grey picture at its own size, its mask (255 on the defect, same size) and its kind."""

    pixels: Pixels
    mask: Pixels
    kind: str

    @property
    def is_defect(self) -> bool:
        """True where the part should be rejected."""
        return self.kind != FREE


def preprocess(pixels: Pixels) -> Pixels:
    """Squash a grey picture to the model's uint8 [224, 224]; the aspect ratio is not kept."""
    return np.asarray(cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def read_picture(path: Path) -> Pixels:
    """Decode a picture to grey uint8 [height, width], the way the line process does."""
    if path.suffix.lower() in {".jpg", ".jpeg"}:
        grey = simplejpeg.decode_jpeg(path.read_bytes(), colorspace="GRAY")
        return np.asarray(grey[:, :, 0], np.uint8)
    image = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise ValueError(f"{path} is not a picture that can be decoded")
    return np.asarray(image, np.uint8)


def read_samples(folder: Path) -> list[Sample]:
    """Read `folder/<kind>/*.jpg` with the masks beside them, in a fixed order."""
    samples: list[Sample] = []
    for kind in KINDS:
        for path in sorted((folder / kind).glob("*.jpg")):
            pixels = read_picture(path)
            mask = np.zeros_like(pixels)
            mask_path = path.with_suffix(".png")
            if kind != FREE and mask_path.exists():
                mask = np.where(read_picture(mask_path) > 127, 255, 0).astype(np.uint8)
            samples.append(Sample(pixels, mask, kind))
    if not samples:
        raise ValueError(f"{folder} holds no folders of tile pictures ({', '.join(KINDS)})")
    return samples


def make_samples(first_seed: int, count: int, size: tuple[int, int] = (640, 480)) -> list[Sample]:
    """Procedural pictures of `count` seeds, after JPEG at quality 90 as a camera sends them."""
    samples: list[Sample] = []
    for seed in range(first_seed, first_seed + count):
        picture, mask = make_masked_picture(seed, *size)
        samples.append(Sample(through_jpeg(picture.pixels, 90), mask, picture.kind))
    return samples


def make_gate_pictures(count: int) -> Pixels:
    """Pictures for the gate, uint8 [count, 224, 224, 1]: from good to plainly defective by degrees.

    A defect mixed into its own good tile at a random strength gives the borderline cases that no
    ordinary picture is sure to hit.
    """
    pictures: list[Pixels] = []
    for seed in range(GATE_SEED, GATE_SEED + count):
        rng = np.random.default_rng(seed)
        good, _ = make_masked_picture(seed, kind=FREE)
        bad, _ = make_masked_picture(seed, kind=str(rng.choice(DEFECT_KINDS)))
        strength = float(rng.choice([0.0, 1.0, rng.uniform(0.05, 0.6)], p=[0.2, 0.2, 0.6]))
        mixed = cv2.addWeighted(bad.pixels, strength, good.pixels, 1.0 - strength, 0.0)
        pictures.append(preprocess(through_jpeg(np.asarray(mixed, np.uint8), 90)))
    return np.stack(pictures)[..., None]


def through_jpeg(pixels: Pixels, quality: int) -> Pixels:
    """The picture after JPEG compression at `quality` (1 to 100)."""
    stream = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels[:, :, None]),
        quality=quality,
        colorspace="GRAY",
        colorsubsampling="Gray",
    )
    return np.asarray(simplejpeg.decode_jpeg(stream, colorspace="GRAY")[:, :, 0], np.uint8)


def _fingerprint(pixels: Pixels) -> NDArray[np.float32]:
    """Unit vector of what makes one tile recognisable: its small marks, without light and edges.

    Row and column means go too, because brush marks and bevels are alike on all tiles.
    """
    small = cv2.resize(pixels, (48, 48), interpolation=cv2.INTER_AREA).astype(np.float32)[
        4:-4, 4:-4
    ]
    marks = np.asarray(small - cv2.GaussianBlur(small, (0, 0), 3.0), np.float32)
    marks = marks - marks.mean(axis=0, keepdims=True)
    marks = marks - marks.mean(axis=1, keepdims=True)
    flat = np.clip(marks / (np.abs(marks).mean() + 1e-6), -3.0, 3.0).ravel()
    return np.asarray(flat / (np.linalg.norm(flat) + 1e-6), np.float32)


def likeness(first: list[Sample], second: list[Sample]) -> NDArray[np.float32]:
    """Correlation, -1 to 1, of the surface marks of every pair: [len(first), len(second)]."""
    left = np.stack([_fingerprint(sample.pixels) for sample in first])
    right = np.stack([_fingerprint(sample.pixels) for sample in second])
    return np.asarray(left @ right.T, np.float32)


def same_tile_groups(samples: list[Sample]) -> NDArray[np.int64]:
    """Group number per sample; photographs of what looks like one tile share a number.

    The set holds several exposures of one tile. Were they split between learning and hold-out, the
    hold-out would judge what was learned by heart.
    """
    group = np.arange(len(samples), dtype=np.int64)
    for first, second in np.argwhere(np.triu(likeness(samples, samples) > SAME_TILE, 1)):
        group[group == group[second]] = group[first]
    return group


def split(samples: list[Sample], share: float, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split into (learning, hold-out) by whole tiles, about `share` of each kind held out."""
    group = same_tile_groups(samples)
    rng = np.random.default_rng(seed)
    held: set[int] = set()
    for kind in KINDS:
        members = [i for i, sample in enumerate(samples) if sample.kind == kind]
        already = sum(int(group[i]) in held for i in members)
        for i in rng.permutation(members):
            if already >= share * len(members):
                break
            size = sum(int(group[j]) == int(group[i]) for j in members)
            # A tile that makes up much of its kind has to be learned from: held out, it would leave
            # little of the kind to learn and would alone decide the threshold.
            if int(group[i]) not in held and size <= max(2.0, share * len(members) / 2):
                held.add(int(group[i]))
                already += size
    learning = [s for s, g in zip(samples, group, strict=True) if int(g) not in held]
    holdout = [s for s, g in zip(samples, group, strict=True) if int(g) in held]
    return learning, holdout


def augmented(rng: np.random.Generator, sample: Sample) -> tuple[Pixels, Pixels, bool]:
    """A varied view of `sample` at the model's size: pixels, mask and whether it shows a defect."""
    pixels, mask, is_defect = sample.pixels, sample.mask, sample.is_defect
    if not is_defect and rng.random() < HYBRID_SHARE:
        surface = pixels.astype(np.float32)
        drawn, mask = draw_defect(rng, surface, str(rng.choice(HYBRID_KINDS)))
        faint = surface + (drawn - surface) * np.float32(rng.uniform(0.5, 1.0))
        pixels, is_defect = np.clip(faint, 0, 255).astype(np.uint8), True
    pixels, mask = _cropped(rng, pixels, mask)
    if rng.random() < 0.3:
        turn = cv2.getRotationMatrix2D(
            (pixels.shape[1] / 2, pixels.shape[0] / 2), rng.uniform(-5, 5), 1.0
        )
        size = (pixels.shape[1], pixels.shape[0])
        pixels = np.asarray(
            cv2.warpAffine(pixels, turn, size, borderMode=cv2.BORDER_REFLECT), np.uint8
        )
        mask = np.asarray(cv2.warpAffine(mask, turn, size, borderMode=cv2.BORDER_REFLECT), np.uint8)
    pixels, mask = preprocess(pixels), preprocess(mask)
    if rng.random() < 0.5:
        pixels, mask = pixels[:, ::-1], mask[:, ::-1]
    if rng.random() < 0.5:
        pixels, mask = pixels[::-1], mask[::-1]
    return _relit(rng, pixels), np.ascontiguousarray(mask), is_defect


def _cropped(rng: np.random.Generator, pixels: Pixels, mask: Pixels) -> tuple[Pixels, Pixels]:
    """A random part of at least 78 % of each side that keeps most of the defect."""
    height, width = pixels.shape
    for _ in range(4):
        tall, wide = int(height * rng.uniform(0.78, 1.0)), int(width * rng.uniform(0.78, 1.0))
        top, left = int(rng.integers(0, height - tall + 1)), int(rng.integers(0, width - wide + 1))
        area = (slice(top, top + tall), slice(left, left + wide))
        if int(np.count_nonzero(mask[area])) >= 0.7 * int(np.count_nonzero(mask)):
            return pixels[area], mask[area]
    return pixels, mask


def _relit(rng: np.random.Generator, pixels: Pixels) -> Pixels:
    """The picture under other light, gain, focus, grain and compression."""
    view = np.asarray(pixels, np.float32)
    if rng.random() < 0.5:
        grid = rng.standard_normal((3, 3)).astype(np.float32)
        field = cv2.resize(grid, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        view = view * (1.0 + rng.uniform(0.0, 0.2) * np.asarray(field, np.float32))
    if rng.random() < 0.5:
        view = 255.0 * np.power(np.clip(view / 255.0, 0.0, 1.0), rng.uniform(0.7, 1.4))
    view = view * np.float32(rng.uniform(0.7, 1.3)) + rng.uniform(-12.0, 12.0)
    if rng.random() < 0.1:
        view = np.asarray(cv2.GaussianBlur(view, (0, 0), rng.uniform(0.4, 0.9)), np.float32)
    if rng.random() < 0.5:
        view = view + rng.standard_normal(view.shape, np.float32) * np.float32(
            rng.uniform(0.5, 5.0)
        )
    relit = np.clip(view, 0, 255).astype(np.uint8)
    return through_jpeg(relit, int(rng.integers(60, 96))) if rng.random() < 0.25 else relit
