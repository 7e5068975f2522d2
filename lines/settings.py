"""What one line's process is told. Made from the plant file by `appliance`; lengths in ns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fallback.guard import GuardPlan
from fallback.line_core import CorePlan
from fallback.route import RoutePlan
from lines.admission import Limits


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which model judges (name@sha12), from which score on it fails a part, what it finds."""

    identity: str
    threshold: float
    labels: tuple[str, ...]


@dataclass(frozen=True)
class LineSettings:
    """One line, resolved: absolute paths, nanoseconds, endpoints.

    pool_model: what an answer of the pool is judged by, and called in the records.
    wcet_fallback_ns: see `GuardPlan`. trial_latency_ns: see `CorePlan`. trial_bands: around the
    thresholds of pool and fallback, within which a trial's two verdicts may differ.
    """

    line_id: str
    plant_tag: str
    camera: str | None
    frames_endpoint: str
    verdicts_endpoint: str
    batcher_endpoint: str
    journal_endpoint: str
    keys_folder: Path
    runtime_folder: Path
    model_name: str
    pool_model: ModelIdentity
    fallback_path: Path
    fallback_threads: int
    fallback_concurrent_max: int
    fallback_core: int
    wcet_fallback_ns: int
    warm_every_ns: int
    deadline_ns: int
    actuation_ns: int
    output_ns: int
    timer_ns: int
    start_ns: int
    transport_min_ns: int
    transport_max_ns: int
    fail_safe: str
    inhibit_outputs: bool
    slots: int
    limits: Limits
    journal_backlog_s: float
    route_plan: RoutePlan
    trial_latency_ns: int
    trial_bands: tuple[float, float]

    @property
    def core_plan(self) -> CorePlan:
        """What the line's guard and route are told."""
        guard = GuardPlan(self.wcet_fallback_ns, self.timer_ns, self.start_ns, self.warm_every_ns)
        due_budget_ns = self.deadline_ns - self.actuation_ns - self.output_ns
        return CorePlan(guard, self.route_plan, due_budget_ns, self.trial_latency_ns)
