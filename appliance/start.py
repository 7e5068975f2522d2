"""`takt line` and `takt batcher`: plant file in, one process's settings out, run until told."""

from __future__ import annotations

import argparse
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import zmq

from appliance.memory import lock_memory
from appliance.placement import place
from appliance.planning import PlanningError, make_plan, profiles_of, route_plan, slo_ns
from appliance.plant import Plant, ms_to_ns
from appliance.plant_errors import PlantError, load_plant
from appliance.shed_planning import shed_plan
from deadline_batcher.shm import SharedMemoryError, sweep
from fallback.session import Session, SessionError, identity
from lines.admission import Limits
from lines.keys import KeyFileError
from lines.process import LineProcess
from lines.settings import LineSettings, ModelIdentity

if TYPE_CHECKING:
    from appliance.batcher_settings import BatcherSettings

EVENT_JOURNAL_BYTES_MAX = 64 * 1024 * 1024
SWITCH_INTERVAL_S = 0.0005
"""How long one thread may keep the interpreter from the loop that owns deadlines."""


class Runnable(Protocol):
    """A process's loop."""

    def run(self, on_ready: Callable[[], None]) -> None: ...
    def stop(self) -> None: ...


class StartError(Exception):
    """This process cannot start; the text says why and what to do."""


class UnknownLineError(StartError):
    """The plant file has no such line."""


def line_settings(plant: Plant, line_id: str) -> LineSettings:
    """Resolve one line of the plant. Raises StartError, PlanningError or SessionError."""
    try:
        line = plant.line_named(line_id)
    except KeyError:
        known = ", ".join(line.id for line in plant.line)
        raise UnknownLineError(f"no line {line_id} in the plant file; there are: {known}") from None
    model = plant.model_named(line.model)
    profiles = profiles_of(plant)[model.name]
    runtime = plant.path(plant.paths.runtime)
    pool = Session(plant.path(model.pool), threads=1).facts
    margins = plant.margins
    return LineSettings(
        line_id=line.id,
        plant_tag=plant.tag,
        camera=line.camera,
        frames_endpoint=line.frames,
        verdicts_endpoint=line.verdicts,
        batcher_endpoint=f"ipc://{runtime}/batcher.sock",
        journal_endpoint=f"ipc://{runtime}/journal.sock",
        keys_folder=plant.path(plant.paths.keys),
        runtime_folder=runtime,
        model_name=model.name,
        pool_model=ModelIdentity(identity(model.name, pool.sha256), pool.threshold, pool.labels),
        fallback_path=plant.path(model.fallback),
        fallback_threads=plant.fallback.threads,
        fallback_concurrent_max=plant.fallback.concurrent_max,
        # In turn, so that each core group has as many lines to carry as the next.
        fallback_core=plant.line.index(line),
        wcet_fallback_ns=profiles.fallback.wcet_ns[1],
        warm_every_ns=ms_to_ns(plant.fallback.warm_every_ms),
        deadline_ns=ms_to_ns(line.deadline_ms),
        actuation_ns=ms_to_ns(line.actuation_ms),
        output_ns=ms_to_ns(margins.output_ms),
        timer_ns=ms_to_ns(margins.timer_ms),
        start_ns=ms_to_ns(margins.start_ms),
        transport_min_ns=ms_to_ns(line.transport_min_ms),
        transport_max_ns=ms_to_ns(line.transport_max_ms),
        fail_safe=line.fail_safe,
        inhibit_outputs=plant.plant.inhibit_outputs,
        slots=plant.limits.slots_per_line,
        limits=Limits(plant.limits.picture_bytes_max, plant.limits.picture_pixels_max),
        journal_backlog_s=plant.limits.journal_backlog_s,
        route_plan=route_plan(plant, line),
        trial_latency_ns=round(plant.route.trial_latency_share * slo_ns(plant, line)),
        trial_bands=(plant.route.trial_band_pool, plant.route.trial_band_fallback),
    )


