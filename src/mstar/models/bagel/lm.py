"""BAGEL language model component: prefill of text and images, decoding, and velocity prediction.

Text uses the ops of every TextLM. `flow` writes no KV, so the calls of one guidance step, and those of other requests,
run in one batch where they share a worker.
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
_PAGES = 4096
_PAGE_SIZE = 16
_SWAP_BYTES = 1 << 30
"""A source image of 1024 x 1024 pixels takes about 9000 positions: ViT tokens and latents."""


class MixtureLM(TextLM):
    """Mixture of transformers with its tokenizer."""

    supported_settings = ()

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
        """The decoder, loaded on first use."""
        return cast("MixtureDecoder", self.decoder)

    @property
    def _image_markers(self) -> Sequence[int]:
        """Marker tokens around an image."""
        return self._checkpoint.special_tokens[2:]

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch."""
        return super().nondeterminism() or "torch computes the attention of all images of a denoising step together"

    @op(batch=ragged("P"), rowwise_on_cpu=True)
    def read_image(self, embeddings: Float[Tensor, "P D"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Prefill the ViT embeddings of an image."""
        self.mixture_decoder.read_image(
            embeddings, _paged_caches(kv), layout.lengths, self._image_markers, is_latent=False
        )

    @op(batch=ragged("N"), rowwise_on_cpu=True)
    def read_latents(self, latents: Float32[Tensor, "N C"], columns: int, kv: KV, layout: Layout = ONE_ROW) -> None:
        """Prefill the VAE latents of an image."""
        embeddings = self.mixture_decoder.embed_latents(
            latents, [0.0] * len(layout.lengths), rows(columns), layout.lengths
        )
        self.mixture_decoder.read_image(
            embeddings, _paged_caches(kv), layout.lengths, self._image_markers, is_latent=True
        )

    @op(batch=ragged("N"))
    def flow(
        self, x: Float32[Tensor, "N C"], time: float, columns: int, kv: View[KV], layout: Layout = ONE_ROW
    ) -> Float32[Tensor, "N C"]:
        """Predict the velocity of latents at a time between 1 and 0. The cache is only read."""
        return self.mixture_decoder.flow(
            x, rows(time), rows(columns), _paged_caches(kv), layout.lengths, self._image_markers
        )

    @op
    def finish(self, last_token: Int64[Tensor, "1"], kv: View[KV], sampling: Sampling) -> Finish:
        """Return the finish reason: `stop` if this token ends the answer, else `length`."""
        return self.make_finish(last_token, kv, sampling, _count_prompt_tokens(kv))

    @op
    def finish_image(self, kv: View[KV]) -> Finish:
        """Return the finish status of an image with the usage of its prompt."""
        return Finish(prompt_tokens=_count_prompt_tokens(kv))


def _count_prompt_tokens(kv: KV) -> dict[str, int]:
    """Count the tokens of a cache that were read, not generated."""
    cache = cast("PagedKV", kv)
    image = sum(len(embeddings) for _, embeddings, _ in cache.embeddings)
    text = cache.table.length - image - len(cache.sampler.generated())
    return {"text": text, "image": image} if image else {"text": text}


def _paged_caches(kv: KV) -> list[PagedKV]:
    return list(cast("Sequence[PagedKV]", rows(kv)))
