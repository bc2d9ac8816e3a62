"""The thinker of Qwen3-Omni: a language model that goes on with a conversation in which things are heard and seen.

Its layers are transformers' own. What was heard or seen stands in its prompt as embeddings. Of what it thinks the
talker is told: the embeddings of text, and the hidden states behind what is heard and seen. It does not speak.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from mstar import KV, ONE_ROW, Float, Int64, Layout, Tensor, View, op, ragged, rows, stacked
from mstar.models.qwen3_omni.checkpoint import Checkpoint
from mstar.nn.lm.text_lm import TextLM
from mstar.requests import Finish, Sampling

if TYPE_CHECKING:
    from mstar.nn.kv.kv_cache import PagedKV
    from mstar.nn.lm.mrope import MRopeDecoder, MRopeModel


class Thinker(TextLM):
    """The language model and its words."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, tokenizer=lambda: checkpoint.tokenizer, eos_token="<|im_end|>")
        self._checkpoint = checkpoint

    def _load_network(self) -> MRopeModel:
        from mstar.nn.lm.mrope import MRopeModel

        thinker, config = self._checkpoint.network("thinker").thinker, self._checkpoint.config
        levels = len(config.thinker_config.vision_config.deepstack_visual_indexes)
        layer = config.talker_config.accept_hidden_layer
        return MRopeModel(thinker.model.language_model, thinker.lm_head, levels=levels, layer=layer)

    def _decoder_class(self) -> type[MRopeDecoder]:
        from mstar.nn.lm.mrope import MRopeDecoder

        return MRopeDecoder

    @functools.cached_property
    def _hidden_size(self) -> int:
        return self._checkpoint.config.thinker_config.text_config.hidden_size

    def _is_kind(self, tokens: Tensor, *kinds: str) -> Tensor:
        import torch

        thinker = self._checkpoint.config.thinker_config
        return torch.isin(tokens, torch.tensor([getattr(thinker, f"{kind}_token_id") for kind in kinds]))

    # ---------------------------------------------------------------- what it reads
    @op
    def merge_embeddings(
        self,
        tokens: Int64[Tensor, "T"],
        position_offsets: Float[Tensor, "T 3"],
        audio_embeddings: list[Float[Tensor, "P D"]],
        vision_embeddings: list[Float[Tensor, "S E"]],
    ) -> Float[Tensor, "T W"]:
        """A prompt as rows, with what was heard and seen in its places."""
        import torch

        size, given = self._hidden_size, self.decoder.embed(tokens)
        given[:, size : size + 3] = position_offsets
        if audio_embeddings:
            given[self._is_kind(tokens, "audio"), :size] = torch.cat(audio_embeddings).float()
        if vision_embeddings:
            shown, places = torch.cat(vision_embeddings).float(), self._is_kind(tokens, "image", "video")
            given[places] = torch.cat([shown[:, :size], given[places, size : size + 3], shown[:, size:]], 1)
        return given

    @op(batch=ragged("T"), chunked=True)
    def prefill(
        self,
        tokens: Int64[Tensor, "T"],
        embeddings: Float[Tensor, "T W"],
        kv: KV,
        sampling: Sampling,
        layout: Layout = ONE_ROW,
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "T D"]]:
        """Read a prompt; the token that follows it, and what the talker is told of each place.

        Text before which nothing was heard or seen is read as tokens, so that requests share what they have in common.
        """
        caches, thoughts = list(cast("Sequence[PagedKV]", rows(kv))), embeddings[:, : self._hidden_size].clone()
        is_shown = self._is_kind(tokens, "audio", "image", "video")
        is_text = [
            not cache.embeddings and not any(part.tolist())
            for cache, part in zip(caches, is_shown.split(layout.lengths), strict=True)
        ]
        chosen = tokens.new_zeros((len(caches), 1))
        for source in (tokens, embeddings):
            group = [row for row, one in enumerate(is_text) if one is (source is tokens)]
            if not group:
                continue
            own = _select_rows(group, layout)
            places = [place for row in group for place in range(*layout.offsets[row : row + 2])]
            read = (source[places], [caches[row] for row in group], [rows(sampling)[row] for row in group], own)
            chosen[group], _, hidden = self.decoder.next_token_with_hidden(*read)
            if source is embeddings:
                thoughts[places] = hidden.float().where(is_shown[places][:, None], thoughts[places])
        return chosen, thoughts

    # ---------------------------------------------------------------- what the talker is told of the answer
    @op
    def opening_embeddings(self, first_token: Int64[Tensor, "1"]) -> Float[Tensor, "3 D"]:
        """What it is told where there is no text, where text begins, and of the first token."""
        config = self._checkpoint.config
        return self._embed_for_talker([config.tts_pad_token_id, config.tts_bos_token_id, int(first_token)])

    @op(batch=stacked)
    def talker_embedding(
        self, next_token: Int64[Tensor, "1"], step: int, kv: View[KV], sampling: Sampling
    ) -> Float[Tensor, "D"]:
        """What it is told after the token numbered `step`: the next one, or that the text ends."""
        last = [number == wish.max_tokens - 1 for number, wish in zip(rows(step), rows(sampling), strict=True)]
        columns = zip(next_token[:, 0].tolist(), rows(kv), rows(sampling), last, strict=True)
        ends = self._checkpoint.config.tts_eos_token_id
        return self._embed_for_talker(
            [ends if is_last or self.is_finished(token, own, wish) else token for token, own, wish, is_last in columns]
        )

    def _embed_for_talker(self, tokens: Sequence[int]) -> Tensor:
        import torch

        return self.decoder.embed(torch.tensor(tokens))[:, : self._hidden_size]

    # ---------------------------------------------------------------- how it ends
    @op
    def finish(
        self, tokens: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling
    ) -> Finish:
        """How an answer ended that would have gone on with this token."""
        reads = {name: int(self._is_kind(tokens, *kinds).sum()) for name, kinds in _TOKEN_KINDS.items()}
        reads = {"text": len(tokens) - sum(reads.values())} | {name: count for name, count in reads.items() if count}
        return Finish("stop" if self.is_finished(int(last_token), kv, sampling) else "length", reads)


_TOKEN_KINDS = {"audio": ("audio",), "image": ("image", "video")}


def _select_rows(row_indices: Sequence[int], layout: Layout) -> Layout:
    """The layout of some rows."""
    unfinished = frozenset(number for number, row in enumerate(row_indices) if row in layout.unfinished)
    return Layout(len(row_indices), tuple(layout.lengths[row] for row in row_indices), unfinished)
