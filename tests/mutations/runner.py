"""Plants each of the most dangerous bugs in a copy of this checkout; the named tests must see it.

A mutant is a patch file `NN-name.patch` in this folder. Above its diff stand, one a line:

    danger: the number of the case in docs/reliability.md
    bug: what is planted
    test: a test that must fail with it (repeatable)
    says: a regular expression that the failure must show

`./takt test --mutations` runs it. Every test must pass without a mutant, and fail with its own, by
an assertion and not by an error on the way, and say why. The checkout itself is never changed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
LIMIT_S = 120.0
FAILED = 1
"""pytest's exit status when tests ran and failed; 2 and above are errors."""


class MutantError(Exception):
    """A patch file that cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One planted bug."""

    path: Path
    danger: str
    bug: str
    tests: tuple[str, ...]
    says: str

    @property
    def name(self) -> str:
        """As in its file's name."""
        return self.path.stem


@dataclass(frozen=True, slots=True)
class Outcome:
    """killed: the tests saw it, for the right reason; else `why` not."""

    mutant: Mutant
    is_killed: bool
    why: str
    took_s: float
    said: str = ""


def read_mutant(path: Path) -> Mutant:
    """A patch file's head. Raises MutantError."""
    head: dict[str, list[str]] = {}
    for line in path.read_text().partition("\n--- ")[0].splitlines():
        key, colon, value = line.partition(": ")
        if colon:
            head.setdefault(key, []).append(value.strip())
    missing = [key for key in ("danger", "bug", "test", "says") if key not in head]
    if missing:
        raise MutantError(f"{path.name}: its head lacks {', '.join(missing)}")
    try:
        re.compile(head["says"][0])
    except re.error as error:
        raise MutantError(f"{path.name}: says: {error}") from None
    return Mutant(path, head["danger"][0], head["bug"][0], tuple(head["test"]), head["says"][0])


def mutants(words: Sequence[str]) -> list[Mutant]:
    """Those whose names hold one of the words; all without words. Raises MutantError."""
    found = [read_mutant(path) for path in sorted(FOLDER.glob("[0-9]*.patch"))]
    return [one for one in found if not words or any(word in one.name for word in words)]


def copy_tree(into: Path) -> None:
    """Everything of the checkout that git knows or would take."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = into / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)


def git_apply(tree: Path, patch: Path, *words: str) -> str:
    """Apply a patch; what git says, empty if it went well."""
    # Outside any repository, so that a checkout around the copy is not looked at.
    done = subprocess.run(
        ["git", "apply", "--unidiff-zero", *words, str(patch)],
        cwd=tree, capture_output=True, text=True, check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
    )  # fmt: skip
    return done.stderr.strip() if done.returncode else ""


def run_tests(tree: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Run tests of a tree; pytest's exit status (124 after LIMIT_S) and what it printed."""
    words = ["-q", "-p", "no:cacheprovider", "--tb=short", "-rfE"]
    # Its modules win over those of the environment; compiled ones of another mutant must not.
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words, *tests],
            cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"not done within {LIMIT_S:g} s"
    return done.returncode, done.stdout + done.stderr


def try_mutant(tree: Path, mutant: Mutant) -> Outcome:
    """Plant, run, dig out."""
    began_s = time.monotonic()

    def outcome(is_killed: bool, why: str, said: str = "") -> Outcome:
        return Outcome(mutant, is_killed, why, time.monotonic() - began_s, said)

    trouble = git_apply(tree, mutant.path)
    if trouble:
        return outcome(False, f"does not apply: {trouble.splitlines()[0]}")
    try:
        code, said = run_tests(tree, mutant.tests)
    finally:
        stuck = git_apply(tree, mutant.path, "--reverse")
    if stuck:
        raise MutantError(f"{mutant.name} cannot be taken out again: {stuck}")
    if code == 0:
        return outcome(False, "SURVIVED: its tests pass with it", said)
    if code != FAILED or re.search(r"^ERROR ", said, re.MULTILINE):
        return outcome(False, f"its tests did not run (exit {code})", said)
    if not re.search(mutant.says, said):
        return outcome(False, f"failed, but not for the reason: no /{mutant.says}/", said)
    return outcome(True, "killed", said)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit 0 every mutant was killed, 1 one was not, 2 a patch file cannot be used."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only mutants whose names hold one of these")
    parser.add_argument("--verbose", action="store_true", help="print what the tests said")
    options = parser.parse_args(argv)
    try:
        if shutil.which("git") is None:
            raise MutantError("needs git, for its patches")
        chosen = mutants(options.words)
        if not chosen:
            raise MutantError(f"no mutant is called {options.words}")
        with tempfile.TemporaryDirectory(prefix="takt-mutants-") as folder:
            tree = Path(folder) / "tree"
            copy_tree(tree)
            tests = sorted({test for mutant in chosen for test in mutant.tests})
            began_s = time.monotonic()
            code, said = run_tests(tree, tests)
            if code != 0:
                print(said)
                raise MutantError("the tests do not pass without a mutant")
            clean_s = time.monotonic() - began_s
            print(f"{len(tests)} tests pass without a mutant ({clean_s:.1f} s)", flush=True)
            outcomes = []
            for mutant in chosen:
                one = try_mutant(tree, mutant)
                outcomes.append(one)
                mark = "killed" if one.is_killed else one.why
                print(
                    f"{mutant.name:<34} danger {mutant.danger:>3}  {one.took_s:5.1f} s  {mark}",
                    flush=True,
                )
                if options.verbose or not one.is_killed:
                    print(one.said[-3000:])
    except MutantError as error:
        print(f"takt test --mutations: {error}", file=sys.stderr)
        return 2
    alive = [one.mutant.name for one in outcomes if not one.is_killed]
    print(f"{len(outcomes) - len(alive)} of {len(outcomes)} mutants killed", *alive, sep="\n  ")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
