"""RowLinear: a linear layer outside of captured graphs, whose result of a row does not depend on other rows."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from mstar.nn import native


class RowLinear(nn.Module):
    """x @ weight.T + bias. Without native products for its dtype and device it is a linear layer of torch."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__()
        self._columns, self._bias = len(weight), bias
        self._is_native = native.has_row_products(weight.dtype, weight.device)
        self._weight = native.to_tiles(weight) if self._is_native else weight

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the last dimension."""
        if self._is_native:
            return native.linear(x, self._weight, self._columns, self._bias)
        return linear(x, self._weight, self._bias)


def replace_linears(network: nn.Module) -> None:
    """Replace the linear layers of a network in place."""
    for name, module in list(network.named_modules()):
        if type(module) is nn.Linear:
            network.set_submodule(name, RowLinear(module.weight, module.bias))
