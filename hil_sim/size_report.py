"""What `takt size` says: a table, sums term by term, and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from appliance.plant import Plant
from hil_sim.size_certify import FACTOR_MAX, SOURCES, Certificate, binding_of, wait_terms
from hil_sim.size_helps import Help
from hil_sim.size_judge import Asked, Judgement, TritonAnswer
from hil_sim.size_plant import GPUS_MAX, LineBudget

FAULTS_SHOWN = 5
PROVED = ("eager", "window")
"""Policies that a sufficient test covers (`hil_sim.size_certify`)."""
CLAIMS = (
    "certified or proved: holds for the rule and settings named, for any phases, with parts no "
    "closer than the cycle time, transport within its limits, batches within their worst case",
    "evidence: no counterexample found in a search over adverse phases, every batch at its worst "
    "case; not a proof, and shorter batches or missing parts may change what is batched",
)


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything found out about a plant."""

    plant: Plant
    asked: Asked
    budgets: list[LineBudget]
    judged: list[Judgement]
    triton: list[TritonAnswer]
    helps: list[Help]
    origins: Mapping[str, str]
    refusals: list[str]
    notes: list[str]
    seconds: float

    @property
    def needed_gpus(self) -> list[int]:
        """The counts that must fit by the plant file's own objective."""
        count = len(self.plant.pool.endpoints)
        return [count - lost for lost in range(self.plant.plant.gpus_lost_tolerated + 1)]

    @property
    def fits(self) -> bool:
        """Whether the plant holds its objectives."""
        wanted = set(self.needed_gpus)
        kept = {one.gpus for one in self.judged if one.fits}
        return not self.refusals and wanted <= kept


def claims(answer: Answer) -> list[str]:
    """What the words of the answer mean, and what is not proved."""
    rule = answer.asked.policy
    if rule in PROVED:
        return list(CLAIMS)
    return [
        f"no proof covers the policy {rule}: all that is said of it is evidence; a plant that must "
        f"be proved runs {' or '.join(PROVED)} with the batch caps and windows printed for it",
        *CLAIMS,
    ]


def headroom(factor: float) -> float:
    """Per cent of load to spare; negative where load must fall."""
    return round((factor - 1) * 100, 1)


def sum_of(answer: Answer, number: int, used_ns: int) -> dict[str, Any]:
    """Where a line's time goes with `used_ns` on the pool, against what limits it."""
    budget = answer.budgets[number]
    line, margins = budget.line, answer.plant.margins
    terms = budget.ends_at_ms(answer.plant, used_ns)
    limit, limit_ms = "deadline_ms", line.deadline_ms
    if budget.needed_ns < budget.relative_ns and line.slo_p99_ms is not None:
        terms = [*terms[:3], ("output", margins.output_ms)]
        limit, limit_ms = "slo_p99_ms", line.slo_p99_ms
    total_ms = sum(ms for _, ms in terms)
    return {
        "line": line.id,
        "terms": [[name, round(ms, 3)] for name, ms in terms],
        "total_ms": round(total_ms, 3),
        "limit": limit,
        "limit_ms": limit_ms,
        "spare_ms": round(limit_ms - total_ms, 3),
    }


def _certificate(answer: Answer, gpus: int, proof: Certificate, factor: float) -> dict[str, Any]:
    names = [category.name for category in answer.asked.load.categories]
    windows_ms = (round(window_ns / 1e6, 3) for window_ns in proof.windows_ns)
    found = {
        "test": proof.test,
        "source": SOURCES[proof.test],
        "policy": proof.policy,
        "caps": dict(zip(names, proof.caps, strict=True)),
        "windows_ms": dict(zip(names, windows_ms, strict=True)),
        "headroom_percent": headroom(factor),
    }
    ids = [budget.line.id for budget in answer.budgets]
    binding = binding_of(answer.asked.load, gpus, proof)
    if binding.name in ids:
        number = ids.index(binding.name)
        used_ns = answer.budgets[number].needed_ns - binding.margin_ns
        found["binding"] = sum_of(answer, number, used_ns)
    if proof.test == "work-conserving":
        terms = wait_terms(answer.asked.load, gpus, proof)
        found["wait_ms"] = round(proof.result.wait_ns / 1e6, 3)
        found["wait_terms_ms"] = [[name, round(ms, 3)] for name, ms in terms]
    return found


