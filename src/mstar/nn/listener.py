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
from mstar.nn.chooser import Chooser
from mstar.nn.decoder import Decoder
from mstar.nn.grammar import Vocabulary
from mstar.nn.heard import HEARD, HeardKV, hearing, recalling
from mstar.nn.paged import Batch, View, extend
from mstar.nn.pages import Pool
from mstar.nn.store import PagedKV


class CannotRead(MstarError):
    """A cache cannot take what it is given now."""


class WritingHalf(torch.nn.Module):
    """The half of an encoder-decoder that writes, in the shape of a decoder by itself.

    Its cross-attention is given nothing: what was heard is in the pages.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.writer = network.get_decoder()
        if "position_ids" not in inspect.signature(self.writer.forward).parameters:
            what = f"{type(self.writer).__name__} takes no position_ids, so its requests cannot share a forward"
            raise LoadError(f"{what}\n  fix: use a model of another family, such as Whisper")
        self.head = network.get_output_embeddings()
        self.get_input_embeddings = self.writer.get_input_embeddings
        self.config = copy.copy(network.config)  # the encoder goes on attending as it does
        self.config.num_hidden_layers = network.config.decoder_layers  # it said how many the encoder has
        for module in self.writer.modules():
            if hasattr(module, "config"):
                module.config = self.config

    def forward(self, inputs_embeds: Tensor, position_ids: Tensor, logits_to_keep: Tensor, **_: Any) -> CausalLMOutput:
        """Logits of some tokens, and all hidden states."""
        hidden = self.writer(
            inputs_embeds=inputs_embeds,
            position_ids=position_ids,
            encoder_hidden_states=inputs_embeds[:, :0],
            use_cache=False,
        ).last_hidden_state
        return CausalLMOutput(logits=self.head(hidden[:, logits_to_keep]), hidden_states=(hidden,))


class Listener(Decoder):
    """An encoder, a decoder that attends over pages, and the pages."""

    attention: ClassVar[str] = HEARD

    def __init__(self, network: Any, pool: Pool, *, swap: int, window: int | None = None) -> None:
        self._encoder = network.eval().requires_grad_(requires_grad=False).get_encoder()
        self._writing = WritingHalf(network)
        self._writing.config.sliding_window = window  # where attention looks for it
        self._longest: int = network.config.max_target_positions
        self.positions: int = network.config.max_source_positions
        """So many it hears of a whole window."""
        super().__init__(self._writing, pool, swap=swap, is_deterministic=False)

    def new_cache(self, vocabulary: Vocabulary | None) -> HeardKV:
        """A cache with no pages yet."""
        return HeardKV(self.store, Chooser(vocabulary))

    @torch.inference_mode()
    def encode(self, features: Tensor, lengths: Sequence[int]) -> list[Tensor]:
        """Spectra, [bins, frames], joined, to the encoder's hidden states of each, [positions, size].

        One after the other: what one needs just fits in a processor's cache, so together they are slower.
        """
        parts = features.to(self._embed.weight.dtype).split(list(lengths), dim=1)
        return [_opening(self._encoder, part.shape[1])(part[None]).last_hidden_state[0] for part in parts]

    @torch.inference_mode()
    def hear(self, states: Tensor, caches: Sequence[HeardKV], counts: Sequence[int]) -> None:
        """Write the keys and values of the encoder's states, joined, to the pages of caches that have read nothing."""
        _refuse([_late(cache.table.length) for cache in caches])
        for cache, part in zip(caches, states.split(list(counts)), strict=True):
            cache.heard.read_embeddings(part.clone())  # for its lineage, without the rest of the batch
        self._hear(states, [cache.heard for cache in caches], counts)

    @torch.inference_mode()
    def bring_back(self, caches: Sequence[PagedKV]) -> None:
        """Give caches that left their pages again, with what was in them."""
        for cache in cast("Sequence[HeardKV]", caches):
            is_dropped, is_deaf = cache.is_dropped, cache.heard.is_dropped
            cache.come_back()
            if is_deaf:
                self.store.pool.truncate(cache.heard.table, 0)
                for _, states, _ in cache.heard.embeddings:
                    self._hear(states, [cache.heard], [len(states)])
            if is_dropped:
                self._read_again(cache)

    def _hear(self, states: Tensor, heard: Sequence[PagedKV], counts: Sequence[int]) -> None:
        """Run one token of no request past the states: every layer then makes its keys and values of them."""
        token = self.embed(torch.tensor([0]))
        with hearing(extend(self.store, heard, counts)):
            self._writing.writer(
                inputs_embeds=token[None],
                position_ids=torch.tensor([[0]]),
                encoder_hidden_states=states[None].to(token.dtype),
                use_cache=False,
            )

    def _pages_beside(self, cache: PagedKV) -> int:
        return len(cast("HeardKV", cache).heard.table.pages)

    def _note(self, given: Tensor, caches: Sequence[PagedKV], lengths: Sequence[int]) -> None:
        heard = cast("Sequence[HeardKV]", caches)
        _refuse([self._fault(cache, length) for cache, length in zip(heard, lengths, strict=True)])
        super()._note(given, caches, lengths)

    def _fault(self, cache: HeardKV, count: int) -> str:
        """Why a cache cannot read so many tokens, if it cannot."""
        if not cache.heard.table.length:
            return "a cache that has heard nothing is to read\n  fix: hear first"
        if cache.table.length + count > self._longest:
            fix = "wish for fewer tokens, or begin with fewer"
            return (
                f"a cache of {cache.table.length} tokens is to read {count}, of {self._longest} at most\n  fix: {fix}"
            )
        return ""

    def _run(self, embeddings: Tensor, batch: Batch, last: Tensor) -> tuple[Tensor, Tensor]:
        heard = [cache.heard for cache in cast("Sequence[HeardKV]", batch.caches)]
        with recalling(View(self.store, heard, batch.counts)):
            return super()._run(embeddings, batch, last)

    @torch.inference_mode()
    def _take_memory(self) -> None:
        cache = self.new_cache(None)
        self._hear(self.embed(torch.tensor([0])), [cache.heard], [1])
        cache.free()


def _opening(encoder: Any, frames: int) -> Any:
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


def _late(read: int) -> str:
    fix = "hear everything before the first token, or take a fresh cache"
    return f"a cache that has read {read} tokens is to hear more\n  fix: {fix}" if read else ""


def _refuse(faults: Sequence[str]) -> None:
    if any(faults):
        raise RowsFailed({row: CannotRead(fault) for row, fault in enumerate(faults) if fault})
