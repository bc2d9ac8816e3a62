"""Experts of a mixture-of-experts network in another process: the network sends them hidden states, not weights.

Each layer sends the hidden states of its tokens with the experts that its router chose, and receives their weighted
sum. The process has the same modules with the same weights, so that results are equal bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from mstar.errors import LoadError
from mstar.nn.kv.paged_attention import DIRECT_CALLS

_MATRICES = ("gate_up_proj", "down_proj")
"""Parameters of the experts of a layer in transformers, each with one matrix per expert."""
_INDEX_BYTES = 8
"""Size of the number of an expert."""


class ExpertProcess(Protocol):
    """The process that computes experts."""

    bytes_moved: int
    """Bytes that were sent to it and received from it."""

    def run(self, layer: int, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Weighted sum of the outputs of the chosen experts of a layer, for each token."""
        ...


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """Sizes that determine how many bytes move."""

    layers: int
    """Layers with experts."""
    width: int
    chosen: int
    """Experts per token."""
    element_bytes: int
    """Size of a number of the hidden states and of the weights of experts."""

    def activation_bytes(self, tokens: int) -> int:
        """Bytes that move for a number of tokens: hidden states in both directions, and the choices of the routers."""
        choices = self.chosen * (_INDEX_BYTES + self.element_bytes)
        return tokens * self.layers * (2 * self.width * self.element_bytes + choices)


def find_experts(network: Module) -> dict[str, Module]:
    """Modules with the experts of a layer, by name, in the order of the layers."""
    return {
        name: module
        for name, module in network.named_modules()
        if all(isinstance(getattr(module, part, None), Parameter) for part in _MATRICES)
        and all(getattr(module, part).dim() == 3 for part in _MATRICES)
    }


def take_experts(network: Module) -> list[Module]:
    """The experts of all layers, in order. Raises LoadError if the network has none."""
    experts = list(find_experts(network).values())
    if not experts:
        problem = f"{type(network).__name__} has no experts that another process can compute"
        raise LoadError(f"{problem}\n  fix: remove `experts` from its settings in the placement")
    return experts


def replace_experts(network: Module, process: ExpertProcess) -> None:
    """Have another process compute the experts of a network, whose weights are then freed here."""
    take_experts(network)
    for layer, name in enumerate(find_experts(network)):
        owner, _, attribute = name.rpartition(".")
        setattr(network.get_submodule(owner), attribute, RemoteExperts(process, layer))


class RemoteExperts(Module):
    """The experts of a layer, computed by another process."""

    def __init__(self, process: ExpertProcess, layer: int) -> None:
        super().__init__()
        self._process, self._layer = process, layer
        self._number = len(_REMOTE)
        _REMOTE.append(self)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """Named as in transformers."""
        run: Any = torch.ops.mstar.run_experts if torch.compiler.is_exporting() else run_experts
        return run(hidden_states, top_k_index, top_k_weights, self._number)

    def run(self, hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Send the tokens, and wait for their results."""
        return self._process.run(self._layer, hidden, chosen, weights)


_REMOTE: list[RemoteExperts] = []
"""All of this process. A captured graph refers to one by its number."""


def run_experts(hidden: Tensor, chosen: Tensor, weights: Tensor, number: int) -> Tensor:
    """Run the remote experts with this number."""
    return _REMOTE[number].run(hidden, chosen, weights)


_run_experts_op = torch.library.custom_op("mstar::run_experts", run_experts, mutates_args=())


@_run_experts_op.register_fake
def _(hidden: Tensor, _chosen: Tensor, _weights: Tensor, _number: int) -> Tensor:
    return hidden.new_empty(hidden.shape)


DIRECT_CALLS[torch.ops.mstar.run_experts.default] = run_experts
