"""Streaming codec: a neural audio decoder as a component, which decodes codes while they are still being generated.

| op | state | for | cost |
|---|---|---|---|
| `decode` | the last inputs of every layer | causal decoders | nothing is computed twice |
| `decode_window` | none | decoders with lookahead | context frames are decoded again in every window |

Both give the audio of decoding all codes at once; `decode_window` if a window contains the complete context. Encoding
is not part of this module.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar, cast

from mstar.walk.batching import rows, stacked
from mstar.walk.component import Component, op
from mstar.walk.states import State
from mstar.walk.types import Float, Int64, Tensor

S = TypeVar("S", bound=State)

_CHECKED_FRAMES = (10, 1, 1)
"""Chunk sizes, in frames, of the self-check of streaming decoding."""


class LayerMemory(dict[str, "Tensor"]):
    """Streaming state of each layer of a decoder, by name. It is immutable, so copies share it."""

    def __deepcopy__(self, _: Any) -> LayerMemory:
        return self


class CodecStreamState(State):
    """Streaming state of one audio stream; empty before its first frame."""

    def __init__(self) -> None:
        self.memory = LayerMemory()

    def export(self) -> dict[str, Tensor]:
        """The state of all layers."""
        return dict(self.memory)


class Codec(Component):
    """Decoder that `network` loads. `decode_codes` maps codes [rows, frames, codebooks] to audio [rows, samples].

    A frame has `hop` samples. `lookahead` is the number of frames in a window after those whose audio it returns.
    """

    runs_on_device: ClassVar[bool] = True

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
        """The loaded model, on the device of the component."""
        return self.on_device(self._load())

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    def nondeterminism(self) -> str:
        """Why a result can depend on the other requests of a batch."""
        return super().nondeterminism() or "torch computes the convolutions of all streams together"

    def load_state(self, kind: type[S], exported: Any) -> S:
        """Create the state of a stream that was migrated."""
        state = self.make_state(kind)
        cast("CodecStreamState", state).memory = LayerMemory(
            {name: self.on_device(exported[name]) for name in exported}
        )
        return state

    @functools.cached_property
    def _streaming_network(self) -> Any:
        """The network with streaming layers."""
        from mstar.nn.audio.streaming import make_streaming

        make_streaming(self.network)
        return self.network

    @op(batch=stacked)
    def decode_window(self, codes: Int64[Tensor, "W Q"], fresh: int) -> Float[Tensor, "S"]:
        """Audio of the last `fresh` frames of a window before its lookahead.

        `fresh` is the number of new frames in the window. Pad the end of a stream with `lookahead` frames to get its
        last frames.
        """
        import torch

        with torch.inference_mode():
            audio = self._decode_codes(self.network, codes)
        end = max(0, audio.shape[-1] - self._lookahead * self._hop)
        starts = [max(0, end - new * self._hop) for new in rows(fresh)]
        return cast("Any", [row[start:end] for row, start in zip(audio, starts, strict=True)])

    @op(batch=stacked)
    def decode(self, codes: Int64[Tensor, "F Q"], state: CodecStreamState) -> Float[Tensor, "S"]:
        """Audio of the next frames of a stream."""
        import torch

        states = rows(state)
        decoded: dict[int, tuple[Tensor, LayerMemory]] = {}
        with torch.inference_mode():
            if not self._is_checked:
                self._self_check(codes)
            for has_begun in (False, True):
                if group := [row for row, stream in enumerate(states) if bool(stream.memory) is has_begun]:
                    memories = [states[row].memory for row in group]
                    own = codes if len(group) == len(codes) else torch.stack([codes[row] for row in group])
                    decoded |= zip(group, self._decode_next(own, memories), strict=True)
        for row, stream in enumerate(states):  # only now, so that a failed batch changes nothing
            stream.memory = decoded[row][1]
        return cast("Any", [decoded[row][0] for row in range(len(states))])

    def _decode_next(self, codes: Tensor, memories: Sequence[LayerMemory]) -> list[tuple[Tensor, LayerMemory]]:
        """Audio of the next frames of each stream, and its new state. Either all streams are new or none is."""
        from mstar.nn.audio.streaming import StreamingState, streaming

        past = StreamingState(memories)
        with streaming(past):
            audio = self._decode_codes(self._streaming_network, codes)
        return [(samples, LayerMemory(past.memory(row))) for row, samples in enumerate(audio)]

    def _self_check(self, codes: Tensor) -> None:
        """Reject a decoder whose chunked output differs: it has lookahead, or layers that cannot stream."""
        import torch

        from mstar.nn.self_check import require_close

        generator = torch.Generator().manual_seed(0)
        frames = torch.randint(2, (1, sum(_CHECKED_FRAMES), codes.shape[-1]), generator=generator).to(codes)
        whole = self._decode_codes(self.network, frames)[0]
        memory = LayerMemory()
        chunks: list[Tensor] = []
        for chunk in frames.split(_CHECKED_FRAMES, 1):
            ((samples, memory),) = self._decode_next(chunk, [memory])
            chunks.append(samples)
        what = f"streaming changes the audio of {type(self.network).__name__}"
        require_close(torch.cat(chunks), whole, what, "decode it in windows, with decode_window")
        self._is_checked = True
