"""Codec: a library's audio decoder as a component, for sound that is heard while its codes are still being written.

There are two ways. `decode` continues a stream: the layers of a causal decoder remember the last of what they were
given, so pieces of any size give what the whole gives, and nothing is computed twice. `decode_window` remembers
nothing, and decodes the frames around a window's sound again with each. That is the way for decoders that look ahead,
and it gives what the whole gives if a window holds all that they look at. Sound is not encoded here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from mstar.walk.batching import rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import State
from mstar.walk.types import Float, Int64, Tensor

S = TypeVar("S", bound=State)

_CHECKED_FRAMES = (10, 1, 1)
"""The pieces, in frames, in which a decoder must give what it gives for all of them at once."""


class LayerMemory(dict[str, "Tensor"]):
    """What each layer of a decoder remembers, by name. It is not changed once made, so copies share it."""

    def __deepcopy__(self, _: Any) -> LayerMemory:
        return self


class CodecStreamState(State):
    """What a decoder remembers of one stream; of one that has not begun, nothing."""

    def __init__(self) -> None:
        self.memory = LayerMemory()

    def export(self) -> dict[str, Tensor]:
        """What it remembers."""
        return dict(self.memory)


class Codec(Component):
    """A decoder that `network` loads; with it `sound` turns [rows, frames, codebooks] codes into [rows, samples].

    A frame is `hop` samples. `lookahead` is how many frames a window holds after those whose sound it gives.
    """

    def __init__(
        self, network: Callable[[], Any], decode_codes: Callable[[Any, Tensor], Tensor], *, hop: int, lookahead: int = 0
    ) -> None:
        self._load = network
        self._decode_codes = decode_codes
        self._hop = hop
        self._lookahead = lookahead
        self._is_checked = False

    @functools.cached_property
    def network(self) -> Any:
        """The library's model."""
        return self._load().eval().requires_grad_(requires_grad=False)

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def load_state(self, kind: type[S], exported: Any) -> S:
        """The past of a stream that began elsewhere."""
        state = self.make_state(kind)
        cast("CodecStreamState", state).memory = LayerMemory(exported)
        return state

    @functools.cached_property
    def _streaming_network(self) -> Any:
        """The same, with layers that remember."""
        from mstar.nn.audio.streaming import make_streaming

        make_streaming(self.network)
        return self.network

    @op(batch=stacked)
    def decode_window(self, codes: Int64[Tensor, "W Q"], fresh: int) -> Float[Tensor, "S"]:
        """The sound of `fresh` frames: the last of a window, but for those that it looks ahead.

        `fresh` is how many frames of the window are new. The last frames of a stream are heard only if as many others
        follow as a window looks ahead.
        """
        import torch

        with torch.inference_mode():
            sound = self._decode_codes(self.network, codes)
        end = max(0, sound.shape[-1] - self._lookahead * self._hop)
        starts = [max(0, end - new * self._hop) for new in rows(fresh)]
        return cast("Any", [row[start:end] for row, start in zip(sound, starts, strict=True)])

    @op(batch=stacked)
    def decode(self, codes: Int64[Tensor, "F Q"], state: CodecStreamState) -> Float[Tensor, "S"]:
        """The sound of the frames that follow those which the past has seen."""
        import torch

        pasts = rows(state)
        done: dict[int, tuple[Tensor, LayerMemory]] = {}
        with torch.inference_mode():
            if not self._is_checked:
                self._self_check(codes)
            for has_begun in (False, True):
                if group := [row for row, one in enumerate(pasts) if bool(one.memory) is has_begun]:
                    done |= zip(
                        group, self._decode_next(codes[group], [pasts[row].memory for row in group]), strict=True
                    )
        for row, one in enumerate(pasts):  # only now, so that a batch that fails changes nothing
            one.memory = done[row][1]
        return cast("Any", [done[row][0] for row in range(len(pasts))])

    def _decode_next(self, codes: Tensor, memories: Sequence[LayerMemory]) -> list[tuple[Tensor, LayerMemory]]:
        """The sound of each stream's next frames, and what is remembered then. All streams begin, or none does."""
        from mstar.nn.audio.streaming import StreamingState, streaming

        past = StreamingState(memories)
        with streaming(past):
            sound = self._decode_codes(self._streaming_network, codes)
        return [(samples, LayerMemory(past.memory(row))) for row, samples in enumerate(sound)]

    def _self_check(self, codes: Tensor) -> None:
        """Refuse a decoder that gives something else in pieces: one that looks ahead, or back in ways of its own."""
        import torch

        from mstar.nn.self_check import require_close

        generator = torch.Generator().manual_seed(0)
        frames = torch.randint(2, (1, sum(_CHECKED_FRAMES), codes.shape[-1]), generator=generator).to(codes)
        whole = self._decode_codes(self.network, frames)[0]
        memory, pieces = LayerMemory(), list[Tensor]()
        for piece in frames.split(_CHECKED_FRAMES, 1):
            ((samples, memory),) = self._decode_next(piece, [memory])
            pieces.append(samples)
        what = f"{type(self.network).__name__} gives another sound in pieces than at once"
        require_close(torch.cat(pieces), whole, what, "decode it in windows, with decode_window")
        self._is_checked = True
