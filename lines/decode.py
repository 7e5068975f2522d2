"""Payload → the model's picture. Every way a picture can be wrong ends in one exception.

The checksum comes first: it alone finds a corrupt JPEG that still decodes (50 zeroed bytes change a
third of the pixels without any error). Dimensions are read from the payload's own header before a
decoder may allocate anything. Every decode goes into a fresh buffer, so that a truncated picture
cannot show the previous part (opencv#26488).
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

import crc32c
import cv2
import numpy as np
import numpy.typing as npt
import simplejpeg

Picture = npt.NDArray[np.uint8]

CHANNELS = {"Mono8": 1, "Mono16": 1, "BayerRG8": 1, "RGB8": 3, "BGR8": 3}
BYTES_PER_PIXEL = {"Mono8": 1, "Mono16": 2, "BayerRG8": 1, "RGB8": 3, "BGR8": 3}
_PNG_HEAD = struct.Struct(">8s4x4sIIBB")  # signature, length, IHDR, width, height, depth, colour
_JPEG_SIGNATURE = b"\xff\xd8\xff"
_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"

cv2.setNumThreads(1)


class DecodeError(Exception):
    """The picture cannot be used; `reason` is checksum, size, format or decode."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class FrameHeader(Protocol):
    """What decoding needs to know of a frame."""

    @property
    def encoding(self) -> str: ...
    @property
    def pixel_format(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def height(self) -> int: ...
    @property
    def stride(self) -> int | None: ...
    @property
    def crc32c(self) -> int: ...


def decode(header: FrameHeader, payload: Any, shape: tuple[int, int, int]) -> Picture:
    """The picture as uint8 [height, width, channels] of the model. Raises DecodeError.

    payload: any object with the buffer interface. Colour is RGB.
    """
    if crc32c.crc32c(payload) != header.crc32c:
        raise DecodeError("checksum", "crc32c of the payload is not the header's")
    if not header.width or not header.height:
        raise DecodeError("size", f"{header.width}x{header.height} holds no pixel")
    try:
        if header.encoding == "jpeg":
            pixels = _jpeg(header, payload)
        elif header.encoding == "png":
            pixels = _png(header, payload)
        else:
            pixels = _raw(header, payload)
        return to_model(pixels, shape)
    except (cv2.error, ValueError, OverflowError, MemoryError) as error:
        raise DecodeError("decode", str(error).strip()[:200]) from None


def to_model(pixels: Picture, shape: tuple[int, int, int]) -> Picture:
    """Any picture [h, w] or [h, w, 3] → the model's shape: grey or RGB, squashed by area."""
    height, width, channels = shape
    if channels == 1 and pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).astype(np.uint8, copy=False)
    elif channels == 3 and pixels.ndim == 2:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB).astype(np.uint8, copy=False)
    resized = cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA)
    return np.ascontiguousarray(resized, np.uint8).reshape(shape)


def _check_size(header: FrameHeader, width: int, height: int) -> None:
    if (width, height) != (header.width, header.height):
        raise DecodeError(
            "size", f"payload is {width}x{height}, header says {header.width}x{header.height}"
        )


def _jpeg(header: FrameHeader, payload: Any) -> Picture:
    # Not `is_jpeg`: that wants the end too, and a JPEG cut short is one that does not decode.
    if bytes(memoryview(payload)[:3]) != _JPEG_SIGNATURE:
        raise DecodeError("format", "not a JPEG")
    height, width, colorspace, _ = simplejpeg.decode_jpeg_header(payload, strict=True)
    _check_size(header, width, height)
    is_grey = header.pixel_format == "Mono8"
    if is_grey != (colorspace == "Gray"):
        raise DecodeError("format", f"JPEG is {colorspace}, header says {header.pixel_format}")
    target = "GRAY" if is_grey else "RGB"
    pixels = simplejpeg.decode_jpeg(payload, target, strict=True)
    return np.asarray(pixels[:, :, 0] if is_grey else pixels, np.uint8)


def _png(header: FrameHeader, payload: Any) -> Picture:
    head = bytes(memoryview(payload)[: _PNG_HEAD.size])
    if len(head) < _PNG_HEAD.size or head[:8] != _PNG_SIGNATURE:
        raise DecodeError("format", "not a PNG")
    _, kind, width, height, depth, colour = _PNG_HEAD.unpack(head)
    if kind != b"IHDR":
        raise DecodeError("format", "a PNG that does not start with IHDR")
    _check_size(header, width, height)
    wanted = {"Mono8": (8, 0), "Mono16": (16, 0)}.get(header.pixel_format, (8, 2))
    if (depth, colour) != wanted or header.pixel_format == "BayerRG8":
        raise DecodeError(
            "format", f"PNG has depth {depth}, colour {colour}; header says {header.pixel_format}"
        )
    pixels = cv2.imdecode(np.frombuffer(payload, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise DecodeError("decode", "PNG cannot be decoded")
    if depth == 16:
        pixels = (np.asarray(pixels, np.uint16) >> 8).astype(np.uint8)
    if pixels.ndim == 3:
        pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    return np.asarray(pixels, np.uint8)


def _raw(header: FrameHeader, payload: Any) -> Picture:
    row_bytes = header.width * BYTES_PER_PIXEL[header.pixel_format]
    stride = header.stride if header.stride is not None else row_bytes
    if stride < row_bytes:
        raise DecodeError("size", f"stride {stride} is less than a row of {row_bytes} bytes")
    needed = stride * (header.height - 1) + row_bytes
    if not needed <= len(payload) <= stride * header.height:
        raise DecodeError("size", f"payload has {len(payload)} bytes, the header needs {needed}")
    rows = np.ndarray(
        (header.height, row_bytes), np.uint8, memoryview(payload), strides=(stride, 1)
    )
    if header.pixel_format == "Mono16":
        return np.ascontiguousarray(rows[:, 1::2])  # little-endian: the high byte
    if header.pixel_format == "BayerRG8":
        # OpenCV names Bayer patterns by the second row's pixels: PFNC's RG is its BG.
        return np.asarray(cv2.cvtColor(np.ascontiguousarray(rows), cv2.COLOR_BayerBG2RGB))
    if header.pixel_format == "Mono8":
        return np.ascontiguousarray(rows)
    colour = np.ascontiguousarray(rows).reshape(header.height, header.width, 3)
    return colour if header.pixel_format == "RGB8" else np.ascontiguousarray(colour[:, :, ::-1])