def _judgement(answer: Answer, one: Judgement) -> dict[str, Any]:
    names = [category.name for category in answer.asked.load.categories]
    found: dict[str, Any] = {
        "gpus": one.gpus,
        "fits": one.fits,
        "how": one.how,
        "headroom_percent": headroom(one.factor),
        "bounds": {
            "fluid": round(one.fluid, 4),
            "arrival_limited": round(one.arrival_limited, 4),
            "staggered": round(one.staggered, 4),
        },
        "certified": [_certificate(answer, one.gpus, *pair) for pair in one.certified],
        "caps": dict(zip(names, one.caps, strict=True)),
        "windows_ms": dict(
            zip(names, (round(window_ns / 1e6, 3) for window_ns in one.windows_ns), strict=True)
        ),
        "runs": one.runs,
        "faults": one.faults,
    }
    if one.worst is not None:
        number = one.worst.binding
        used = one.worst.used_ns[number]
        found["least_margin_ms"] = round(min(one.worst.margins_ns) / 1e6, 3)
        found["parts_missed"] = one.worst.missed
        found["binding"] = sum_of(answer, number, max(used)) if used else None
    return found


def _help(one: Help) -> dict[str, Any]:
    return {
        "what": one.what,
        "headroom_percent": None if one.factor is None else headroom(one.factor),
        "value": None if one.value is None else round(one.value, 3),
        "fits": one.fits,
    }


def as_json(answer: Answer) -> dict[str, Any]:
    """For a machine."""
    return {
        "plant": answer.plant.plant.name,
        "policy": answer.asked.policy,
        "fits": answer.fits,
        "gpus_that_must_fit": answer.needed_gpus,
        "gpus": [_judgement(answer, one) for one in answer.judged],
        "triton": [
            {"gpus": one.gpus, "holds": one.holds, "batch_cap": one.batch_cap,
             "delay_ms": one.delay_ms, "missed_share": round(one.missed_share, 4)}
            for one in answer.triton
        ],
        "helps": [_help(one) for one in answer.helps],
        "profiles": dict(answer.origins),
        "refusals": answer.refusals,
        "notes": answer.notes,
        "claims": claims(answer),
        "seconds": round(answer.seconds, 2),
    }  # fmt: skip


# --- for people -----------------------------------------------------------------------------


def show(answer: Answer, console: Console) -> None:
    """The table and what stands behind it."""
    for text in answer.refusals:
        console.print(f"refused: {text}", style="red", soft_wrap=True, highlight=False)
    found = as_json(answer)
    if answer.judged:
        _table(answer, found["gpus"], console)
        for one in found["gpus"]:
            _behind(one, console)
        _around(answer, console)
    for text in answer.notes:
        console.print(f"note: {text}", soft_wrap=True, highlight=False)
    origins = ", ".join(f"{name}: {origin}" for name, origin in answer.origins.items())
    if origins:
        console.print(f"worst cases of the pool: {origins}", soft_wrap=True, highlight=False)
    for text in claims(answer) if answer.judged else ():
        console.print(text, style="dim", soft_wrap=True, highlight=False)
    lost = answer.plant.plant.gpus_lost_tolerated
    verdict = "[green]fits[/]" if answer.fits else "[red]does not fit[/]"
    console.print(
        f"{answer.plant.plant.name}: {verdict}, {lost} of {len(answer.plant.pool.endpoints)} GPUs "
        f"lost tolerated ({answer.seconds:.1f} s)",
        highlight=False,
    )


def _told(factor_percent: float) -> str:
    most = headroom(FACTOR_MAX)
    if factor_percent <= -100:
        return "at no load"
    return f"over {most:.0f} %" if factor_percent >= most - 2 else f"{factor_percent:+.0f} %"


def _how(row: dict[str, Any], rule: str) -> str:
    """`certified` only where the rule that runs is the one that a proof covers."""
    proofs = [one for one in row["certified"] if one["policy"] == rule]
    if row["how"] == "certified":
        return f"certified:\n{proofs[0]['test']}"
    if row["certified"]:
        first = row["certified"][0]
        return f"{row['how']};\nproof for {first['policy']}, {first['test']}"
    return str(row["how"])


def _table(answer: Answer, rows: Sequence[dict[str, Any]], console: Console) -> None:
    rule = answer.asked.policy
    table = Table(title=f"{answer.plant.plant.name}: {len(answer.plant.line)} lines at peak")
    for name in ("GPUs", "fits", "known by", "headroom", "bound", "margin", "binds"):
        is_text = name == "known by"
        table.add_column(
            name,
            justify="left" if is_text else "right",
            overflow="fold",
            min_width=10 if is_text else None,
        )
    for row in rows:
        bounds, binding = row["bounds"], row.get("binding") or {}
        margin, missed = row.get("least_margin_ms"), row.get("parts_missed", 0)
        table.add_row(
            str(row["gpus"]) + ("" if row["gpus"] in answer.needed_gpus else "\n(not needed)"),
            "yes" if row["fits"] else "no",
            _how(row, rule),
            _told(row["headroom_percent"]),
            _told(headroom(min(bounds["fluid"], bounds["arrival_limited"]))),
            f"{missed} missed" if missed else "" if margin is None else f"{margin:.1f} ms",
            binding.get("line", ""),
        )
    console.print(table)
    for row in rows:
        told = ", ".join(
            f"{name} {cap} (held at most {row['windows_ms'][name]:.1f} ms)"
            for name, cap in row["caps"].items()
        )
        gpus = f"{row['gpus']} GPU{'s' * (row['gpus'] > 1)}"
        console.print(f"{gpus}, {rule}: batch caps {told}", soft_wrap=True, highlight=False)


