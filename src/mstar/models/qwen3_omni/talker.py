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
from mstar.nn.causal_lm import CausalLM
from mstar.nn.sampling import Sampling

if TYPE_CHECKING:
    from mstar.nn.axes import Axes, AxesDecoder
    from mstar.nn.store import PagedKV

CODES = Sampling(max_tokens=4096, temperature=0.9, top_k=50, repetition_penalty=1.05)
"""How its authors choose codes."""
_NO_CODES = 1024
"""So many of its tokens, the last, are not codes."""


class Talker(CausalLM):
    """The network, and how it chooses codes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._network, end=0)  # which code that is, the checkpoint says
        self._checkpoint = checkpoint

    @functools.cached_property
    def _parts(self) -> Any:
        return self._checkpoint.network("talker").talker

    def _network(self) -> Axes:
        from mstar.nn.axes import Axes

        return Axes(self._parts.model, self._parts.codec_head)  # its last hidden states are what the predictor reads

    def _decoder_class(self) -> type[AxesDecoder]:
        from mstar.models.qwen3_omni.spoken import SpeakingDecoder

        return SpeakingDecoder

    @functools.cached_property
    def _config(self) -> Any:
        return self._checkpoint.config.talker_config

    # ---------------------------------------------------------------- what it reads
    @op
    def listen(
        self, tokens: Int64[Tensor, "T"], thoughts: Float[Tensor, "T D"], told: Int64[Tensor, "U"]
    ) -> Float[Tensor, "U H"]:
        """What it makes of the thoughts in some places: of those behind text otherwise than of others."""
        import torch

        shown = torch.tensor([getattr(self._config, f"{kind}_token_id") for kind in ("audio", "image", "video")])
        is_shown = torch.isin(tokens[told], shown)[:, None]
        return self._as_seen(thoughts[told]).where(is_shown, self._as_text(thoughts[told]))

    @op
    def prompt(
        self, listened: Float[Tensor, "U H"], away: Float[Tensor, "V 3"], opening: Float[Tensor, "3 D"], voice: str
    ) -> Float[Tensor, "V W"]:
        """All that it reads before it speaks, as rows: what was said to it, its voice, and the first word."""
        import torch

        config, (none, begin, first) = self._config, self._as_text(opening)
        names = ("nothink", "think_bos", "think_eos")
        tags = [*(getattr(config, f"codec_{name}_id") for name in names), config.speaker_id[voice]]
        tags += [config.codec_pad_id, config.codec_bos_id]
        given = torch.cat([listened, torch.stack([*[none] * 4, begin, first])])
        given[-len(tags) :] += self.decoder.embed(torch.tensor(tags))[:, : given.shape[1]]
        return torch.cat([given, away], 1)

    def _as_text(self, thoughts: Tensor) -> Tensor:
        return self._parts.text_projection(thoughts.to(self._parts.dtype)).float()

    def _as_seen(self, thoughts: Tensor) -> Tensor:
        return self._parts.hidden_projection(thoughts.to(self._parts.dtype)).float()

    # ---------------------------------------------------------------- what it writes
    @op(batch=ragged("T"), in_pieces=True)
    def begin(
        self, given: Float[Tensor, "T W"], kv: KV, sampling: Sampling, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "H"]]:
        """Read a prompt; the first code of the first frame, and the thought behind it."""
        return self._read(given, list(cast("Sequence[PagedKV]", rows(kv))), rows(sampling), layout)

    @op(batch=stacked)
    def speak(
        self,
        code: Int64[Tensor, "1"],
        heard: Float[Tensor, "H"],
        text: Float[Tensor, "D"],
        kv: KV,
        sampling: Sampling,
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "H"]]:
        """Read a frame that begins with this code, and the text that belongs to it; the same for the next frame."""
        import torch

        caches = list(cast("Sequence[PagedKV]", rows(kv)))
        decoder = cast("AxesDecoder", self.decoder)
        away = torch.tensor([[decoder.distance(cache)] * 3 for cache in caches])
        for cache, said in zip(caches, code[:, 0].tolist(), strict=True):
            cache.read([said])
        given = torch.cat([heard + self._as_text(text), away], 1)
        return self._read(given, caches, rows(sampling), Layout(len(caches), (1,) * len(caches)))

    def _read(
        self, given: Tensor, caches: list[PagedKV], wishes: Sequence[Sampling], layout: Layout
    ) -> tuple[Tensor, Tensor]:
        codes, end = self._config.text_config.vocab_size - _NO_CODES, self._config.codec_eos_token_id
        own = [replace(wish, among=((0, codes), (end, end + 1))) for wish in wishes]
        chosen, _, hidden = self.decoder.next_read(given, caches, own, layout)
        return chosen, hidden[[end - 1 for end in layout.offsets[1:]]]

    @op(batch=stacked)
    def is_over(self, code: Int64[Tensor, "1"]) -> Bool[Tensor, ""]:
        """Whether this code ends the speech."""
        return code[:, 0] == self._config.codec_eos_token_id
