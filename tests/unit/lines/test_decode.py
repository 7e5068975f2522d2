"""Payloads to pictures: what decodes, and every way of being wrong, each with its reason."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import dataclass, replace
from typing import Any

import crc32c
import cv2
import numpy as np
import pytest
import simplejpeg

from lines.decode import DecodeError, decode

HEIGHT, WIDTH = 48, 64
GREY = np.add.outer(np.arange(HEIGHT) * 2, np.arange(WIDTH) * 2).astype(np.uint8)
COLOUR = np.stack([GREY, 255 - GREY, np.full_like(GREY, 40)], axis=2)
GREY_SHAPE, RGB_SHAPE = (HEIGHT, WIDTH, 1), (HEIGHT, WIDTH, 3)


@dataclass(frozen=True)
class Header:
    encoding: str
    pixel_format: str
    crc32c: int
    width: int = WIDTH
    height: int = HEIGHT
    stride: int | None = None


def header(encoding: str, pixel_format: str, payload: bytes, **changes: Any) -> Header:
    return replace(Header(encoding, pixel_format, crc32c.crc32c(payload)), **changes)


def jpeg(picture: np.ndarray[Any, Any], quality: int = 95) -> bytes:
    if picture.ndim == 2:
        grey = np.ascontiguousarray(picture[:, :, None])
        return bytes(simplejpeg.encode_jpeg(grey, quality, "GRAY"))
    return bytes(simplejpeg.encode_jpeg(picture, quality, "RGB", "444"))


def png(picture: np.ndarray[Any, Any]) -> bytes:
    stored = picture if picture.ndim == 2 else picture[:, :, ::-1]
    return cv2.imencode(".png", stored)[1].tobytes()


def png_of_chunks(width: int, height: int, depth: int, colour: int, *more: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    bodies = b"".join(chunk(b"IDAT", data) for data in more)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + bodies + chunk(b"IEND", b"")


def refused(head: Header, payload: bytes, shape: tuple[int, int, int] = GREY_SHAPE) -> str:
    with pytest.raises(DecodeError) as caught:
        decode(head, payload, shape)
    return caught.value.reason


def close_to(picture: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> bool:
    return bool(np.abs(picture.astype(int) - expected.astype(int)).mean() < 3)


# --- what decodes -----------------------------------------------------------------------------


def test_a_grey_jpeg() -> None:
    payload = jpeg(GREY)
    picture = decode(header("jpeg", "Mono8", payload), payload, GREY_SHAPE)
    assert picture.shape == GREY_SHAPE and picture.dtype == np.uint8
    assert close_to(picture[:, :, 0], GREY)


@pytest.mark.parametrize("pixel_format", ["RGB8", "BGR8"])
def test_a_colour_jpeg_is_rgb(pixel_format: str) -> None:
    payload = jpeg(COLOUR)
    assert close_to(decode(header("jpeg", pixel_format, payload), payload, RGB_SHAPE), COLOUR)


def test_a_grey_png_of_eight_and_of_sixteen_bits() -> None:
    payload = png(GREY)
    picture = decode(header("png", "Mono8", payload), payload, GREY_SHAPE)
    assert np.array_equal(picture[:, :, 0], GREY)
    deep = (GREY.astype(np.uint16) << 8) | 0xC3
    payload = png(deep)
    picture = decode(header("png", "Mono16", payload), payload, GREY_SHAPE)
    assert np.array_equal(picture[:, :, 0], GREY)


@pytest.mark.parametrize("pixel_format", ["RGB8", "BGR8"])
def test_a_colour_png_is_rgb(pixel_format: str) -> None:
    payload = png(COLOUR)
    picture = decode(header("png", pixel_format, payload), payload, RGB_SHAPE)
    assert np.array_equal(picture, COLOUR)


def raw_rows(pixel_format: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(rows of bytes as sent, the picture they mean)."""
    if pixel_format == "Mono8":
        return GREY, GREY
    if pixel_format == "Mono16":
        deep = (GREY.astype("<u2") << 8) | 0x5A
        return deep.view(np.uint8), GREY
    pixels = COLOUR if pixel_format == "RGB8" else COLOUR[:, :, ::-1]
    return np.ascontiguousarray(pixels).reshape(HEIGHT, -1), COLOUR


