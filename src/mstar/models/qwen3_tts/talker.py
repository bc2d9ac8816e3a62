"""The talker of Qwen3-TTS: a Qwen3 that reads text and frames of codes as embeddings, and writes first codes.

It reads a frame as the sum of its codes' embeddings and of the text that belongs to it. Its layers are those of
transformers' Qwen3: the three axes of its positions are equal when there is only speech. The other codes of a frame are
the predictor's.
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

_MIN_CODES = 2
"""So many codes it writes before it may end."""
_NON_CODE_TOKENS = 1024
"""So many of its tokens, the last, are not codes."""
_EMBEDDING, _HEAD = "model.codec_embedding.weight", "codec_head.weight"
_TENSOR_NAMES = {_EMBEDDING: "model.embed_tokens.weight", _HEAD: "lm_head.weight"}
"""What the file calls things, and what transformers does."""
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
    """The network, the words that are put to it, and how it chooses codes."""

    def __init__(self, checkpoint: Checkpoint, *, streams_text: bool) -> None:
        super().__init__(self._load_network, eos_token_id=0)  # which code that is, the checkpoint says
        self._checkpoint = checkpoint
        self._streams_text = streams_text

    def _load_network(self) -> Any:
        from transformers import Qwen3Config, Qwen3ForCausalLM

        from mstar.nn.weights.checkpoints import assemble

        shape = self._checkpoint.talker_config
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        sizes += ("num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings")
        turning = {"rope_type": "default", "rope_theta": shape["rope_theta"]}
        config = Qwen3Config(**{name: shape[name] for name in sizes}, rope_parameters=turning)
        tensors = self._checkpoint.talker_tensors
        layers = {name: one for name, one in tensors.items() if name.startswith(("model.layers.", "model.norm."))}
        layers |= {ours: tensors[theirs] for theirs, ours in _TENSOR_NAMES.items()}
        return assemble(Qwen3ForCausalLM, config, layers, None)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return self._checkpoint.tokenizer()

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        super().prepare()
        _ = self._tokenizer

    # ---------------------------------------------------------------- what it reads
    @op
    def prompt(
        self, speech: SpeechRequest
    ) -> tuple[Float[Tensor, "T D"], Float[Tensor, "K D"], int, Float[Tensor, "D"], Int32[Tensor, "V"]]:
        """What it reads before it speaks, and with its frames.

        That is text, so much of it, and what it reads with the frames after. The last is how often it said each code.
        """
        import torch

        config, talker = self._checkpoint.config, self._checkpoint.talker_config
        begin, end, pad = self._embed_text([config[f"tts_{name}_token_id"] for name in ("bos", "eos", "pad")])
        tags = [*self._control_codes(speech), talker["codec_pad_id"], talker["codec_bos_id"]]
        tags = self._checkpoint.talker_tensors[_EMBEDDING][tags]
        role = self._embed_text([config["im_start_token_id"], *self._tokenizer.encode("assistant\n").ids])
        text = self._embed_text(self._tokenizer.encode(speech.text).ids)
        opening = torch.cat([role, torch.stack([*[pad] * (len(tags) - 2), begin]) + tags[:-1]])
        text = torch.cat([text, end[None]])
        if self._streams_text:
            given, text = torch.cat([opening, text[:1] + tags[-1:]]), text[1:]
        else:
            given, text = torch.cat([opening, text + tags[-2:-1], pad[None] + tags[-1:]]), text[:0]
        return given, text, len(text), pad, torch.zeros(talker["vocab_size"], dtype=torch.int32)

    def _control_codes(self, speech: SpeechRequest) -> list[int]:
        """The codes that say in which language and voice to speak."""
        talker, voice = self._checkpoint.talker_config, speech.voice.lower()
        named = speech.language.lower()
        language = LANGUAGES.get(named.partition("-")[0], named)
        languages, voices = talker["codec_language_id"], talker["spk_id"]
        if (voice and voice not in voices) or (language and language not in languages):
            what = f"it has the voices {format_names(voices)} and the languages {format_names(languages)}"
            raise Unsupported(f"{what}\n  fix: ask for one of each, or leave them out")
        if language in ("", "chinese") and talker["spk_is_dialect"].get(voice):
            language = talker["spk_is_dialect"][voice]
        thought = ("think", "think_bos", "think_eos") if language else ("nothink", "think_bos", "think_eos")
        tags = [talker[f"codec_{name}_id"] for name in thought]
        tags[2:2] = [languages[language]] if language else []
        return tags + ([voices[voice]] if voice else [])

    def _embed_text(self, tokens: Sequence[int]) -> Tensor:
        """Tokens of text as embeddings."""
        import torch
        from torch.nn.functional import linear, silu

        parts = self._checkpoint.talker_tensors
        hidden = parts["model.text_embedding.weight"][torch.tensor(tokens, dtype=torch.int64)]
        first, second = (f"text_projection.linear_{name}." for name in ("fc1", "fc2"))
        hidden = silu(linear(hidden, parts[f"{first}weight"], parts[f"{first}bias"]))
        return linear(hidden, parts[f"{second}weight"], parts[f"{second}bias"])

    # ---------------------------------------------------------------- what it writes
    @op(batch=ragged("T"), chunked=True)
    def first_code(
        self,
        embeddings: Float[Tensor, "T D"],
        code_counts: Int32[Tensor, "V"],
        kv: KV,
        sampling: Sampling,
        layout: Layout = ONE_ROW,
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "D"], Int32[Tensor, "V"]]:
        """Read embeddings; the first code of the next frame, the thought behind it, and all codes said with it."""
        import torch
        from torch.nn.functional import linear

        from mstar.nn.lm.sampler import sample_tokens

        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        ends = torch.tensor(layout.offsets[1:])
        with torch.inference_mode():
            thoughts = self.decoder.hidden_states(embeddings, caches, layout)[ends - 1]
            scores = linear(thoughts, self._checkpoint.talker_tensors[_HEAD]).float()
            scores = _apply_repetition_penalty(scores, code_counts, rows(sampling))
        code = torch.zeros((len(caches), 1), dtype=torch.int64)
        if whole := [row for row in range(len(caches)) if row not in layout.unfinished]:
            wishes = [self._restrict_sampling(rows(sampling)[row], int(code_counts[row].sum())) for row in whole]
            code[whole] = sample_tokens(scores[whole], wishes, [caches[row].sampler for row in whole])
        return code, thoughts, code_counts.scatter_add(1, code, torch.ones_like(code, dtype=code_counts.dtype))

    def _restrict_sampling(self, sampling: Sampling, code_count: int) -> Sampling:
        """A wish for what may follow so many codes."""
        codes, end = (
            self._checkpoint.talker_config["vocab_size"] - _NON_CODE_TOKENS,
            self._checkpoint.talker_config["codec_eos_token_id"],
        )
        return replace(
            sampling,
            repetition_penalty=1,
            allowed_ranges=((0, codes), (end, end + 1))[: 1 + (code_count >= _MIN_CODES)],
        )

    @op(batch=stacked)
    def is_over(self, code: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this code ends the speech."""
        return code[:, 0] == self._checkpoint.talker_config["codec_eos_token_id"]


def _apply_repetition_penalty(scores: Tensor, code_counts: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Codes that were said are less likely. A cache reads embeddings, and so it does not know what they were."""
    factor = scores.new_tensor([[wish.repetition_penalty] for wish in samplings])
    return scores.where(code_counts == 0, (scores * factor).where(scores < 0, scores / factor))
