"""Qwen3-Omni-30B-A3B: chat with text, audio, images and video in, text and speech out.

Components: `processor`, `audio_encoder`, `vision_encoder`, `thinker` (mixture-of-experts LM), `talker` (first RVQ code
of each frame), `predictor` (other codes) and `vocoder` (Code2Wav). The walk streams: the talker reads the thinker's
tokens while they are decoded, and the vocoder emits audio in windows of four frames. It calls no tools.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

from mstar import Audio, Model, Stream, Text, choose, each, loop, walk, windows
from mstar.errors import Unsupported, format_names
from mstar.models.qwen3_omni.checkpoint import DEFAULT_WEIGHTS, Checkpoint
from mstar.models.qwen3_omni.encoders import AudioEncoder, VisionEncoder
from mstar.models.qwen3_omni.predictor import Predictor
from mstar.models.qwen3_omni.processor import Processor
from mstar.models.qwen3_omni.talker import CODE_SAMPLING, Talker
from mstar.models.qwen3_omni.thinker import Thinker
from mstar.models.qwen3_omni.vocoder import Vocoder
from mstar.nn.audio.codec import CodecStreamState
from mstar.requests import AudioInput, ChatRequest, Finish, ImageInput, Sampling, VideoInput


class Qwen3Thinker(Model):
    """Text-only half: does not load the talker. `weights` is a folder in the Hugging Face layout, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.thinker = Processor(self.checkpoint), Thinker(self.checkpoint)
        self.audio_encoder, self.vision_encoder = AudioEncoder(self.checkpoint), VisionEncoder(self.checkpoint)

    @walk
    def write(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer in text."""
        return (yield from self.think(chat, None))[-1]

    def think(self, chat: ChatRequest, talker_inputs: Stream | None) -> Generator[Text, None, tuple[Any, ...]]:
        """Sub-walk of the thinker: emits text, and returns what the talker needs of the prompt, then the finish."""
        tokens, offsets, spectrograms, images, *talker_prompt = self.processor.process(chat)
        audio, vision = each(spectrograms), each(images)
        for spectrogram in audio:
            audio.collect(states=self.audio_encoder.spectrum(spectrogram))
        for patches in vision:
            vision.collect(states=self.vision_encoder.encode(patches))

        kv = self.thinker.kv()
        embeddings = self.thinker.merge_embeddings(tokens, offsets, audio.states, vision.states)
        first, prompt = self.thinker.prefill(tokens, embeddings, kv, chat.sampling)
        is_over = self.thinker.is_over(first, kv, chat.sampling)
        s = loop(steps=choose(is_over, 0, chat.sampling.max_tokens), token=first)
        for step in s:
            yield Text(s.token)
            s.token = self.thinker.next_token(s.token, kv, chat.sampling)
            if talker_inputs is not None:
                talker_inputs.put(self.thinker.talker_embedding(s.token, step, kv, chat.sampling))
            s.stop_when(self.thinker.is_over(s.token, kv, chat.sampling))
        return tokens, prompt, *talker_prompt, first, is_over, self.thinker.finish(tokens, s.token, kv, chat.sampling)

    async def route(self, request: ChatRequest) -> Finish:
        """Answer in text. Rejects requests for speech."""
        if request.audio_output:
            raise Unsupported("this model does not speak\n  fix: request text only, or serve qwen3_omni")
        return await self.write(request)

    def input_types(self) -> tuple[type, ...]:
        """Text, audio, images and video."""
        return (str, AudioInput, ImageInput, VideoInput)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Decode token ids to text."""
        return self.thinker.detokenize(tokens)


class Qwen3Omni(Qwen3Thinker):
    """Adds speech. `code_sampling` are the sampling parameters of the audio codes."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS, *, code_sampling: Sampling = CODE_SAMPLING) -> None:
        super().__init__(weights)
        self.talker, self.predictor = Talker(self.checkpoint), Predictor(self.checkpoint)
        self.vocoder, self.code_sampling = Vocoder(self.checkpoint), code_sampling

    @walk
    def talk(self, chat: ChatRequest, voice: str, code_sampling: Sampling) -> Generator[Text | Audio, None, Finish]:
        """Answer in text, and emit speech while the text is decoded."""
        thoughts, codes = Stream("thoughts"), Stream("codes")
        tokens, hidden, talker_indices, offsets, first_token, is_silent, finish = yield from self.think(chat, thoughts)

        kv, opening = self.talker.kv(), self.thinker.opening_embeddings(first_token)
        projected = self.talker.project_prompt(tokens, hidden, talker_indices)
        prompt = self.talker.prompt(projected, offsets, opening, voice)
        code, hidden_state = self.talker.prefill(prompt, kv, code_sampling)
        frames = choose(is_silent, 0, choose(self.talker.is_over(code), 0, code_sampling.max_tokens))
        s = loop(steps=frames, code=code, hidden_state=hidden_state)
        for step in s:  # continues after the thinker has finished
            frame, embedding = self.predictor.predict_frame(s.code, s.hidden_state, code_sampling, step)
            codes.put(frame)
            text = thoughts.get(default=opening[0])
            s.code, s.hidden_state = self.talker.next_code(s.code, embedding, text, kv, code_sampling)
            s.stop_when(self.talker.is_over(s.code))

        codec_state = self.vocoder.state(CodecStreamState)
        for window in windows(codes, size=4, first=3, flush=True):
            yield Audio(self.vocoder.decode(window, codec_state), rate=24_000)
        return finish

    async def route(self, request: ChatRequest) -> Finish:
        """Answer, with speech if the request asks for audio."""
        if not request.audio_output:
            return await super().route(request)
        if (voice := request.voice.lower() or "ethan") not in self.voices():
            raise Unsupported(f"unknown voice {voice}\n  fix: use one of {format_names(self.voices())}")
        return await self.talk(request, voice, replace(self.code_sampling, seed=request.sampling.seed))

    def voices(self) -> tuple[str, ...]:
        """Names of the voices."""
        return tuple(self.checkpoint.voices)
