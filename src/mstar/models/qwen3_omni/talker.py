"""Talker of Qwen3-Omni: reads the thinker's states, and writes the first RVQ code of each speech frame.

The layers are those of transformers. Its input for a frame is the sum of the frame's code embeddings and of the text
embedding for that frame. The other codes come from the predictor, the audio from the vocoder.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Bool, Float, Int64, Layout, Tensor, op, ragged, rows, stacked
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV
    from mstar.nn.lm.mrope import MRopeDecoder, MRopeModel

CODE_SAMPLING = Sampling(max_tokens=4096, temperature=0.9, top_k=50, repetition_penalty=1.05)
"""Sampling parameters of the published model."""
_NON_CODE_TOKENS = 1024
"""Tokens at the end of the vocabulary that are not codes."""


class Talker(CausalLM):
    """Talker network with its code sampling."""

    supported_settings = ()

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, eos_token_id=0)  # the config defines the end code
        self._checkpoint = checkpoint

    @functools.cached_property
    def _modules(self) -> Any:
        return self.on_device(self._checkpoint.network("talker").talker)

    def _load_network(self) -> MRopeModel:
        from mstar.nn.lm.mrope import MRopeModel

        # the predictor reads the hidden states of the last layer
        return MRopeModel(self._modules.model, self._modules.codec_head)

    def _decoder_class(self) -> type[MRopeDecoder]:
        from mstar.models.qwen3_omni.talker_cache import TalkerDecoder

        return TalkerDecoder

    @functools.cached_property
    def _config(self) -> Any:
        return self._checkpoint.config.talker_config

    # ---------------------------------------------------------------- prompt
    @op
    def project_prompt(
        self, tokens: Int64[Tensor, "T"], hidden_states: Float[Tensor, "T D"], positions: Int64[Tensor, "U"]
    ) -> Float[Tensor, "U H"]:
        """Project hidden states at some positions, those of media and those of text by different projections."""
        import torch

        media_tokens = torch.tensor([getattr(self._config, f"{kind}_token_id") for kind in ("audio", "image", "video")])
        is_media = self.on_device(torch.isin(tokens[positions], media_tokens)[:, None])
        return self._project_hidden(hidden_states[positions]).where(
            is_media, self._project_text(hidden_states[positions])
        )

    @op
    def prompt(
        self,
        projected: Float[Tensor, "U H"],
        position_offsets: Float[Tensor, "V 3"],
        opening: Float[Tensor, "3 D"],
        voice: str,
    ) -> Float[Tensor, "V W"]:
        """Build the prompt embeddings: the conversation, the voice, and the first text token."""
        import torch

        config, (pad, start, first) = self._config, self._project_text(opening)
        names = ("nothink", "think_bos", "think_eos")
        control_codes = [*(getattr(config, f"codec_{name}_id") for name in names), config.speaker_id[voice]]
        control_codes += [config.codec_pad_id, config.codec_bos_id]
        embeddings = torch.cat([projected, torch.stack([*[pad] * 4, start, first])])
        embeddings[-len(control_codes) :] += self.decoder.embed(torch.tensor(control_codes))[:, : embeddings.shape[1]]
        return torch.cat([embeddings, position_offsets], 1)

    def _project_text(self, embeddings: Tensor) -> Tensor:
        return self._modules.text_projection(embeddings.to(self._modules.dtype)).float()

    def _project_hidden(self, hidden_states: Tensor) -> Tensor:
        return self._modules.hidden_projection(hidden_states.to(self._modules.dtype)).float()

    # ---------------------------------------------------------------- decoding
    @op(batch=ragged("T"), chunked=True)
    def prefill(
        self, embeddings: Float[Tensor, "T W"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "H"]]:
        """Read the prompt. Returns the first code of the first frame, and its hidden state."""
        return self._next_codes(embeddings, list(cast("Sequence[PagedKV]", rows(kv))), rows(sampling), layout)

    @op(batch=stacked)
    def next_code(
        self,
        code: Int64[Tensor, "1"],
        frame_embedding: Float[Tensor, "H"],
        text: Float[Tensor, "D"],
        kv: KV,
        sampling: Sampling,
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "H"]]:
        """Read a frame and its text embedding. Returns the first code of the next frame, and its hidden state."""
        import torch

        from mstar.nn.staging import to_device

        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        decoder = cast("MRopeDecoder", self.decoder)
        offsets = decoder.position_offsets(caches)
        for cache, token in zip(caches, code[:, 0].tolist(), strict=True):
            cache.sampler.append_tokens([token])
        (columns,) = to_device([[[offset] * 3 for offset in offsets]], decoder.device)
        embeddings = torch.cat([frame_embedding + self._project_text(text), columns.float()], 1)
        chosen = self._next_codes(embeddings, caches, rows(sampling), Layout(len(caches), (1,) * len(caches)))
        decoder.keep_offsets(caches, offsets)
        return chosen

    def _next_codes(
        self, embeddings: Tensor, caches: list[PagedKV], samplings: Sequence[Sampling], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        codes, end = self._config.text_config.vocab_size - _NON_CODE_TOKENS, self._config.codec_eos_token_id
        restricted = [replace(row, allowed_ranges=((0, codes), (end, end + 1))) for row in samplings]
        chosen, _, hidden = self.decoder.next_token_with_hidden(embeddings, caches, restricted, layout)
        if len(hidden) == len(caches) and hidden.device.type != "cpu":
            return chosen, hidden  # indices would be copied to the device
        return chosen, hidden[[end - 1 for end in layout.offsets[1:]]]

    @op(batch=stacked)
    def is_over(self, code: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this code ends the speech."""
        return code[:, 0] == self._config.codec_eos_token_id
