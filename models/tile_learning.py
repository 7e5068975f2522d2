"""Learning, choosing a threshold, exporting and quantising; the only place that needs PyTorch."""

import copy
import datetime
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from tile_card import best_threshold, scores_of
from tile_nets import CELLS, Exported, TileNet
from tile_set import SIDE, Sample, augmented, preprocess
from torch import Tensor
from torch.nn import functional

OPSET: Final = 17
IR_VERSION: Final = 9
"""Oldest that holds opset 17 and newest that onnxruntime 1.20 is sure to load."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Course:
    """How one network is taught: passes, highest step size, pictures a step, seed."""

    epochs: int
    rate: float = 3e-3
    batch: int = 16
    seed: int = 1


def _batch(
    rng: np.random.Generator, samples: list[Sample], chosen: NDArray[np.int64]
) -> tuple[Tensor, Tensor, Tensor]:
    """Images uint8 [n, 224, 224, 1], cell targets [n, 1, 28, 28] and picture targets [n, 1]."""
    views = [augmented(rng, samples[i]) for i in chosen]
    images = torch.from_numpy(np.stack([pixels for pixels, _, _ in views]))[..., None]
    masks = torch.from_numpy(np.stack([mask for _, mask, _ in views]))[:, None].float() / 255.0
    side = SIDE // CELLS
    # A cell is defective by its share of defect, saturated early so that a thin crack counts.
    cells = torch.clamp(functional.avg_pool2d(masks, side) * 6.0, 0.0, 1.0)
    labels = torch.tensor([[float(is_defect)] for _, _, is_defect in views])
    return images, cells, labels


def _loss(
    net: TileNet, images: Tensor, cells: Tensor, labels: Tensor, teacher: TileNet | None
) -> Tensor:
    """Cell loss plus picture loss; with a teacher, also the distance to its map and its score."""
    hot, logit = net(images)
    weight = 1.0 + 4.0 * cells
    cell_loss = functional.binary_cross_entropy_with_logits(hot, cells, weight=weight)
    picture_loss = functional.binary_cross_entropy_with_logits(logit, labels * 0.96 + 0.02)
    total = 2.0 * cell_loss + picture_loss
    if teacher is not None:
        with torch.no_grad():
            taught_hot, taught_logit = teacher(images)
        total = total + 2.0 * functional.binary_cross_entropy_with_logits(
            hot, torch.sigmoid(taught_hot), weight=1.0 + 4.0 * torch.sigmoid(taught_hot)
        )
        total = total + functional.binary_cross_entropy_with_logits(
            logit, torch.sigmoid(taught_logit)
        )
    return total


def teach(
    net: TileNet,
    photographs: list[Sample],
    drawn: list[Sample],
    *,
    course: Course,
    say: Say,
    teacher: TileNet | None = None,
) -> TileNet:
    """Train `net` and give the running average of its weights, which is steadier than any one step.

    An epoch is three views of every photograph and one drawn picture for every two photographs.
    """
    torch.manual_seed(course.seed)
    rng = np.random.default_rng(course.seed)
    samples = photographs + drawn
    real = np.arange(len(photographs))
    drawn_a_pass = len(real) // 2
    a_pass = math.ceil((3 * len(real) + drawn_a_pass) / course.batch)
    steps = a_pass * course.epochs
    optimiser = torch.optim.AdamW(net.parameters(), lr=course.rate, weight_decay=2e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, course.rate, total_steps=steps, pct_start=0.15
    )
    average = copy.deepcopy(net)
    begun = time.monotonic()
    for epoch in range(course.epochs):
        net.train()
        others = rng.choice(np.arange(len(real), len(samples)), size=drawn_a_pass, replace=False)
        order = rng.permutation(np.concatenate([real, real, real, others]))
        total = 0.0
        for chosen in np.array_split(order, a_pass):
            loss = _loss(net, *_batch(rng, samples, chosen), teacher)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(net.parameters(), 2.0)
            optimiser.step()
            schedule.step()
            _follow(average, net, keep=0.995)
            total += loss.item()
        say(
            f"epoch {epoch + 1}/{course.epochs}  loss {total / a_pass:.4f}  "
            f"{time.monotonic() - begun:.0f} s"
        )
    return average.eval()


def _follow(average: TileNet, net: TileNet, keep: float) -> None:
    """Move the averaged weights and statistics towards the network's by 1 - `keep`."""
    with torch.no_grad():
        for mean, now in zip(average.state_dict().values(), net.state_dict().values(), strict=True):
            if mean.dtype.is_floating_point:
                mean.lerp_(now, 1.0 - keep)
            else:
                mean.copy_(now)


def export(net: TileNet, path: Path) -> None:
    """Write the FP32 model to `path` under the contract of `Exported`, batch size free."""
    image = torch.zeros((2, SIDE, SIDE, 1), dtype=torch.uint8)
    nonce = torch.zeros((2, 1), dtype=torch.int64)
    names = ["image", "nonce", "score", "nonce_echo"]
    torch.onnx.export(
        Exported(net).eval(),
        (image, nonce),
        str(path),
        input_names=names[:2],
        output_names=names[2:],
        dynamic_axes={name: {0: "batch"} for name in names},
        opset_version=OPSET,
        dynamo=False,
    )


class _Calibration(CalibrationDataReader):  # type: ignore[misc]
    """Feeds preprocessed pictures one by one to the quantiser."""

    def __init__(self, images: NDArray[np.uint8]) -> None:
        self._rest = iter(images)

    def get_next(self) -> dict[str, NDArray[np.generic]] | None:
        """Next input of the model, None at the end."""
        image = next(self._rest, None)
        if image is None:
            return None
        return {"image": image[None], "nonce": np.zeros((1, 1), np.int64)}


def quantise(source: Path, target: Path, samples: list[Sample]) -> None:
    """Write the static INT8 (QDQ) form of `source`, calibrated on `samples`.

    Only convolutions after the first are quantised: normalisation and the pooling of the map are
    cheap and would lose accuracy, and a convolution of one channel is slower in eight bits.
    """
    ready = target.with_suffix(".prepared.onnx")
    quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
    images = np.stack([preprocess(sample.pixels) for sample in samples])[..., None]
    convolutions = [
        node.name for node in onnx.load(str(ready)).graph.node if node.op_type == "Conv"
    ]
    quantize_static(
        str(ready),
        str(target),
        _Calibration(images),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=["Conv", "Relu"],
        nodes_to_exclude=convolutions[:1],
        per_channel=True,
        # Seven-bit weights: with eight, processors without VNNI saturate and give other scores.
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    ready.unlink()


def describe(path: Path, name: str, threshold: float) -> None:
    """Write the model's name, threshold, labels, date and preprocessing into its metadata."""
    model = onnx.load(str(path))
    del model.metadata_props[:]
    entries = {
        "takt.name": name,
        "takt.threshold": f"{threshold:.4f}",
        "takt.labels": json.dumps(["defect"]),
        "takt.trained_at": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "takt.preprocess": f"grey-squash-inter_area-{SIDE}",
    }
    onnx.helper.set_model_props(model, entries)
    model.ir_version = min(model.ir_version, IR_VERSION)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def choose_threshold(path: Path, photographs: list[Sample], drawn: list[Sample]) -> float:
    """Threshold of the model at `path`; the test photographs play no part."""
    real = scores_of(path, photographs), np.array([s.is_defect for s in photographs])
    made = scores_of(path, drawn), np.array([s.is_defect for s in drawn])
    return best_threshold(real, made)
