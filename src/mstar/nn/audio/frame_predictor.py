"""FramePredictor: base class of components that predict the remaining RVQ codes of an audio frame from its first code.

They keep no state between frames, so a frame is one op, batched across requests, instead of a step of the walk for each
code. A subclass loads the network and defines the op.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from mstar.requests import Sampling
from mstar.walk.component import Component
from mstar.walk.types import Tensor

if TYPE_CHECKING:
    from mstar.nn.audio.code_predictor import CodePredictor

_SEED_STRIDE = 1_000_003
"""Distance between the seeds of neighboring requests, in frames."""


class FramePredictor(Component):
    """Code predictor with the embeddings of all codebooks."""

    runs_on_device: ClassVar[bool] = True

    @abstractmethod
    def load_network(self) -> CodePredictor:
        """Load the network to the device of the component."""

    @functools.cached_property
    def network(self) -> CodePredictor:
        """The network, loaded on first use."""
        return self.load_network()

    def prepare(self) -> None:
        """Load the network. With `memory`, capture its largest graph, which needs memory beside the weights."""
        network = self.network
        if self.memory is not None:
            from mstar.nn.audio.code_sampling import capture_largest

            with self.memory.loading(self.name):
                capture_largest(network, self.memory)

    def predict_codes(
        self, code: Tensor, hidden_state: Tensor, samplings: Sequence[Sampling], steps: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """All codes of these steps' frames, and the sum of their embeddings. Each frame has a seed of its own."""
        from mstar.nn.audio.code_sampling import sample_frames

        seeded = [
            replace(sampling, seed=(sampling.seed * _SEED_STRIDE + step) % 2**63)
            for sampling, step in zip(samplings, steps, strict=True)
        ]
        return sample_frames(self.network, code, hidden_state, seeded)