@pytest.mark.parametrize("pixel_format", ["Mono8", "Mono16", "RGB8", "BGR8"])
@pytest.mark.parametrize("padding", [None, 0, 5])
@pytest.mark.parametrize("is_last_row_padded", [True, False])
def test_raw_pixels_with_and_without_a_stride(
    pixel_format: str, padding: int | None, is_last_row_padded: bool
) -> None:
    rows, expected = raw_rows(pixel_format)
    row_bytes = rows.shape[1]
    payload = b"".join(row.tobytes() + b"\xee" * (padding or 0) for row in rows)
    if not is_last_row_padded and padding:
        payload = payload[:-padding]
    stride = None if padding is None else row_bytes + padding
    shape = RGB_SHAPE if expected.ndim == 3 else GREY_SHAPE
    picture = decode(header("raw", pixel_format, payload, stride=stride), payload, shape)
    assert np.array_equal(picture, expected.reshape(shape))


@pytest.mark.parametrize("padding", [0, 6])
def test_a_raw_bayer_picture_begins_with_red(padding: int) -> None:
    mosaic = np.zeros((HEIGHT, WIDTH + padding), np.uint8)
    mosaic[0::2, 0:WIDTH:2] = 200  # red; the green and blue places are dark
    payload = mosaic.tobytes()
    head = header("raw", "BayerRG8", payload, stride=WIDTH + padding)
    picture = decode(head, payload, RGB_SHAPE)
    assert picture[10:20, 10:20, 0].min() > 90
    assert picture[10:20, 10:20, 1:].max() == 0


def test_any_buffer_is_a_payload_and_a_memoryview_is_not_copied_into_the_picture() -> None:
    payload = bytearray(GREY.tobytes())
    picture = decode(header("raw", "Mono8", bytes(payload)), memoryview(payload), GREY_SHAPE)
    payload[:] = bytes(len(payload))
    assert np.array_equal(picture[:, :, 0], GREY)


def test_a_picture_is_brought_to_the_models_shape() -> None:
    payload = COLOUR.tobytes()
    head = header("raw", "RGB8", payload)
    grey = decode(head, payload, (24, 32, 1))
    assert grey.shape == (24, 32, 1)
    weighted = COLOUR.astype(float) @ [0.299, 0.587, 0.114]
    assert close_to(grey[:, :, 0], weighted.reshape(24, 2, 32, 2).mean(axis=(1, 3)))
    payload = GREY.tobytes()
    rgb = decode(header("raw", "Mono8", payload), payload, (24, 32, 3))
    assert (rgb[:, :, 0] == rgb[:, :, 2]).all()
    assert close_to(rgb[:, :, 1], GREY.astype(float).reshape(24, 2, 32, 2).mean(axis=(1, 3)))


