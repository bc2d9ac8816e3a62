"""Dia-1.6B: English dialogue from a transcript with the speaker tags `[S1]` and `[S2]`, and sounds such as `(laughs)`.

Components: `text_encoder` (reads the bytes of the transcript), `decoder` (writes the nine codebooks of a frame, each
after its delay, with classifier-free guidance) and `codec` (DAC). The walk overlaps decoder and codec: audio is emitted
while the decoder continues. Voices are chosen by the seed; audio prompts, which clone a voice, are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mstar import Audio, Model, Stream, loop, walk, windows
from mstar.errors import Unsupported
from mstar.models.dia.checkpoint import MAX_DELAY, Checkpoint
from mstar.models.dia.code_decoder import CodeDecoder
from mstar.models.dia.dac import SAMPLE_RATE_HZ, Dac
from mstar.models.dia.text_encoder import TextEncoder
from mstar.nn.audio.codec import CodecStreamState
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest

WINDOW_FRAMES = 16
"""Frames of audio per emission, 0.19 s. It is more than DAC looks ahead."""


class Dia(Model):
    """Serves speech requests. `weights` is a folder in the Hugging Face layout, or `hub:NAME`.

    `codec` are the weights of DAC; by default those that the folder's processor_config.json names. `sampling` and
    `guidance_scale` are by default those of its generation_config.json; a scale of 1 is no guidance. The KV cache has
    `pages` pages of 16 frames.
    """

    def __init__(
        self,
        weights: str = "hub:nari-labs/Dia-1.6B-0626",
        codec: str | None = None,
        *,
        sampling: Sampling | None = None,
        guidance_scale: float | None = None,
        pages: int = 4096,
    ) -> None:
        checkpoint = Checkpoint(Weights(weights))
        self.text_encoder = TextEncoder(checkpoint)
        self.decoder = CodeDecoder(checkpoint, guidance_scale, pages)
        self.codec = Dac(checkpoint, None if codec is None else Weights(codec))
        self.sampling = sampling

    @walk
    def speak(self, text: str, sampling: Sampling) -> Iterator[Audio]:
        """Synthesize a transcript."""
        kv, no_text_kv, frames = self.decoder.kv(), self.decoder.kv(), Stream("frames")
        tokens, no_text = self.text_encoder.tokens(text)
        states, no_text_states = self.text_encoder.text(tokens), self.text_encoder.text(no_text)
        frame, ended, steps = self.decoder.read_text(states, no_text_states, kv, no_text_kv, sampling)
        s = loop(steps=steps, frame=frame, ended=ended)
        for step in s:
            s.frame, s.ended, is_over = self.decoder.next_frame(s.frame, s.ended, step, kv, no_text_kv, sampling)
            frames.put(s.frame)
            s.stop_when(is_over)

        codec_state = self.codec.state(CodecStreamState)
        first = MAX_DELAY + WINDOW_FRAMES
        for window in windows(frames, size=WINDOW_FRAMES, context=MAX_DELAY, first=first, flush=True):
            yield Audio(self.codec.decode_delayed(window, codec_state), rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        if request.voice or request.speed != 1 or request.instructions or request.language not in ("", "en"):
            what = "Dia speaks English with [S1] and [S2] in voices of its own, at speed 1 and without instructions"
            raise Unsupported(f"{what}\n  fix: leave out voice, speed, language and instructions")
        sampling = self.sampling or self.decoder.checkpoint.sampling
        await self.speak(request.text, replace(sampling, seed=request.seed))
        return Finish(prompt_tokens={"text": len(request.text)})
