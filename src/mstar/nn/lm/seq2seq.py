"""Seq2SeqLM: an unmodified transformers encoder-decoder, such as Whisper, as a component.

A request calls `encode`, then `write_encoder_states` once, then `next_token` as with a `CausalLM`, starting with the
prompt tokens (language, task). It computes no mel features, does not detokenize, and does not split long audio into
windows. The network is loaded by `prepare` or by the first op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar.nn.lm.causal_lm import CausalLM
from mstar.nn.lm.network_loader import Seq2SeqLoader, WeightsChecksum
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Float, Tensor

if TYPE_CHECKING:
    from mstar.nn.kv.cross_attention import CrossAttentionKV
    from mstar.nn.lm.encoder_decoder import EncoderDecoder


class Seq2SeqLM(CausalLM):
    """Encoder-decoder that `network` loads, with a KV cache of `pages` pages for cross-attention and self-attention.

    Whisper has 1500 encoder positions per 30 seconds, so a request needs about 100 pages of 16. `swap_bytes` is as for
    CausalLM. `window` is the size of a sliding window over the tokens; pages outside it are released.
    `weights_checksum` enables the graph cache, as for CausalLM.
    """

    supported_settings = ()
    runs_on_ranks = False

    def __init__(  # noqa: PLR0913 - keyword arguments
        self,
        network: Callable[[], Any],
        *,
        eos_token_id: int,
        pages: int | None = None,
        page_size: int = 16,
        swap_bytes: int = 1 << 30,
        window: int | None = None,
        weights_checksum: WeightsChecksum = None,
    ) -> None:
        super().__init__(network, eos_token_id=eos_token_id, pages=pages, page_size=page_size, swap_bytes=swap_bytes)
        self._loader = Seq2SeqLoader(network, weights_checksum, window)
        self._decoder_options = {"window": window}

    def _decoder_class(self) -> type[EncoderDecoder]:
        from mstar.nn.lm.encoder_decoder import EncoderDecoder

        return EncoderDecoder

    @property
    def _encoder_decoder(self) -> EncoderDecoder:
        return cast("EncoderDecoder", self.decoder)

    @op(batch=ragged("F"))
    def encode(self, features: Float[Tensor, "M F"], layout: Layout = ONE_ROW) -> Float[Tensor, "P D"]:
        """Encoder states of an audio window, or of its beginning, from its spectrogram."""
        return cast("Tensor", self._encoder_decoder.encode(features, layout.lengths))

    @op(batch=ragged("P"), chunked=True)
    def write_encoder_states(self, states: Float[Tensor, "P D"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Write the cross-attention keys and values of encoder states to the KV cache."""
        self._encoder_decoder.write_encoder_states(states, cast("Sequence[CrossAttentionKV]", rows(kv)), layout.lengths)
