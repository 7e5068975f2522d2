"""The matrix of docs/reliability.md: fault × figures × n, each row with its command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hil_sim.benchmark import bound_text
from hil_sim.nemesis.faults import FAULTS
from hil_sim.summary import quantile

BAD: Final = ("missing", "late_answers", "duplicate", "wrong", "left")
"""What may not be above zero in any run. `late` is told, and is foreign load or a finding."""
_MATRIX: Final = re.compile(r"(<!-- matrix -->\n).*?(<!-- /matrix -->)", re.DOTALL)


def bad_of(counts: Mapping[str, Any]) -> int:
    """How many of the counts that must be zero are not."""
    return sum(bool(counts.get(name)) for name in (*BAD, "late", "errors"))


def spans_ms(injections: Iterable[Mapping[str, int]], begin: str, end: str) -> list[float]:
    """From one instant of each injection to another, milliseconds, sorted; without absent ones."""
    return sorted((one[end] - one[begin]) / 1e6 for one in injections if one[begin] and one[end])


def _spread(values_ms: Sequence[float]) -> str:
    if not values_ms:
        return "–"
    middle, most = quantile(values_ms, 0.5), values_ms[-1]
    if most >= 1000:
        return f"{middle / 1000:.1f} / {most / 1000:.1f} s"
    return f"{middle:.0f} / {most:.0f} ms"


def figures_of(entry: Mapping[str, Any]) -> dict[str, str]:
    """One fault's figures as text: n, noticed, ready, back (median / most)."""
    done = entry["injections"]
    ended = [{**one, "over_ns": one["ended_at_ns"] or one["at_ns"]} for one in done]
    return {
        "n": str(len(done)),
        "noticed": _spread(spans_ms(done, "at_ns", "noticed_at_ns")),
        "ready": _spread(spans_ms(done, "at_ns", "ready_at_ns")),
        "back": _spread(spans_ms(ended, "over_ns", "back_at_ns")),
        "batch_p999": _most(entry, "batch_p999_ms"),
        "timer_late": _most(entry, "timer_late_most_ms"),
        "not_back": str(sum(not one["back_at_ns"] for one in done)),
    }


def _most(entry: Mapping[str, Any], name: str) -> str:
    found = [run["cost"][name] for run in entry["runs"] if run["cost"].get(name)]
    return f"{max(found):.0f} ms" if found else "–"


def line_of(name: str, entry: Mapping[str, Any]) -> str:
    """One fault for a terminal."""
    figures, counts = figures_of(entry), entry["sum"]
    named = (
        "missing",
        "late",
        "late_own",
        "late_answers",
        "duplicate",
        "wrong",
        "in_doubt",
        "left",
    )
    told = ", ".join(f"{label} {counts.get(label, 0)}" for label in (*named, "left"))
    return (
        f"{name}: n {figures['n']}, noticed {figures['noticed']}, ready {figures['ready']}, back "
        f"{figures['back']} (not back {figures['not_back']}), "
        f"promised: {kept_bounds(name, entry)}, batch p99.9 {figures['batch_p999']}, "
        f"timer late at most {figures['timer_late']}; {counts.get('owed', 0)} parts: {told}"
    )


def kept_bounds(name: str, entry: Mapping[str, Any]) -> str:
    """For each bound that is promised: within how many of the injections it was kept."""
    told = []
    slowest_ms = [run["cost"].get("batch_p999_ms") or 0.0 for run in entry["runs"]]
    for bound in FAULTS[name].bounds if name in FAULTS else ():
        limit_ms = 1e3 * bound.limit_s or bound.batches * max(slowest_ms, default=0.0)
        spans = spans_ms(entry["injections"], bound.begin, bound.end)
        kept = sum(span <= limit_ms for span in spans)
        told.append(f"{bound.what}: {kept} of {len(entry['injections'])}")
    return "; ".join(told) or "–"


def _cells(name: str, entry: Mapping[str, Any]) -> dict[str, object]:
    """A row of the matrix, by the titles of its columns."""
    figures, counts = figures_of(entry), entry["sum"]
    bad = sum(counts[label] for label in ("missing", "duplicate", "wrong"))
    own = f" (+{counts['late_own']} own)" if counts["late_own"] else ""
    return {
        "fault": entry["what"],
        "n": figures["n"],
        "noticed": figures["noticed"],
        "ready again": figures["ready"],
        "back": figures["back"],
        "promised": kept_bounds(name, entry),
        "batch p99.9": figures["batch_p999"],
        "parts": counts["owed"],
        "missing": counts["missing"],
        "late": f"{counts['late']}{own}",
        "duplicate": counts["duplicate"],
        "wrong": counts["wrong"],
        "in doubt": counts["in_doubt"],
        "bound": bound_text(bad, counts["owed"]),
        "again": f"`./takt sim nemesis --fault {name} --injections {figures['n']} --fresh`",
    }


def matrix(results: Mapping[str, Any]) -> str:
    """The table, and under it what was not run, and why."""
    lines: list[str] = []
    skipped: list[str] = []
    for name, entry in results["faults"].items():
        if not entry["injections"]:
            skipped.append(f"- `{name}` ({entry['what']}): {entry.get('skipped', 'no run yet')}\n")
            continue
        cells = _cells(name, entry)
        if not lines:
            lines = [f"| {' | '.join(cells)} |\n", f"|{'---|' * len(cells)}\n"]
        lines.append(f"| {' | '.join(map(str, cells.values()))} |\n")
    return "".join([*lines, *(["\nNot run:\n\n", *skipped] if skipped else [])])


def write_report(results: Mapping[str, Any], document: Path) -> None:
    """Put the matrix between the document's marks."""
    text = document.read_text(encoding="utf-8")
    table = matrix(results)
    document.write_text(_MATRIX.sub(lambda m: f"{m[1]}{table}{m[2]}", text), encoding="utf-8")
