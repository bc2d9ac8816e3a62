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
from mstar.asks import Chat, Clip, Ending, Picture, Sound
from mstar.errors import Unsupported, listed
from mstar.models.qwen3_omni.checkpoint import PUBLISHED, Checkpoint
from mstar.models.qwen3_omni.predictor import Predictor
from mstar.models.qwen3_omni.reader import Reader
from mstar.models.qwen3_omni.senses import Ear, Eye
from mstar.models.qwen3_omni.talker import CODES, Talker
from mstar.models.qwen3_omni.thinker import Thinker
from mstar.models.qwen3_omni.vocoder import Vocoder
from mstar.nn.codec import CodecPast
from mstar.nn.sampling import Sampling


class Qwen3Thinker(Model):
    """All that is loaded where nobody speaks. `weights` is a folder in the layout of its hub, or `hub:` and a name."""

    def __init__(self, weights: str = PUBLISHED) -> None:
        self.checkpoint = Checkpoint(weights)
        self.reader, self.thinker = Reader(self.checkpoint), Thinker(self.checkpoint)
        self.ear, self.eye = Ear(self.checkpoint), Eye(self.checkpoint)

    @walk
    def write(self, chat: Chat) -> Generator[Text, None, Ending]:
        """Answer in text."""
        return (yield from self.think(chat, None))[-1]

    def think(self, chat: Chat, thoughts: Stream | None) -> Generator[Text, None, tuple[Any, ...]]:
        """The thinker's part of both walks, and what a talker must know of the prompt."""
        tokens, away, sounds, sights, *told = self.reader.read(chat)
        heard, seen = each(sounds), each(sights)
        for sound in heard:
            heard.collect(states=self.ear.spectrum(sound))
        for sight in seen:
            seen.collect(states=self.eye.see(sight))

        kv = self.thinker.kv()
        given = self.thinker.join(tokens, away, heard.states, seen.states)
        first, prompt = self.thinker.begin(tokens, given, kv, chat.sampling)
        is_over = self.thinker.is_over(first, kv, chat.sampling)
        s = loop(steps=choose(is_over, 0, chat.sampling.max_tokens), token=first)
        for step in s:
            yield Text(s.token)
            s.token = self.thinker.next(s.token, kv, chat.sampling)
            if thoughts is not None:
                thoughts.put(self.thinker.thought(s.token, step, kv, chat.sampling))
            s.stop_when(self.thinker.is_over(s.token, kv, chat.sampling))
        ending = self.thinker.ending(tokens, s.token, kv, chat.sampling)
        return tokens, prompt, *told, first, is_over, ending

    async def route(self, request: Chat) -> Ending:
        """Answer."""
        if request.speaks:
            raise Unsupported("it does not speak\n  fix: ask for text, or serve qwen3_omni")
        return await self.write(request)

    def reads(self) -> tuple[type, ...]:
        """What the parts of a conversation may be."""
        return (str, Sound, Picture, Clip)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its answers as text."""
        return self.thinker.spell(tokens)


class Qwen3Omni(Qwen3Thinker):
    """It speaks too. `codes` is how the codes of its speech are chosen."""

    def __init__(self, weights: str = PUBLISHED, *, codes: Sampling = CODES) -> None:
        super().__init__(weights)
        self.talker, self.predictor = Talker(self.checkpoint), Predictor(self.checkpoint)
        self.vocoder, self.codes = Vocoder(self.checkpoint), codes

    @walk
    def talk(self, chat: Chat, voice: str, manner: Sampling) -> Generator[Text | Audio, None, Ending]:
        """Answer in text, and say it while it is written."""
        thoughts, codes = Stream("thoughts"), Stream("codes")
        tokens, prompt, told, away, word, is_silent, ending = yield from self.think(chat, thoughts)

        kv, opening = self.talker.kv(), self.thinker.opening(word)
        given = self.talker.prompt(self.talker.listen(tokens, prompt, told), away, opening, voice)
        code, thought = self.talker.begin(given, kv, manner)
        most = choose(is_silent, 0, choose(self.talker.is_over(code), 0, manner.max_tokens))
        s = loop(steps=most, code=code, thought=thought)
        for step in s:  # goes on when the thinker has ended
            frame, heard = self.predictor.frame(s.code, s.thought, manner, step)
            codes.put(frame)
            s.code, s.thought = self.talker.speak(s.code, heard, thoughts.get(default=opening[0]), kv, manner)
            s.stop_when(self.talker.is_over(s.code))

        past = self.vocoder.state(CodecPast)
        for frames in windows(codes, size=4, first=3, flush=True):
            yield Audio(self.vocoder.decode(frames, past), rate=24_000)
        return ending

    async def route(self, request: Chat) -> Ending:
        """Answer, in speech if that is wished for."""
        if not request.speaks:
            return await super().route(request)
        voice, voices = request.voice.lower() or "ethan", self.voices()
        if voice not in voices:
            raise Unsupported(f"it has the voices {listed(voices)}\n  fix: ask for one of them")
        return await self.talk(request, voice, replace(self.codes, seed=request.sampling.seed))

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return tuple(self.checkpoint.voices)
