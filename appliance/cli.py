"""The `takt` command: one table of commands, each loaded only when it is asked for.

Modules are named as text, so that commands may live in any package without an import upward and
`takt line` does not pay for what `takt demo` needs.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("hil_sim.demo:main", "twelve lines, four Tritons, one verdict for every part"),
    "run": ("appliance.supervisor:main", "run a plant's processes on this host"),
    "check": ("appliance.plant_errors:main", "check a plant file"),
    "profile": ("appliance.profile_command:main", "measure worst-case execution times"),
    "size": ("hil_sim.size_command:main", "whether a plant fits with N, N-1 and N-2 GPUs, and why"),
    "capacity": ("hil_sim.capacity_command:main", "which lines so many GPUs carry, for shedding"),
    "gate": ("fallback.gate:main", "compare pool model and fallback with the baseline"),
    "check-journal": ("hil_sim.check_journal:main", "decide the promise from the records"),
    "sim": ("hil_sim.sim_command:sim_main", "simulations in virtual time: policies, fuzz"),
    "replay": ("appliance.replay:main", "replay a batcher's event journal"),
    "benchmark": ("hil_sim.benchmark:main", "measure what the README claims"),
    "test": ("appliance.testing:main", "run the project's tests"),
    "line": ("appliance.start:line_main", "one line's process"),
    "batcher": ("appliance.start:batcher_main", "the batcher's process"),
    "journal": ("appliance.journal:main", "the journal's process"),
    "rescore": ("appliance.rescore:main", "asks the CPU again about some of the pool's answers"),
    "monitor": ("appliance.monitor.process:main", "watch the host and its GPUs beside the plant"),
    "triton": ("appliance.triton.server:main", "one embedded Triton"),
    "camera": ("hil_sim.cameras:main", "imitated cameras"),
    "actuator": ("hil_sim.actuators:main", "imitated actuators"),
}


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "takt: inference on the factory floor that never misses a part",
            "",
            "usage: takt COMMAND [OPTIONS]     takt COMMAND --help",
            "",
            *lines,
            "",
            "example: takt demo --seconds 60 --kill-triton 2 --at 20",
        ]
    )


def takt_version() -> str:
    """The installed release."""
    try:
        return version("takt-appliance")
    except PackageNotFoundError:
        return "unknown (not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; exit 0 done, 1 a finding, 2 wrong use."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0 if words else 2
    if words[0] in ("-V", "--version", "version"):
        print(f"takt {takt_version()}")
        return 0
    name = words[0]
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"; did you mean: takt {near[0]}" if near else ""
        print(f"takt: no command {name!r}{hint} (takt --help lists them)", file=sys.stderr)
        return 2
    module, function = COMMANDS[name][0].split(":")
    try:
        return int(getattr(importlib.import_module(module), function)(words[1:]))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
