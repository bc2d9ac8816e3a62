"""The two networks of MobileStyleGAN, with the tensors of a checkpoint.

No library has them, and the publisher's package runs them with OpenVINO only. A style scales the input of every
convolution; what training adds to that (noise that is drawn anew, weights that are normed for each style) is a
constant in the published networks, and therefore here. Needs torch, and is imported where an op runs.
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

_LEAKY_SLOPE = 0.2
_FIRST_SIDE_PX = 4


def load_part(weights: str, part: str) -> nn.Module:
    """One of the two networks, `mapping` or `synthesis`. Raises LoadError unless all tensors fit."""
    folder = Weights(str(Path(weights).expanduser())).path()
    config, file = folder / "config.json", folder / "model.safetensors"
    if not (config.is_file() and file.is_file()):
        raise LoadError(f"{folder} lacks config.json or model.safetensors\n  fix: run scripts/fetch-faces again")
    network = build_network(part, json.loads(config.read_bytes()))
    own = {name.removeprefix(f"{part}."): one for name, one in load_file(file).items() if name.startswith(f"{part}.")}
    wanted = network.state_dict()
    faults = sorted(wanted.keys() ^ own.keys()) or [name for name in own if own[name].shape != wanted[name].shape]
    if faults:
        what = f"these tensors do not make the {part} network: {format_names(faults[:20])} are missing, left over or misshapen"
        raise LoadError(f"{what}\n  fix: use the config.json that the weights were saved with")
    network.load_state_dict(own)
    return network.eval().requires_grad_(requires_grad=False)


def build_network(part: str, config: dict[str, Any]) -> nn.Module:
    """A network with random weights, of the sizes that a config.json says."""
    if part == "mapping":
        return Mapping(config["style"], config["depth"])
    return Synthesis(config["style"], config["channels"])


class Mapping(nn.Module):
    """Random numbers to styles."""

    def __init__(self, style: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(style, style) for _ in range(depth))
        self.mean = nn.Parameter(torch.zeros(style))

    def forward(self, drawn: Tensor) -> Tensor:
        """[..., style] to [..., style]."""
        x = drawn * torch.rsqrt(drawn.square().mean(-1, keepdim=True) + 1e-8)
        for layer in self.layers:
            x = leaky_relu(layer(x), _LEAKY_SLOPE) * 2**0.5
        return x


class Synthesis(nn.Module):
    """Styles to the bands of pictures. It begins with 4 x 4 pixels, and each block doubles their sides."""

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
        """[rows, style] to [rows, 12, height, width]."""
        x = self.first(self.start.expand(len(style), -1, -1, -1), style)
        for block in self.blocks:
            x = block(x, style)
        return self.paint(_scaled(x, self.tint(style)))


class Block(nn.Module):
    """Pixels doubled by a wavelet, and two convolutions."""

    def __init__(self, style: int, into: int, out: int, side: int) -> None:
        super().__init__()
        self.bands = nn.Linear(style, into)
        self.rough = ModulatedConv(style, into // 4, side, _separable(into // 4, out))
        self.fine = ModulatedConv(style, out, side, _separable(out, out))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """Twice as high and as wide."""
        x = inverse_haar(_scaled(x, self.bands(style)))
        return self.fine(self.rough(x, style), style)


class ModulatedConv(nn.Module):
    """A convolution whose input a style scales, and noise that is the same in all pictures."""

    def __init__(self, style: int, into: int, side: int, convolution: nn.Module) -> None:
        super().__init__()
        self.modulation = nn.Linear(style, into)
        self.convolution = convolution
        self.noise = nn.Parameter(torch.zeros(side, side))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        """As high and as wide."""
        return leaky_relu(self.convolution(_scaled(x, self.modulation(style))) + self.noise, _LEAKY_SLOPE)


def inverse_haar(bands: Tensor) -> Tensor:
    """The inverse of Haar's wavelet: [rows, 4 C, H, W] to [rows, C, 2 H, 2 W].

    The first C are the low band; then each channel has three: rows that differ, columns that differ, and both.
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
