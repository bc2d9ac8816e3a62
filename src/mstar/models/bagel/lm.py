"""The language model of BAGEL as a component: reads texts and pictures, writes, and says where latents should go.

Prompts and answers are `read` and `next` of every language model. `flow` extends nothing, so its calls under several
contexts run side by side: of one request or of many, in one forward where they share a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar import KV, ONE_ROW, Float, Float32, Int64, Layout, Tensor, View, op, ragged, rows
from mstar.models.bagel.checkpoint import MIXTURE_FILE, Checkpoint
from mstar.nn.lm.text_lm import TextLM
from mstar.requests import Finish, Sampling

if TYPE_CHECKING:
    from mstar.models.bagel.decoder import MixtureDecoder
    from mstar.nn.kv.kv_cache import PagedKV

_TENSOR_PREFIXES = ("language_model.", "vae2llm.", "llm2vae.", "time_embedder.", "latent_pos_embed.")
_PAGES, _PAGE_SIZE, _SWAP_BYTES = 4096, 16, 1 << 30
"""A picture of a thousand pixels on each side takes nine thousand positions, as it is seen and as it is drawn."""


class MixtureLM(TextLM):
    """The language model and its words."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(self._load_network, tokenizer=lambda: checkpoint.tokenizer, eos_token="<|im_end|>")
        self._checkpoint, self._sizes = checkpoint, (_PAGES, _PAGE_SIZE, _SWAP_BYTES)

    def _load_network(self) -> Any:
        from transformers import Qwen2Config

        from mstar.models.bagel.mixture import load_mixture

        config = Qwen2Config.from_dict(self._checkpoint.read_config("llm_config.json"))
        return load_mixture(config, self._checkpoint.sizes, self._checkpoint.tensors(MIXTURE_FILE, *_TENSOR_PREFIXES))

    def _decoder_class(self) -> type[MixtureDecoder]:
        from mstar.models.bagel.decoder import MixtureDecoder

        return MixtureDecoder

    @property
    def mixture_decoder(self) -> MixtureDecoder:
        """The network, loaded, and the memory of all requests."""
        return cast("MixtureDecoder", self.decoder)

    @property
    def _image_markers(self) -> Sequence[int]:
        """The tokens that stand around a picture."""
        return self._checkpoint.special_tokens[2:]

    @op(batch=ragged("P"))
    def read_image(self, embeddings: Float[Tensor, "P D"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Read what the eye saw of a picture."""
        self.mixture_decoder.read_image(
            embeddings, _paged_caches(kv), layout.lengths, self._image_markers, is_latent=False
        )

    @op(batch=ragged("N"))
    def read_latents(self, latents: Float32[Tensor, "N C"], columns: int, kv: KV, layout: Layout = ONE_ROW) -> None:
        """Read a picture as it would have been drawn."""
        given = self.mixture_decoder.embed_latents(latents, [0.0] * len(layout.lengths), rows(columns), layout.lengths)
        self.mixture_decoder.read_image(given, _paged_caches(kv), layout.lengths, self._image_markers, is_latent=True)

    @op(batch=ragged("N"))
    def flow(
        self, x: Float32[Tensor, "N C"], time: float, columns: int, kv: View[KV], layout: Layout = ONE_ROW
    ) -> Float32[Tensor, "N C"]:
        """Where what is drawn should go at a moment between 1 and 0, given what was read. The cache stays as it is."""
        return self.mixture_decoder.flow(
            x, rows(time), rows(columns), _paged_caches(kv), layout.lengths, self._image_markers
        )

    @op
    def finish(self, last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Finish:
        """How an answer ended that would have gone on with this token."""
        return Finish("stop" if self.is_finished(int(last_token), kv, sampling) else "length", _count_prompt_tokens(kv))

    @op
    def finish_image(self, kv: View[KV]) -> Finish:
        """How a picture ended, of which this is the prompt."""
        return Finish(prompt_tokens=_count_prompt_tokens(kv))


def _count_prompt_tokens(kv: KV) -> dict[str, int]:
    """How many tokens a cache has read that it did not write."""
    cache = cast("PagedKV", kv)
    image = sum(len(one[1]) for one in cache.embeddings)
    text = cache.table.length - image - len(cache.sampler.generated())
    return {"text": text, "image": image} if image else {"text": text}


def _paged_caches(kv: KV) -> list[PagedKV]:
    return list(cast("Sequence[PagedKV]", rows(kv)))
