"""CSM-1B: English text to speech (TTS) in numbered voices, by Sesame.

Components: `backbone` (a Llama that reads the text and writes the first code of each frame), `depth_decoder` (the other
31 codes) and `codec` (the causal decoder of Mimi). The walk overlaps both loops: audio is emitted from the first frame
on while the backbone continues. Context, that is earlier turns with their audio, is not supported, so a voice is the
one that the model gives to a speaker number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mstar import Audio, Model, Stream, Tensor, choose, loop, walk, windows
from mstar.errors import Unsupported, format_names
from mstar.models.csm.backbone import Backbone
from mstar.models.csm.checkpoint import Checkpoint
from mstar.models.csm.depth_decoder import DepthDecoder
from mstar.nn.audio.codec import Codec, CodecStreamState
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest

VOICES = tuple("0123456789")
"""Numbers of speakers in the prompt."""
SAMPLE_RATE_HZ = 24_000
HOP_SAMPLES = 1920
DEFAULT_SAMPLING = Sampling(max_tokens=1125, temperature=0.9, top_k=50)
"""Sampling parameters of the published generator: at most 90 s of speech."""


class Csm(Model):
    """Serves speech requests. `weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = "hub:sesame/csm-1b", *, sampling: Sampling = DEFAULT_SAMPLING) -> None:
        checkpoint = Checkpoint(Weights(weights))
        self.backbone = Backbone(checkpoint)
        self.depth_decoder = DepthDecoder(checkpoint)
        self.codec = Codec(checkpoint.load_codec, _decode_frames, hop=HOP_SAMPLES)
        self.sampling = sampling

    @walk
    def speak(self, text: str, voice: str, sampling: Sampling) -> Iterator[Audio]:
        """Synthesize a text."""
        kv, frames = self.backbone.kv(), Stream("frames")
        code, hidden_state = self.backbone.first_code(self.backbone.prompt(text, voice, sampling), kv, sampling)
        frame, embedding = self.depth_decoder.predict_frame(code, hidden_state, sampling, -1)
        count = choose(self.depth_decoder.is_end(frame), 0, sampling.max_tokens)
        s = loop(steps=count, frame=frame, embedding=embedding)
        for step in s:
            frames.put(s.frame)
            code, hidden_state = self.backbone.first_code(s.embedding, kv, sampling)
            following, s.embedding = self.depth_decoder.predict_frame(code, hidden_state, sampling, step)
            s.stop_when(self.depth_decoder.is_over(s.frame, following))
            s.frame = following

        codec_state = self.codec.state(CodecStreamState)
        for window in windows(frames, size=2, first=1, flush=True):  # runs while the loop above still runs
            yield Audio(self.codec.decode(window, codec_state), rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        voice = request.voice or VOICES[0]
        if voice not in VOICES or request.speed != 1 or request.instructions or request.language not in ("", "en"):
            what = f"CSM speaks English in the voices {format_names(VOICES)}, at speed 1 and without instructions"
            raise Unsupported(f"{what}\n  fix: use one of these voices, and leave out speed, language and instructions")
        await self.speak(request.text, voice, replace(self.sampling, seed=request.seed))
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """Names of the voices."""
        return VOICES


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    return network.decode(codes.transpose(1, 2)).audio_values[:, 0]
