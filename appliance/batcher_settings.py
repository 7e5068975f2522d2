"""What the batcher's process is told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from appliance.triton.endpoint import Server
from appliance.triton.news import ServedModel
from appliance.triton.standing import Patience
from deadline_batcher.plan import Plan
from deadline_batcher.shedding import ShedPlan


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Where and how many answered parts are asked again; see rescore_link.RescoreLink."""

    endpoint: str
    permille: int
    band: float


@dataclass(frozen=True, slots=True)
class BatcherSettings:
    """What the batcher is told. `lines` and `models` are in the plan's order."""

    plan: Plan
    shed: ShedPlan
    plant_tag: str
    lines: tuple[str, ...]
    models: tuple[ServedModel, ...]
    servers: tuple[Server, ...]
    link_endpoint: str
    journal_endpoint: str
    journal_backlog_s: float
    event_journal: Path
    event_journal_bytes_max: int
    rescore: Rescoring
    patience: Patience
