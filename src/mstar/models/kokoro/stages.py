"""The three stages of Kokoro as components: a reader, a prosody that says how phrases are said, and a vocoder.

English is read by the package hibari-tts, whose phonemes are Kokoro's own. Other languages are not read; a voice of
another language says English with its accent. Libraries are loaded where an op first runs.

    pip install onnxruntime attrs && pip install --no-deps hibari-tts==0.2.1 kokoro==0.9.4
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mstar import Component, Float32, Tensor, op
from mstar.errors import LoadError
from mstar.models.kokoro.checkpoint import Checkpoint
from mstar.nn.weights.sources import PackageFile
from mstar.requests import SpeechRequest

MAX_PHONEMES = 510
"""So many phonemes it says at once."""
_TIMBRE_SIZE = 128
"""So many numbers of a style are the vocoder's; the others are the prosody's."""
_g2p_file = functools.partial(PackageFile, "hibari-tts", "0.2.1", licence="Apache-2.0")


@dataclass(frozen=True, slots=True)
class Phrase:
    """What is said at once, and how."""

    tokens: Any
    """The numbers of its phonemes, int64."""
    style: Any
    """256 numbers of a voice."""
    speed: float
    seed: int


@dataclass(frozen=True, slots=True)
class Frames:
    """A phrase in frames of 25 ms: what a vocoder makes sound of."""

    features: Any
    """Float32, [512, frames]."""
    pitch: Any
    """Float32, two for each frame."""
    energy: Any
    """Float32, two for each frame."""
    timbre: Any
    """128 numbers of a voice."""
    seed: int


class Processor(Component):
    """Text to phonemes, with a voice's style for each phrase."""

    weights = (
        _g2p_file("hibari/assets/oov.onnx", "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76"),
        _g2p_file("hibari/assets/oov_gb.onnx", "0997e3219543247de5646078d770f8ca77011d8fd0abb29fe48d12c60f53e9e1"),
    )
    """The networks that read words which are in no lexicon, American and British."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._voice_style = functools.cache(checkpoint.voice_style)

    def prepare(self) -> None:
        """Load the lexicons, and what voices are read with."""
        _ = self._american, self._british
        self._voice_style(self._checkpoint.voices[0])

    @functools.cached_property
    def _american(self) -> Any:
        return _load_phonemizer(is_british=False)

    @functools.cached_property
    def _british(self) -> Any:
        return _load_phonemizer(is_british=True)

    def phonemes(self, text: str, voice: str) -> list[str]:
        """A text in phrases, of which none is too long: sentences, or parts of them."""
        speller = self._british if voice.startswith("b") else self._american
        return [part for phrase in speller.phonemize(text) for part in _split_phrase(phrase)]

    @op
    def phrases(self, speech: SpeechRequest) -> tuple[list[Phrase], int]:
        """The phrases of a text as its voice says them, and how many there are."""
        import numpy as np

        numbers, said = self._checkpoint.config["vocab"], list[Phrase]()
        for step, phonemes in enumerate(self.phonemes(speech.text, speech.voice)):
            tokens = [numbers[one] for one in phonemes if one in numbers]
            style = self._voice_style(speech.voice)[len(phonemes) - 1].numpy()
            seed = (speech.seed + step) % 2**63
            said.append(Phrase(np.array([0, *tokens, 0]), style, speech.speed, seed))
        return said, len(said)


class Prosody(Component):
    """How long each phoneme of a phrase lasts, how high and how loud it is."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """All parts but the decoder."""
        return _load_parts(self._checkpoint, "bert", "bert_encoder", "predictor", "text_encoder")

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def frames(self, phrase: Phrase) -> Frames:
        """A phrase as it will be said."""
        import torch

        from mstar.models.kokoro.network import predict_frames

        style = torch.as_tensor(phrase.style)
        tokens, manner = torch.as_tensor(phrase.tokens), style[_TIMBRE_SIZE:]
        sounds, pitch, strength = predict_frames(self.network, tokens, manner, phrase.speed)
        return Frames(sounds.numpy(), pitch.numpy(), strength.numpy(), phrase.style[:_TIMBRE_SIZE], phrase.seed)


class Vocoder(Component):
    """Sound of frames. The same seed gives the same sound."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @functools.cached_property
    def network(self) -> Any:
        """The decoder."""
        return _load_parts(self._checkpoint, "decoder")

    def prepare(self) -> None:
        """Load the network."""
        _ = self.network

    @op
    def decode(self, frames: Frames) -> Float32[Tensor, "S"]:
        """The sound of a phrase. Its layers look at all of it, so that no part of it is known earlier."""
        import torch

        from mstar.models.kokoro.network import decode_audio

        given = (frames.features, frames.pitch, frames.energy, frames.timbre)
        sounds, pitch, strength, timbre = map(torch.as_tensor, given)
        return decode_audio(self.network, sounds, pitch, strength, timbre, frames.seed)


def _load_parts(checkpoint: Checkpoint, *names: str) -> Any:
    try:
        from mstar.models.kokoro.network import load_parts
    except ImportError as error:
        fix = "install the torch that suits this machine, then pip install 'mstar-serve[transformers]'"
        raise LoadError(f"this voice needs torch and transformers: {error}\n  fix: {fix}") from error
    return load_parts(checkpoint, *names)


def _load_phonemizer(*, is_british: bool) -> Any:
    """The package's own, without the network that it speaks with."""
    for file in Processor.weights:
        file.path()
    try:
        import onnxruntime as _onnxruntime  # noqa: F401 - it reads words that are in no lexicon
        from hibari.g2p import G2P
        from hibari.tts import Hibari
    except ImportError as error:
        raise LoadError(f"reading English needs a library: {error}\n  fix: pip install onnxruntime") from error

    class Speller(Hibari):
        def __init__(self) -> None:
            self._g2p = G2P(british=is_british)

    return Speller()


def _split_phrase(phonemes: str) -> Iterator[str]:
    """A phrase in parts that can be said at once, cut between words where there are some."""
    while len(phonemes) > MAX_PHONEMES:
        end = phonemes.rfind(" ", 1, MAX_PHONEMES) + 1 or MAX_PHONEMES
        yield phonemes[:end]
        phonemes = phonemes[end:]
    yield phonemes
