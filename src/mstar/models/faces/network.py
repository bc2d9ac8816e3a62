"""MobileStyleGAN networks: mapping and synthesis, with the tensors of a checkpoint.

No library implements them; the publisher's package runs them with OpenVINO only. A style scales the input of every
convolution. Noise and demodulation, random or computed in training, are constants in the published networks and here.
Imports torch, so it is imported inside ops only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, pixel_shuffle

from mstar.errors import LoadError, format_names
from mstar.nn.weights.sources import Weights

_FETCH_COMMAND = "scripts/fetch-faces"
_LEAKY_SLOPE = 0.2
_FIRST_SIDE_PX = 4


def load_part(weights: str, part: str) -> nn.Module:
    """Load `mapping` or `synthesis`. Raises LoadError unless all tensors match."""
    folder = Weights(str(Path(weights).expanduser()), fetch_command=_FETCH_COMMAND).path()
    config, file = folder / "config.json", folder / "model.safetensors"
    if not (config.is_file() and file.is_file()):
        raise LoadError(f"{folder} lacks config.json or model.safetensors\n  fix: run {_FETCH_COMMAND} again")
    network = build_network(part, json.loads(config.read_bytes()))
    tensors = {
        name.removeprefix(f"{part}."): tensor for name, tensor in load_file(file).items() if name.startswith(f"{part}.")
    }
    expected = network.state_dict()
    mismatched = sorted(expected.keys() ^ tensors.keys())
    mismatched = mismatched or [name for name in tensors if tensors[name].shape != expected[name].shape]
    if mismatched:
        what = f"the tensors do not match the {part} network: {format_names(mismatched[:20])}"
        fix = "use the config.json that the weights were saved with"
        raise LoadError(f"{what} are missing, unexpected or of another shape\n  fix: {fix}")
    network.load_state_dict(tensors)
    return network.eval().requires_grad_(requires_grad=False)


def build_network(part: str, config: dict[str, Any]) -> nn.Module:
    """Build a network with random weights from a config."""
    if part == "mapping":
        return Mapping(config["style"], config["depth"])
    return Synthesis(config["style"], config["channels"])


class Mapping(nn.Module):
    """Mapping network: Gaussian noise to a style."""

    def __init__(self, style: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(style, style) for _ in range(depth))
        self.mean = nn.Parameter(torch.zeros(style))

    def forward(self, noise: Tensor) -> Tensor:
        """Map [..., style] to [..., style]."""
        x = noise * torch.rsqrt(noise.square().mean(-1, keepdim=True) + 1e-8)
        for layer in self.layers:
            x = leaky_relu(layer(x), _LEAKY_SLOPE) * 2**0.5
        return x


class Synthesis(nn.Module):
    """Synthesis network: style to wavelet bands. Starts at 4 x 4 pixels; each block doubles the sides."""

    def __init__(self, style: int, channels: Sequence[int]) -> None:
        super().__init__()
        first, last = channels[0], channels[-1]
        self.start = nn.Parameter(torch.zeros(first, _FIRST_SIDE_PX, _FIRST_SIDE_PX))
        self.first = ModulatedConv(style, first, _FIRST_SIDE_PX, nn.Conv2d(first, first, 3, padding=1))
        sizes = enumerate(pairwise(channels), 1)
        self.blocks = nn.ModuleList(Block(style, into, out, _FIRST_SIDE_PX << step) for step, (into, out) in sizes)
        self.tint = nn.Linear(style, last)
        self.paint = nn.Conv2d(last, 12, 1)

    def forward(self, style: Tensor) -> Tensor:
        """Map [rows, style] to [rows, 12, height, width]."""
        x = self.first(self.start.expand(len(style), -1, -1, -1), style)
        for block in self.blocks:
            x = block(x, style)
        return self.paint(_scaled(x, self.tint(style)))


class Block(nn.Module):
    """Inverse wavelet upsampling and two modulated convolutions."""

    def __init__(self, style: int, into: int, out: int, side: int) -> None:
        super().__init__()
        self.bands = nn.Linear(style, into)
        self.rough = ModulatedConv(style, into // 4, side, _separable(into // 4, out))
        self.fine = ModulatedConv(style, out, side, _separable(out, out))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Double height and width."""
        x = inverse_haar(_scaled(x, self.bands(style)))
        return self.fine(self.rough(x, style), style)


class ModulatedConv(nn.Module):
    """Convolution with style-modulated input and constant noise."""

    def __init__(self, style: int, into: int, side: int, convolution: nn.Module) -> None:
        super().__init__()
        self.modulation = nn.Linear(style, into)
        self.convolution = convolution
        self.noise = nn.Parameter(torch.zeros(side, side))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Keep height and width."""
        return leaky_relu(self.convolution(_scaled(x, self.modulation(style))) + self.noise, _LEAKY_SLOPE)


def inverse_haar(bands: Tensor) -> Tensor:
    """Inverse Haar wavelet transform: [rows, 4 C, H, W] to [rows, C, 2 H, 2 W].

    The first C channels are the low band. Then follow three bands per channel: vertical, horizontal and diagonal
    detail.
    """
    count = bands.shape[1] // 4
    low, (rows, columns, both) = bands[:, :count], bands[:, count:].unflatten(1, (count, 3)).unbind(2)
    upper, lower, right, crossed = low + rows, low - rows, columns + both, columns - both
    corners = torch.stack([upper + right, upper - right, lower + crossed, lower - crossed], 2)
    return pixel_shuffle(corners.flatten(1, 2) / 2, 2)


def _scaled(x: Tensor, by: Tensor) -> Tensor:
    return x * by[..., None, None]


def _separable(into: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(into, into, 3, padding=1, groups=into, bias=False), nn.Conv2d(into, out, 1))
