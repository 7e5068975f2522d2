"""Whether all models fit into one GPU's memory together, with headroom, and by how much not.

Every GPU's server loads every model, and its runtimes keep what their largest batch took. So at
worst a GPU holds what was there before any batch, and on top of it what the largest batch of each
model added. A profile says both; one that does not say what was there before counts whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.plant import Plant
from deadline_batcher.profile import Profile


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """resident_mib: before any batch. added_mib: model → what its batches add at most."""

    resident_mib: int
    added_mib: Mapping[str, int]

    @property
    def total_mib(self) -> int:
        """Of one GPU."""
        return self.resident_mib + sum(self.added_mib.values())


def need_of(profiles: Mapping[str, Profile], caps: Mapping[str, int]) -> MemoryNeed:
    """What these models take with batches up to these sizes. Every profile must have measured
    memory.

    Models measured beside each other share what was resident then: the least of their figures,
    taken before the first of them ran. Models measured apart add up, the driver's own part too.
    """
    groups: dict[frozenset[str], int] = {}
    added: dict[str, int] = {}
    for name, profile in profiles.items():
        group = frozenset({*profile.gpu_memory_loaded, name})
        idle_mib = profile.gpu_memory_idle_mib
        groups[group] = min(groups.get(group, idle_mib), idle_mib)
        sizes = [size for size in profile.gpu_memory_mib if size <= caps[name]]
        sizes = sizes or [min(profile.gpu_memory_mib)]
        most_mib = max(profile.gpu_memory_mib[size] for size in sizes)
        added[name] = max(0, most_mib - idle_mib)
    # What was resident beside more models holds what was resident beside fewer of them.
    resident = sum(
        mib for group, mib in groups.items() if not any(group < other for other in groups)
    )
    return MemoryNeed(resident, added)


def memory_faults(plant: Plant, profiles: Mapping[str, Profile]) -> tuple[list[str], list[str]]:
    """Refusals and notes."""
    known = {name: one for name, one in profiles.items() if one.gpu_memory_mib}
    unknown = sorted(set(profiles) - set(known))
    sizes = [plant.pool.gpu_memory_mib] if plant.pool.gpu_memory_mib else [
        one.gpu_memory_total_mib for one in known.values() if one.gpu_memory_total_mib
    ]  # fmt: skip
    told = any(one.provenance.gpu for one in profiles.values()) or bool(sizes or known)
    if not told:
        return [], []  # no GPU is spoken of anywhere: servers on the CPU
    notes = []
    if unknown:
        notes.append(
            f"GPU memory: not measured for {', '.join(unknown)}; whether all models fit together "
            "is not known; takt profile measures it"
        )
    if not known:
        return [], notes
    caps = {model.name: model.batch_max for model in plant.model}
    need = need_of(known, caps)
    parts = [f"{name} {mib} at batches up to {caps[name]}" for name, mib in need.added_mib.items()]
    if need.resident_mib:
        parts.insert(0, f"{need.resident_mib} before any batch")
    total = f"{' + '.join(parts)} = {need.total_mib} MiB"
    for name, one in known.items():
        most = max(one.gpu_memory_mib)
        if most < caps[name]:
            notes.append(
                f"GPU memory: {name} was measured up to batches of {most}, batch_max is "
                f"{caps[name]}: {caps[name] - most} sizes are not in the sum"
            )
    if not sizes:
        notes.append(f"GPU memory: {total}; say [pool] gpu_memory_mib to have it checked")
        return [], notes
    limit_mib = min(sizes)
    usable_mib = int(limit_mib * (1 - plant.pool.gpu_memory_headroom))
    stated = f"{usable_mib} of {limit_mib} MiB ({plant.pool.gpu_memory_headroom:.0%} headroom)"
    over_mib = need.total_mib - usable_mib
    if over_mib <= 0:
        notes.append(f"GPU memory: {total}, {-over_mib} MiB below {stated}")
        return [], notes
    return [
        f"the models do not fit together into a GPU's memory: {total}, {over_mib} MiB more than "
        f"{stated}; {_way_out(known, caps, usable_mib)}"
    ], notes


def _way_out(profiles: Mapping[str, Profile], caps: Mapping[str, int], usable_mib: int) -> str:
    """The largest batch caps, all halved alike, with which they would fit."""
    halved = dict(caps)
    while max(halved.values()) > 1:
        halved = {name: max(1, cap // 2) for name, cap in halved.items()}
        if need_of(profiles, halved).total_mib <= usable_mib:
            told = ", ".join(f"{name} {cap}" for name, cap in halved.items())
            return f"with batch_max {told} they would"
    least = need_of(profiles, dict.fromkeys(caps, 1)).total_mib
    return f"with batch_max 1 they still need {least} MiB: a larger GPU or fewer models"
