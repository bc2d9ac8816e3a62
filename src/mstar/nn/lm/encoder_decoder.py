"""Listener: a transformers encoder-decoder and its paged memory, for batches of requests.

This is what stands behind `Seq2SeqLM` where torch is: a `Decoder` whose tokens also see what their request heard. The
network runs unmodified. Mel features and text are not made here.
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
    """A cache cannot take what it is given now."""


class DecoderHalf(torch.nn.Module):
    """The half of an encoder-decoder that writes, in the shape of a decoder by itself.

    Its cross-attention is given nothing: what was heard is in the pages.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.decoder = network.get_decoder()
        if "position_ids" not in inspect.signature(self.decoder.forward).parameters:
            what = f"{type(self.decoder).__name__} takes no position_ids, so its requests cannot share a forward"
            raise LoadError(f"{what}\n  fix: use a model of another family, such as Whisper")
        self.head = network.get_output_embeddings()
        self.get_input_embeddings = self.decoder.get_input_embeddings
        self.config = copy.copy(network.config)  # the encoder goes on attending as it does
        self.config.num_hidden_layers = network.config.decoder_layers  # it said how many the encoder has
        for module in self.decoder.modules():
            if hasattr(module, "config"):
                module.config = self.config

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> CausalLMOutput:
        """Logits of some tokens, and all hidden states."""
        hidden = self.decoder(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            encoder_hidden_states=inputs_embeds[:, :0],
            use_cache=False,
        ).last_hidden_state
        return CausalLMOutput(logits=self.head(hidden[:, logits_to_keep]), hidden_states=(hidden,))


class EncoderDecoder(Decoder):
    """An encoder, a decoder that attends over pages, and the pages."""

    attention: ClassVar[str] = CROSS_ATTENTION

    def __init__(self, network: Any, pool: PagePool, *, swap_bytes: int, window: int | None = None) -> None:
        self._encoder = network.eval().requires_grad_(requires_grad=False).get_encoder()
        self._decoder_half = DecoderHalf(network)
        self._decoder_half.config.sliding_window = window  # where attention looks for it
        self._max_target_positions: int = network.config.max_target_positions
        self.window_positions: int = network.config.max_source_positions
        """So many it hears of a whole window."""
        super().__init__(self._decoder_half, pool, swap_bytes=swap_bytes, is_deterministic=False)

    def new_cache(self, vocabulary: Vocabulary | None) -> CrossAttentionKV:
        """A cache with no pages yet."""
        return CrossAttentionKV(self.store, SamplerState(vocabulary))

    @torch.inference_mode()
    def encode(self, features: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Spectra, [bins, frames], joined, to the encoder's hidden states of each, [positions, size].

        One after the other: what one needs just fits in a processor's cache, so together they are slower.
        """
        parts = features.to(self._embed.weight.dtype).split(list(lengths), dim=1)
        return [_shortened_encoder(self._encoder, part.shape[1])(part[None]).last_hidden_state[0] for part in parts]

    @torch.inference_mode()
    def write_encoder_states(self, states: Tensor, caches: Sequence[CrossAttentionKV], counts: Sequence[int]) -> None:
        """Write the keys and values of the encoder's states, joined, to the pages of caches that have read nothing."""
        _raise_faults([_already_decoding(cache.table.length) for cache in caches])
        for cache, part in zip(caches, states.split(list(counts)), strict=True):
            cache.cross_attention_cache.append_embeddings(
                part.clone()
            )  # for its lineage, without the rest of the batch
        self._write_cross_kv(states, [cache.cross_attention_cache for cache in caches], counts)

    @torch.inference_mode()
    def restore(self, caches: Sequence[PagedKV]) -> None:
        """Give caches that left their pages again, with what was in them."""
        for cache in cast("Sequence[CrossAttentionKV]", caches):
            is_dropped, is_deaf = cache.is_dropped, cache.cross_attention_cache.is_dropped
            cache.restore()
            if is_deaf:
                self.store.pool.truncate(cache.cross_attention_cache.table, 0)
                for _, states, _ in cache.cross_attention_cache.embeddings:
                    self._write_cross_kv(states, [cache.cross_attention_cache], [len(states)])
            if is_dropped:
                self._recompute(cache)

    def _write_cross_kv(self, states: Tensor, cross_caches: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Run one token of no request past the states: every layer then makes its keys and values of them."""
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

    def _record_inputs(self, given: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        heard = cast("Sequence[CrossAttentionKV]", caches)
        _raise_faults([self._fault(cache, length) for cache, length in zip(heard, lengths, strict=True)])
        super()._record_inputs(given, caches, lengths)

    def _fault(self, cache: CrossAttentionKV, count: int) -> str:
        """Why a cache cannot read so many tokens, if it cannot."""
        if not cache.cross_attention_cache.table.length:
            return "a cache that has heard nothing is to read\n  fix: hear first"
        if cache.table.length + count > self._max_target_positions:
            fix = "wish for fewer tokens, or begin with fewer"
            return f"a cache of {cache.table.length} tokens is to read {count}, of {self._max_target_positions} at most\n  fix: {fix}"
        return ""

    def _run(self, embeddings: Tensor, batch: AttentionBatch, last: Tensor) -> tuple[Tensor, Tensor]:
        heard = [cache.cross_attention_cache for cache in cast("Sequence[CrossAttentionKV]", batch.caches)]
        with reading_cross_kv(AttentionView(self.store, heard, batch.counts)):
            return super()._run(embeddings, batch, last)

    @torch.inference_mode()
    def _allocate_memory(self) -> None:
        cache = self.new_cache(None)
        self._write_cross_kv(self.embed(torch.tensor([0])), [cache.cross_attention_cache], [1])
        cache.free()


def _shortened_encoder(encoder: Any, frames: int) -> Any:
    """The encoder for the beginning of a window, which is all it then computes: with the first of its positions."""
    table, positions = encoder.embed_positions, frames // (encoder.conv1.stride[0] * encoder.conv2.stride[0])
    if positions >= table.num_embeddings:
        return encoder
    opening = copy.copy(encoder)
    opening.config = copy.copy(encoder.config)
    opening.config.max_source_positions = positions
    first = torch.nn.Embedding.from_pretrained(table.weight[:positions])
    opening._modules = encoder._modules | {"embed_positions": first}
    return opening


def _already_decoding(read: int) -> str:
    fix = "hear everything before the first token, or take a fresh cache"
    return f"a cache that has read {read} tokens is to hear more\n  fix: {fix}" if read else ""


def _raise_faults(faults: Sequence[str]) -> None:
    if any(faults):
        raise RowsFailed({row: CacheNotReady(fault) for row, fault in enumerate(faults) if fault})
