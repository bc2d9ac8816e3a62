"""Talker of Qwen3-TTS: a Qwen3 that reads text and code embeddings, and writes the first RVQ code of each frame.

Its input for a frame is the sum of the frame's code embeddings and of a text embedding. The layers are the Qwen3 of
transformers: without media, all three M-RoPE axes are equal. The other codes come from the predictor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Bool, Float, Int32, Int64, Layout, Tensor, op, ragged, rows, stacked
from mstar.errors import Unsupported, format_names
from mstar.models.qwen3_tts.checkpoint import Checkpoint
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling, SpeechRequest

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV
    from mstar.nn.native.row_linear import RowLinear

_MIN_CODES = 2
"""Minimum codes before the end code is allowed."""
_NON_CODE_TOKENS = 1024
"""Tokens at the end of the vocabulary that are not codes."""
_EMBEDDING = "model.codec_embedding.weight"
_HEAD = "codec_head.weight"
_OWN_TENSORS = (_EMBEDDING, _HEAD, "model.text_embedding.", "text_projection.")
_TENSOR_NAMES = {_EMBEDDING: "model.embed_tokens.weight", _HEAD: "lm_head.weight"}
"""Published tensor names to transformers tensor names."""
LANGUAGES = {
    "zh": "chinese",
    "en": "english",
    "ja": "japanese",
    "ko": "korean",
    "de": "german",
    "fr": "french",
    "ru": "russian",
    "pt": "portuguese",
    "es": "spanish",
    "it": "italian",
}


class Talker(CausalLM):
    """Talker network, prompt template and code sampling."""

    supported_settings = ()

    def __init__(self, checkpoint: Checkpoint, *, streams_text: bool) -> None:
        super().__init__(self._load_network, eos_token_id=0)  # the config defines the end code
        self._checkpoint = checkpoint
        self._streams_text = streams_text

    def _load_network(self) -> Any:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from mstar.nn.weights.checkpoints import assemble

        settings = self._checkpoint.talker_config
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        sizes += ("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings")
        rope = {"rope_type": "default", "rope_theta": settings["rope_theta"]}
        config = Qwen3Config(**{name: settings[name] for name in sizes}, rope_parameters=rope)
        tensors = self._checkpoint.talker_tensors
        layers = {name: tensor for name, tensor in tensors.items() if name.startswith(("model.layers.", "model.norm."))}
        layers |= {name: tensors[published] for published, name in _TENSOR_NAMES.items()}
        return assemble(Qwen3ForCausalLM, config, layers, None)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    @functools.cached_property
    def _tensors(self) -> dict[str, Tensor]:
        """The embeddings of codes and text, the projection of text, and the head."""
        tensors = self._checkpoint.talker_tensors.items()
        return {name: self.on_device(tensor) for name, tensor in tensors if name.startswith(_OWN_TENSORS)}

    @functools.cached_property
    def _head(self) -> RowLinear:
        from mstar.nn.native.row_linear import RowLinear

        return RowLinear(self._tensors[_HEAD])

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._tokenizer, self._tensors, self._head

    # ---------------------------------------------------------------- prompt
    @op
    def prompt(
        self, speech: SpeechRequest
    ) -> tuple[Float[Tensor, "T D"], Float[Tensor, "K D"], int, Float[Tensor, "D"], Int32[Tensor, "V"]]:
        """Return the prompt embeddings, the text embeddings to read with the frames, their number, the padding
        embedding for the frames after, and a zero counter per code.
        """
        import torch

        config, talker = self._checkpoint.config, self._checkpoint.talker_config
        start, end, pad = self._embed_text([config[f"tts_{name}_token_id"] for name in ("bos", "eos", "pad")])
        control_codes = [*self._control_codes(speech), talker["codec_pad_id"], talker["codec_bos_id"]]
        controls = self._tensors[_EMBEDDING][control_codes]
        role = self._embed_text([config["im_start_token_id"], *self._tokenizer.encode("assistant\n").ids])
        text = self._embed_text(self._tokenizer.encode(speech.text).ids)
        opening = torch.cat([role, torch.stack([*[pad] * (len(controls) - 2), start]) + controls[:-1]])
        text = torch.cat([text, end[None]])
        if self._streams_text:
            prompt, text = torch.cat([opening, text[:1] + controls[-1:]]), text[1:]
        else:
            prompt, text = torch.cat([opening, text + controls[-2:-1], pad[None] + controls[-1:]]), text[:0]
        return prompt, text, len(text), pad, torch.zeros(talker["vocab_size"], dtype=torch.int32)

    def _control_codes(self, speech: SpeechRequest) -> list[int]:
        """Return the codes that select the language and the voice."""
        talker, voice = self._checkpoint.talker_config, speech.voice.lower()
        named = speech.language.lower()
        language = LANGUAGES.get(named.partition("-")[0], named)
        languages, voices = talker["codec_language_id"], talker["spk_id"]
        if (voice and voice not in voices) or (language and language not in languages):
            unknown = speech.voice if voice and voice not in voices else speech.language
            known = f"the voices {format_names(voices)} and the languages {format_names(languages)}"
            raise Unsupported(f"unknown {unknown}, available are {known}\n  fix: use one of each, or leave them out")
        if language in ("", "chinese") and talker["spk_is_dialect"].get(voice):
            language = talker["spk_is_dialect"][voice]
        names = ("think", "think_bos", "think_eos") if language else ("nothink", "think_bos", "think_eos")
        codes = [talker[f"codec_{name}_id"] for name in names]
        codes[2:2] = [languages[language]] if language else []
        return codes + ([voices[voice]] if voice else [])

    def _embed_text(self, tokens: Sequence[int]) -> Tensor:
        """Embed and project text tokens."""
        import torch
        from torch.nn.functional import linear, silu

        tensors = self._tensors
        hidden = tensors["model.text_embedding.weight"][torch.tensor(tokens, dtype=torch.int64, device=self.device)]
        first, second = (f"text_projection.linear_{name}." for name in ("fc1", "fc2"))
        hidden = silu(linear(hidden, tensors[f"{first}weight"], tensors[f"{first}bias"]))
        return linear(hidden, tensors[f"{second}weight"], tensors[f"{second}bias"])

    # ---------------------------------------------------------------- decoding
    @op(batch=ragged("T"), chunked=True)
    def first_code(
        self,
        embeddings: Float[Tensor, "T D"],
        code_counts: Int32[Tensor, "V"],
        kv: KV,
        sampling: Sampling,
        layout: Layout = ONE_ROW,
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "D"], Int32[Tensor, "V"]]:
        """Read embeddings. Returns the first code of the next frame, its hidden state, and the updated code counts."""
        import torch

        from mstar.nn.lm.sampler import sample_tokens
        from mstar.nn.staging import to_device

        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        ready = [row for row in range(len(caches)) if row not in layout.unfinished]
        last = [end - 1 for end in layout.offsets[1:]]
        penalties = [[float(row.repetition_penalty)] for row in rows(sampling)]
        with torch.inference_mode():
            hidden = self.decoder.hidden_states(embeddings, caches, layout)
            arrays = [last, penalties, (code_counts != 0).long()]
            ends, factors, has_code = to_device(arrays, hidden.device)
            hidden = hidden[ends]
            scores = self._head(hidden).float()
            scores = _apply_repetition_penalty(scores, has_code.bool(), factors.to(scores.dtype))
        code = torch.zeros((len(caches), 1), dtype=torch.int64)
        if ready:
            samplings = [self._restrict_sampling(rows(sampling)[row], int(code_counts[row].sum())) for row in ready]
            ready_scores = scores[ready] if layout.unfinished else scores
            code[ready] = sample_tokens(ready_scores, samplings, [caches[row].sampler for row in ready])
        return code, hidden, code_counts.scatter_add(1, code, torch.ones_like(code, dtype=code_counts.dtype))

    def _restrict_sampling(self, sampling: Sampling, code_count: int) -> Sampling:
        """Allow only codes and, after the minimum length, the end code."""
        talker = self._checkpoint.talker_config
        codes, end = talker["vocab_size"] - _NON_CODE_TOKENS, talker["codec_eos_token_id"]
        allowed = ((0, codes), (end, end + 1)) if code_count >= _MIN_CODES else ((0, codes),)
        return replace(sampling, repetition_penalty=1, allowed_ranges=allowed)

    @op(batch=stacked)
    def is_over(self, code: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this code ends the speech."""
        return code[:, 0] == self._checkpoint.talker_config["codec_eos_token_id"]


def _apply_repetition_penalty(scores: Tensor, has_code: Tensor, factors: Tensor) -> Tensor:
    """Penalize repeated codes here, because the cache reads embeddings and does not know the codes."""
    return (scores * factors).where(scores < 0, scores / factors).where(has_code, scores)
