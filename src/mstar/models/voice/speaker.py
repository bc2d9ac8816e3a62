"""Hibari: says English text, sentence by sentence, in one voice.

It is asked for neither a manner of speaking nor another language. The package would fetch other voices; they are not
offered.

    pip install onnxruntime && pip install --no-deps hibari-tts==0.2.1   # weights and code, 14 MB
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from mstar import Audio, Component, Float32, Model, Tensor, loop, op, walk
from mstar.asks import Ending, Speech
from mstar.errors import LoadError, Unsupported, listed
from mstar.nn.weights import PackageFile

VOICES = ("heart",)
RATE = 24_000
_PINNED = functools.partial(PackageFile, "hibari-tts", "0.2.1", licence="Apache-2.0")
SOUNDS = _PINNED("hibari/assets/hibari.onnx", "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8")
"""The network that makes sound of phonemes."""
LETTERS = _PINNED("hibari/assets/oov.onnx", "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76")
"""The network that makes phonemes of words which are in no lexicon."""


class Speaker(Component):
    """Text to sound. Its weights are distilled from Kokoro-82M."""

    weights = (SOUNDS, LETTERS)

    @functools.cached_property
    def _voice(self) -> Any:
        sounds, _ = SOUNDS.path(), LETTERS.path()
        try:
            import hibari

            return hibari.Hibari(model=str(sounds), threads=1)
        except ImportError as error:
            raise LoadError(f"speaking needs a library: {error}\n  fix: pip install onnxruntime") from error

    def prepare(self) -> None:
        """Load the network and the lexicons."""
        _ = self._voice.g2p

    @op
    def sentences(self, speech: Speech) -> tuple[list[str], int]:
        """A text in sentences, and how many there are."""
        found = self._voice.split_sentences(speech.text)
        return found, len(found)

    @op
    def say(self, text: str, speech: Speech, step: int) -> Float32[Tensor, "S"]:
        """The sound of a part of a speech. The same seed and step give the same sound."""
        import numpy as np

        noise = np.random.default_rng([speech.seed % 2**64, step])
        phrases = self._voice.phonemize(text)
        sounds = [self._voice.from_ids(self._voice.ids(one), speech.speed, noise) for one in phrases]
        return np.concatenate([np.zeros(0, np.float32), *sounds])  # pyright: ignore[reportReturnType]


def check_wish(speech: Speech) -> None:
    """Refuse what the voice cannot do."""
    if speech.voice not in ("", *VOICES) or speech.instructions or speech.language.partition("-")[0] not in ("", "en"):
        what = f"it says English in the voice {listed(VOICES)}, without instructions"
        raise Unsupported(f"{what}\n  fix: ask for nothing else")


class Hibari(Model):
    """Speaks."""

    def __init__(self) -> None:
        self.speaker = Speaker()

    @walk
    def speak(self, speech: Speech) -> Iterator[Audio]:
        """Say sentence after sentence."""
        sentences, count = self.speaker.sentences(speech)
        for step in loop(steps=count):
            yield Audio(self.speaker.say(sentences[step], speech, step), rate=RATE)

    def warm_ups(self) -> Sequence[Any]:
        """A word."""
        return [Speech("Hello.")]

    async def route(self, request: Speech) -> Ending:
        """Speak. What it reads are characters."""
        check_wish(request)
        await self.speak(request)
        return Ending(read={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return VOICES
