"""System shared memory as the embedded Triton 2.51 has it, and as newer servers do.

Register opens, maps and closes: the mapping keeps the inode, whatever becomes of the name. 2.51
looks a key up again among its own regions and then uses the file descriptor it has closed, so that
one key can be registered only once ("Invalid shared memory region").
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass

import grpc

C = grpc.StatusCode


class Refused(Exception):  # noqa: N818 - an outcome of the protocol
    """An RPC's error: code and text."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


@dataclass
class Region:
    """A registered region. uses: inferences in flight that name it."""

    name: str
    key: str
    offset: int
    byte_size: int
    mapping: mmap.mmap
    uses: int = 0
    is_leaving: bool = False


class Manager:
    """The regions of one server. `variant` as in behaviour.State."""

    def __init__(self) -> None:
        self.regions: dict[str, Region] = {}
        self.variant = "2.51"

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Map `byte_size` bytes of `key` under `name`."""
        if self.variant == "no-client-shm":
            raise Refused(C.UNAVAILABLE, "client shared memory is not allowed on this server")
        if name in self.regions:
            raise Refused(C.ALREADY_EXISTS, f"shared memory region '{name}' already in manager")
        if any(region.key == key for region in self.regions.values()):
            raise Refused(C.INTERNAL, f"Invalid shared memory region: '{key}'")
        try:
            handle = os.open(f"/dev/shm/{key.lstrip('/')}", os.O_RDWR)
        except OSError:
            raise Refused(C.INTERNAL, f"Unable to open shared memory region: '{key}'") from None
        try:
            said = f"failed to register shared memory region '{name}'"
            if offset + byte_size > os.fstat(handle).st_size:
                raise Refused(C.INVALID_ARGUMENT, f"{said}: invalid args")
            if not byte_size:
                text = f"{said}: unable to process address spaceInvalid argument"
                raise Refused(C.INVALID_ARGUMENT, text)
            mapping = mmap.mmap(handle, os.fstat(handle).st_size)
        finally:
            os.close(handle)
        self.regions[name] = Region(name, key, offset, byte_size, mapping)

    def unregister(self, name: str) -> None:
        """Forget a region (all for an empty name); an unknown one is no error."""
        if not name:
            stuck = [one for one in list(self.regions) if not self._leave(one)]
            if stuck:
                listed = "".join(f"{one} ," for one in stuck)
                text = f"Failed to unregister the following system shared memory regions: {listed}"
                raise Refused(C.INTERNAL, text)
        elif not self._leave(name):
            text = f"Cannot unregister shared memory region '{name}', it is currently in use."
            raise Refused(C.INTERNAL, text)

    def _leave(self, name: str) -> bool:
        region = self.regions.get(name)
        if region is None:
            return True
        if region.uses and self.variant == "2.51":
            return False
        if region.uses:  # PR#7743: OK now, gone when the last inference has ended
            region.is_leaving = True
            return True
        del self.regions[name]
        return True

    def status(self, name: str) -> list[Region]:
        """The regions asked for (all for an empty name); one that is leaving still shows."""
        if name and name not in self.regions:
            text = f"Unable to find system shared memory region: '{name}'"
            raise Refused(C.NOT_FOUND, text)
        return [self.regions[name]] if name else list(self.regions.values())

    def find(self, name: str, offset: int, byte_size: int) -> tuple[Region, int]:
        """A region and the place in its mapping of `byte_size` bytes at `offset`."""
        region = self.regions.get(name)
        if region is None:
            raise Refused(C.NOT_FOUND, f"Unable to find shared memory region: '{name}'")
        if offset >= region.byte_size:
            text = f"Invalid offset for shared memory region: '{name}'"
            raise Refused(C.INVALID_ARGUMENT, text)
        if not byte_size or offset + byte_size > region.byte_size:
            text = f"Invalid offset + byte size for shared memory region: '{name}'"
            raise Refused(C.INVALID_ARGUMENT, text)
        return region, region.offset + offset

    def use(self, regions: list[Region]) -> None:
        """An inference begins to use these."""
        for region in regions:
            region.uses += 1

    def leave(self, regions: list[Region]) -> None:
        """An inference no longer uses these."""
        for region in regions:
            region.uses -= 1
            if region.is_leaving and not region.uses:
                self.regions.pop(region.name, None)
