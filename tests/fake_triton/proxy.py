"""The wire in front of the fake: cuts connections, falls silent, says GOAWAY.

The gRPC server itself listens on a Unix socket; what the client connects to is this. It forwards
whole HTTP/2 frames towards the client, so that a GOAWAY of its own lies between two of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

CHUNK = 1 << 18
GOAWAY_FRAME = 7


class Proxy:
    """Forwards one port to a Unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._clients: set[asyncio.StreamWriter] = set()
        self.accepted = 0

    async def listen(self, port: int) -> None:
        """Take connections on the loopback."""
        await asyncio.start_server(self._connected, "127.0.0.1", port)

    def silence(self, is_silent: bool) -> None:
        """Half-open: connections stay, nothing passes either way."""
        if is_silent:
            self._flowing.clear()
        else:
            self._flowing.set()

    def reset(self) -> None:
        """Cut every connection with a TCP reset."""
        for writer in list(self._clients):
            held = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        self._clients.clear()

    def goaway(self, code: int, last_stream: int, text: str) -> None:
        """Say GOAWAY on every connection."""
        payload = struct.pack(">II", last_stream, code) + text.encode()
        head = struct.pack(">I", len(payload))[1:] + bytes([GOAWAY_FRAME, 0]) + b"\0\0\0\0"
        for writer in list(self._clients):
            writer.write(head + payload)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        await self._flowing.wait()
        self._clients.add(writer)
        try:
            inner_reader, inner_writer = await asyncio.open_unix_connection(self._path)
        except OSError:
            writer.close()
            return
        pumps = [
            asyncio.ensure_future(self._pump(reader, inner_writer)),
            asyncio.ensure_future(self._pump_frames(inner_reader, writer)),
        ]
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        self._clients.discard(writer)
        for end in (writer, inner_writer):
            with contextlib.suppress(OSError, RuntimeError):
                end.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(CHUNK):
                await self._flowing.wait()
                writer.write(piece)
                await writer.drain()

    async def _pump_frames(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(9)
                body = await reader.readexactly(int.from_bytes(head[:3], "big"))
                await self._flowing.wait()
                writer.write(head + body)
                await writer.drain()
