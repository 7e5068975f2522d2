"""`takt test`: every check of a checkout, in the order that finds faults soonest."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
QUICK = "not real and not slow"


AT_ONCE = ("-n", "auto", "--dist", "worksteal")
"""What only computes runs on every core; what starts real processes runs alone, or it would lie."""


def steps(*, quick: bool, only: str | None, rest: Sequence[str]) -> list[list[str]]:
    """The commands in order. pytest is last, so that its closing line is the last thing printed."""
    scripts = sysconfig.get_path("scripts")
    pytest = [sys.executable, "-m", "pytest", *rest]
    if only is not None:
        return [[*pytest, *(("-m", QUICK) if quick else ()), "-k", only]]
    tests = [[*pytest, *AT_ONCE, "-m", QUICK]]
    if not quick:
        tests = [[*pytest, *AT_ONCE, "-m", "not real"], [*pytest, "-m", "real"]]
    return [
        [f"{scripts}/ruff", "check", "."],
        [f"{scripts}/ruff", "format", "--check", "."],
        [sys.executable, "-m", "mypy"],
        [f"{scripts}/lint-imports"],
        *tests,
    ]


def spoken(command: Sequence[str]) -> str:
    """A command as a person would type it."""
    first = Path(command[0]).name
    words = command[2:] if command[1:2] == ["-m"] else [first, *command[1:]]
    return " ".join(f"'{word}'" if " " in word else word for word in words)


def run_steps(commands: Sequence[Sequence[str]], root: Path) -> list[str]:
    """Run every command in `root`, whatever becomes of those before it; returns those that failed.

    Nothing is printed after the last one has begun.
    """
    failed: list[str] = []
    for number, command in enumerate(commands, start=1):
        name = spoken(command)
        last = number == len(commands)
        if last and failed:
            print(f"── failed so far: {'; '.join(failed)}", flush=True)
        print(f"── {number}/{len(commands)} {name}", flush=True)
        began = time.monotonic()
        code = subprocess.run(list(command), cwd=root, check=False).returncode
        if code != 0:
            failed.append(name)
        if not last:
            state = "ok" if code == 0 else f"FAILED (exit {code})"
            print(f"── {state} after {time.monotonic() - began:.1f} s", flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """`takt test`. Exit 0 when every step passed, 1 when one failed, 2 outside a checkout."""
    parser = argparse.ArgumentParser(
        prog="takt test",
        description="Check this checkout: ruff, mypy, import-linter, pytest.",
        epilog="example: takt test --quick     takt test -k supervisor",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="everything (the default)")
    size.add_argument(
        "--quick",
        action="store_true",
        help="under a minute: without the tests that start real processes or are slow",
    )
    size.add_argument(
        "--mutations",
        nargs="*",
        metavar="NAME",
        help="plant the most dangerous bugs, one by one, in a copy: each must be seen by its tests",
    )
    parser.add_argument("-k", dest="only", metavar="WORDS", help="only these tests, nothing else")
    told, rest = parser.parse_known_args(argv)
    if not (ROOT / "tests").is_dir() or not (ROOT / "pyproject.toml").is_file():
        print(
            "takt: this is an installed Takt, not a checkout: its tests are not here. Clone the "
            "repository and run ./takt test there",
            file=sys.stderr,
        )
        return 2
    # The tests must not find another plant's settings in the caller's environment.
    os.environ.pop("NOTIFY_SOCKET", None)
    if told.mutations is not None:
        runner = [sys.executable, str(ROOT / "tests/mutations/runner.py"), *told.mutations, *rest]
        return subprocess.run(runner, cwd=ROOT, check=False).returncode
    return 1 if run_steps(steps(quick=told.quick, only=told.only, rest=rest), ROOT) else 0


if __name__ == "__main__":
    sys.exit(main())
