"""Qwen3-TTS: says text in ten languages, in the voices that a checkpoint has.

A talker reads the text and writes the first code of each frame of speech, a predictor adds the fifteen others, and a
causal codec goes on with the sound: it begins with the first frame. Voices are neither cloned nor described, and
instructions are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from mstar import Audio, Model, Stream, Tensor, loop, walk, windows
from mstar.errors import Unsupported
from mstar.models.qwen3_tts.checkpoint import Checkpoint
from mstar.models.qwen3_tts.predictor import Predictor
from mstar.models.qwen3_tts.talker import Talker
from mstar.nn.audio.codec import Codec, CodecStreamState
from mstar.nn.weights.sources import Weights
from mstar.requests import Finish, Sampling, SpeechRequest

SAMPLE_RATE_HZ, HOP_SAMPLES = 24_000, 1920
DEFAULT_SAMPLING = Sampling(max_tokens=2048, temperature=0.9, top_k=50, repetition_penalty=1.05)
"""How its authors choose codes."""


class Qwen3Tts(Model):
    """A talker, a code predictor and a codec.

    `weights` is a folder in the layout of its hub, or `hub:` and a name. With `streams_text` the talker reads a word of
    the text with each frame, as it must when the text is still being written; otherwise all of it before it speaks.
    """

    def __init__(
        self,
        weights: str = "hub:Qwen/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        *,
        sampling: Sampling = DEFAULT_SAMPLING,
        streams_text: bool = False,
    ) -> None:
        checkpoint = Checkpoint(Weights(weights))
        self.talker = Talker(checkpoint, streams_text=streams_text)
        self.predictor = Predictor(checkpoint)
        self.codec = Codec(lambda: _load_codec_decoder(checkpoint), _decode_frames, hop=HOP_SAMPLES)
        self.checkpoint = checkpoint
        self.sampling = sampling

    @walk
    def speak(self, speech: SpeechRequest, sampling: Sampling) -> Iterator[Audio]:
        """Say a text."""
        kv, words, frames = self.talker.kv(), Stream("words"), Stream("frames")
        prompt, text, count, pad, said = self.talker.prompt(speech)
        for step in loop(steps=count):
            words.put(text[step])

        code, thought, said = self.talker.first_code(prompt, said, kv, sampling)
        s = loop(steps=sampling.max_tokens, code=code, thought=thought, said=said)
        for step in s:
            frame, heard = self.predictor.predict_frame(s.code, s.thought, words.get(default=pad), sampling, step)
            frames.put(frame)
            s.code, s.thought, s.said = self.talker.first_code(heard, s.said, kv, sampling)
            s.stop_when(self.talker.is_over(s.code))

        past = self.codec.state(CodecStreamState)
        for window in windows(frames, size=2, first=1, flush=True):  # runs while the loop above still runs
            yield Audio(self.codec.decode(window, past), rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. What it reads are characters."""
        if request.speed != 1 or request.instructions:
            raise Unsupported("it speaks at its own speed and without instructions\n  fix: ask for neither")
        await self.speak(request, replace(self.sampling, seed=request.seed))
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return tuple(self.checkpoint.talker_config["spk_id"])


def _load_codec_decoder(checkpoint: Checkpoint) -> Any:
    from mstar.models.qwen3_tts.codec_decoder import load_codec_decoder

    return load_codec_decoder(checkpoint.codec_config, checkpoint.codec_tensors())


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    return network(codes.transpose(1, 2))[:, 0]
