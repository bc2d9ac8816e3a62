"""The talker of Qwen3-Omni: reads what the thinker thinks, and writes the first code of each frame of speech.

Its layers are transformers' own. It reads a frame as the sum of its codes' embeddings and of the text that belongs to
it. The other codes of a frame are the predictor's, and what they sound like is the vocoder's.
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
"""How its authors choose codes."""
_NON_CODE_TOKENS = 1024
"""So many of its tokens, the last, are not codes."""


class Talker(CausalLM):
    """The network, and how it chooses codes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, eos_token_id=0)  # which code that is, the checkpoint says
        self._checkpoint = checkpoint

    @functools.cached_property
    def _modules(self) -> Any:
        return self._checkpoint.network("talker").talker

    def _load_network(self) -> MRopeModel:
        from mstar.nn.lm.mrope import MRopeModel

        return MRopeModel(
            self._modules.model, self._modules.codec_head
        )  # its last hidden states are what the predictor reads

    def _decoder_class(self) -> type[MRopeDecoder]:
        from mstar.models.qwen3_omni.talker_cache import TalkerDecoder

        return TalkerDecoder

    @functools.cached_property
    def _config(self) -> Any:
        return self._checkpoint.config.talker_config

    # ---------------------------------------------------------------- what it reads
    @op
    def project_prompt(
        self, tokens: Int64[Tensor, "T"], hidden_states: Float[Tensor, "T D"], positions: Int64[Tensor, "U"]
    ) -> Float[Tensor, "U H"]:
        """What it makes of the thoughts in some places: of those behind text otherwise than of others."""
        import torch

        shown = torch.tensor([getattr(self._config, f"{kind}_token_id") for kind in ("audio", "image", "video")])
        is_shown = torch.isin(tokens[positions], shown)[:, None]
        return self._project_hidden(hidden_states[positions]).where(
            is_shown, self._project_text(hidden_states[positions])
        )

    @op
    def prompt(
        self,
        projected: Float[Tensor, "U H"],
        position_offsets: Float[Tensor, "V 3"],
        opening: Float[Tensor, "3 D"],
        voice: str,
    ) -> Float[Tensor, "V W"]:
        """All that it reads before it speaks, as rows: what was said to it, its voice, and the first word."""
        import torch

        config, (none, begin, first) = self._config, self._project_text(opening)
        names = ("nothink", "think_bos", "think_eos")
        tags = [*(getattr(config, f"codec_{name}_id") for name in names), config.speaker_id[voice]]
        tags += [config.codec_pad_id, config.codec_bos_id]
        given = torch.cat([projected, torch.stack([*[none] * 4, begin, first])])
        given[-len(tags) :] += self.decoder.embed(torch.tensor(tags))[:, : given.shape[1]]
        return torch.cat([given, position_offsets], 1)

    def _project_text(self, embeddings: Tensor) -> Tensor:
        return self._modules.text_projection(embeddings.to(self._modules.dtype)).float()

    def _project_hidden(self, hidden_states: Tensor) -> Tensor:
        return self._modules.hidden_projection(hidden_states.to(self._modules.dtype)).float()

    # ---------------------------------------------------------------- what it writes
    @op(batch=ragged("T"), chunked=True)
    def prefill(
        self, embeddings: Float[Tensor, "T W"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "H"]]:
        """Read a prompt; the first code of the first frame, and the thought behind it."""
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
        """Read a frame that begins with this code, and the text that belongs to it; the same for the next frame."""
        import torch

        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        decoder = cast("MRopeDecoder", self.decoder)
        away = torch.tensor([[decoder.position_offset(cache)] * 3 for cache in caches])
        for cache, said in zip(caches, code[:, 0].tolist(), strict=True):
            cache.append_tokens([said])
        given = torch.cat([frame_embedding + self._project_text(text), away], 1)
        return self._next_codes(given, caches, rows(sampling), Layout(len(caches), (1,) * len(caches)))

    def _next_codes(
        self, embeddings: Tensor, caches: list[PagedKV], samplings: Sequence[Sampling], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        codes, end = self._config.text_config.vocab_size - _NON_CODE_TOKENS, self._config.codec_eos_token_id
        own = [replace(wish, allowed_ranges=((0, codes), (end, end + 1))) for wish in samplings]
        chosen, _, hidden = self.decoder.next_token_with_hidden(embeddings, caches, own, layout)
        return chosen, hidden[[end - 1 for end in layout.offsets[1:]]]

    @op(batch=stacked)
    def is_over(self, code: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this code ends the speech."""
        return code[:, 0] == self._config.codec_eos_token_id
