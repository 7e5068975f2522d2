"""The mutation gate's own: its patches fit this tree, and a mutant nobody sees fails the gate."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="patches need git")

ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "tests" / "mutations" / "runner.py"
FIFTEEN = {1, 2, 3, 91, 92, 51, 26, 13, 25, 12, 50, 79, 80, 63, 109}
"""The most dangerous cases by their numbers in docs/reliability.md."""
HARMLESS = """\
danger: 0
bug: none: a comment is changed
test: tests/unit/lines/test_clock.py::test_capture_is_never_after_arrival
says: assert

--- a/lines/clock.py
+++ b/lines/clock.py
@@ -1,1 +1,1 @@
-"""


@pytest.fixture(scope="module")
def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation_runner", RUNNER)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def test_each_of_the_fifteen_has_a_mutant(runner: ModuleType) -> None:
    dangers = {int(mutant.danger) for mutant in runner.mutants([])}
    assert dangers == FIFTEEN


def test_every_patch_fits_this_tree(runner: ModuleType) -> None:
    for mutant in runner.mutants([]):
        done = subprocess.run(
            ["git", "apply", "--check", "--unidiff-zero", str(mutant.path)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{mutant.name} must be made anew: {done.stderr}"


def test_every_named_test_is_there(runner: ModuleType) -> None:
    for mutant in runner.mutants([]):
        for test in mutant.tests:
            path, _, name = test.partition("::")
            assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


def copied(into: Path, *names: str) -> None:
    """A little tree: one module, one test of it."""
    for name in names:
        target = into / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)


@pytest.mark.slow
def test_a_mutant_that_nobody_sees_survives_and_leaves_no_trace(
    runner: ModuleType, tmp_path: Path
) -> None:
    names = ("lines/__init__.py", "lines/clock.py", "tests/unit/lines/test_clock.py")
    tree = tmp_path / "tree"
    copied(tree, *names, "pyproject.toml")
    first = (ROOT / "lines/clock.py").read_text().splitlines()[0]
    patch = tmp_path / "00-harmless.patch"
    patch.write_text(f"{HARMLESS}{first}\n+{first} \n")
    outcome = runner.try_mutant(tree, runner.read_mutant(patch))
    assert not outcome.is_killed
    assert outcome.why == "SURVIVED: its tests pass with it"
    assert (tree / "lines/clock.py").read_bytes() == (ROOT / "lines/clock.py").read_bytes()


@pytest.mark.slow
def test_a_mutant_that_breaks_the_tests_themselves_is_not_killed(
    runner: ModuleType, tmp_path: Path
) -> None:
    """An import that fails is no catch: the test saw nothing."""
    tree = tmp_path / "tree"
    copied(tree, "lines/__init__.py", "lines/clock.py", "tests/unit/lines/test_clock.py")
    copied(tree, "pyproject.toml")
    first = (ROOT / "lines/clock.py").read_text().splitlines()[0]
    patch = tmp_path / "00-broken.patch"
    patch.write_text(f"{HARMLESS}{first}\n+import nothing_of_this_name  # {first}\n")
    outcome = runner.try_mutant(tree, runner.read_mutant(patch))
    assert not outcome.is_killed
    assert "did not run" in outcome.why