def batcher_settings(plant: Plant) -> BatcherSettings:
    """Resolve the batcher. Raises PlanningError or SessionError."""
    # gRPC costs a line that starts anew a third of its time, and it has no use for it.
    from appliance.batcher_settings import BatcherSettings, Rescoring
    from appliance.rescore import endpoint_of
    from appliance.triton.endpoint import Server
    from appliance.triton.goldens import Goldens
    from appliance.triton.news import ServedModel
    from appliance.triton.restart import ask_restart, socket_path
    from appliance.triton.standing import Patience

    runtime = plant.path(plant.paths.runtime)
    profiles = profiles_of(plant)
    plan = make_plan(plant, profiles)
    return BatcherSettings(
        plan=plan,
        shed=shed_plan(plant, plan, profiles),
        plant_tag=plant.tag,
        lines=tuple(line.id for line in plant.line),
        models=tuple(
            ServedModel(model.name, model.batch_max, Goldens(plant.path(model.pool)))
            for model in plant.model
        ),
        servers=tuple(
            Server(url, plant.pool.server_version, partial(ask_restart, socket_path(runtime, slot)))
            for slot, url in enumerate(plant.pool.endpoints)
        ),
        link_endpoint=f"ipc://{runtime}/batcher.sock",
        journal_endpoint=f"ipc://{runtime}/journal.sock",
        journal_backlog_s=plant.limits.journal_backlog_s,
        rescore=Rescoring(endpoint_of(plant), plant.pool.rescore_permille, plant.pool.rescore_band),
        event_journal=plant.path(plant.paths.journal) / "batcher-events.jsonl",
        event_journal_bytes_max=EVENT_JOURNAL_BYTES_MAX,
        patience=Patience(),
    )


def _sole(plant: Plant, name: str) -> int:
    """Hold a lock for the life of this process: a second one would split the plant's brain."""
    folder = plant.path(plant.paths.runtime)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle = os.open(folder / f"{name}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise StartError(
            f"{name} of this plant runs already ({folder}/{name}.lock is held)"
        ) from None
    return handle


def _serve(plant_file: Path, name: str, make: Callable[[Plant], Runnable]) -> int:
    try:
        plant = load_plant(plant_file)
        _sole(plant, name)
        sweep(plant.tag)
        process = make(plant)
    except PlantError as error:
        print(f"takt: {error}", file=sys.stderr)
        return 2
    except (
        StartError,
        PlanningError,
        SessionError,
        KeyFileError,
        SharedMemoryError,
        zmq.ZMQError,
    ) as error:
        print(f"takt {name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UnknownLineError) else 1
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: process.stop())
    unlocked = lock_memory()
    refused = [f"memory is not locked: {unlocked}"] if unlocked is not None else []
    for text in [*refused, *place(plant.host.cores, plant.host.realtime_priority)]:
        print(f"takt {name}: {text}", file=sys.stderr, flush=True)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()  # what lives as long as the process is never looked at again
    process.run(lambda: print(f"takt {name}: ready", flush=True))
    return 0


def line_main(argv: Sequence[str] | None = None) -> int:
    """`takt line ID --plant FILE`."""
    parser = argparse.ArgumentParser(
        prog="takt line",
        description="Run one line: camera frames in, one verdict for every part out.",
        epilog="example: takt line line01 --plant plant.toml",
    )
    parser.add_argument("line", metavar="ID", help="the line's id in the plant file")
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    told = parser.parse_args(argv)
    return _serve(
        told.plant, f"line-{told.line}", lambda plant: LineProcess(line_settings(plant, told.line))
    )


def batcher_main(argv: Sequence[str] | None = None) -> int:
    """`takt batcher --plant FILE`."""
    from appliance.batcher import Batcher

    parser = argparse.ArgumentParser(
        prog="takt batcher",
        description="Run the batcher: parts of all lines in deadline batches to the pool.",
        epilog="example: takt batcher --plant plant.toml",
    )
    parser.add_argument("--plant", type=Path, required=True, metavar="FILE", help="plant file")
    told = parser.parse_args(argv)
    return _serve(told.plant, "batcher", lambda plant: Batcher(batcher_settings(plant)))
