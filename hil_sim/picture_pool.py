"""The pictures that a simulated camera sends, encoded before the first is due."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import crc32c
import cv2
import numpy as np
import simplejpeg

from hil_sim.pictures import DEFECT_KINDS, FREE, make_picture

POOL_PICTURES: Final = 40
DEFECTS_OF_TEN: Final = 3
JPEG_QUALITY: Final = 90
FOLDER_PICTURES_MAX: Final = 5000
FOLDER_BYTES_MAX: Final = 1 << 30
ENCODINGS: Final = {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}


class PictureFolderError(Exception):
    """A folder of pictures that cannot be sent; the text says why."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One picture as it goes over the wire; `truth` is free, defect or None (not known)."""

    payload: bytes
    encoding: str
    pixel_format: str
    width: int
    height: int
    crc32c: int
    truth: str | None


def procedural(seed: int, width: int, height: int, count: int = POOL_PICTURES) -> Iterator[Encoded]:
    """Tile-like JPEGs, three of ten with a defect; the same for the same seed."""
    for number in range(count):
        is_defect = number % 10 < DEFECTS_OF_TEN
        kind = DEFECT_KINDS[number % len(DEFECT_KINDS)] if is_defect else FREE
        picture = make_picture(seed + number, width, height, kind)
        pixels = np.ascontiguousarray(picture.pixels[:, :, None])
        payload = simplejpeg.encode_jpeg(pixels, quality=JPEG_QUALITY, colorspace="GRAY")
        truth = "defect" if picture.is_defect else "free"
        yield Encoded(payload, "jpeg", "Mono8", width, height, crc32c.crc32c(payload), truth)


def from_folder(folder: Path) -> list[Encoded]:
    """The JPEGs and PNGs of a folder and its subfolders, as they are, in the order of their names.

    A picture in a folder called `free` is good, in any other subfolder it has a defect, directly in
    `folder` its truth is not known. Raises PictureFolderError.
    """
    paths = sorted(p for p in folder.rglob("*") if p.suffix.lower() in ENCODINGS and p.is_file())
    if not paths:
        raise PictureFolderError(f"{folder}: no .jpg, .jpeg or .png in it")
    size = sum(path.stat().st_size for path in paths)
    if len(paths) > FOLDER_PICTURES_MAX or size > FOLDER_BYTES_MAX:
        raise PictureFolderError(
            f"{folder}: {len(paths)} pictures, {size >> 20} MiB; "
            f"at most {FOLDER_PICTURES_MAX} and {FOLDER_BYTES_MAX >> 20} MiB are held"
        )
    return [_as_it_is(path, folder) for path in paths]


def _as_it_is(path: Path, folder: Path) -> Encoded:
    payload = path.read_bytes()
    encoding = ENCODINGS[path.suffix.lower()]
    try:
        height, width, pixel_format = _look(payload, encoding)
    except ValueError as error:
        raise PictureFolderError(f"{path}: {error}") from error
    truth = None
    if path.parent != folder:
        truth = "free" if path.parent.name == FREE else "defect"
    check = crc32c.crc32c(payload)
    return Encoded(payload, encoding, pixel_format, width, height, check, truth)


def _look(payload: bytes, encoding: str) -> tuple[int, int, str]:
    """Height, width and pixel format. Raises ValueError."""
    if encoding == "jpeg":
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload)
        return int(height), int(width), "Mono8" if colorspace == "Gray" else "RGB8"
    pixels = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("not a PNG that can be decoded")
    height, width = pixels.shape[:2]
    if pixels.ndim == 3:
        return height, width, "RGB8"
    return height, width, "Mono16" if pixels.dtype == np.uint16 else "Mono8"
