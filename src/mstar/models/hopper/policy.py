"""Policy component: a stateless multilayer perceptron with three dense layers. Torques are not clipped."""

from __future__ import annotations

import functools
from typing import Any

from mstar import Component, Float32, LoadError, Tensor, op, stacked


class Policy(Component):
    """Maps observations to torques. `weights` is a safetensors file with `w` and `b` of the layers 0, 1 and 2."""

    def __init__(self, weights: str) -> None:
        self._weights = weights

    @functools.cached_property
    def layers(self) -> Any:
        """Weight and bias of each layer, float64 as published."""
        from safetensors.numpy import load_file

        try:
            tensors = load_file(self._weights)
            return [(tensors[f"{layer}.w"], tensors[f"{layer}.b"]) for layer in range(3)]
        except (OSError, KeyError) as error:
            what = f"{self._weights} is not a policy with three layers: {error}"
            raise LoadError(f"{what}\n  fix: use a safetensors file with 0.w, 0.b, 1.w, 1.b, 2.w and 2.b") from error

    def prepare(self) -> None:
        """Load the layers."""
        _ = self.layers

    @op(batch=stacked)
    def torques(self, state: Float32[Tensor, "15"]) -> Float32[Tensor, "1 3"]:
        """Return the torque of each joint for one step."""
        import numpy as np

        x = np.asarray(state, np.float64)  # makes the float32 result independent of the batch size
        (first, first_bias), (second, second_bias), (last, last_bias) = self.layers
        x = np.maximum(x @ first + first_bias, 0)
        x = np.maximum(x @ second + second_bias, 0)
        return (x @ last + last_bias).astype(np.float32)[:, None]
