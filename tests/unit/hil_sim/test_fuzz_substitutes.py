"""The imitated machine lies under every shipped module that a run drives, and goes after it."""

from __future__ import annotations

import sys
from types import ModuleType

from hil_sim.fuzz.host import World
from hil_sim.fuzz.substitutes import DRIVEN, Machine, shipped_modules, substituted

REAL = (
    "time", "zmq", "secrets", "threading", "os", "fcntl", "socket", "subprocess", "random", "uuid",
    "sqlite3", "mmap", "signal", "select", "datetime", "queue",
)  # fmt: skip
MAY_STAY = {
    ("appliance.gpu_facts", "subprocess"),  # plant file and profiles: read before a run
    ("appliance.plant", "os"),
    ("appliance.plant_checks", "os"),
    ("appliance.plant_errors", "os"),
    ("appliance.profile_provenance", "datetime"),
    ("appliance.profile_provenance", "os"),
    ("appliance.journal", "os"),  # looks at paths of a real start only
    ("appliance.journal", "fcntl"),
    ("appliance.journal", "socket"),
    ("appliance.journal", "signal"),
    ("appliance.journal_store", "os"),  # `_identity`, imitated
    ("appliance.triton.goldens", "random"),  # with a seed of its own
    ("deadline_batcher.shm", "mmap"),  # Segment.create and attach, imitated
    ("deadline_batcher.timer", "os"),  # Timer and Signal, imitated
    ("lines.keys", "os"),  # AllowList, imitated
    ("lines.threads", "os"),  # CoreLocks, imitated
    ("lines.threads", "fcntl"),
}


def reached(names: tuple[str, ...]) -> set[str]:
    """The shipped modules that these import, and what those import."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for value in vars(sys.modules[name]).values():
            module = value.__name__ if isinstance(value, ModuleType) else None
            module = module or getattr(value, "__module__", None)
            if isinstance(module, str) and module in shipped:
                waiting.append(module)
    return found


shipped = {module.__name__ for module in shipped_modules()}


def test_no_module_that_a_run_drives_sees_the_real_machine() -> None:
    driven = reached(DRIVEN)
    before = {name: dict(vars(sys.modules[name])) for name in shipped}
    machine = Machine(World("test", 0, 0))
    with substituted(machine, []):
        real = {
            (name, value.__name__)
            for name in driven
            for value in vars(sys.modules[name]).values()
            if isinstance(value, ModuleType) and value.__name__ in REAL
        }
    machine.disk.close()
    assert len(driven) > 30
    assert real <= MAY_STAY, f"not imitated: {sorted(real - MAY_STAY)}"
    for name, names in before.items():
        assert dict(vars(sys.modules[name])) == names, name
