"""Stages of Kokoro as components: processor (grapheme to phoneme), prosody, and vocoder.

The package hibari-tts converts English text to phonemes, with the same phoneme set as Kokoro. Other languages are not
supported; a voice of another language speaks English with an accent. Libraries are imported by the first op.
    pip install attrs 'mstar-serve[onnx]' && pip install --no-deps hibari-tts==0.2.1 kokoro==0.9.4
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mstar import Component, Float32, Tensor, op
from mstar.errors import LoadError
from mstar.models.kokoro.checkpoint import Checkpoint
from mstar.models.kokoro.voice_mix import VoiceMix
from mstar.nn.audio.word_alignment import AlignedPhrase, phonemize, word_timestamps
from mstar.nn.onnx import import_onnxruntime
from mstar.nn.weights.sources import PackageFile
from mstar.requests import SpeechRequest, WordTimestamp

SAMPLE_RATE_HZ = 24_000
MAX_PHONEMES = 510
"""Maximum phonemes per phrase."""
_TIMBRE_SIZE = 128
"""Leading values of a style that belong to the vocoder. The rest belongs to prosody."""
_g2p_file = functools.partial(PackageFile, "hibari-tts", "0.2.1", licence="Apache-2.0")


@dataclass(frozen=True, slots=True)
class Phrase:
    """One phrase with its style."""

    tokens: Any
    """Phoneme ids, int64."""
    style: Any
    """Style of the voice, 256 values."""
    speed: float
    seed: int
    aligned: AlignedPhrase
    """Its phonemes and words. Each phoneme is a token, between one token at the start and one at the end."""


@dataclass(frozen=True, slots=True)
class Frames:
    """Acoustic features of a phrase, in frames of 25 ms."""

    features: Any
    """Float32, [512, frames]."""
    pitch: Any
    """Float32, two per frame."""
    energy: Any
    """Float32, two per frame."""
    timbre: Any
    """Vocoder half of the style, 128 values."""
    seed: int
    durations: Any
    """Number of frames of each token, int64."""


class Processor(Component):
    """Converts text to phonemes, and selects the style of each phrase."""

    weights = (
        _g2p_file("hibari/assets/oov.onnx", "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76"),
        _g2p_file("hibari/assets/oov_gb.onnx", "0997e3219543247de5646078d770f8ca77011d8fd0abb29fe48d12c60f53e9e1"),
    )
    """Grapheme-to-phoneme networks for words that no lexicon has, American and British."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._voice_style = functools.cache(checkpoint.voice_style)

    def prepare(self) -> None:
        """Load the lexicons and one voice."""
        _ = self._american, self._british
        self._voice_style(self._checkpoint.voices[0])

    @functools.cached_property
    def _american(self) -> Any:
        return _load_phonemizer(is_british=False)

    @functools.cached_property
    def _british(self) -> Any:
        return _load_phonemizer(is_british=True)

    def phonemes(self, text: str, voice: VoiceMix) -> list[str]:
        """Convert a text to phrases of at most 510 phonemes."""
        return [phrase.phonemes for phrase in self._align(text, voice)]

    def _style(self, voice: VoiceMix, phonemes: int) -> Any:
        """Style of a phrase with this number of phonemes."""
        return sum(share * self._voice_style(name)[phonemes - 1].numpy() for name, share in voice.shares)

    def _align(self, text: str, voice: VoiceMix) -> Iterator[AlignedPhrase]:
        for phrase in phonemize(self._british if voice.is_british else self._american, text):
            yield from phrase.parts([*_split_phrase(phrase.phonemes)])

    @op
    def phrases(self, speech: SpeechRequest, voice: VoiceMix) -> tuple[list[Phrase], int]:
        """Return the phrases of a request, and their number."""
        import numpy as np

        vocabulary, phrases = self._checkpoint.config["vocab"], list[Phrase]()
        for step, aligned in enumerate(self._align(speech.text, voice)):
            known = aligned.in_vocabulary(vocabulary)
            tokens = [vocabulary[phoneme] for phoneme in known.phonemes]
            style = self._style(voice, len(aligned.phonemes))
            seed = (speech.seed + step) % 2**63
            phrases.append(Phrase(np.array([0, *tokens, 0]), style, speech.speed, seed, known))
        return phrases, len(phrases)


