"""Load against least margin, one curve per GPU count, as SVG or PNG. No plotting library: the SVG
is written here, the PNG drawn with OpenCV, which the appliance carries anyway."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 900, 520
LEFT, RIGHT, TOP, BOTTOM = 80, 190, 60, 70
COLOURS = ("#1b6ca8", "#d1662b", "#4d8b31", "#7a4fa3")
INK, FAINT = "#222222", "#dddddd"
TICKS = 5

Point = tuple[float, float]
Line = Callable[[Point, Point, str, float], None]
Text = Callable[[Point, str, int, str], None]


@dataclass(frozen=True, slots=True)
class Curve:
    """One GPU count. points: (load factor, least margin in ms), from light to heavy.

    misses_from: the first load at which a part was missed; None if none was looked at.
    """

    gpus: int
    points: tuple[Point, ...]
    misses_from: float | None


def write_plot(path: Path, title: str, curves: Sequence[Curve]) -> None:
    """Write the plot. Raises ValueError for another suffix than .svg or .png."""
    if path.suffix == ".svg":
        path.write_text(_svg(title, curves))
    elif path.suffix == ".png":
        _png(path, title, curves)
    else:
        raise ValueError(f"{path}: a plot is .svg or .png")


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers over a range."""
    raw = (high - low) / TICKS
    scale = 10.0 ** (len(str(int(raw))) - 1 if raw >= 1 else -1)
    step = next(step for step in (1, 2, 2.5, 5, 10, 20, 50) if step * scale >= raw) * scale
    first = -(-low // step) * step
    return [first + step * k for k in range(int((high - first) / step + 1e-9) + 1)]


def _draw(title: str, curves: Sequence[Curve], line: Line, text: Text) -> None:
    """The same plot for both formats. text: position, words, size, anchor (start, middle, end)."""
    loads = [load for curve in curves for load, _ in curve.points]
    loads += [curve.misses_from for curve in curves if curve.misses_from is not None]
    margins = [margin for curve in curves for _, margin in curve.points]
    high_x, high_y = max([1.1, *loads]), max([1.0, *margins]) * 1.08
    low_x, low_y = 0.0, min([0.0, *margins])

    def at(load: float, margin: float) -> Point:
        x = LEFT + (load - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (margin - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return x, y

    for load in _ticks(low_x, high_x):
        line(at(load, low_y), at(load, high_y), FAINT, 1)
        x, y = at(load, low_y)
        text((x, y + 20), f"{load * 100:.0f} %", 13, "middle")
    for margin in _ticks(low_y, high_y):
        line(at(low_x, margin), at(high_x, margin), FAINT, 1)
        x, y = at(low_x, margin)
        text((x - 8, y + 4), f"{margin:g}", 13, "end")
    line(at(1.0, low_y), at(1.0, high_y), INK, 1)
    line(at(low_x, 0), at(high_x, 0), INK, 1.5)
    x, y = at(1.0, high_y)
    text((x, y - 6), "this plant", 12, "middle")
    text((LEFT, 24), title, 17, "start")
    middle = (LEFT + WIDTH - RIGHT) / 2
    text((middle, HEIGHT - 20), "load, per cent of the plant file's cycle times", 13, "middle")
    text((LEFT - 60, TOP - 14), "least margin, ms", 13, "start")
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        _draw_curve(curve, colour, at, line)
        y = TOP + 12 + number * 44
        line((WIDTH - RIGHT + 16, y), (WIDTH - RIGHT + 44, y), colour, 3)
        text((WIDTH - RIGHT + 52, y + 4), f"{curve.gpus} GPU{'s' * (curve.gpus > 1)}", 13, "start")
        told = "no miss seen"
        if curve.misses_from is not None:
            told = f"misses from {curve.misses_from * 100:.0f} %"
        text((WIDTH - RIGHT + 52, y + 20), told, 11, "start")


def _draw_curve(curve: Curve, colour: str, at: Callable[..., Point], line: Line) -> None:
    for a, b in zip(curve.points, curve.points[1:], strict=False):
        line(at(*a), at(*b), colour, 2.5)
    for point in curve.points:
        x, y = at(*point)
        line((x - 2, y), (x + 2, y), colour, 5)
    if curve.misses_from is not None:
        x, y = at(curve.misses_from, 0)
        line((x - 5, y - 5), (x + 5, y + 5), colour, 2.5)
        line((x - 5, y + 5), (x + 5, y - 5), colour, 2.5)


def _svg(title: str, curves: Sequence[Curve]) -> str:
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]

    def line(a: Point, b: Point, colour: str, width: float) -> None:
        rows.append(
            f'<line x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}" '
            f'stroke="{colour}" stroke-width="{width:g}" stroke-linecap="round"/>'
        )

    def text(at: Point, words: str, size: int, anchor: str) -> None:
        rows.append(
            f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{INK}">{escape(words)}</text>'
        )

    _draw(title, curves, line, text)
    return "\n".join([*rows, "</svg>", ""])


def _png(path: Path, title: str, curves: Sequence[Curve]) -> None:
    import cv2
    import numpy as np

    scale = 2
    image = np.full((HEIGHT * scale, WIDTH * scale, 3), 255, np.uint8)

    def colour_of(told: str) -> tuple[int, int, int]:
        red, green, blue = (int(told[k : k + 2], 16) for k in (1, 3, 5))
        return blue, green, red

    def line(a: Point, b: Point, colour: str, width: float) -> None:
        ends = [(round(x * scale), round(y * scale)) for x, y in (a, b)]
        cv2.line(
            image, ends[0], ends[1], colour_of(colour), max(1, round(width * scale)), cv2.LINE_AA
        )

    def text(at: Point, words: str, size: int, anchor: str) -> None:
        face, height = cv2.FONT_HERSHEY_DUPLEX, size * scale / 32
        plain = words.encode("ascii", "replace").decode()
        wide = cv2.getTextSize(plain, face, height, 1)[0][0]
        x = at[0] * scale - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
        place = (round(x), round(at[1] * scale))
        cv2.putText(image, plain, place, face, height, colour_of(INK), 1, cv2.LINE_AA)

    _draw(title, curves, line, text)
    cv2.imwrite(str(path), image)
