"""Hibari: English text to speech (TTS) in one voice, distilled from Kokoro-82M and run with ONNX Runtime.

One component, `HibariTts`. The walk splits the text into sentences and emits the audio of each sentence as soon as it
is synthesized, with the times of its words: sums of the phoneme durations that the network computes. It supports
neither instructions nor other languages, and offers no voice that the package would download.

    pip install 'mstar-serve[onnx]' && pip install --no-deps hibari-tts==0.2.1   # weights and code, 14 MB
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mstar import Audio, Component, Float32, Model, State, Tensor, WordTimestamps, loop, op, walk
from mstar.errors import LoadError, Unsupported, format_names
from mstar.nn.audio.word_alignment import phonemize, word_timestamps
from mstar.nn.onnx import is_on_cpu, open_session
from mstar.nn.weights.sources import PackageFile
from mstar.requests import Finish, SpeechRequest, WordTimestamp
from mstar.walk.twin import OpBody, TwinSizes

VOICES = ("heart",)
SAMPLE_RATE_HZ = 24_000
_hibari_file = functools.partial(PackageFile, "hibari-tts", "0.2.1", licence="Apache-2.0")
SYNTHESIZER_WEIGHTS = _hibari_file(
    "hibari/assets/hibari.onnx", "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8"
)
"""Network that synthesizes audio from phonemes."""
G2P_WEIGHTS = _hibari_file("hibari/assets/oov.onnx", "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76")
"""Grapheme-to-phoneme network for words that no lexicon has."""
_DURATIONS = "/Clip_output_0"
"""Value inside the network: frames of each phoneme, before they are repeated to the length of the audio."""
FRAME_S = 0.025
"""Seconds of a frame."""
_CHARACTER_S = 0.065
"""Usual seconds of audio per character of text, for a twin."""


class SpeechPosition(State):
    """What a response has spoken so far. Sentences of one response are synthesized in order."""

    def __init__(self) -> None:
        self.samples = 0
        self.characters = 0


class HibariTts(Component):
    """Text to waveform at 24 kHz."""

    runs_on_device = True
    weights = (SYNTHESIZER_WEIGHTS, G2P_WEIGHTS)

    @functools.cached_property
    def _synthesizer(self) -> Any:
        model_path, _ = SYNTHESIZER_WEIGHTS.path(), G2P_WEIGHTS.path()
        session = open_session("Hibari", model_path, self.device, also=_DURATIONS)
        if self.device is not None and is_on_cpu(session):
            self.device = None
        return _make_synthesizer(session)

    def prepare(self) -> None:
        """Load the networks and the lexicons."""
        _ = self._synthesizer.g2p

    def prepare_twin(self, sizes: TwinSizes) -> Mapping[str, OpBody]:  # noqa: ARG002 - the text decides
        """Split sentences as usual, and play a tone for each."""
        vars(self)["_synthesizer"] = _make_synthesizer(None)
        return self.own_bodies("split_sentences") | {"synthesize": HibariTts._play_tone}

    @op
    def split_sentences(self, speech: SpeechRequest) -> tuple[list[str], int]:
        """Split a text into sentences, and return their number."""
        sentences = self._synthesizer.split_sentences(speech.text)
        return sentences, len(sentences)

    @op
    def synthesize(
        self, text: str, speech: SpeechRequest, step: int, position: SpeechPosition
    ) -> tuple[Float32[Tensor, "S"], list[WordTimestamp]]:
        """Synthesize the next sentence of a response, and return when its words are spoken in the response's audio.

        The audio depends only on the text, the seed and the step.
        """
        import numpy as np
        from hibari import dsp

        synth: Any = dsp.synth
        noise, tts = np.random.default_rng([speech.seed % 2**64, step]), self._synthesizer
        waveforms, words = [np.zeros(0, np.float32)], list[WordTimestamp]()
        # The sentences of a request lack the spaces between them. Those of a chat response are its whole text.
        text_start = max(position.characters, speech.text.find(text, position.characters))
        for phrase in phonemize(tts, text, text_start):
            known = phrase.in_vocabulary(tts.vocab)
            if not known.phonemes:
                continue
            ids = np.array([tts.ids(known.phonemes)], np.int64)
            *spectra, frames = tts.sess.run(None, {"ids": ids, "speed": np.array([speech.speed], np.float32)})
            waveforms.append(synth(*(spectrum[0] for spectrum in spectra), noise))
            start = (position.samples + sum(map(len, waveforms[:-1]))) / SAMPLE_RATE_HZ
            words += word_timestamps(known, frames.tolist(), FRAME_S, text, text_start, start)
        audio = np.concatenate(waveforms)
        position.samples += len(audio)
        position.characters = text_start + len(text)
        return audio, words  # pyright: ignore[reportReturnType]

    def _play_tone(
        self,
        text: str,
        speech: SpeechRequest,
        step: int,  # noqa: ARG002 - as `synthesize`
        position: SpeechPosition,
    ) -> tuple[Any, list[WordTimestamp]]:
        """`synthesize` without networks: a tone of the usual length, with the words evenly in it."""
        from mstar.nn.synthetic_values import make_tone  # imports torch

        text_start = max(position.characters, speech.text.find(text, position.characters))
        start, character_s = position.samples / SAMPLE_RATE_HZ, _CHARACTER_S / speech.speed
        audio = make_tone(max(1, round(len(text) * character_s * SAMPLE_RATE_HZ)), SAMPLE_RATE_HZ).numpy()
        words = [
            WordTimestamp(
                word[0],
                start + word.start() * character_s,
                start + word.end() * character_s,
                text_start + word.start(),
                text_start + word.end(),
            )
            for word in re.finditer(r"\S+", text)
        ]
        position.samples += len(audio)
        position.characters = text_start + len(text)
        return audio, words


def _make_synthesizer(session: Any) -> Any:
    """The package's synthesizer with this session, instead of one that it opens itself."""
    try:
        from hibari import tts
    except ImportError as error:
        raise LoadError(f"Hibari needs a library: {error}\n  fix: pip install 'mstar-serve[onnx]'") from error

    class Synthesizer(tts.Hibari):
        def __init__(self) -> None:
            self.voice, self._g2p, self.sess = tts.DEFAULT, None, session
            self.vocab = json.loads((Path(tts.ASSETS) / "vocab.json").read_bytes())

    return Synthesizer()


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
    def speak(self, speech: SpeechRequest) -> Iterator[Audio | WordTimestamps]:
        """Synthesize sentence by sentence."""
        sentences, count = self.tts.split_sentences(speech)
        position = self.tts.state(SpeechPosition)
        for step in loop(steps=count):
            audio, words = self.tts.synthesize(sentences[step], speech, step, position)
            yield WordTimestamps(words)
            yield Audio(audio, rate=SAMPLE_RATE_HZ)

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