class Prosody(Component):
    """Predicts duration, pitch and energy of the phonemes."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """All parts except the decoder, loaded on first use."""
        return self.on_device(_load_parts(self._checkpoint, "bert", "bert_encoder", "predictor", "text_encoder"))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def frames(self, phrase: Phrase) -> Frames:
        """Predict the frames of a phrase."""
        import torch

        from mstar.models.kokoro.network import predict_frames

        tokens, style = (self.on_device(torch.as_tensor(value)) for value in (phrase.tokens, phrase.style))
        predicted = predict_frames(self.network, tokens, style[_TIMBRE_SIZE:], phrase.speed)
        features, pitch, energy, durations = (values.cpu().numpy() for values in predicted)
        return Frames(features, pitch, energy, phrase.style[:_TIMBRE_SIZE], phrase.seed, durations)

    @op
    def word_timestamps(
        self, phrase: Phrase, frames: Frames, speech: SpeechRequest, start: float
    ) -> tuple[list[WordTimestamp], float]:
        """Return when the words of a phrase are spoken whose audio begins at `start` seconds, and when it ends."""
        frame_s = self._checkpoint.frame_samples / SAMPLE_RATE_HZ
        words = word_timestamps(phrase.aligned, frames.durations.tolist(), frame_s, speech.text, 0, start)
        return words, start + frame_s * int(frames.durations.sum())


class Vocoder(Component):
    """Synthesizes audio from frames. Deterministic for a seed."""

    runs_on_device = True

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """The decoder, loaded on first use."""
        return self.on_device(_load_parts(self._checkpoint, "decoder"))

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def decode(self, frames: Frames) -> Float32[Tensor, "S"]:
        """Synthesize a whole phrase: its layers are not causal, so no part of it is ready earlier."""
        import torch

        from mstar.models.kokoro.network import decode_audio

        inputs = (frames.features, frames.pitch, frames.energy, frames.timbre)
        features, pitch, energy, timbre = (self.on_device(torch.as_tensor(value)) for value in inputs)
        return decode_audio(self.network, features, pitch, energy, timbre, frames.seed)


def _load_parts(checkpoint: Checkpoint, *names: str) -> Any:
    try:
        from mstar.models.kokoro.network import load_parts
    except ImportError as error:
        fix = "install torch for this machine, then pip install 'mstar-serve[transformers]'"
        raise LoadError(f"Kokoro needs torch and transformers: {error}\n  fix: {fix}") from error
    return load_parts(checkpoint, *names)


def _load_phonemizer(*, is_british: bool) -> Any:
    """Load the phonemizer of the package without its speech network."""
    for file in Processor.weights:
        file.path()
    import_onnxruntime("phonemization")  # runs the grapheme-to-phoneme networks
    try:
        from hibari.g2p import G2P
        from hibari.tts import Hibari
    except ImportError as error:
        raise LoadError(f"phonemization needs a library: {error}\n  fix: pip install 'mstar-serve[onnx]'") from error

    class Phonemizer(Hibari):
        def __init__(self) -> None:
            self._g2p = G2P(british=is_british)

    return Phonemizer()


def _split_phrase(phonemes: str) -> Iterator[str]:
    """Split a phrase that is too long, between words if possible."""
    while len(phonemes) > MAX_PHONEMES:
        end = phonemes.rfind(" ", 1, MAX_PHONEMES) + 1 or MAX_PHONEMES
        yield phonemes[:end]
        phonemes = phonemes[end:]
    yield phonemes
