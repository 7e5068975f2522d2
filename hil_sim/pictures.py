"""Procedural pictures of tiles, so that a demo, a test or a simulated camera needs no photograph.

One seed gives one picture, the same on every run: a dark-grey, brushed tile that fills most of the
frame, with uneven light, grain and sometimes a visible edge, either good (`free`) or with one kind
of defect. Seed ranges are kept apart so that no picture is both learned and judged: demos and tests
use seeds below 1 000 000, training uses 10 000 000 and up, measurement uses 20 000 000 and up.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

FREE: Final = "free"
DEFECT_KINDS: Final = ("blowhole", "break", "crack", "fray", "uneven")
KINDS: Final = (FREE, *DEFECT_KINDS)

FREE_SHARE: Final = 0.6
"""Share of good tiles where no kind is asked for: below a real line's, so a demo shows defects."""

Floats: TypeAlias = NDArray[np.float32]
Pixels: TypeAlias = NDArray[np.uint8]
Box: TypeAlias = tuple[int, int, int, int]

_REFERENCE_PX: Final = 480.0
"""Shortest side, in pixels, at which the sizes below are written; other frames scale them."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One tile: `pixels` is grey uint8 [height, width], `kind` is `free` or a defect kind."""

    pixels: Pixels
    kind: str

    @property
    def is_defect(self) -> bool:
        """True where the tile should be rejected."""
        return self.kind != FREE


def make_picture(
    seed: int, width: int = 640, height: int = 480, kind: str | None = None
) -> Picture:
    """Draw the picture of `seed`; without `kind` the seed also chooses what is wrong, if anything.

    Raises ValueError on an unknown kind or a frame with a side under 32 pixels.
    """
    picture, _ = make_masked_picture(seed, width, height, kind)
    return picture


def make_masked_picture(
    seed: int, width: int = 640, height: int = 480, kind: str | None = None
) -> tuple[Picture, Pixels]:
    """Draw the picture of `seed` and its defect mask, uint8 [height, width], 255 on the defect."""
    if kind is not None and kind not in KINDS:
        raise ValueError(f"unknown kind {kind!r}: one of {', '.join(KINDS)}")
    if min(width, height) < 32:
        raise ValueError(f"a frame of {width} x {height} pixels is too small: at least 32 a side")
    rng = np.random.default_rng(seed)
    drawn = FREE if rng.random() < FREE_SHARE else str(rng.choice(DEFECT_KINDS))
    chosen = drawn if kind is None else kind
    canvas = _brushed_metal(rng, width, height)
    tile = _tile_box(rng, width, height)
    canvas = _with_border(rng, canvas, tile)
    mask: Pixels = np.zeros((height, width), np.uint8)
    if chosen != FREE:
        canvas, mask = draw_defect(rng, canvas, chosen, tile)
    # Grain comes last because it belongs to the sensor: a defect is under it, not over it.
    grain = rng.standard_normal((height, width), dtype=np.float32)
    canvas = canvas + grain * np.float32(rng.uniform(1.5, 4.0))
    pixels = np.clip(canvas, 0, 255).astype(np.uint8)
    return Picture(pixels, chosen), mask


def draw_defect(
    rng: np.random.Generator, canvas: Floats, kind: str, tile: Box | None = None
) -> tuple[Floats, Pixels]:
    """Draw one defect of `kind` on a copy of `canvas` (grey levels as float32 [height, width]).

    `tile` is the part's left, top, right and bottom in pixels, the whole frame where it is absent.
    Gives the new canvas and the defect's mask (uint8, 255 on the defect).
    """
    height, width = canvas.shape
    box = tile if tile is not None else (0, 0, width, height)
    return _DRAW[kind](rng, canvas, box)


def _smooth_field(
    rng: np.random.Generator, width: int, height: int, cells: tuple[int, int]
) -> Floats:
    """Smooth random field of about unit amplitude; `cells` is its grid (x, y) of free values."""
    grid = rng.standard_normal((cells[1], cells[0]), dtype=np.float32)
    return np.asarray(cv2.resize(grid, (width, height), interpolation=cv2.INTER_CUBIC), np.float32)


