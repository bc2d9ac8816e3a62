"""The eye and the policy of pi0.5: what is seen becomes embeddings, and over a prefix of them noise becomes actions.

The eye is transformers' SigLIP and what reads is transformers' Gemma; only the action expert is written here. Cameras
that are not there are neither encoded nor masked, and a prompt is as long as it is.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

from mstar import Component, Float, Float32, Int64, State, Tensor, View, op, rows, stacked
from mstar.models.pi05.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder

if TYPE_CHECKING:
    from mstar.models.pi05.expert import ActionExpert

ActionChunk = Float32[Tensor, "A D"]


class VisionEncoder(Encoder):
    """Sees pictures, by its op `image`. Nothing is kept: cameras do not see the same thing twice."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.load_vision_encoder, cache_bytes=0)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        seen = self.network(batch.to(self.network.dtype)).last_hidden_state
        return self.network.projector(seen.to(self.network.projector.weight.dtype))


class PrefixCache(State):
    """Keys and values of what was seen and read, [layers, 2, positions, size]. Steps look at them and add nothing."""

    def __init__(self) -> None:
        self.layers: Any = None


class Policy(Component):
    """Reads a prefix once, and moves a chunk from noise to actions over it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def language_model(self) -> Any:
        """The network that reads."""
        return self._checkpoint.load_language_model().eval().requires_grad_(requires_grad=False)

    @functools.cached_property
    def expert(self) -> ActionExpert:
        """The network that acts."""
        from mstar.models.pi05.expert import ActionExpert

        config = self._checkpoint.config
        return ActionExpert(
            self._checkpoint.expert_tensors(), (config.get("min_period", 4e-3), config.get("max_period", 4.0))
        )

    def prepare(self) -> None:
        """Load both."""
        _ = self.language_model, self.expert

    @op
    def prefill(self, patches: list[Float[Tensor, "P W"]], tokens: Int64[Tensor, "T"], prefix: PrefixCache) -> None:
        """Read what the cameras see, and then the task."""
        import torch
        from transformers import DynamicCache

        network, kept = self.language_model, cast("Any", DynamicCache())
        with torch.inference_mode():
            hidden = torch.cat([*patches, network.embed_tokens(tokens)])[None].to(network.dtype)
            turn = network.rotary_emb(hidden, torch.arange(hidden.shape[1])[None])
            how = {"position_embeddings": turn, "attention_mask": None, "past_key_values": kept}
            *layers, last = network.layers
            for layer in layers:
                hidden = layer(hidden, **how)
            last.self_attn(last.input_layernorm(hidden), **how)  # of the last layer nothing but its keys is looked at
            prefix.layers = torch.stack([torch.stack([one.keys[0, 0], one.values[0, 0]]) for one in kept.layers])

    @op(batch=stacked)
    def denoise(
        self,
        actions: ActionChunk,
        previous_chunk: ActionChunk,
        guidance_weights: Float32[Tensor, "A"],
        prefix: View[PrefixCache],
        steps: int,
        step: int,
    ) -> ActionChunk:
        """A chunk one step further, pulled towards what is left of the chunk before as far as that is trusted."""
        wishes = [*zip(rows(steps), rows(step), strict=True)]
        return self.expert.denoise_step(
            actions, wishes, [one.layers for one in rows(prefix)], previous_chunk, guidance_weights
        )
