"""One GPU slower than its profile, on real servers: seen, inflated, drained, proved, back.

Two embedded Tritons that emulate: GPU 0 keeps well within the profile, GPU 1 takes 1.7 times what
the profile says, which is more than a GPU is ever inflated.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from plant_rig import MS, Rig, all_in_time
from plant_wire import until

from deadline_batcher.journal import replay
from deadline_batcher.messages import DrainGpu, Overrun
from deadline_batcher.profile import Profile, load_profile

pytestmark = pytest.mark.real

LINES = ("line01", "line02", "line03")
RATE = 8.0


def emulated(rig: Rig, share: float) -> str:
    """A profile in the plant's folder with every worst case of the plant's times `share`."""
    path = rig.folder / rig.plant.model[0].profile
    profile = load_profile(path)
    changed: dict[int, int] = {size: round(ns * share) for size, ns in profile.wcet_ns.items()}
    name = f"profiles/emulated-{round(100 * share)}.json"
    Profile.model_validate({**profile.model_dump(), "wcet_ns": changed}).save(rig.folder / name)
    return name


def test_a_slow_gpu_is_inflated_drained_and_proved_and_no_part_is_missed(tmp_path: Path) -> None:
    with Rig(tmp_path, lines=3, gpus=2, deadline_ms=900) as rig:
        text = rig.plant_file.read_text()
        rig.start("journal")
        rig.start(*[f"line-{line}" for line in LINES])
        gates = {line: rig.actuator(line) for line in LINES}
        for slot, share in ((0, 0.6), (1, 1.7)):  # a server reads the plant file at its start
            told = f'embedded = true\nemulate = "{emulated(rig, share)}"'
            rig.plant_file.write_text(text.replace("embedded = true", told))
            rig.start(f"triton-{slot}")
        rig.plant_file.write_text(text)
        rig.start("batcher")
        until(lambda: len(rig.events("gpu.ready")) == 2, 30, "both GPUs are READY")

        loads = {line: rig.load(line, RATE) for line in LINES}
        drained = until(lambda: rig.events("gpu.drained"), 40, "the slow GPU is drained")
        (out_at_ns,) = [event["at_ns"] for event in drained]
        since = "select 1 from events where kind = 'gpu.ready' and subject = 'gpu1' and at_ns > ?"
        until(lambda: rig.query(since, out_at_ns), 30, "it is READY again")
        loads["line01"].grown(5)
        rows = []
        for line, load in loads.items():
            load.close()
            rows += all_in_time(rig, load, gates[line])

        goldens = rig.query(
            "select size, answered_at_ns from batches where gpu = 'gpu1' and outcome = 'golden' "
            "and sent_at_ns > ?",
            out_at_ns,
        )
        (back,) = rig.query(
            "select min(at_ns) as at_ns from events "
            "where kind = 'gpu.ready' and subject = 'gpu1' and at_ns > ?",
            out_at_ns,
        )
        assert back["at_ns"] - out_at_ns >= 5000 * MS
        proof = [one["size"] for one in goldens if one["answered_at_ns"] <= back["at_ns"]]
        assert len(proof) >= 20
        assert set(proof) == {1, 2, 3, 4}
        away = rig.query(
            "select 1 from batches where gpu = 'gpu1' and batch_id > 0 "
            "and dispatched_at_ns > ? and dispatched_at_ns < ?",
            out_at_ns,
            back["at_ns"],
        )
        assert away == [], "a drained GPU got work"
        assert len(rows) > 40
        rig.stop("batcher")
        with (rig.folder / "journal" / "batcher-events.jsonl").open() as lines:
            commands = [command for _, _, ordered in replay(lines) for command in ordered]
        slow = [c for c in commands if isinstance(c, Overrun) and c.gpu == 1]
        assert [c.inflation_permille for c in slow][:1] == [500]
        assert len(slow) >= 3
        assert DrainGpu(1, 3) in commands
        assert len(slow) == len([e for e in rig.events("gpu.overrun") if e["subject"] == "gpu1"])
