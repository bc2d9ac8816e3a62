"""Qwen3-Omni: audio and text in, text and speech out, with speech streamed while the text is written.

The published model has a thinker (a 30B mixture of experts with audio and vision encoders) that writes the answer, a
talker that turns the thinker's hidden states into the first code of each speech frame, a code predictor that adds the
fifteen residual codes, and a vocoder (Code2Wav) that decodes 25 frames with 25 frames of context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mstar import Audio, Float32, Int64, Model, Stream, Tensor, Text, loop, walk, windows
from mstar.testing.toy_language import Thinker
from mstar.testing.toy_speech import AudioEncoder, CodePredictor, Talker, Vocoder


@dataclass
class OmniRequest:
    sound: np.ndarray
    text: str
    has_voice: bool = True
    limit: int = 40


class Qwen3Omni(Model):
    """A thinker writes and a talker speaks. A text-only request does not run the talker."""

    def __init__(self) -> None:
        self.audio_encoder, self.thinker = AudioEncoder(), Thinker(eos=5)
        self.talker, self.predictor, self.vocoder = Talker(vocab=199, eos=7), CodePredictor(), Vocoder()

    @walk
    def write(self, mel: Float32[Tensor, "F 80"], prompt: Int64[Tensor, "T"], limit: int) -> Iterator[Text]:
        yield from self.think(mel, prompt, limit, None)

    @walk
    def talk(self, mel: Float32[Tensor, "F 80"], prompt: Int64[Tensor, "T"], limit: int) -> Iterator[Text | Audio]:
        thoughts, codes = Stream("thoughts"), Stream("codes")
        yield from self.think(mel, prompt, limit, thoughts)

        kv, pad = self.talker.kv(), self.talker.pad()
        code, hidden = self.talker.prefill(prompt, kv)
        s = loop(steps=120, code=code, hidden=hidden)
        for _ in s:  # continues after the thinker has finished
            frame_kv, rest = self.predictor.kv(), loop(steps=15, frame=self.predictor.start(s.code))
            for step in rest:
                rest.frame = self.predictor.extend(rest.frame, s.hidden, step, frame_kv)
            codes.put(rest.frame)
            s.code, s.hidden = self.talker.talk(rest.frame, thoughts.get(default=pad), kv)
            s.stop_when(self.talker.is_end(s.code))

        w = windows(codes, size=25, context=25, flush=True)
        for frames in w:
            yield Audio(self.vocoder.decode(frames, w.fresh), rate=24_000)

    def think(self, mel: Tensor, prompt: Tensor, limit: int, talker_inputs: Stream | None) -> Iterator[Text]:
        kv = self.thinker.kv()
        self.thinker.see(self.audio_encoder.encode(mel), kv)
        s = loop(steps=limit, token=self.thinker.prefill(prompt, kv))
        for _ in s:
            yield Text(s.token)
            s.token, thought = self.thinker.think(s.token, kv)
            if talker_inputs is not None:
                talker_inputs.put(thought)
            s.stop_when(self.thinker.is_end(s.token))

    async def route(self, request: OmniRequest) -> None:
        answer = self.talk if request.has_voice else self.write
        await answer(request.sound, self.thinker.tokenize(request.text), request.limit)


def requests() -> list[OmniRequest]:
    rng = np.random.default_rng(0)
    sounds = [rng.integers(-9, 9, (frames, 80)).astype(np.float32) for frames in (12, 7, 20)]
    return [
        OmniRequest(sounds[0], "What do you hear?"),
        OmniRequest(sounds[1], "Only write, please.", has_voice=False, limit=12),
        OmniRequest(sounds[2], "Sing along!", limit=9),
    ]
