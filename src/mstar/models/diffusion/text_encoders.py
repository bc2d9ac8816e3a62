"""Texts as diffusion models are told them: the hidden states of text encoders, with a row for each prompt.

Texts that are new to a batch share a forward, and what was read is kept for who wrote it: many pictures are made of one
prompt, and most requests of an application are guided away from one text. The empty text is everybody's. Prompts are
cut where an encoder ends, as diffusers does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any, cast

from mstar import Component, Float, Tensor, View, op, rows, stacked
from mstar.models.diffusion.checkpoint import Checkpoint
from mstar.nn.encoder import ContentCache, TenantState


class TextEncoder(Component):
    """A text encoder and its tokenizer, which lie in `text_encoder` and `tokenizer` with this ending."""

    OUTPUTS_PER_TEXT = 1
    """So many tensors it has for a text."""
    MAX_TOKENS: int
    """So many tokens of a text it reads."""

    def __init__(self, checkpoint: Checkpoint, suffix: str = "") -> None:
        self._checkpoint = checkpoint
        self._suffix = suffix
        self.cache = ContentCache(256 * 1024 * 1024)

    @functools.cached_property
    def network(self) -> Any:
        """transformers' encoder."""
        return self._checkpoint.encoder(f"text_encoder{self._suffix}")

    @functools.cached_property
    def tokenizer(self) -> Any:
        """transformers' tokenizer."""
        return self._checkpoint.tokenizer(f"tokenizer{self._suffix}")

    def prepare(self) -> None:
        """Load both, and read the empty text."""
        self._encode([[""]], [TenantState()])

    @op(batch=stacked)
    def encode(self, prompts: list[str], owner: View[TenantState]) -> Float[Tensor, "B L D"]:
        """Hidden states of prompts."""
        return cast("Any", self._encode(rows(prompts), rows(owner))[0])

    def _encode(self, prompts: Sequence[list[str]], owners: Sequence[TenantState]) -> list[list[Tensor]]:
        """Each tensor that it has for a text, of each request's prompts, stacked."""
        import torch

        pairs = zip(prompts, owners, strict=True)
        asked = [[(text, owner.tenant if text else "") for text in texts] for texts, owner in pairs]
        keys = {one: [repr((one, number)).encode() for number in range(self.OUTPUTS_PER_TEXT)] for one in chain(*asked)}
        told: dict[Any, Any] = {one: [*map(self.cache.get, found)] for one, found in keys.items()}
        if new := [one for one in told if None in told[one]]:
            with torch.inference_mode():
                read = self._run_network([text for text, _ in new])
            for row, one in enumerate(new):
                told[one] = [each[row].clone() for each in read]
                for key, tensor in zip(keys[one], told[one], strict=True):
                    self.cache.put(key, tensor)
        each = range(self.OUTPUTS_PER_TEXT)
        return [[torch.stack([told[one][number] for one in texts]) for texts in asked] for number in each]

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _tokenize(self, texts: list[str], padding: str | bool = "max_length") -> Any:
        return self.tokenizer(texts, padding=padding, max_length=self.MAX_TOKENS, truncation=True, return_tensors="pt")


class ClipTextEncoder(TextEncoder):
    """CLIP: what the layer before its last says of each token, and one vector of the whole text."""

    OUTPUTS_PER_TEXT, MAX_TOKENS = 2, 77

    @op(batch=stacked)
    def encode_pooled(
        self, prompts: list[str], owner: View[TenantState]
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B P"]]:
        """Both, of prompts."""
        return cast("Any", self._encode(rows(prompts), rows(owner)))

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        read = self.network(self._tokenize(texts).input_ids, output_hidden_states=True)
        return read.hidden_states[-2], read.text_embeds


class T5(TextEncoder):
    """T5, which sees what a prompt is filled up with too, as Stable Diffusion was taught."""

    MAX_TOKENS = 256

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        return (self.network(self._tokenize(texts).input_ids).last_hidden_state,)


class Umt5(TextEncoder):
    """UMT5, which sees a prompt as it is; what follows it is nothing, as Wan was taught."""

    MAX_TOKENS = 512

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean
        from torch.nn.functional import pad

        given = self._tokenize([prompt_clean(text) for text in texts], padding=True)  # to the longest of them
        read = self.network(given.input_ids, given.attention_mask).last_hidden_state * given.attention_mask[..., None]
        return (pad(read, (0, 0, 0, self.MAX_TOKENS - read.shape[1])),)
