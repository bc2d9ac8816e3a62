"""Backbone of CSM: a Llama that reads the text and the frames, and writes the first code of each frame.

Text tokens have embeddings of their own; the input for a frame is the sum of the embeddings of its codes. The other
codes of a frame come from the depth decoder.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Float, Int64, Layout, Tensor, op, ragged, rows
from mstar.errors import Unsupported
from mstar.models.csm.checkpoint import Checkpoint
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV
    from mstar.nn.native.row_linear import RowLinear

_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_SIZES += ("head_dim", "hidden_act", "rms_norm_eps", "max_position_embeddings", "attention_bias", "mlp_bias")
_SIZES += ("rope_parameters",)
_TEXT_EMBEDDING = "embed_text_tokens.weight"
_HEAD = "lm_head.weight"
_PREFIX = "backbone_model."


class Backbone(CausalLM):
    """Llama with its tokenizer. Only codes that the codec can decode are sampled."""

    supported_settings = ()

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, eos_token_id=0)  # a frame ends the speech, not a code
        self._checkpoint = checkpoint

    def _load_network(self) -> Any:
        from transformers import LlamaConfig, LlamaForCausalLM

        from mstar.nn.weights.checkpoints import assemble

        sizes = {name: getattr(self._checkpoint.config, name) for name in _SIZES}
        # The network reads embeddings only, so the head stands in for the embeddings of its tokens.
        config = LlamaConfig(**sizes, vocab_size=self._checkpoint.code_count, tie_word_embeddings=True)
        layers = self._checkpoint.tensors(f"{_PREFIX}layers.", f"{_PREFIX}norm.")
        named = {f"model.{name.removeprefix(_PREFIX)}": tensor for name, tensor in layers.items()}
        return assemble(LlamaForCausalLM, config, named | {"model.embed_tokens.weight": self._tensors[_HEAD]}, None)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        tokenizer = self._checkpoint.weights.tokenizer()
        tokenizer.encode_special_tokens = True  # user text that looks like a special token stays text
        return tokenizer

    @functools.cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """The embeddings of text, and the head of the codes that the codec has."""
        tensors = self._checkpoint.tensors(_TEXT_EMBEDDING, _HEAD)
        tensors[_HEAD] = tensors[_HEAD][: self._checkpoint.code_count]
        return {name: self.on_device(tensor) for name, tensor in tensors.items()}

    @functools.cached_property
    def _head(self) -> RowLinear:
        from mstar.nn.native.row_linear import RowLinear

        return RowLinear(self._tensors[_HEAD])

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._tokenizer, self._tensors, self._head

    @op
    def prompt(self, text: str, voice: str, sampling: Sampling) -> Float[Tensor, "T D"]:
        """Embeddings of a text in a voice. The tokenizer adds the tokens that start and end it."""
        import torch

        tokens, limit = self._tokenizer.encode(f"[{voice}]{text}").ids, self._checkpoint.config.max_position_embeddings
        if len(tokens) + sampling.max_tokens > limit:
            problem = f"the text has {len(tokens)} tokens, maximum {limit - sampling.max_tokens} before the speech"
            raise Unsupported(f"{problem}\n  fix: split the text into several requests")
        return self._tensors[_TEXT_EMBEDDING][torch.tensor(tokens, device=self.device)]

    @op(batch=ragged("T"), chunked=True)
    def first_code(
        self, embeddings: Float[Tensor, "T D"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "D"]]:
        """Read embeddings. Returns the first code of the next frame, and its hidden state."""
        import torch

        from mstar.nn.lm.sampler import sample_tokens
        from mstar.nn.staging import to_device

        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        ready = [row for row in range(len(caches)) if row not in layout.unfinished]
        with torch.inference_mode():
            hidden = self.decoder.hidden_states(embeddings, caches, layout)
            (ends,) = to_device([[end - 1 for end in layout.offsets[1:]]], hidden.device)
            hidden = hidden[ends]
            scores = self._head(hidden).float()
        code = torch.zeros((len(caches), 1), dtype=torch.int64)
        if ready:
            samplings, samplers = [rows(sampling)[row] for row in ready], [caches[row].sampler for row in ready]
            code[ready] = sample_tokens(scores[ready] if layout.unfinished else scores, samplings, samplers)
        return code, hidden
