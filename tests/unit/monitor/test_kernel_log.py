"""What the kernel's log says of GPUs, in the forms seen in the field."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.monitor.kernel_log import KernelLog, Line, bus_id, parsed


@pytest.mark.parametrize(
    ("record", "bus", "number"),
    [
        ("3,812,9,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77, GPU has fallen off the bus.",
         "0000:3b:00", 79),
        ("NVRM: Xid (PCI:0000:C1:00): 48, pid='<unknown>', name=<unknown>, DBE", "0000:c1:00", 48),
        ("3,9,1,-;NVRM: GPU at PCI:0000:3b:00: has fallen off the bus.", "0000:3b:00", 0),
        ("3,9,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", "0000:3b:00", 0),
        ("nvidia: the GPU has fallen off the bus", "", 0),
    ],
)  # fmt: skip
def test_gpu_records(record: str, bus: str, number: int) -> None:
    line = parsed(record)
    assert line is not None
    assert (line.bus, line.number) == (bus, number)


@pytest.mark.parametrize(
    "record", ["6,1,2,-;usb 1-1: new device", "", "3,1,1,-;NVRM: loading module", "Xid 79"]
)
def test_other_records(record: str) -> None:
    assert parsed(record) is None


def test_a_bus_is_the_same_however_it_is_written() -> None:
    written = ("0000:3b:00", "00000000:3B:00.0", "3b:00.0", "0000:3b:00.0")
    assert {bus_id(text) for text in written} == {"0000:3b:00"}
    assert bus_id("nonsense") == ""


def test_only_what_is_new_is_read_and_reading_never_waits(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("NVRM: Xid (PCI:0000:3b:00): 13, old\n")
    log = KernelLog(path)
    assert log.new_lines() == []
    with path.open("a") as file:
        file.write("NVRM: Xid (PCI:0000:3b:00): 31, new\n")
    (line,) = log.new_lines()
    assert line == Line("0000:3b:00", 31, "NVRM: Xid (PCI:0000:3b:00): 31, new")
    log.close()
    assert log.new_lines() == []


def test_a_log_that_may_not_be_read_is_said_and_harmless(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert "Xids are not seen" in log.trouble
    assert log.new_lines() == []


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg may not be read here")
def test_the_real_log_opens_and_does_not_block() -> None:
    log = KernelLog()
    assert isinstance(log.new_lines(), list)
    log.close()
