"""EncoderDecoder: runs a transformers encoder-decoder on ragged batches, with a paged KV cache for cross-attention too.

It is the torch part of `Seq2SeqLM`: a `Decoder` whose tokens also attend to the encoder states of their request. The
network runs unmodified. Mel features and detokenization are not part of it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from transformers.modeling_outputs import CausalLMOutput

from mstar.errors import LoadError, MstarError, RowsFailed
from mstar.nn.kv.cross_attention import CROSS_ATTENTION, CrossAttentionKV, reading_cross_kv, writing_cross_kv
from mstar.nn.kv.kv_cache import PagedKV
from mstar.nn.kv.page_pool import PagePool
from mstar.nn.kv.paged_attention import AttentionBatch, AttentionView, extend_caches
from mstar.nn.lm.decoder import Decoder
from mstar.nn.lm.grammar import Vocabulary
from mstar.nn.lm.sampler import SamplerState


class CacheNotReady(MstarError):
    """A KV cache is not in the state that an op needs."""


class DecoderHalf(torch.nn.Module):
    """The decoder of an encoder-decoder, with the interface of a decoder-only model.

    Its cross-attention gets no encoder states: their keys and values are in the KV cache.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.decoder = network.get_decoder()
        if "position_ids" not in inspect.signature(self.decoder.forward).parameters:
            problem = f"{type(self.decoder).__name__} has no parameter position_ids, so requests cannot be batched"
            raise LoadError(f"{problem}\n  fix: use a model of another family, such as Whisper")
        self.head = network.get_output_embeddings()
        self.get_input_embeddings = self.decoder.get_input_embeddings
        self.config = copy.copy(network.config)  # the encoder keeps its own attention
        self.config.num_hidden_layers = network.config.decoder_layers  # it was the number of encoder layers
        for module in self.decoder.modules():
            if hasattr(module, "config"):
                module.config = self.config

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> CausalLMOutput:
        """Logits of the selected tokens, and all hidden states."""
        hidden = self.decoder(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            encoder_hidden_states=inputs_embeds[:, :0],
            use_cache=False,
        ).last_hidden_state
        return CausalLMOutput(logits=self.head(hidden[:, logits_to_keep]), hidden_states=(hidden,))


