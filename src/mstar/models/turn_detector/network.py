"""Network of the turn detector: four convolutions over time, and two dense layers over their summary.

Inference with numpy takes about a millisecond, so no other library is needed. `tools.turn_detector` trains it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mstar.models.turn_detector.features import CHANNELS

CLASSES = ("continues", "end_of_turn", "backchannel")
LAST_STEPS = 3
"""Time steps at the end that the summary has one by one, beside the mean and the maximum of all steps."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """Sizes of one convolution over time."""

    inputs: int
    outputs: int
    width: int
    stride: int


CONVOLUTIONS = (
    Convolution(CHANNELS, 64, 5, 2),
    Convolution(64, 96, 5, 2),
    Convolution(96, 128, 3, 2),
    Convolution(128, 128, 3, 1),
)
HIDDEN = 64


def shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of all tensors, in the order of torch."""
    tensors = dict[str, tuple[int, ...]]()
    for index, layer in enumerate(CONVOLUTIONS):
        tensors |= {f"conv{index}.weight": (layer.outputs, layer.inputs, layer.width)}
        tensors |= {f"conv{index}.bias": (layer.outputs,)}
    summary = CONVOLUTIONS[-1].outputs * (2 + LAST_STEPS)
    tensors |= {"hidden.weight": (HIDDEN, summary), "hidden.bias": (HIDDEN,)}
    return tensors | {"classes.weight": (len(CLASSES), HIDDEN), "classes.bias": (len(CLASSES),)}


def classify(tensors: Mapping[str, Any], features: Any) -> Any:
    """Probability of each class for features [CHANNELS, FRAMES]."""
    import numpy as np

    x = features
    for index, layer in enumerate(CONVOLUTIONS):
        weight = tensors[f"conv{index}.weight"].reshape(layer.outputs, -1)
        steps = np.lib.stride_tricks.sliding_window_view(x, layer.width, axis=1)[:, :: layer.stride]
        columns = steps.transpose(0, 2, 1).reshape(layer.inputs * layer.width, -1)
        x = np.maximum(weight @ columns + tensors[f"conv{index}.bias"][:, None], 0)
    summary = np.concatenate([x.mean(axis=1), x.max(axis=1), x[:, -LAST_STEPS:].T.reshape(-1)])
    hidden = np.maximum(tensors["hidden.weight"] @ summary + tensors["hidden.bias"], 0)
    logits = tensors["classes.weight"] @ hidden + tensors["classes.bias"]
    odds = np.exp(logits - logits.max())
    return odds / odds.sum()
