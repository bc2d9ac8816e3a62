"""Qwen3-Omni: reads, hears and sees, writes, and speaks while it writes.

A thinker answers a conversation with sound, pictures and clips in it. A talker turns its thoughts into the first code
of each frame of speech and goes on when it has ended, a predictor adds the other codes, and a vocoder makes sound of
them. It calls no tools.
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
    """All that is loaded where nobody speaks. `weights` is a folder in the layout of its hub, or `hub:` and a name."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.checkpoint = Checkpoint(weights)
        self.processor, self.thinker = Processor(self.checkpoint), Thinker(self.checkpoint)
        self.audio_encoder, self.vision_encoder = AudioEncoder(self.checkpoint), VisionEncoder(self.checkpoint)

    @walk
    def write(self, chat: ChatRequest) -> Generator[Text, None, Finish]:
        """Answer in text."""
        return (yield from self.think(chat, None))[-1]

    def think(self, chat: ChatRequest, talker_inputs: Stream | None) -> Generator[Text, None, tuple[Any, ...]]:
        """The thinker's part of both walks, and what a talker must know of the prompt."""
        tokens, away, sounds, sights, *told = self.processor.process(chat)
        heard, seen = each(sounds), each(sights)
        for sound in heard:
            heard.collect(states=self.audio_encoder.spectrum(sound))
        for sight in seen:
            seen.collect(states=self.vision_encoder.encode(sight))

        kv = self.thinker.kv()
        given = self.thinker.merge_embeddings(tokens, away, heard.states, seen.states)
        first, prompt = self.thinker.prefill(tokens, given, kv, chat.sampling)
        is_over = self.thinker.is_over(first, kv, chat.sampling)
        s = loop(steps=choose(is_over, 0, chat.sampling.max_tokens), token=first)
        for step in s:
            yield Text(s.token)
            s.token = self.thinker.next_token(s.token, kv, chat.sampling)
            if talker_inputs is not None:
                talker_inputs.put(self.thinker.talker_embedding(s.token, step, kv, chat.sampling))
            s.stop_when(self.thinker.is_over(s.token, kv, chat.sampling))
        ending = self.thinker.finish(tokens, s.token, kv, chat.sampling)
        return tokens, prompt, *told, first, is_over, ending

    async def route(self, request: ChatRequest) -> Finish:
        """Answer."""
        if request.audio_output:
            raise Unsupported("it does not speak\n  fix: ask for text, or serve qwen3_omni")
        return await self.write(request)

    def input_types(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, AudioInput, ImageInput, VideoInput)

    def detokenize(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.thinker.detokenize(tokens)


class Qwen3Omni(Qwen3Thinker):
    """It speaks too. `codes` is how the codes of its speech are chosen."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS, *, code_sampling: Sampling = CODE_SAMPLING) -> None:
        super().__init__(weights)
        self.talker, self.predictor = Talker(self.checkpoint), Predictor(self.checkpoint)
        self.vocoder, self.code_sampling = Vocoder(self.checkpoint), code_sampling

    @walk
    def talk(self, chat: ChatRequest, voice: str, code_sampling: Sampling) -> Generator[Text | Audio, None, Finish]:
        """Answer in text, and say it while it is written."""
        thoughts, codes = Stream("thoughts"), Stream("codes")
        tokens, prompt, told, away, word, is_silent, ending = yield from self.think(chat, thoughts)

        kv, opening = self.talker.kv(), self.thinker.opening_embeddings(word)
        given = self.talker.prompt(self.talker.project_prompt(tokens, prompt, told), away, opening, voice)
        code, thought = self.talker.prefill(given, kv, code_sampling)
        most = choose(is_silent, 0, choose(self.talker.is_over(code), 0, code_sampling.max_tokens))
        s = loop(steps=most, code=code, thought=thought)
        for step in s:  # goes on when the thinker has ended
            frame, heard = self.predictor.predict_frame(s.code, s.thought, code_sampling, step)
            codes.put(frame)
            s.code, s.thought = self.talker.next_code(
                s.code, heard, thoughts.get(default=opening[0]), kv, code_sampling
            )
            s.stop_when(self.talker.is_over(s.code))

        past = self.vocoder.state(CodecStreamState)
        for frames in windows(codes, size=4, first=3, flush=True):
            yield Audio(self.vocoder.decode(frames, past), rate=24_000)
        return ending

    async def route(self, request: ChatRequest) -> Finish:
        """Answer, in speech if that is wished for."""
        if not request.audio_output:
            return await super().route(request)
        voice, voices = request.voice.lower() or "ethan", self.voices()
        if voice not in voices:
            raise Unsupported(f"it has the voices {format_names(voices)}\n  fix: ask for one of them")
        return await self.talk(request, voice, replace(self.code_sampling, seed=request.sampling.seed))

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return tuple(self.checkpoint.voices)
