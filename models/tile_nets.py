"""The two networks: dense defect maps of 28 x 28 cells, pooled to one score per picture.

Small defects need a dense map with mask supervision: with some two hundred defective tiles, a label
per picture alone is learned by heart. Normalisation is inside, so that a line sends raw pixels.
"""

from typing import Final

import torch
from torch import Tensor, nn

CELLS: Final = 28
"""Rows and columns of the defect map."""


def _conv(
    inputs: int, outputs: int, stride: int = 1, dilation: int = 1, groups: int = 1
) -> nn.Sequential:
    """3 x 3 convolution, batch normalisation (folded on export) and ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, groups, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _coarse(outputs: int) -> nn.Sequential:
    """First layer straight from 224 to 56 cells a side: overlapping patches, a quarter the work."""
    return nn.Sequential(
        nn.Conv2d(1, outputs, 6, 4, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class _Residual(nn.Module):
    """Depthwise dilated 3 x 3, then 1 x 1, added to the input."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels, channels, dilation=dilation, groups=channels),
            nn.Conv2d(channels, channels, 1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Features [batch, channels, 28, 28] in and out."""
        return torch.relu(features + self.body(features))


class TileNet(nn.Module):
    """Trunk to a defect map, then the mean of the hottest cells and of all cells to one logit."""

    def __init__(self, trunk: nn.Sequential, channels: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.map = nn.Conv2d(channels, 1, 1)
        self.pool = nn.Linear(4, 1)
        with torch.no_grad():
            self.pool.weight.copy_(torch.tensor([[0.4, 0.4, 0.2, 0.0]]))
            self.pool.bias.zero_()

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Map [batch, 1, 28, 28] and picture [batch, 1] logits of uint8 [batch, 224, 224, 1]."""
        grey = image.to(torch.float32).reshape(-1, 1, 224, 224)
        centred = grey - grey.mean(dim=(2, 3), keepdim=True)
        spread = torch.sqrt((centred * centred).mean(dim=(2, 3), keepdim=True) + 1.0)
        cells = self.map(self.trunk(centred / spread))
        flat = cells.reshape(-1, CELLS * CELLS)
        hottest = torch.topk(flat, 48, dim=1).values
        stats = [hottest[:, :2], hottest[:, :10], hottest, flat]
        pooled = torch.cat([part.mean(dim=1, keepdim=True) for part in stats], dim=1)
        return cells, self.pool(pooled)


def pool_net() -> TileNet:
    """The pool's network: 64 channels and separable residual blocks that see the whole tile."""
    blocks = [_Residual(64, dilation) for dilation in (1, 2, 4, 8, 4, 1)]
    trunk = nn.Sequential(_conv(1, 16, 2), _conv(16, 32, 2), _conv(32, 64, 2), *blocks)
    return TileNet(trunk, 64)


def fallback_net() -> TileNet:
    """The fallback's network: 32 channels of plain convolutions, cheap and good to quantise."""
    blocks = [_conv(32, 32, dilation=dilation) for dilation in (1, 2, 4, 8)]
    trunk = nn.Sequential(_coarse(16), _conv(16, 32, 2), *blocks)
    return TileNet(trunk, 32)


class Exported(nn.Module):
    """The contract of a Takt model: image and nonce in, score and the same nonce out."""

    def __init__(self, net: TileNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor, nonce: Tensor) -> tuple[Tensor, Tensor]:
        """Score P(defect) float32 [batch, 1] and the nonce int64 [batch, 1], row by row."""
        return torch.sigmoid(self.net(image)[1]), nonce
