"""The generated model repository: the contract, the copies and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from appliance.plant import LineSection, ModelSection, Plant, PlantSection, PoolSection
from appliance.triton.repository import OwnBatcher, RepositoryError, write_repository
from deadline_batcher.profile import Profile, Provenance

Shape = list[int | str]


def save_model(
    path: Path,
    *,
    image: int = TensorProto.UINT8,
    shape: Shape | None = None,
    echo: str = "nonce_echo",
    nonce: int = TensorProto.INT64,
) -> None:
    """A model that keeps the contract but for what is said."""
    graph = helper.make_graph(
        [
            helper.make_node("Identity", ["nonce"], [echo]),
            helper.make_node("Cast", ["nonce"], ["score"], to=TensorProto.FLOAT),
        ],
        "tiny",
        [
            helper.make_tensor_value_info("image", image, shape or ["batch", 6, 7, 3]),
            helper.make_tensor_value_info("nonce", nonce, ["batch", 1]),
        ],
        [
            helper.make_tensor_value_info("score", TensorProto.FLOAT, ["batch", 1]),
            helper.make_tensor_value_info(echo, nonce, ["batch", 1]),
        ],
    )
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)


PlantOf = Callable[..., Plant]


@pytest.fixture
def plant_of(tmp_path: Path) -> PlantOf:
    def made(emulate: str | None = None) -> Plant:
        return Plant(
            plant=PlantSection(name="bench"),
            pool=PoolSection(endpoints=["grpc://127.0.0.1:9"] * 3, embedded=True, emulate=emulate),
            model=[
                ModelSection(
                    name="tile", pool="m.onnx", fallback="m.onnx", profile="p.json", batch_max=4
                )
            ],
            line=[
                LineSection(
                    id="l",
                    model="tile",
                    frames="tcp://127.0.0.1:1",
                    verdicts="tcp://127.0.0.1:2",
                    cycle_time_ms=100,
                    deadline_ms=150,
                )
            ],
            folder=tmp_path,
        )

    return made


def test_the_repository_is_a_verified_copy_with_the_file_s_own_shape(plant_of: PlantOf) -> None:
    plant = plant_of()
    save_model(plant.path("m.onnx"))
    models, served = write_repository(plant, 2, threads=3)
    assert models == plant.folder / "triton/slot2/models"
    config = (models / "tile/config.pbtxt").read_text()
    digest = hashlib.sha256(plant.path("m.onnx").read_bytes()).hexdigest()
    assert served[0].sha256 == digest
    assert served[0].image_shape == (6, 7, 3)
    for line in (
        'backend: "python"',
        "max_batch_size: 4",
        'name: "image" data_type: TYPE_UINT8 dims: [ 6, 7, 3 ]',
        "instance_group [{ count: 1 kind: KIND_CPU }]",
        f'key: "sha256" value: {{ string_value: "{digest}" }}',
        'key: "threads" value: { string_value: "3" }',
        'key: "provider" value: { string_value: "CPUExecutionProvider" }',
    ):
        assert line in config
    assert "dynamic_batching" not in config
    assert "emulate" not in config
    # A model swapped in place changes nothing that runs.
    plant.path("m.onnx").write_bytes(b"other")
    copied = (models / "tile/1/model.onnx").read_bytes()
    assert hashlib.sha256(copied).hexdigest() == digest


def test_a_trial_may_have_triton_s_own_batcher(plant_of: PlantOf) -> None:
    plant = plant_of()
    save_model(plant.path("m.onnx"))
    own = OwnBatcher(delay_us=5000, levels=2, among_models=3)
    models, _ = write_repository(plant, 1, own_batchers={"tile": own})
    config = (models / "tile/config.pbtxt").read_text()
    assert (
        'instance_group [{ count: 1 kind: KIND_CPU rate_limiter { resources [{ name: "gpu" '
        "count: 1 }] priority: 3 } }]"
    ) in config
    assert (
        "dynamic_batching { max_queue_delay_microseconds: 5000 priority_levels: 2 "
        "default_priority_level: 2 }"
    ) in config
    assert "gpu_lock" not in config  # one model needs none


def test_models_that_emulate_one_gpu_share_its_lock(plant_of: PlantOf) -> None:
    plant = plant_of(emulate="l4.json")
    save_model(plant.path("m.onnx"))
    profile = Profile(
        model="tile",
        engine="pool",
        origin="published",
        margin=1.0,
        rule="by hand",
        wcet_ns={1: 1, 2: 2, 3: 3, 4: 4},
        provenance=Provenance(model_sha256="", device="L4", cores=1),
    )
    profile.save(plant.path("l4.json"))
    other = plant.model[0].model_copy(update={"name": "other"})
    both = plant.model_copy(update={"model": [plant.model[0], other]})
    models, _ = write_repository(both, 2)
    for name in ("tile", "other"):
        config = (models / name / "config.pbtxt").read_text()
        lock = str(models.parent / "gpu.lock")
        assert f'key: "gpu_lock" value: {{ string_value: "{lock}" }}' in config


def test_a_second_start_replaces_the_repository_and_leaves_no_partial(plant_of: PlantOf) -> None:
    plant = plant_of()
    save_model(plant.path("m.onnx"))
    models, _ = write_repository(plant, 0)
    (models / "stale").mkdir()
    (models.parent / "models.partial-1").mkdir()
    write_repository(plant, 0)
    assert [path.name for path in models.parent.iterdir()] == ["models"]
    assert [path.name for path in models.iterdir()] == ["tile"]


def test_a_refused_model_leaves_the_repository_as_it_was(plant_of: PlantOf) -> None:
    plant = plant_of()
    save_model(plant.path("m.onnx"))
    models, _ = write_repository(plant, 0)
    save_model(plant.path("m.onnx"), echo="nonce_out")
    with pytest.raises(RepositoryError):
        write_repository(plant, 0)
    assert (models / "tile/config.pbtxt").exists()
    assert [path.name for path in models.parent.iterdir()] == ["models"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"image": TensorProto.FLOAT}, r"input image is tensor\(float\), must be tensor\(uint8\)"),
        ({"shape": ["batch", 6, 7]}, r"\[batch, 6, 7\], must be .batch, height, width, colours."),
        ({"shape": ["batch", "h", 7, 3]}, r"\[batch, h, 7, 3\], must be .batch, height"),
        ({"shape": [1, 6, 7, 3]}, "input image has a fixed batch of 1, must be dynamic"),
        ({"echo": "nonce_out"}, "output nonce_out is not in the contract; .*nonce_echo is missing"),
        ({"nonce": TensorProto.INT32}, r"input nonce is tensor\(int32\), must be tensor\(int64\)"),
    ],
)
def test_a_model_outside_the_contract_is_refused(
    plant_of: PlantOf, wrong: dict[str, int], says: str
) -> None:
    plant = plant_of()
    save_model(plant.path("m.onnx"), **wrong)  # type: ignore[arg-type]
    with pytest.raises(RepositoryError, match=rf"m\.onnx does not keep .*{says}"):
        write_repository(plant, 0)


def test_a_file_that_is_no_model_is_refused(plant_of: PlantOf) -> None:
    plant = plant_of()
    plant.path("m.onnx").write_bytes(b"not a model")
    with pytest.raises(RepositoryError, match=r"m\.onnx is not a usable ONNX model"):
        write_repository(plant, 0)


def test_a_missing_file_is_named(plant_of: PlantOf) -> None:
    with pytest.raises(RepositoryError, match=r"m\.onnx: No such file"):
        write_repository(plant_of(), 0)


def test_emulation_is_copied_and_must_reach_the_batch_cap(plant_of: PlantOf) -> None:
    plant = plant_of(emulate="l4.json")
    save_model(plant.path("m.onnx"))
    with pytest.raises(RepositoryError, match=r"\[pool\] emulate: .*l4\.json: no such profile"):
        write_repository(plant, 0)
    for cap, works in ((3, False), (4, True)):
        Profile(
            model="tile",
            engine="pool",
            origin="published",
            margin=1.0,
            rule="as published",
            wcet_ns={size: 1_000_000 * size for size in range(1, cap + 1)},
            provenance=Provenance(model_sha256="", device="L4", cores=1),
        ).save(plant.path("l4.json"))
        if works:
            models, _ = write_repository(plant, 0)
            assert (models / "tile/1/emulate.json").exists()
            assert 'key: "emulate"' in (models / "tile/config.pbtxt").read_text()
        else:
            with pytest.raises(RepositoryError, match=r"ends at batch size 3, but model tile has"):
                write_repository(plant, 0)
