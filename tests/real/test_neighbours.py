"""Two plants on one host: what one leaves when it dies whole is its own next start's to clean."""

from __future__ import annotations

from pathlib import Path

import pytest
from plant_rig import Rig, all_in_time
from plant_wire import until

pytestmark = pytest.mark.real

UNITS = ("journal", "batcher", "line-line01")


def names_of(rig: Rig) -> set[str]:
    """The plant's names in shared memory."""
    return {path.name for path in Path("/dev/shm").glob(f"takt-{rig.plant.tag}-*")}


def sockets_of(rig: Rig) -> dict[str, int]:
    """Its sockets and which they are."""
    return {p.name: p.stat().st_ino for p in (rig.folder / "run").iterdir() if p.is_socket()}


def test_a_plant_that_dies_and_begins_again_harms_no_neighbour(tmp_path: Path) -> None:
    with Rig(tmp_path / "one", lines=1) as one, Rig(tmp_path / "other", lines=1) as other:
        one.start(*UNITS)
        other.start(*UNITS)
        gate, load = other.actuator("line01"), other.load("line01", 5.0)
        load.grown(3)
        before, sockets = names_of(other), sockets_of(other)
        left_by_dead = names_of(one)
        assert len(left_by_dead) >= 2 and "batcher.sock" in sockets
        for unit in UNITS:
            one.kill(unit)
        assert names_of(one) == left_by_dead, "SIGKILL cleans nothing"
        one.start(*UNITS)
        load.grown(5)
        assert one.orphans() == []
        assert not {n for n in left_by_dead if "-ledger-" not in n} & names_of(one)
        assert (names_of(other), sockets_of(other)) == (before, sockets)
        assert all(other.units[unit].poll() is None for unit in UNITS)
        # The one that began again serves, on its old sockets.
        own_gate, own_load = one.actuator("line01"), one.load("line01", 5.0)
        own_load.grown(3)
        for rig, its_load, its_gate in ((one, own_load, own_gate), (other, load, gate)):
            its_load.close()
            rows = all_in_time(rig, its_load, its_gate)
            assert {row["answered_by"] for row in rows} <= {"pool", "fallback"}
            its_gate.close()
        until(lambda: one.events("line.connected"), 10, "the line is known to the new batcher")
