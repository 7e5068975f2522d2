"""`takt sim`: one table of subcommands, each loaded only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

SUBCOMMANDS: dict[str, tuple[str, str]] = {
    "policies": ("hil_sim.policies_command:main", "batching rules over scenario files"),
    "nemesis": ("hil_sim.nemesis.command:main", "faults done to a real plant, each many times"),
    "fuzz": ("hil_sim.fuzz.command:main", "a whole plant with random faults, once for each seed"),
}


def _usage() -> str:
    width = max(map(len, SUBCOMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in SUBCOMMANDS.items()]
    return "\n".join(
        ["usage: takt sim SUBCOMMAND [OPTIONS]     takt sim SUBCOMMAND --help", "", *lines]
    )


def sim_main(argv: Sequence[str] | None = None) -> int:
    """`takt sim SUBCOMMAND`; exit 2 for one that there is not."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in SUBCOMMANDS:
        module, function = SUBCOMMANDS[words[0]][0].split(":")
        return int(getattr(importlib.import_module(module), function)(words[1:]))
    print(_usage())
    return 0 if words and words[0] in ("-h", "--help") else 2