class EncoderDecoder(Decoder):
    """An encoder, a decoder with paged attention, and its KV cache."""

    attention: ClassVar[str] = CROSS_ATTENTION

    def __init__(self, network: Any, pool: PagePool, *, swap_bytes: int, window: int | None = None) -> None:
        self._encoder = network.eval().requires_grad_(requires_grad=False).get_encoder()
        self._decoder_half = DecoderHalf(network)
        self._decoder_half.config.sliding_window = window  # read by cross_attention_forward
        self._max_target_positions: int = network.config.max_target_positions
        self.window_positions: int = network.config.max_source_positions
        """Number of encoder positions of a complete audio window."""
        super().__init__(self._decoder_half, pool, swap_bytes=swap_bytes, is_deterministic=False)

    def new_cache(self, vocabulary: Vocabulary | None) -> CrossAttentionKV:
        """Create an empty KV cache."""
        return CrossAttentionKV(self.store, SamplerState(vocabulary))

    @torch.inference_mode()
    def encode(self, features: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Encode a ragged batch of spectrograms, [bins, frames], to hidden states, [positions, size] each.

        One after the other: the activations of one just fit into the CPU cache, so a batch is slower.
        """
        parts = features.to(self._embed.weight.dtype).split(list(lengths), dim=1)
        return [_shortened_encoder(self._encoder, part.shape[1])(part[None]).last_hidden_state[0] for part in parts]

    @torch.inference_mode()
    def write_encoder_states(self, states: Tensor, caches: Sequence[CrossAttentionKV], counts: Sequence[int]) -> None:
        """Write the cross-attention keys and values of a ragged batch of encoder states, before the first token."""
        _raise_not_ready([_already_decoding(cache.table.length) for cache in caches])
        for cache, part in zip(caches, states.split(list(counts)), strict=True):
            cache.cross_attention_cache.append_embeddings(part.clone())  # a view would keep the whole batch alive
        self._write_cross_kv(states, [cache.cross_attention_cache for cache in caches], counts)

    @torch.inference_mode()
    def restore(self, caches: Sequence[PagedKV]) -> None:
        """Swap evicted caches back in, or recompute the ones whose data was dropped."""
        for cache in cast("Sequence[CrossAttentionKV]", caches):
            is_dropped, is_cross_dropped = cache.is_dropped, cache.cross_attention_cache.is_dropped
            cache.restore()
            if is_cross_dropped:
                self.store.pool.truncate(cache.cross_attention_cache.table, 0)
                for _, states, _ in cache.cross_attention_cache.embeddings:
                    self._write_cross_kv(states, [cache.cross_attention_cache], [len(states)])
            if is_dropped:
                self._recompute(cache)

    def _write_cross_kv(self, states: Tensor, cross_caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Run a dummy token with these encoder states, so that every layer computes its keys and values of them."""
        token = self.embed(torch.tensor([0]))
        with writing_cross_kv(extend_caches(self.store, cross_caches, counts)):
            self._decoder_half.decoder(
                inputs_embeds=token[None],
                position_ids=torch.tensor([[0]]),
                encoder_hidden_states=states[None].to(token.dtype),
                use_cache=False,
            )

    def _extra_pages(self, cache: PagedKV) -> int:
        return len(cast("CrossAttentionKV", cache).cross_attention_cache.table.pages)

    def _record_inputs(self, inputs: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        cross_caches = cast("Sequence[CrossAttentionKV]", caches)
        _raise_not_ready([self._not_ready(cache, length) for cache, length in zip(cross_caches, lengths, strict=True)])
        super()._record_inputs(inputs, caches, lengths)

    def _not_ready(self, cache: CrossAttentionKV, count: int) -> str:
        """The reason why a cache cannot read this number of tokens, or an empty string."""
        if not cache.cross_attention_cache.table.length:
            return "the KV cache has no encoder states\n  fix: call write_encoder_states first"
        if cache.table.length + count > self._max_target_positions:
            counts = f"{cache.table.length} tokens in the KV cache and {count} more"
            problem = f"too many tokens: {counts}, limit {self._max_target_positions}"
            return f"{problem}\n  fix: set a smaller max_tokens, or start with a shorter prompt"
        return ""

    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        cross_caches = [cache.cross_attention_cache for cache in cast("Sequence[CrossAttentionKV]", batch.caches)]
        with reading_cross_kv(AttentionView(self.store, cross_caches, batch.counts)):
            return super()._run(embeddings, batch, last)

    @torch.inference_mode()
    def _allocate_memory(self) -> None:
        cache = self.new_cache(None)
        self._write_cross_kv(self.embed(torch.tensor([0])), [cache.cross_attention_cache], [1])
        cache.free()


def _shortened_encoder(encoder: Any, frames: int) -> Any:
    """A copy of the encoder for inputs shorter than a window, with only the first positions."""
    table, positions = encoder.embed_positions, frames // (encoder.conv1.stride[0] * encoder.conv2.stride[0])
    if positions >= table.num_embeddings:
        return encoder
    shortened = copy.copy(encoder)
    shortened.config = copy.copy(encoder.config)
    shortened.config.max_source_positions = positions
    first = torch.nn.Embedding.from_pretrained(table.weight[:positions])
    shortened._modules = encoder._modules | {"embed_positions": first}
    return shortened


def _already_decoding(tokens: int) -> str:
    fix = "write all encoder states before the first token, or use a new KV cache"
    return (
        f"the KV cache already has {tokens} tokens, so no encoder states can be added\n  fix: {fix}" if tokens else ""
    )


def _raise_not_ready(reasons: Sequence[str]) -> None:
    if any(reasons):
        raise RowsFailed({row: CacheNotReady(reason) for row, reason in enumerate(reasons) if reason})
