"""Text encoders of diffusion models (CLIP, T5, UMT5), with a per-tenant embedding cache.

New texts of a batch share a forward pass, except on a CPU. Embeddings are cached per tenant, because many images share
a prompt and most requests of an application share a negative prompt. The empty text is shared by all tenants. Prompts
are truncated to the maximum length of the encoder, as in diffusers.
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
    """Text encoder and tokenizer, from the parts `text_encoder` and `tokenizer` with this suffix."""

    runs_on_device = True
    OUTPUTS_PER_TEXT = 1
    """Number of output tensors per text."""
    MAX_TOKENS: int
    """Maximum tokens of a text."""

    def __init__(self, checkpoint: Checkpoint, suffix: str = "") -> None:
        self._checkpoint = checkpoint
        self._suffix = suffix
        self.cache = ContentCache(256 * 1024 * 1024)

    @functools.cached_property
    def network(self) -> Any:
        """The transformers encoder, loaded on first use on the device of the component."""
        return self.on_device(self._checkpoint.encoder(f"text_encoder{self._suffix}"))

    @functools.cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer, loaded on first use."""
        return self._checkpoint.tokenizer(f"tokenizer{self._suffix}")

    def prepare(self) -> None:
        """Load both, and encode the empty text."""
        self._encode([[""]], [TenantState()])

    @op(batch=stacked)
    def encode(self, prompts: list[str], owner: View[TenantState]) -> Float[Tensor, "B L D"]:
        """Return the hidden states of the prompts."""
        return cast("Any", self._encode(rows(prompts), rows(owner))[0])

    def _encode(self, prompts: Sequence[list[str]], owners: Sequence[TenantState]) -> list[list[Tensor]]:
        """Return each output tensor, stacked over the prompts of each request. Cached texts are not encoded again."""
        import torch

        pairs = zip(prompts, owners, strict=True)
        texts_by_row = [[(text, owner.tenant if text else "") for text in texts] for texts, owner in pairs]
        outputs = range(self.OUTPUTS_PER_TEXT)
        keys = {text: [repr((text, output)).encode() for output in outputs] for text in chain(*texts_by_row)}
        encoded: dict[Any, Any] = {text: [*map(self.cache.get, text_keys)] for text, text_keys in keys.items()}
        if missing := [text for text in encoded if None in encoded[text]]:
            # One by one on a CPU: which texts are missing depends on earlier requests, and last bits on their number.
            for batch in [[text] for text in missing] if self.is_on_cpu else [missing]:
                with torch.inference_mode():
                    tensors = self._run_network([text for text, _ in batch])
                for row, text in enumerate(batch):
                    encoded[text] = [tensor[row].clone() for tensor in tensors]
                    for key, tensor in zip(keys[text], encoded[text], strict=True):
                        self.cache.put(key, tensor)
        return [
            [torch.stack([encoded[text][output] for text in texts]) for texts in texts_by_row] for output in outputs
        ]

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        raise NotImplementedError

    def _tokenize(self, texts: list[str], padding: str | bool = "max_length") -> Any:
        options = {"max_length": self.MAX_TOKENS, "truncation": True, "return_tensors": "pt"}
        return self.tokenizer(texts, padding=padding, **options).to(self.network.device)


class ClipTextEncoder(TextEncoder):
    """CLIP: hidden states of the second-to-last layer, and the pooled embedding."""

    OUTPUTS_PER_TEXT = 2
    MAX_TOKENS = 77

    @op(batch=stacked)
    def encode_pooled(
        self, prompts: list[str], owner: View[TenantState]
    ) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B P"]]:
        """Return the hidden states and the pooled embeddings of the prompts."""
        return cast("Any", self._encode(rows(prompts), rows(owner)))

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        output = self.network(self._tokenize(texts).input_ids, output_hidden_states=True)
        return output.hidden_states[-2], output.text_embeds


class PooledClip(TextEncoder):
    """CLIP without a projection: the pooled embedding."""

    MAX_TOKENS = 77

    @op(batch=stacked)
    def encode_pooled(self, prompts: list[str], owner: View[TenantState]) -> Float[Tensor, "B P"]:
        """Return the pooled embeddings of the prompts."""
        return cast("Any", self._encode(rows(prompts), rows(owner))[0])

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        return (self.network(self._tokenize(texts).input_ids).pooler_output,)


class T5(TextEncoder):
    """T5 without a padding mask, as Stable Diffusion 3 was trained."""

    MAX_TOKENS = 256

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        return (self.network(self._tokenize(texts).input_ids).last_hidden_state,)


class LongT5(T5):
    """The same for longer prompts, as FLUX was trained."""

    MAX_TOKENS = 512


class MaskedT5(TextEncoder):
    """T5 without a padding mask, and zeros after the prompt, which LTX-Video masks in its denoiser."""

    MAX_TOKENS = 128

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        batch = self._tokenize(texts)
        return (self.network(batch.input_ids).last_hidden_state * batch.attention_mask[..., None],)


class Umt5(TextEncoder):
    """UMT5 with a padding mask, and zeros after the prompt, as Wan was trained."""

    MAX_TOKENS = 512

    def _run_network(self, texts: list[str]) -> tuple[Tensor, ...]:
        from diffusers.pipelines.wan.pipeline_wan import prompt_clean
        from torch.nn.functional import pad

        batch = self._tokenize([prompt_clean(text) for text in texts], padding=True)  # to the longest text of the batch
        hidden = self.network(batch.input_ids, batch.attention_mask).last_hidden_state * batch.attention_mask[..., None]
        return (pad(hidden, (0, 0, 0, self.MAX_TOKENS - hidden.shape[1])),)