# --- what is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
@pytest.mark.parametrize("percent", [0, 30, 60, 95])
def test_a_payload_cut_short_fails_even_where_its_checksum_is_right(
    encoding: str, percent: int
) -> None:
    whole = {"jpeg": jpeg(GREY), "png": png(GREY), "raw": GREY.tobytes()}[encoding]
    payload = whole[: len(whole) * percent // 100]
    reason = refused(header(encoding, "Mono8", payload), payload)
    if percent == 0:
        assert reason == ("size" if encoding == "raw" else "format")
    else:
        assert reason == ("size" if encoding == "raw" else "decode")


def test_a_payload_cut_short_on_the_way_is_a_checksum() -> None:
    for payload in (jpeg(GREY), png(GREY), GREY.tobytes()):
        assert refused(header("jpeg", "Mono8", payload), payload[:-1]) == "checksum"


def test_every_flipped_bit_is_found_by_the_checksum() -> None:
    payload = jpeg(GREY, quality=30)
    head = header("jpeg", "Mono8", payload)
    for place in range(len(payload) * 8):
        spoilt = bytearray(payload)
        spoilt[place // 8] ^= 1 << place % 8
        with pytest.raises(DecodeError, match=r"^checksum"):
            decode(head, bytes(spoilt), GREY_SHAPE)


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
@pytest.mark.parametrize("changes", [{"width": WIDTH + 1}, {"height": HEIGHT - 1}, {"width": 0}])
def test_other_dimensions_than_the_headers_are_a_size(
    encoding: str, changes: dict[str, int]
) -> None:
    payload = {"jpeg": jpeg(GREY), "png": png(GREY), "raw": GREY.tobytes()}[encoding]
    assert refused(header(encoding, "Mono8", payload, **changes), payload) == "size"


@pytest.mark.parametrize(
    ("encoding", "payload", "pixel_format"),
    [
        ("jpeg", png(GREY), "Mono8"),
        ("png", jpeg(GREY), "Mono8"),
        ("jpeg", GREY.tobytes(), "Mono8"),
        ("jpeg", jpeg(GREY), "RGB8"),
        ("jpeg", jpeg(COLOUR), "Mono8"),
        ("png", png(GREY), "Mono16"),
        ("png", png(GREY.astype(np.uint16)), "Mono8"),
        ("png", png(GREY), "RGB8"),
        ("png", png(COLOUR), "Mono8"),
        ("png", png(COLOUR), "BayerRG8"),
        ("png", b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "Mono8"),
        ("png", b"\x89PNG\r\n\x1a\n", "Mono8"),
    ],
)
def test_another_format_than_the_headers_is_a_format(
    encoding: str, payload: bytes, pixel_format: str
) -> None:
    assert refused(header(encoding, pixel_format, payload), payload) == "format"


@pytest.mark.parametrize(
    ("stride", "size"),
    [
        (WIDTH - 1, WIDTH * HEIGHT),
        (0, WIDTH * HEIGHT),
        (None, WIDTH * HEIGHT - 1),
        (None, WIDTH * HEIGHT + 1),
        (WIDTH + 4, (WIDTH + 4) * (HEIGHT - 1) + WIDTH - 1),
        (WIDTH + 4, (WIDTH + 4) * HEIGHT + 1),
        (2**32 - 1, WIDTH * HEIGHT),
    ],
)
def test_raw_bytes_that_do_not_add_up_are_a_size(stride: int | None, size: int) -> None:
    payload = bytes(size)
    assert refused(header("raw", "Mono8", payload, stride=stride), payload) == "size"


def test_rubbish_after_a_good_head_does_not_decode() -> None:
    good = jpeg(GREY)
    payload = good[: len(good) // 2] + b"\xff\xd9" * 40
    assert refused(header("jpeg", "Mono8", payload), payload) in {"decode", "size"}
    short = png_of_chunks(WIDTH, HEIGHT, 8, 0, zlib.compress(bytes((WIDTH + 1) * 10)))
    assert refused(header("png", "Mono8", short), short) == "decode"
    empty = png_of_chunks(WIDTH, HEIGHT, 8, 0)
    assert refused(header("png", "Mono8", empty), empty) == "decode"


def test_a_decompression_bomb_is_refused_by_its_own_head_before_anything_is_decoded() -> None:
    huge = png_of_chunks(30_000, 30_000, 8, 0, zlib.compress(bytes(30_001 * 64)))
    wide = bytearray(jpeg(GREY))
    place = wide.index(b"\xff\xc0")  # frame header: length, precision, height, width
    wide[place + 5 : place + 9] = struct.pack(">HH", 65_000, 65_000)
    for encoding, payload in (("png", huge), ("jpeg", bytes(wide))):
        head = header(encoding, "Mono8", payload)
        tracemalloc.start()
        try:
            assert refused(head, payload) == "size"
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


def test_a_truncated_picture_never_shows_the_one_before() -> None:
    white = jpeg(np.full_like(GREY, 255))
    decode(header("jpeg", "Mono8", white), white, GREY_SHAPE)
    cut = jpeg(GREY)[:-200]
    assert refused(header("jpeg", "Mono8", cut), cut) == "decode"
