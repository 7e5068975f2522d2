"""The matrix of docs/reliability.md: fault × figures × n, each row with its command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hil_sim.benchmark import bound_text
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
        "not_back": str(sum(not one["back_at_ns"] for one in done)),
    }


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
        f"{figures['back']} (not back {figures['not_back']}); {counts.get('owed', 0)} parts: {told}"
    )


def matrix(results: Mapping[str, Any]) -> str:
    """The table, and under it what was skipped."""
    head = (
        "| fault | n | noticed | ready again | back | parts | missing | late | duplicate | wrong "
        "| in doubt | bound | again |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
    )
    rows, skipped = [], []
    for name, entry in results["faults"].items():
        if not entry["injections"]:
            why = entry.get("skipped", "no run yet")
            skipped.append(f"- `{name}` ({entry['what']}): {why}\n")
            continue
        figures, counts = figures_of(entry), entry["sum"]
        bad = sum(counts[label] for label in ("missing", "duplicate", "wrong"))
        own = f" (+{counts['late_own']} own)" if counts["late_own"] else ""
        cells = (
            entry["what"], figures["n"], figures["noticed"], figures["ready"], figures["back"],
            counts["owed"], counts["missing"], f"{counts['late']}{own}", counts["duplicate"],
            counts["wrong"], counts["in_doubt"], bound_text(bad, counts["owed"]),
            f"`./takt sim nemesis --fault {name} --injections {figures['n']} --fresh`",
        )  # fmt: skip
        rows.append(f"| {' | '.join(map(str, cells))} |\n")
    text = head + "".join(rows)
    if skipped:
        text += "\nNot run:\n\n" + "".join(skipped)
    return text


def write_report(results: Mapping[str, Any], document: Path) -> None:
    """Put the matrix between the document's marks."""
    text = document.read_text(encoding="utf-8")
    table = matrix(results)
    document.write_text(_MATRIX.sub(lambda m: f"{m[1]}{table}{m[2]}", text), encoding="utf-8")
