"""Two ways to a model for `mstar run`: everything in this process, or a running server. Both give the same events.

In this process it is served as `mstar serve --in-process` would serve it, so a stream begins while the rest is being
made.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from mstar.asks import Chat, Picture, Sound, Speech, Transcript, Transcription, Turn
from mstar.cli.answer import Event, Other, Pcm, Shot
from mstar.errors import LoadError, listed, nearest
from mstar.nn.sampling import Sampling
from mstar.walk.load import name_of
from mstar.walk.model import Model

if TYPE_CHECKING:
    from mstar.client import Client

SOUNDS = (".wav", ".mp3", ".flac", ".ogg", ".opus")
PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif")
GRACE_S = 30.0
"""How long what is under way may take at the end; who wants no more does not wait."""
RATE = 24_000
"""At how many samples a second a server sends sound."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of the user's."""

    path: Path
    data: bytes

    @property
    def is_sound(self) -> bool:
        """Whether its name is that of a sound; else it is that of a picture."""
        return self.path.suffix.lower() in SOUNDS


Part = str | File


@dataclass(frozen=True, slots=True)
class Wish:
    """How an answer is wanted."""

    max_tokens: int
    temperature: float
    seed: int
    voice: str
    speaks: bool


class Here:
    """A model in this process."""

    def __init__(self, target: str) -> None:
        from mstar.launch.together import Together
        from mstar.plan.deployment import deploy
        from mstar.server.door import Served

        name = name_of(target)
        deployed = deploy({name: target}, {})
        self._served = Served.of(name, deployed[name].model)
        self._together = Together(deployed)
        self.takes = {one.__name__.lower() for one in self._served.takes if isinstance(one, type)}

    def __enter__(self) -> Self:
        from mstar.server.front import FrontEnd
        from mstar.wire.messages import Peer

        self._together.start()
        self._front = FrontEnd(self._together.node, Peer("front", 0), self._together.conductors)
        self._together.add(self._front)
        return self

    def __exit__(self, *exception: object) -> None:
        self._together.stop(0.0 if exception[0] else GRACE_S)

    def chat(self, parts: Sequence[Part], wish: Wish) -> Iterator[Event]:
        """Answer."""
        sampling = Sampling(max_tokens=wish.max_tokens, temperature=wish.temperature, seed=wish.seed)
        turn = Turn("user", tuple(part if isinstance(part, str) else _decoded(part) for part in parts))
        return self._events(Chat((turn,), sampling, speaks=wish.speaks, voice=wish.voice))

    def speak(self, text: str, wish: Wish) -> Iterator[Event]:
        """Say a text."""
        return self._events(Speech(text, wish.voice, seed=wish.seed))

    def transcribe(self, sound: File) -> Iterator[Event]:
        """Write down what is said."""
        return self._events(Transcription(_decoded(sound)))

    def generate(self, request: Any) -> Iterator[Event]:
        """Ask in the model's own terms."""
        from mstar.server.reading import request_of
        from mstar.server.refusals import Refusal

        try:
            ask = request_of(self._served, request)
        except Refusal as refusal:
            raise LoadError(f"--json: {refusal.message}\n  fix: write what the model's route takes") from None
        return self._events(ask)

    def _events(self, ask: Any) -> Iterator[Event]:
        from mstar.server.arrays import in_base64, plain
        from mstar.server.spelling import Spelling

        model, has_words = self._served.model, False
        spelling = Spelling(model.spell)
        is_spelled = type(model).spell is not Model.spell
        stream = self._front.open(self._served.name, ask)
        for emission in stream:
            kind = type(emission).__name__
            if kind == "Text" and (is_spelled or isinstance(emission.value, str)):
                has_words = True
                yield spelling.add(emission.value)
            elif kind in _MEDIA:
                yield _MEDIA[kind](emission)
            else:
                yield Other({"kind": kind, "value": plain(emission.value, in_base64), **dict(emission.clock)})
        yield spelling.finish()
        if isinstance(stream.result, Transcript):
            yield "" if has_words else stream.result.text
        elif stream.result is not None and not isinstance(ask, Chat | Speech):
            yield Other({"result": plain(stream.result, in_base64)})


def _pcm(emission: Any) -> Pcm:
    from mstar.media.audio import Pcm as Encoder
    from mstar.media.audio import samples_of

    return Pcm(Encoder().feed(samples_of(emission.value)), emission.rate)


def _shot(emission: Any) -> Shot:
    from mstar.media.pictures import encode

    return Shot(encode(emission.value, "png", 100)[0])


_MEDIA = {"Audio": _pcm, "Image": _shot}


def _decoded(file: File) -> Any:
    """A file as models take it, decoded as a server would."""
    from mstar.media.decode import Decoders

    async def decode() -> Sound | Picture:
        decoders = Decoders(1)
        try:
            return await (decoders.sound(file.data) if file.is_sound else decoders.picture(file.data))
        finally:
            decoders.close()

    return asyncio.run(decode())


class There:
    """A model of a running server."""

    def __init__(self, client: Client, model: str) -> None:
        served = {one.id: one.capabilities for one in client.models()}
        if model not in served:
            what = f"the server has no model `{model}`{nearest(model, served)}"
            raise LoadError(f"{what}\n  fix: one of {listed(served)}")
        self.takes = served[model]
        self._client = client
        self._model = model

    def chat(self, parts: Sequence[Part], wish: Wish) -> Iterator[Event]:
        """Answer."""
        wishes: dict[str, Any] = {"audio": _named(wish) | {"format": "pcm16"}} if wish.speaks else {}
        wishes |= {"max_tokens": wish.max_tokens, "temperature": wish.temperature, "seed": wish.seed}
        message = {"role": "user", "content": [_content(part) for part in parts]}
        return self._events(self._client.chat(self._model, [message], **wishes))

    def speak(self, text: str, wish: Wish) -> Iterator[Event]:
        """Say a text."""
        wishes: dict[str, Any] = _named(wish) | {"response_format": "pcm", "seed": wish.seed}
        return self._events(self._client.speech(self._model, text, **wishes))

    def transcribe(self, sound: File) -> Iterator[Event]:
        """Write down what is said."""
        stream, words = self._client.transcribe(self._model, sound.data), ""
        for event in stream:
            words += event.text
            yield event.text
        yield "" if words else stream.result().text  # of a model that tells it only as a whole

    def generate(self, request: Any) -> Iterator[Event]:
        """Ask in the model's own terms."""
        from mstar.server.arrays import in_base64, plain

        stream = self._client.generate(self._model, request)
        for emission in stream:
            yield Other({"kind": emission.kind, "value": plain(emission.value, in_base64), **emission.clock})
        yield Other({"result": plain(stream.result().result, in_base64)})

    def _events(self, stream: Any) -> Iterator[Event]:
        for event in stream:
            yield Pcm(event.data, RATE) if hasattr(event, "data") else event.text


def _named(wish: Wish) -> dict[str, str]:
    return {"voice": wish.voice} if wish.voice else {}  # else the model chooses


def _content(part: Part) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    data, kind = base64.b64encode(part.data).decode(), part.path.suffix.lower().removeprefix(".")
    if part.is_sound:
        return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
    return {"type": "image_url", "image_url": {"url": f"data:image/{kind.replace('jpg', 'jpeg')};base64,{data}"}}
