"""Orpheus: text to speech with a language model and an audio codec.

The published model is a Llama 3B that writes SNAC codes as tokens, seven per frame. SNAC decodes a sliding window of
four frames to the audio of its middle frame, so audio starts after 28 tokens and continues every seven.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mstar import Audio, Int64, Model, Stream, Tensor, loop, walk, windows
from mstar.testing.toy_language import SampledLM, Sampling
from mstar.testing.toy_speech import Snac


@dataclass
class SpeechRequest:
    text: str
    sampling: Sampling


class Orpheus(Model):
    """A Llama writes SNAC codes; SNAC decodes each window of them to audio."""

    def __init__(self) -> None:
        self.lm = SampledLM(vocab=211, eos=5)
        self.snac = Snac()

    @walk
    def speak(self, prompt: Int64[Tensor, "T"], sampling: Sampling) -> Iterator[Audio]:
        kv = self.lm.kv()
        codes = Stream("codes")
        s = loop(steps=sampling.max_tokens, token=self.lm.prefill(prompt, kv, sampling))
        for _ in s:
            codes.put(s.token)
            s.token = self.lm.decode(s.token, kv, sampling)
            s.stop_when(self.lm.is_end(s.token))

        for window in windows(codes, size=28, stride=7):  # runs while the loop above still runs
            yield Audio(self.snac.decode(window), rate=24_000)

    async def route(self, request: SpeechRequest) -> None:
        await self.speak(self.lm.tokenize(request.text), request.sampling)


def requests() -> list[SpeechRequest]:
    return [
        SpeechRequest("Good morning.", Sampling(max_tokens=60)),
        SpeechRequest("A tale of two cities", Sampling(max_tokens=200, temperature=0.6, seed=6)),
        SpeechRequest("Hm?", Sampling(max_tokens=35, seed=1)),
    ]
