"""What each fault does to the plant, and how it ends."""

from __future__ import annotations

from collections.abc import Callable

from hil_sim.fuzz import steps
from hil_sim.fuzz.case import Fault
from hil_sim.fuzz.host import MS
from hil_sim.fuzz.plant import BATCHER_AT, JOURNAL_AT, Plant, frames_at, verdicts_at

TWICE_NS = 30 * MS
SLOW_LINK_NS = 15 * MS
SLOW_DISK_NS = 120 * MS


def link_of(plant: Plant, fault: Fault) -> str:
    """The address that a fault's `detail` and `target` name."""
    line = plant.lines[fault.target]
    return {
        "frames": frames_at(line),
        "verdicts": verdicts_at(line),
        "batcher": BATCHER_AT,
        "journal": JOURNAL_AT,
    }[fault.detail]


def kill_at(plant: Plant, fault: Fault, from_ns: int) -> steps.KillAt:
    """The plan of a `kill-step`: its detail is `step when count`."""
    step, when, count = fault.detail.split()
    kind = step.split(".", 1)[0]
    process = plant.lines[fault.target] if kind == "line" else kind
    return steps.KillAt(step, when, process, int(count), from_ns)


def begin(plant: Plant, fault: Fault) -> None:
    """The fault happens now."""
    world = plant.world
    world.note("fault", str(fault))
    now_ns, until_ns = world.now_ns, world.now_ns + fault.for_ms * MS
    if fault.kind.startswith("kill-"):
        _kill(plant, fault)
    elif fault.kind.startswith("gpu-"):
        _gpu(plant, fault, until_ns)
    elif fault.kind.startswith("link-"):
        _link(plant, fault, until_ns)
    elif fault.kind.startswith(("camera-", "actuator-")):
        _outside(plant, fault, until_ns)
    elif fault.kind.startswith("fallback-"):
        troubles = plant.fallbacks[plant.lines[fault.target]]
        name = {"fails": "fails_until_ns", "slow": "slow_until_ns", "wrong": "wrong_until_ns"}
        setattr(troubles, name[fault.kind.removeprefix("fallback-")], until_ns)
    else:
        _rest(plant, fault, now_ns, until_ns)


def _kill(plant: Plant, fault: Fault) -> None:
    match fault.kind:
        case "kill-line" | "kill-line-twice":
            line = plant.lines[fault.target]
            plant.kill(line, "SIGKILL")
            if fault.kind == "kill-line-twice":
                _kill_again(plant, line, plant.starts[line] + 1)
        case "kill-batcher" | "kill-journal":
            plant.kill(fault.kind.removeprefix("kill-"), "SIGKILL")


def _kill_again(plant: Plant, line: str, start: int) -> None:
    """Once more, shortly after it has come back."""
    world = plant.world
    if plant.starts[line] >= start and plant.line(line) is not None:
        world.after(TWICE_NS, lambda: plant.kill(line, "SIGKILL, again"))
    else:
        world.after(MS, lambda: _kill_again(plant, line, start))


def _gpu(plant: Plant, fault: Fault, until_ns: int) -> None:
    server = plant.servers[fault.target]
    match fault.kind:
        case "gpu-lost":
            server.die()
            plant.world.at(until_ns, server.start)
        case "gpu-hung":
            server.hang(until_ns)
        case "gpu-slow":
            server.slowness, server.slow_until_ns = float(fault.detail), until_ns
        case "gpu-lies":
            server.lies, server.lies_until_ns = fault.detail, until_ns


def _link(plant: Plant, fault: Fault, until_ns: int) -> None:
    network, endpoint = plant.machine.network, link_of(plant, fault)
    match fault.kind:
        case "link-dropped":
            for wire in [w for w in network.wires if w.router.endpoint == endpoint]:
                network.break_off(wire, wire.dealer)
        case "link-cut":
            network.cut(endpoint, until_ns)
        case "link-slow":
            network.slow_ns = SLOW_LINK_NS
            network.slow_until_ns[endpoint] = until_ns


def _outside(plant: Plant, fault: Fault, until_ns: int) -> None:
    line = plant.lines[fault.target]
    camera, actuator = plant.cameras[line], plant.actuators[line]
    match fault.kind:
        case "camera-dead":
            camera.troubles.dead_until_ns = until_ns
        case "camera-burst":
            camera.troubles.burst = int(fault.detail)
        case "camera-twice":
            camera.troubles.twice_until_ns = until_ns
        case "camera-corrupt":
            camera.troubles.corrupt_until_ns = until_ns
        case "camera-restart":
            camera.restart()
        case "camera-clock":
            camera.clock_step_ns += int(fault.detail) * MS
        case "actuator-silent":
            actuator.silent_until_ns = until_ns
        case "actuator-asks":
            actuator.ask_again()


def _rest(plant: Plant, fault: Fault, now_ns: int, until_ns: int) -> None:
    machine, world = plant.machine, plant.world

    def until(begin: Callable[[], None], end: Callable[[], None]) -> None:
        begin()
        world.at(until_ns, end)

    match fault.kind:
        case "stop-line":
            line = plant.line(plant.lines[fault.target])
            if line is not None:
                line.stop()  # SIGTERM; it comes back
        case "stop-batcher" | "stop-journal":
            plant.lives[fault.kind.removeprefix("stop-")].stopped_until_ns = until_ns
        case "journal-full":
            until(lambda: setattr(machine.disk, "trouble", "SQLITE_FULL"),
                  lambda: setattr(machine.disk, "trouble", ""))  # fmt: skip
        case "journal-disk-error":
            until(lambda: setattr(machine.disk, "trouble", "SQLITE_IOERR"),
                  lambda: setattr(machine.disk, "trouble", ""))  # fmt: skip
        case "journal-slow":
            until(lambda: setattr(machine.disk, "slow_ns", SLOW_DISK_NS),
                  lambda: setattr(machine.disk, "slow_ns", 0))  # fmt: skip
        case "event-journal-full":
            until(lambda: setattr(machine, "is_event_disk_full", True),
                  lambda: setattr(machine, "is_event_disk_full", False))  # fmt: skip
        case "decode-slow":
            machine.decode.slow_until_ns = until_ns
        case "wall-step":
            world.wall_offset_ns += int(fault.detail) * MS
        case "shm-full":
            until(lambda: setattr(machine.memory, "is_full", True),
                  lambda: setattr(machine.memory, "is_full", False))  # fmt: skip
