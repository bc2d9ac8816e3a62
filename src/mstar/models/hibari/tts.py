"""Hibari: English text to speech (TTS) in one voice, distilled from Kokoro-82M and run with ONNX Runtime.

One component, `HibariTts`. The walk splits the text into sentences and emits the audio of each sentence as soon as it
is synthesized. It supports neither instructions nor other languages, and offers no voice that the package would
download.

    pip install 'mstar-serve[onnx]' && pip install --no-deps hibari-tts==0.2.1   # weights and code, 14 MB
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from mstar import Audio, Component, Float32, Model, Tensor, loop, op, walk
from mstar.errors import LoadError, Unsupported, format_names
from mstar.nn.onnx import import_onnxruntime, is_on_cpu, open_session
from mstar.nn.weights.sources import PackageFile
from mstar.requests import Finish, SpeechRequest

VOICES = ("heart",)
SAMPLE_RATE_HZ = 24_000
_hibari_file = functools.partial(PackageFile, "hibari-tts", "0.2.1", licence="Apache-2.0")
SYNTHESIZER_WEIGHTS = _hibari_file(
    "hibari/assets/hibari.onnx", "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"
)
"""Network that synthesizes audio from phonemes."""
G2P_WEIGHTS = _hibari_file("hibari/assets/oov.onnx", "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76")
"""Grapheme-to-phoneme network for words that no lexicon has."""


class HibariTts(Component):
    """Text to waveform at 24 kHz."""

    runs_on_device = True
    weights = (SYNTHESIZER_WEIGHTS, G2P_WEIGHTS)

    @functools.cached_property
    def _synthesizer(self) -> Any:
        model_path, _ = SYNTHESIZER_WEIGHTS.path(), G2P_WEIGHTS.path()
        import_onnxruntime("Hibari")
        try:
            import hibari

            synthesizer: Any = hibari.Hibari(model=str(model_path), threads=1)
        except ImportError as error:
            raise LoadError(f"Hibari needs a library: {error}\n  fix: pip install 'mstar-serve[onnx]'") from error
        if self.device is not None:
            synthesizer.sess = open_session("Hibari", model_path, self.device)  # the package opens it on the CPU
            if is_on_cpu(synthesizer.sess):
                self.device = None
        return synthesizer

    def prepare(self) -> None:
        """Load the networks and the lexicons."""
        _ = self._synthesizer.g2p

    @op
    def split_sentences(self, speech: SpeechRequest) -> tuple[list[str], int]:
        """Split a text into sentences, and return their number."""
        sentences = self._synthesizer.split_sentences(speech.text)
        return sentences, len(sentences)

    @op
    def synthesize(self, text: str, speech: SpeechRequest, step: int) -> Float32[Tensor, "S"]:
        """Synthesize one sentence. The result depends only on the text, the seed and the step."""
        import numpy as np

        noise = np.random.default_rng([speech.seed % 2**64, step])
        tts = self._synthesizer
        waveforms = [tts.from_ids(tts.ids(phrase), speech.speed, noise) for phrase in tts.phonemize(text)]
        return np.concatenate([np.zeros(0, np.float32), *waveforms])  # pyright: ignore[reportReturnType]


def check_request(speech: SpeechRequest) -> None:
    """Raise Unsupported for a voice, language or instructions that Hibari does not have."""
    if speech.voice not in ("", *VOICES) or speech.instructions or speech.language.partition("-")[0] not in ("", "en"):
        what = f"Hibari speaks English in the voice {format_names(VOICES)}, without instructions"
        raise Unsupported(f"{what}\n  fix: leave out voice, language and instructions")


class Hibari(Model):
    """Serves speech requests."""

    def __init__(self) -> None:
        self.tts = HibariTts()

    @walk
    def speak(self, speech: SpeechRequest) -> Iterator[Audio]:
        """Synthesize sentence by sentence."""
        sentences, count = self.tts.split_sentences(speech)
        for step in loop(steps=count):
            yield Audio(self.tts.synthesize(sentences[step], speech, step), rate=SAMPLE_RATE_HZ)

    def warmup_requests(self) -> Sequence[Any]:
        """One word."""
        return [SpeechRequest("Hello.")]

    async def route(self, request: SpeechRequest) -> Finish:
        """Speak. Usage counts characters as text tokens."""
        check_request(request)
        await self.speak(request)
        return Finish(prompt_tokens={"text": len(request.text)})

    def voices(self) -> tuple[str, ...]:
        """Names of the voices."""
        return VOICES
