"""Seq2SeqLM: a transformers encoder-decoder such as Whisper as a component, unmodified.

A request encodes what it has, hears it once, and then goes on as with a `CausalLM`: `next_token` reads the tokens that a text
begins with (language, task) and gives one after the other. It makes neither mel features nor text, and cuts no long
sound in windows. The network is loaded where an op first runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar.nn.lm.causal_lm import CausalLM
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Float, Tensor

if TYPE_CHECKING:
    from mstar.nn.kv.cross_attention import CrossAttentionKV
    from mstar.nn.lm.encoder_decoder import EncoderDecoder


class Seq2SeqLM(CausalLM):
    """An encoder-decoder that `network` loads, with `pages` pages of `page_size` positions for what is heard and read.

    Whisper hears 1500 positions of each 30 seconds, so a request needs some 100 pages of 16. `swap_bytes` is as for CausalLM.
    With `window` a token sees itself and the tokens before it up to so many, and older ones give their pages back.
    """

    def __init__(
        self,
        network: Callable[[], Any],
        *,
        eos_token_id: int,
        pages: int = 1024,
        page_size: int = 16,
        swap_bytes: int = 1 << 30,
        window: int | None = None,
    ) -> None:
        super().__init__(network, eos_token_id=eos_token_id, pages=pages, page_size=page_size, swap_bytes=swap_bytes)
        self._decoder_options = {"window": window}

    def _decoder_class(self) -> type[EncoderDecoder]:
        from mstar.nn.lm.encoder_decoder import EncoderDecoder

        return EncoderDecoder

    @property
    def _encoder_decoder(self) -> EncoderDecoder:
        return cast("EncoderDecoder", self.decoder)

    @op(batch=ragged("F"))
    def encode(self, features: Float[Tensor, "M F"], layout: Layout = ONE_ROW) -> Float[Tensor, "P D"]:
        """The encoder's hidden states of a window of sound or the beginning of one, given as its spectrum."""
        return cast("Tensor", self._encoder_decoder.encode(features, layout.lengths))

    @op(batch=ragged("P"), chunked=True)
    def write_encoder_states(self, states: Float[Tensor, "P D"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Put hidden states where every token that is read afterwards sees them."""
        self._encoder_decoder.write_encoder_states(states, cast("Sequence[CrossAttentionKV]", rows(kv)), layout.lengths)
