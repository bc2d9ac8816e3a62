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
from mstar.errors import LoadError, Unsupported, format_names
from mstar.nn.weights.sources import PackageFile
from mstar.requests import Finish, SpeechRequest

VOICES = ("heart",)
SAMPLE_RATE_HZ = 24_000
_hibari_file = functools.partial(PackageFile, "hibari-tts", "0.2.1", licence="Apache-2.0")
SYNTHESIZER_WEIGHTS = _hibari_file(
    "hibari/assets/hibari.onnx", "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"
)
"""The network that makes sound of phonemes."""
G2P_WEIGHTS = _hibari_file("hibari/assets/oov.onnx", "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76")
"""The network that makes phonemes of words which are in no lexicon."""


class HibariTts(Component):
    """Text to sound. Its weights are distilled from Kokoro-82M."""

    weights = (SYNTHESIZER_WEIGHTS, G2P_WEIGHTS)

    @functools.cached_property
    def _synthesizer(self) -> Any:
        sounds, _ = SYNTHESIZER_WEIGHTS.path(), G2P_WEIGHTS.path()
        try:
            import hibari

            return hibari.Hibari(model=str(sounds), threads=1)
        except ImportError as error:
            raise LoadError(f"speaking needs a library: {error}\n  fix: pip install onnxruntime") from error

    def prepare(self) -> None:
        """Load the network and the lexicons."""
        _ = self._synthesizer.g2p

    @op
    def split_sentences(self, speech: SpeechRequest) -> tuple[list[str], int]:
        """A text in sentences, and how many there are."""
        found = self._synthesizer.split_sentences(speech.text)
        return found, len(found)

    @op
    def synthesize(self, text: str, speech: SpeechRequest, step: int) -> Float32[Tensor, "S"]:
        """The sound of a part of a speech. The same seed and step give the same sound."""
        import numpy as np

        noise = np.random.default_rng([speech.seed % 2**64, step])
        phrases = self._synthesizer.phonemize(text)
        sounds = [self._synthesizer.from_ids(self._synthesizer.ids(one), speech.speed, noise) for one in phrases]
        return np.concatenate([np.zeros(0, np.float32), *sounds])  # pyright: ignore[reportReturnType]


def check_request(speech: SpeechRequest) -> None:
    """Refuse what the voice cannot do."""
    if speech.voice not in ("", *VOICES) or speech.instructions or speech.language.partition("-")[0] not in ("", "en"):
        what = f"it says English in the voice {format_names(VOICES)}, without instructions"
        raise Unsupported(f"{what}\n  fix: ask for nothing else")


class Hibari(Model):
    """Speaks."""

    def __init__(self) -> None:
        self.tts = HibariTts()

    @walk
    def speak(self, speech: SpeechRequest) -> Iterator[Audio]:
        """Say sentence after sentence."""
        sentences, count = self.tts.split_sentences(speech)
        for step in loop(steps=count):
            yield Audio(self.tts.synthesize(sentences[step], speech, step), rate=SAMPLE_RATE_HZ)

    def warmup_requests(self) -> Sequence[Any]:
        """A word."""
        return [SpeechRequest("Hello.")]

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. What it reads are characters."""
        check_request(request)
        await self.speak(request)
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """The voices it has."""
        return VOICES