def _brushed_metal(rng: np.random.Generator, width: int, height: int) -> Floats:
    """Bare surface: level, soft light, vertical brush marks, bright streaks and faint stains."""
    level = rng.uniform(60.0, 150.0)
    light = 1.0 + rng.uniform(0.05, 0.16) * _smooth_field(rng, width, height, (3, 3))
    fade = _smooth_field(rng, width, height, (5, 7))
    fine = rng.standard_normal(width, dtype=np.float32)
    wide = np.ravel(_smooth_field(rng, width, 1, (max(4, width // 12), 1)))
    marks = (fine * rng.uniform(1.0, 4.0) + wide * rng.uniform(2.0, 5.0)).astype(np.float32)
    canvas = np.asarray(level * light + marks[None, :] * (1.0 + 0.4 * fade), np.float32)
    for _ in range(int(rng.integers(0, 7))):
        x, top = int(rng.integers(0, width)), int(rng.integers(-height // 2, height))
        bottom = top + int(rng.integers(height // 4, height))
        canvas[max(0, top) : max(0, bottom), x : x + int(rng.integers(1, 3))] += rng.uniform(
            8.0, 30.0
        )
    stain = _smooth_field(rng, width, height, (14, 10))
    return np.asarray(canvas - rng.uniform(0.0, 3.0) * stain, np.float32)


def _tile_box(rng: np.random.Generator, width: int, height: int) -> Box:
    """Left, top, right and bottom of the tile in pixels; an unseen edge is at the frame's."""
    seen = rng.random(4) < 0.45
    inset = rng.uniform(0.008, 0.045, size=4) * seen
    left, right = int(inset[0] * width), width - int(inset[2] * width)
    return left, int(inset[1] * height), right, height - int(inset[3] * height)


def _with_border(rng: np.random.Generator, canvas: Floats, tile: Box) -> Floats:
    """Darken everything outside the tile and give its edges a soft, slightly bowed bevel."""
    height, width = canvas.shape
    left, top, right, bottom = tile
    inside = np.zeros((height, width), np.float32)
    bow = int(rng.integers(0, max(2, height // 60)))
    corners = [
        (left, top),
        ((left + right) // 2, top + (bow if top else 0)),
        (right, top),
        (right, bottom),
        ((left + right) // 2, bottom - (bow if bottom < height else 0)),
        (left, bottom),
    ]
    cv2.fillPoly(inside, [np.asarray(corners, np.int32)], 1.0)
    inside = np.asarray(cv2.blur(inside, (7, 7), borderType=cv2.BORDER_REPLICATE), np.float32)
    floor = np.float32(rng.uniform(8.0, 25.0))
    return np.asarray(floor + (canvas - floor) * inside, np.float32)


def _scale(canvas: Floats) -> float:
    """Factor from reference pixels to this canvas's pixels."""
    height, width = canvas.shape
    return float(min(height, width)) / _REFERENCE_PX


def _blend(canvas: Floats, mask: Pixels, target: Floats | float, softness_px: int) -> Floats:
    """Replace `canvas` by `target` under `mask`, its edge softened over `softness_px` pixels."""
    size = 2 * max(1, softness_px) + 1
    alpha = np.asarray(cv2.blur(mask, (size, size)), np.float32) / np.float32(255.0)
    return np.asarray(canvas + (target - canvas) * alpha, np.float32)


def _spot(rng: np.random.Generator, box: Box, margin: float) -> tuple[int, int]:
    """Random point inside `box`, at least `margin` of its size away from each side."""
    left, top, right, bottom = box
    x = rng.uniform(left + margin * (right - left), right - margin * (right - left))
    y = rng.uniform(top + margin * (bottom - top), bottom - margin * (bottom - top))
    return int(x), int(y)


def _blob(
    rng: np.random.Generator, centre: tuple[int, int], radii: tuple[float, float]
) -> NDArray[np.int32]:
    """Outline of an irregular closed shape as int32 points [16, 2]."""
    angles = np.linspace(0.0, 2.0 * np.pi, 16, endpoint=False)
    reach = rng.uniform(0.75, 1.2, size=16)
    x = centre[0] + radii[0] * reach * np.cos(angles)
    y = centre[1] + radii[1] * reach * np.sin(angles)
    return np.stack([x, y], axis=1).astype(np.int32)


def _draw_blowhole(rng: np.random.Generator, canvas: Floats, box: Box) -> tuple[Floats, Pixels]:
    """One to three small dark pits."""
    mask: Pixels = np.zeros(canvas.shape, np.uint8)
    scale = _scale(canvas)
    for _ in range(int(rng.integers(1, 4))):
        radii = (rng.uniform(5.0, 12.0) * scale, rng.uniform(7.0, 15.0) * scale)
        outline = _blob(rng, _spot(rng, box, 0.08), radii)
        cv2.fillPoly(mask, [outline], 255)
    dark = canvas * np.float32(rng.uniform(0.15, 0.5))
    return _blend(canvas, mask, dark, round(2 * scale)), mask


def _draw_crack(rng: np.random.Generator, canvas: Floats, box: Box) -> tuple[Floats, Pixels]:
    """A thin dark jagged line that wanders over part of the tile."""
    mask: Pixels = np.zeros(canvas.shape, np.uint8)
    scale = _scale(canvas)
    steps = int(rng.integers(8, 22))
    wander = rng.uniform(0.05, 0.4)
    heading = rng.uniform(0.0, 2.0 * np.pi) + np.cumsum(rng.normal(0.0, wander, size=steps))
    heading = heading + rng.normal(0.0, wander, size=steps)
    stride = rng.uniform(8.0, 16.0, size=steps) * scale
    path = np.stack([np.cos(heading) * stride, np.sin(heading) * stride], axis=1).cumsum(axis=0)
    path = path - path.mean(axis=0) + np.asarray(_spot(rng, box, 0.25))
    points = path.astype(np.int32)
    thickness = max(1, round(rng.uniform(3.0, 6.0) * scale))
    for start, end in pairwise(points):
        width = max(1, thickness - int(rng.integers(0, 2)))
        cv2.line(mask, (int(start[0]), int(start[1])), (int(end[0]), int(end[1])), 255, width)
    dark = canvas * np.float32(rng.uniform(0.15, 0.5))
    return _blend(canvas, mask, dark, round(scale)), mask


def _draw_break(rng: np.random.Generator, canvas: Floats, box: Box) -> tuple[Floats, Pixels]:
    """A piece broken out of the border, with a bright rim and a rough dark floor."""
    mask: Pixels = np.zeros(canvas.shape, np.uint8)
    height, width = canvas.shape
    left, top, right, bottom = box
    x, y = _spot(rng, box, 0.1)
    side = int(rng.integers(0, 4))
    centre = [(left, y), (x, top), (right - 1, y), (x, bottom - 1)][side]
    long, deep = rng.uniform(35.0, 90.0) * _scale(canvas), rng.uniform(22.0, 50.0) * _scale(canvas)
    radii = (deep, long) if side in (0, 2) else (long, deep)
    cv2.fillPoly(mask, [_blob(rng, centre, radii)], 255)
    rough = _smooth_field(rng, width, height, (max(8, width // 10), max(8, height // 10)))
    floor = canvas * np.float32(rng.uniform(0.25, 0.55)) + rough * np.float32(rng.uniform(4.0, 9.0))
    rim = np.asarray(
        cv2.morphologyEx(mask, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)), np.uint8
    )
    chipped = _blend(canvas, mask, floor, 1)
    return _blend(chipped, rim, canvas * np.float32(rng.uniform(0.6, 1.5)), 1), mask


def _draw_fray(rng: np.random.Generator, canvas: Floats, box: Box) -> tuple[Floats, Pixels]:
    """A patch where the surface is worn: another level and a coarse bright and dark texture."""
    mask: Pixels = np.zeros(canvas.shape, np.uint8)
    height, width = canvas.shape
    scale = _scale(canvas)
    radii = (rng.uniform(45.0, 110.0) * scale, rng.uniform(45.0, 110.0) * scale)
    cv2.fillPoly(mask, [_blob(rng, _spot(rng, box, 0.25), radii)], 255)
    rough = _smooth_field(rng, width, height, (max(8, width // 7), max(8, height // 7)))
    worn = canvas * np.float32(rng.uniform(0.55, 0.8)) + rough * np.float32(rng.uniform(8.0, 18.0))
    return _blend(canvas, mask, worn, round(2 * scale)), mask


def _draw_uneven(rng: np.random.Generator, canvas: Floats, box: Box) -> tuple[Floats, Pixels]:
    """A band across the tile that was ground to another brightness."""
    mask: Pixels = np.zeros(canvas.shape, np.uint8)
    left, top, right, bottom = box
    reach = rng.uniform(0.18, 0.45) * (bottom - top)
    upper = rng.uniform(top, bottom - reach)
    tilt = rng.uniform(-0.05, 0.05) * (bottom - top)
    corners = [
        (left, upper),
        (right, upper + tilt),
        (right, upper + reach + tilt),
        (left, upper + reach),
    ]
    cv2.fillPoly(mask, [np.asarray(corners, np.int32)], 255)
    brighter = rng.random() < 0.5
    gain = rng.uniform(1.25, 1.6) if brighter else rng.uniform(0.55, 0.78)
    return _blend(canvas, mask, canvas * np.float32(gain), 2), mask


_Draw: TypeAlias = Callable[[np.random.Generator, Floats, Box], tuple[Floats, Pixels]]

_DRAW: Final[dict[str, _Draw]] = {
    "blowhole": _draw_blowhole,
    "break": _draw_break,
    "crack": _draw_crack,
    "fray": _draw_fray,
    "uneven": _draw_uneven,
}
