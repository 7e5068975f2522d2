"""Xids and lost GPUs in the kernel's log. Parsing is pure; reading never waits.

A GPU may fall off the bus without an Xid line (gpud#1209), so the words alone count too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

_XID = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
_BUS = re.compile(r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}")
_OFF_BUS = "fallen off the bus"
_RECORD_BYTES = 8192


class Line(NamedTuple):
    """A line that tells of a GPU: its PCI bus id ("" if unsaid), the Xid (0: off the bus)."""

    bus: str
    number: int
    text: str


def parsed(record: str) -> Line | None:
    """What one record of /dev/kmsg (or one line of dmesg) says of a GPU; None for anything else."""
    text = record.partition(";")[2] if record[:1].isdigit() and ";" in record else record
    text = text.split("\n")[0].strip()
    found = _XID.search(text)
    if found:
        return Line(bus_id(found["bus"]), int(found["number"]), text)
    if _OFF_BUS in text.lower():
        named = _BUS.search(text)
        return Line(bus_id(named[0]) if named else "", 0, text)
    return None


def bus_id(text: str) -> str:
    """A PCI bus id as domain:bus:device of 4, 2 and 2 digits, whatever way it was written."""
    words = text.strip().lower().split(".")[0].split(":")
    if len(words) == 2:
        words = ["0000", *words]
    if len(words) != 3:
        return ""
    return f"{words[0][-4:]:0>4}:{words[1]}:{words[2]}"


class KernelLog:
    """New records of /dev/kmsg since it was opened; nothing where it may not be read."""

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        try:
            self._handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._handle, 0, os.SEEK_END)
            self.trouble = ""
        except OSError as error:
            self._handle = -1
            self.trouble = f"{path}: {error.strerror}; Xids are not seen"

    def new_lines(self) -> list[Line]:
        """What the kernel has said of GPUs since the last call."""
        lines: list[Line] = []
        while self._handle >= 0:
            try:
                record = os.read(self._handle, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:  # records were overwritten before we came; go on with the next
                continue
            except OSError:
                break
            if not record:
                break
            line = parsed(record.decode("utf-8", "replace"))
            if line is not None:
                lines.append(line)
        return lines

    def close(self) -> None:
        """Give the file back."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
