"""Profiles measured on this machine, kept in the user's cache for plants made anew (the demo)."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from appliance.plant import ModelSection, Plant
from appliance.profile_provenance import mismatches, profile_files, provenance_of
from appliance.triton.fetch import cache_folder


def _places(plant: Plant, model: ModelSection) -> list[tuple[Path, Path]]:
    """(in the cache, in the plant) for each engine's profile; the name holds what must match."""
    places = []
    for engine, path in profile_files(plant, model).items():
        facts = provenance_of(plant, model, engine).model_dump()
        facts.pop("measured_on")
        facts["batch_max"] = model.batch_max
        facts["cycle_time_ms"] = sorted(line.cycle_time_ms for line in plant.line)
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        places.append((cache_folder() / "profiles" / f"{model.name}-{engine}-{digest}.json", path))
    return places


def take_profiles(plant: Plant) -> bool:
    """Copy matching profiles from the cache into the plant; False if any is missing."""
    for model in plant.model:
        places = _places(plant, model)
        if not all(kept.is_file() for kept, _ in places):
            return False
        for kept, path in places:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(kept, path)
        if mismatches(plant, model):
            return False
    return True


def keep_profiles(plant: Plant) -> None:
    """Put the plant's profiles into the cache."""
    for model in plant.model:
        for kept, path in _places(plant, model):
            kept.parent.mkdir(parents=True, exist_ok=True)
            partial = kept.with_suffix(".partial")
            shutil.copy(path, partial)
            partial.replace(kept)
