"""What a profile says of itself, and whether that is what runs here."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
from pathlib import Path

from appliance.gpu_facts import gpu_facts
from appliance.plant import ModelSection, Plant
from appliance.triton.goldens import Goldens
from deadline_batcher.profile import ProfileError, Provenance, load_profile


def cpu_name() -> str:
    """The processor's name, as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


TIME_SHARING = "SCHED_OTHER"
_CLASSES = ("SCHED_OTHER", "SCHED_FIFO", "SCHED_RR", "SCHED_BATCH", "SCHED_IDLE")


def scheduling_class() -> str:
    """This process's scheduling class, which what it starts inherits: `SCHED_FIFO 10`."""
    number = os.sched_getscheduler(0)
    name = next((one for one in _CLASSES if getattr(os, one, None) == number), f"class {number}")
    priority = os.sched_getparam(0).sched_priority
    return f"{name} {priority}" if priority else name


def provenance_of(plant: Plant, model: ModelSection, engine: str) -> Provenance:
    """What a profile of this model on this machine would say of itself."""
    import onnxruntime
    import psutil

    from appliance.cli import takt_version
    from appliance.triton.fetch import SERVER_VERSION

    path = plant.path(model.pool if engine == "pool" else model.fallback)
    emulated = ""
    if plant.pool.emulate and engine == "pool":
        file = plant.path(plant.pool.emulate)
        digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "missing"
        emulated = f", emulating {file.name}@{digest[:12]}"
    # Embedded servers run on the CPU: a GPU that happens to be there is none of the profile's.
    gpu = gpu_facts(0) if engine == "pool" and not plant.pool.embedded else None
    return Provenance(
        model_sha256=Goldens.sha256_of(path),
        device=cpu_name() + emulated,
        cores=psutil.cpu_count() or 1,
        gpu=gpu.name if gpu else "",
        driver=gpu.driver if gpu else "",
        clocks=gpu.clocks if gpu else "",
        server=SERVER_VERSION if engine == "pool" else "",
        runtime=f"onnxruntime {onnxruntime.__version__}",
        threads=1 if engine == "pool" else plant.fallback.threads,
        endpoints=len(plant.pool.endpoints),
        # The sessions of all models' lines run while one is measured.
        sessions_busy=len(plant.line),
        concurrent_max=plant.fallback.concurrent_max,
        scheduling=scheduling_class(),
        measured_on=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        takt_version=takt_version(),
    )


def profile_files(plant: Plant, model: ModelSection) -> dict[str, Path]:
    """Engine → the file its profile belongs in."""
    return {
        "pool": plant.path(model.profile),
        "fallback": plant.path(model.fallback_profile_file),
    }


def mismatches(plant: Plant, model: ModelSection) -> list[str]:
    """Why the profiles there are do not fit what runs here; empty if they do."""
    found = []
    for engine, path in profile_files(plant, model).items():
        if not path.is_file():
            found.append(f"{path}: not there")
            continue
        try:
            profile = load_profile(path)
        except ProfileError as error:
            found.append(str(error))
            continue
        if profile.origin == "published":
            found.append(f"{path}: published figures ({profile.source}), not of this machine")
            continue
        here = provenance_of(plant, model, engine)
        # Who asks is a shell; the class in which the plant's units run is not known here.
        here = here.model_copy(update={"scheduling": profile.provenance.scheduling})
        found += [f"{path}: {text}" for text in profile.provenance.mismatch(here)]
        if engine == "pool" and profile.batch_max < model.batch_max:
            lacking = model.batch_max - profile.batch_max
            found.append(
                f"{path}: batch sizes only up to {profile.batch_max}, {lacking} short of "
                f"batch_max {model.batch_max}"
            )
    return found
