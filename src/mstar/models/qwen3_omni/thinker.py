"""Thinker of Qwen3-Omni: the mixture-of-experts language model that reads text, audio, images and video.

The layers are those of transformers. Media are embeddings in its prompt. It also produces the inputs of the talker:
embeddings of text tokens, and hidden states of media tokens.
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
    """Language model with its tokenizer."""

    supported_settings = ()

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

    # ---------------------------------------------------------------- prompt
    @op
    def merge_embeddings(
        self,
        tokens: Int64[Tensor, "T"],
        position_offsets: Float[Tensor, "T 3"],
        audio_embeddings: list[Float[Tensor, "P D"]],
        vision_embeddings: list[Float[Tensor, "S E"]],
    ) -> Float[Tensor, "T W"]:
        """Embed a prompt, with media embeddings at their placeholder tokens."""
        import torch

        size, embeddings = self._hidden_size, self.decoder.embed(tokens)
        embeddings[:, size : size + 3] = position_offsets
        if audio_embeddings:
            audio = torch.cat([self.on_device(part) for part in audio_embeddings]).float()
            embeddings[self._is_kind(tokens, "audio"), :size] = audio
        if vision_embeddings:
            vision = torch.cat([self.on_device(part) for part in vision_embeddings]).float()
            positions = self._is_kind(tokens, "image", "video")
            embeddings[positions] = torch.cat(
                [vision[:, :size], embeddings[positions, size : size + 3], vision[:, size:]], 1
            )
        return embeddings

    @op(batch=ragged("T"), chunked=True)
    def prefill(
        self,
        tokens: Int64[Tensor, "T"],
        embeddings: Float[Tensor, "T W"],
        kv: KV,
        sampling: Sampling,
        layout: Layout = ONE_ROW,
    ) -> tuple[Int64[Tensor, "1"], Float[Tensor, "T D"]]:
        """Read the prompt. Returns the next token, and the talker input of each position.

        Text before the first media token is read as tokens, so that requests share its prefix cache.
        """
        caches, talker_inputs = list(cast("Sequence[PagedKV]", rows(kv))), embeddings[:, : self._hidden_size].clone()
        is_media = self._is_kind(tokens, "audio", "image", "video")
        is_text = [
            not cache.embeddings and not any(part.tolist())
            for cache, part in zip(caches, is_media.split(layout.lengths), strict=True)
        ]
        chosen = tokens.new_zeros((len(caches), 1))
        for source in (tokens, embeddings):
            group = [row for row, is_text_row in enumerate(is_text) if is_text_row is (source is tokens)]
            if not group:
                continue
            positions = [position for row in group for position in range(*layout.offsets[row : row + 2])]
            chosen[group], _, hidden = self.decoder.next_token_with_hidden(
                source[positions],
                [caches[row] for row in group],
                [rows(sampling)[row] for row in group],
                _select_rows(group, layout),
            )
            if source is embeddings:
                is_hidden = self.on_device(is_media[positions][:, None])
                talker_inputs[positions] = hidden.float().where(is_hidden, talker_inputs[positions])
        return chosen, talker_inputs

    # ---------------------------------------------------------------- inputs of the talker
    @op
    def opening_embeddings(self, first_token: Int64[Tensor, "1"]) -> Float[Tensor, "3 D"]:
        """Embed the padding token, the start of the text, and the first token."""
        config = self._checkpoint.config
        return self._embed_for_talker([config.tts_pad_token_id, config.tts_bos_token_id, int(first_token)])

    @op(batch=stacked)
    def talker_embedding(
        self, next_token: Int64[Tensor, "1"], step: int, kv: View[KV], sampling: Sampling
    ) -> Float[Tensor, "D"]:
        """Embed the token after step `step`, or the end of the text."""
        last = [index == row.max_tokens - 1 for index, row in zip(rows(step), rows(sampling), strict=True)]
        columns = zip(next_token[:, 0].tolist(), rows(kv), rows(sampling), last, strict=True)
        end = self._checkpoint.config.tts_eos_token_id
        return self._embed_for_talker(
            [end if is_last or self.is_finished(token, cache, row) else token for token, cache, row, is_last in columns]
        )

    def _embed_for_talker(self, tokens: Sequence[int]) -> Tensor:
        from mstar.nn.staging import to_device

        return self.decoder.embed(to_device([tokens], self.decoder.device)[0])[:, : self._hidden_size]

    # ---------------------------------------------------------------- finish
    @op
    def finish(
        self, tokens: Int64[Tensor, "T"], last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling
    ) -> Finish:
        """Return the finish reason, and the prompt tokens by modality."""
        counts = {name: int(self._is_kind(tokens, *kinds).sum()) for name, kinds in _TOKEN_KINDS.items()}
        counts = {"text": len(tokens) - sum(counts.values())} | {name: count for name, count in counts.items() if count}
        return self.make_finish(last_token, kv, sampling, counts)


_TOKEN_KINDS = {"audio": ("audio",), "image": ("image", "video")}


def _select_rows(row_indices: Sequence[int], layout: Layout) -> Layout:
    """Return the layout of a subset of rows."""
    unfinished = frozenset(index for index, row in enumerate(row_indices) if row in layout.unfinished)
    return Layout(len(row_indices), tuple(layout.lengths[row] for row in row_indices), unfinished)
