"""Models that do not fit together into a GPU's memory are refused, by how much.

There is no GPU here: the profiles are written by hand.
"""

from __future__ import annotations

from typing import Any

import pytest

from appliance.plant import LineSection, ModelSection, Plant, PlantSection, PoolSection
from deadline_batcher.profile import Origin, Profile, Provenance
from hil_sim.size_memory import memory_faults, need_of


def plant(caps: dict[str, int], **pool: Any) -> Plant:
    return Plant(
        plant=PlantSection(name="hall"),
        pool=PoolSection(endpoints=["grpc://127.0.0.1:9"], **pool),
        model=[
            ModelSection(name=name, pool="m", fallback="f", profile="p.json", batch_max=cap)
            for name, cap in caps.items()
        ],
        line=[
            LineSection(id="l", model=next(iter(caps)), frames="tcp://127.0.0.1:1",
                        verdicts="tcp://127.0.0.1:2", cycle_time_ms=100, deadline_ms=150)
        ],
    )  # fmt: skip


def profile(
    name: str,
    in_use: dict[int, int],
    *,
    idle: int = 0,
    loaded: tuple[str, ...] = (),
    total: int = 0,
    origin: Origin = "measured",
    gpu: str = "NVIDIA L4",
) -> Profile:
    return Profile(
        model=name, engine="pool", origin=origin, margin=1.25, rule="x",
        wcet_ns=dict.fromkeys(range(1, 9), 1), gpu_memory_mib=in_use, gpu_memory_total_mib=total,
        gpu_memory_idle_mib=idle, gpu_memory_loaded=list(loaded),
        provenance=Provenance(model_sha256="", device="x", cores=4, gpu=gpu),
    )  # fmt: skip


def pair(**more: Any) -> dict[str, Profile]:
    """Measured beside each other: 6,000 before any batch; a adds 4,000 at 8, b 3,000 at 4."""
    both = ("a", "b")
    return {
        "a": profile("a", {1: 7_000, 4: 8_000, 8: 10_000}, idle=6_000, loaded=both, **more),
        # Of b's figures 4,000 are a's, which its runtime kept.
        "b": profile("b", {1: 11_000, 4: 13_000}, idle=10_000, loaded=both, **more),
    }


def test_what_is_resident_counts_once_and_what_batches_add_is_summed() -> None:
    need = need_of(pair(), {"a": 8, "b": 4})
    assert (need.resident_mib, dict(need.added_mib)) == (6_000, {"a": 4_000, "b": 3_000})
    assert need_of(pair(), {"a": 4, "b": 4}).total_mib == 6_000 + 2_000 + 3_000


def test_published_figures_of_models_apart_add_up() -> None:
    apart = {"a": profile("a", {8: 5_000}, origin="published"),
             "b": profile("b", {8: 4_000}, origin="published")}  # fmt: skip
    assert need_of(apart, {"a": 8, "b": 8}).total_mib == 9_000


def test_a_model_measured_alone_and_beside_another_is_resident_once() -> None:
    both = pair()
    both["b"] = profile("b", {4: 5_000}, idle=2_000, loaded=("b",))
    assert need_of(both, {"a": 8, "b": 4}).total_mib == 6_000 + 4_000 + 3_000


def test_too_much_is_refused_by_how_much_and_with_a_way_out() -> None:
    # 13,000 of 13,824 less 10 %: 12,441.
    (told,), notes = memory_faults(plant({"a": 8, "b": 4}), pair(total=13_824))
    assert "6000 before any batch + a 4000 at batches up to 8 + b 3000 at batches up to 4" in told
    assert "= 13000 MiB, 559 MiB more than 12441 of 13824 MiB (10% headroom)" in told
    assert "with batch_max a 4, b 2 they would" in told  # 6,000 + 2,000 + 1,000
    assert notes == []


def test_the_plant_file_s_figures_go_before_the_profile_s() -> None:
    enough = plant({"a": 8, "b": 4}, gpu_memory_mib=14_445)
    refused, (note,) = memory_faults(enough, pair(total=80_000))
    assert refused == []
    assert "0 MiB below 13000 of 14445 MiB" in note
    less = plant({"a": 8, "b": 4}, gpu_memory_mib=14_445, gpu_memory_headroom=0.2)
    assert (
        "1444 MiB more than 11556 of 14445 MiB (20% headroom)" in memory_faults(less, pair())[0][0]
    )


def test_no_batch_size_mends_weights_that_do_not_fit() -> None:
    (told,), _ = memory_faults(plant({"a": 8, "b": 4}, gpu_memory_mib=6_000), pair())
    assert "with batch_max 1 they still need 8000 MiB" in told


@pytest.mark.parametrize(
    ("profiles", "pool", "says"),
    [
        ({"a": profile("a", {}), "b": profile("b", {})}, {}, "not measured for a, b"),
        ({"a": profile("a", {8: 1}), "b": profile("b", {})}, {}, "not measured for b"),
        ({"a": profile("a", {8: 1})}, {}, "say [pool] gpu_memory_mib"),
        ({"a": profile("a", {4: 1})}, {"gpu_memory_mib": 99}, "up to batches of 4, batch_max is 8"),
    ],
)
def test_what_is_not_known_is_said(profiles: Any, pool: Any, says: str) -> None:
    refused, notes = memory_faults(plant(dict.fromkeys(profiles, 8), **pool), profiles)
    assert refused == []
    assert any(says in note for note in notes), notes


def test_servers_on_the_cpu_have_none() -> None:
    cpu = {"a": profile("a", {}, gpu="")}
    assert memory_faults(plant({"a": 8}), cpu) == ([], [])