def _sum_line(found: dict[str, Any]) -> str:
    told = " + ".join(f"{name} {ms:.1f}" for name, ms in found["terms"])
    spare = found["spare_ms"]
    return (
        f"{told} = {found['total_ms']:.1f} ms of {found['limit']} {found['limit_ms']:g}, "
        f"{abs(spare):.1f} ms {'to spare' if spare >= 0 else 'too much'}"
    )


def _behind(row: dict[str, Any], console: Console) -> None:
    gpus = f"{row['gpus']} GPU{'s' * (row['gpus'] > 1)}"
    for place, proof in enumerate(row["certified"]):
        settings = ", ".join(
            f"{name} {cap}" + (f" window {proof['windows_ms'][name]:.1f} ms"
                               if proof["windows_ms"][name] else "")
            for name, cap in proof["caps"].items()
        )  # fmt: skip
        console.print(
            f"{gpus}, proved for policy {proof['policy']} with batch caps {settings}: "
            f"{proof['source']}; headroom {_told(proof['headroom_percent'])}",
            soft_wrap=True, highlight=False,
        )  # fmt: skip
        if place:
            continue
        if "binding" in proof:
            console.print(f"  {proof['binding']['line']}: {_sum_line(proof['binding'])}",
                          soft_wrap=True, highlight=False)  # fmt: skip
        if "wait_terms_ms" in proof:
            told = " + ".join(f"{name} {ms:.1f}" for name, ms in proof["wait_terms_ms"])
            console.print(f"  wait {proof['wait_ms']:.1f} ms = ({told}) / {row['gpus']}",
                          soft_wrap=True, highlight=False)  # fmt: skip
    if row.get("binding"):
        console.print(
            f"{gpus}, evidence, the worst that was found, {row['binding']['line']}: "
            f"{_sum_line(row['binding'])}", soft_wrap=True, highlight=False)  # fmt: skip
    faults = row["faults"]
    for text in faults if len(faults) <= FAULTS_SHOWN else [*faults[:3], *faults[-1:]]:
        console.print(f"{gpus}: {text}", style="red", soft_wrap=True, highlight=False)
    if len(faults) > FAULTS_SHOWN:
        console.print(f"{gpus}: and {len(faults) - 4} more", style="red", highlight=False)


def _needed(answer: Answer, one: Help) -> str:
    """What the plant needs to fit, or what it could do without."""
    least = min(answer.needed_gpus)
    on = f"with the {least} GPUs that must suffice"
    if one.what == "GPUs needed":
        if one.value is None:
            return f"no number of GPUs up to {GPUS_MAX} carries it"
        lost = answer.plant.plant.gpus_lost_tolerated
        total = int(one.value) + lost
        return f"GPUs needed: {total} ({total - lost} of them with {lost} lost)"
    which = "deadline_ms (and slo_p99_ms where set) of all lines"
    if one.value is None:
        return f"{on}, no longer deadline was found that helps: the load itself is too much"
    if one.value > 0:
        return f"{on}, it fits with {which} {one.value:.1f} ms longer"
    return f"{on}, it still fits with {which} {-one.value:.1f} ms shorter"


def _around(answer: Answer, console: Console) -> None:
    for one in answer.triton:
        told = f"batch {one.batch_cap}, queue delay {one.delay_ms} ms"
        if one.holds:
            text = f"Triton's own dynamic batcher holds on these phases too, with {told}"
        else:
            text = (
                f"Triton's own dynamic batcher does not hold: at best ({told}) it is late with "
                f"{one.missed_share * 100:.1f} % of parts in the worst phases"
            )
        console.print(f"{one.gpus} GPUs: {text}", soft_wrap=True, highlight=False)
    if answer.helps:
        least = min(answer.needed_gpus)
        told = "; ".join(
            f"{found.what} {_told(headroom(found.factor))}"
            for found in answer.helps
            if found.factor is not None
        )
        console.print(f"headroom on {least} GPUs would be: {told}", soft_wrap=True, highlight=False)
        for found in answer.helps:
            if found.factor is None:
                console.print(_needed(answer, found), soft_wrap=True, highlight=False)
