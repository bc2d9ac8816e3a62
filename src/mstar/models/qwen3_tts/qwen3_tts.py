"""Qwen3-TTS-12Hz: text to speech (TTS) in ten languages and the voices of the checkpoint.

Components: `talker` (reads the text, writes the first RVQ code of each frame), `predictor` (the other fifteen codes)
and `codec` (causal decoder). The walk overlaps both loops: audio is emitted from the first frame on while the talker
continues. Voice cloning, voice design and instructions are not supported.
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

SAMPLE_RATE_HZ = 24_000
HOP_SAMPLES = 1920
DEFAULT_SAMPLING = Sampling(max_tokens=2048, temperature=0.9, top_k=50, repetition_penalty=1.05)
"""Sampling parameters of the published model."""


class Qwen3Tts(Model):
    """Serves speech requests.

    `weights` is a folder in the Hugging Face layout, or `hub:NAME`. With `streams_text` the talker reads one text token
    per frame, as for text that is still being generated; otherwise it reads the whole text before it speaks.
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
        """Synthesize a text."""
        kv, words, frames = self.talker.kv(), Stream("words"), Stream("frames")
        prompt, text, count, pad, code_counts = self.talker.prompt(speech)
        for step in loop(steps=count):
            words.put(text[step])

        code, hidden_state, code_counts = self.talker.first_code(prompt, code_counts, kv, sampling)
        s = loop(steps=sampling.max_tokens, code=code, hidden_state=hidden_state, code_counts=code_counts)
        for step in s:
            word = words.get(default=pad)
            frame, embedding = self.predictor.predict_frame(s.code, s.hidden_state, word, sampling, step)
            frames.put(frame)
            s.code, s.hidden_state, s.code_counts = self.talker.first_code(embedding, s.code_counts, kv, sampling)
            s.stop_when(self.talker.is_over(s.code))

        codec_state = self.codec.state(CodecStreamState)
        for window in windows(frames, size=2, first=1, flush=True):  # runs while the loop above still runs
            yield Audio(self.codec.decode(window, codec_state), rate=SAMPLE_RATE_HZ)

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        if request.speed != 1 or request.instructions:
            raise Unsupported("Qwen3-TTS supports neither speed nor instructions\n  fix: leave both out")
        await self.speak(request, replace(self.sampling, seed=request.seed))
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """Names of the voices."""
        return tuple(self.checkpoint.talker_config["spk_id"])


def _load_codec_decoder(checkpoint: Checkpoint) -> Any:
    from mstar.models.qwen3_tts.codec_decoder import load_codec_decoder

    return load_codec_decoder(checkpoint.codec_config, checkpoint.codec_tensors())


def _decode_frames(network: Any, codes: Tensor) -> Tensor:
    return network(codes.transpose(1, 2))[:, 0]
