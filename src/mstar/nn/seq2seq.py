"""Seq2SeqLM: a transformers encoder-decoder such as Whisper as a component, unmodified.

A request encodes what it has, hears it once, and then goes on as with a `CausalLM`: `next` reads the tokens that a text
begins with (language, task) and gives one after the other. It makes neither mel features nor text, and cuts no long
sound in windows. The network is loaded where an op first runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from mstar.nn.causal_lm import CausalLM
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows
from mstar.walk.component import op
from mstar.walk.states import KV
from mstar.walk.types import Float, Tensor

if TYPE_CHECKING:
    from mstar.nn.heard import HeardKV
    from mstar.nn.listener import Listener


class Seq2SeqLM(CausalLM):
    """An encoder-decoder that `network` loads, with `pages` pages of `page_size` positions for what is heard and read.

    Whisper hears 1500 positions of each 30 seconds, so a request needs some 100 pages of 16. `swap` is as for CausalLM.
    With `window` a token sees itself and the tokens before it up to so many, and older ones give their pages back.
    """

    def __init__(
        self,
        network: Callable[[], Any],
        *,
        end: int,
        pages: int = 1024,
        page_size: int = 16,
        swap: int = 1 << 30,
        window: int | None = None,
    ) -> None:
        super().__init__(network, end=end, pages=pages, page_size=page_size, swap=swap)
        self._how = {"window": window}

    def _decoder_class(self) -> type[Listener]:
        from mstar.nn.listener import Listener

        return Listener

    @property
    def _listener(self) -> Listener:
        return cast("Listener", self.decoder)

    @op(batch=ragged("F"))
    def encode(self, features: Float[Tensor, "M F"], layout: Layout = ONE_ROW) -> Float[Tensor, "P D"]:
        """The encoder's hidden states of a window of sound or the beginning of one, given as its spectrum."""
        return cast("Tensor", self._listener.encode(features, layout.lengths))

    @op(batch=ragged("P"), in_pieces=True)
    def hear(self, states: Float[Tensor, "P D"], kv: KV, layout: Layout = ONE_ROW) -> None:
        """Put hidden states where every token that is read afterwards sees them."""
        self._listener.hear(states, cast("Sequence[HeardKV]", rows(kv)), layout.lengths)
