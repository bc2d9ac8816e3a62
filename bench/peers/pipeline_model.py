"""The composite model of the race for mstar: `mstar serve bench/peers/pipeline_model.py`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mstar import ONE_ROW, Audio, Component, Float32, Layout, Model, Stream, Tensor, loop, op, padded, walk, windows
from mstar.nn.audio.codec import Codec, CodecStreamState
from mstar.nn.lm.causal_lm import CausalLM
from mstar.requests import Sampling

sys.path.append(str(Path(__file__).parents[2]))  # a worker loads this file by itself
from bench.peers.traffic import HOP, RATE


def _llama() -> Any:
    from bench.peers.pipeline import llama

    return llama()


def _decoder() -> Any:
    from bench.peers.pipeline import Decoder

    return Decoder()


class FrameEncoder(Component):
    """The encoder. It keeps nothing of what it has seen."""

    @functools.cached_property
    def network(self) -> Any:
        from bench.peers.pipeline import Encoder

        return Encoder()

    def prepare(self) -> None:
        _ = self.network

    @op(batch=padded("T"))
    def encode(self, frames: Float32[Tensor, "T 192"], layout: Layout = ONE_ROW) -> Float32[Tensor, "T 192"]:
        import torch

        with torch.inference_mode():
            return self.network(torch.as_tensor(frames), layout.lengths)


@dataclass(frozen=True)
class SpeechRequest:
    """What a client sends."""

    frames: Float32[Tensor, "T 192"]
    tokens: int


class Pipeline(Model):
    def __init__(self) -> None:
        self.encoder = FrameEncoder()
        self.lm = CausalLM(_llama, eos_token_id=-1, pages=1024)
        self.codec = Codec(_decoder, lambda network, codes: network(codes[..., 0]), hop=HOP)

    @walk
    def speak(self, frames: Float32[Tensor, "T 192"], more: int, sampling: Sampling) -> Iterator[Audio]:
        """The audio of the tokens, streamed."""
        kv, codes = self.lm.kv(), Stream("codes")
        s = loop(steps=more, token=self.lm.next_token_from_embeddings(self.encoder.encode(frames), kv, sampling))
        codes.put(s.token)
        for _ in s:
            s.token = self.lm.next_token(s.token, kv, sampling)
            codes.put(s.token)

        past = self.codec.state(CodecStreamState)
        for window in windows(codes, size=16, first=4, flush=True):  # runs while the loop above still runs
            yield Audio(self.codec.decode(window, past), rate=RATE)

    async def route(self, request: SpeechRequest) -> None:
        await self.speak(request.frames, request.tokens - 1, Sampling(max_tokens=request.tokens))
