"""pi0.5 networks as components: the SigLIP vision encoder, and the policy of Gemma prefix and action expert.

SigLIP and Gemma are those of transformers; the action expert is `expert`. Absent cameras are neither encoded nor
masked, and prompts are not padded.
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
    """Encodes camera images with the op `image`. Not cached, because camera images do not repeat."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint.load_vision_encoder, cache_bytes=0)

    def _hidden(self, batch: Tensor, **_: Any) -> Tensor:
        hidden = self.network(batch.to(self.network.dtype)).last_hidden_state
        return self.network.projector(hidden.to(self.network.projector.weight.dtype))


class PrefixCache(State):
    """KV of the prefix, [layers, 2, positions, size]. Denoising steps only read it."""

    def __init__(self) -> None:
        self.layers: Any = None


class Policy(Component):
    """Prefills the prefix once, and denoises an action chunk over it."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def language_model(self) -> Any:
        """The Gemma of the prefix, loaded on first use on the device of the component."""
        return self.on_device(self._checkpoint.load_language_model())

    @functools.cached_property
    def expert(self) -> ActionExpert:
        """The action expert, loaded on first use on the device of the component."""
        from mstar.models.pi05.expert import ActionExpert

        config, tensors = self._checkpoint.config, self._checkpoint.expert_tensors()
        if self.device is not None:
            tensors = tensors.to(self.device)
        return ActionExpert(tensors, (config.get("min_period", 4e-3), config.get("max_period", 4.0)))

    def prepare(self) -> None:
        """Load both networks."""
        _ = self.language_model, self.expert

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch."""
        return super().nondeterminism() or "torch computes the matrix products of all action chunks together"

    @op
    def prefill(self, patches: list[Float[Tensor, "P W"]], tokens: Int64[Tensor, "T"], prefix: PrefixCache) -> None:
        """Prefill the image patches, then the prompt."""
        import torch
        from transformers import DynamicCache

        network, cache = self.language_model, cast("Any", DynamicCache())
        with torch.inference_mode():
            device = network.device
            embeddings = [*(each.to(device) for each in patches), network.embed_tokens(tokens.to(device))]
            hidden = torch.cat(embeddings)[None].to(network.dtype)
            rotary = network.rotary_emb(hidden, torch.arange(hidden.shape[1], device=device)[None])
            options = {"position_embeddings": rotary, "attention_mask": None, "past_key_values": cache}
            *layers, last = network.layers
            for layer in layers:
                hidden = layer(hidden, **options)
            last.self_attn(last.input_layernorm(hidden), **options)  # only the KV of the last layer is needed
            prefix.layers = torch.stack([torch.stack([kv.keys[0, 0], kv.values[0, 0]]) for kv in cache.layers])

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
        """Denoise a chunk by one step, guided towards the previous chunk by the weight of each action."""
        progress = [*zip(rows(steps), rows(step), strict=True)]
        prefixes = [cache.layers for cache in rows(prefix)]
        return self.expert.denoise_step(actions, progress, prefixes, previous_chunk, guidance_weights)
