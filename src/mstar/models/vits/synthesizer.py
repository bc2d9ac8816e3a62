"""Synthesizer: a VITS network of transformers with its tokenizer, from text to sound.

The network draws noise for the durations and for the sound from torch's global generator. A lock and a restored
generator make a call a function of its text, voice, speed and seed.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Mapping
from typing import Any

from mstar import Component, Float32, Int64, Tensor, op
from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights

SAMPLE_RATE_HZ = 16_000
_GLOBAL_GENERATOR = threading.Lock()
"""Held while the global generator of torch has the seed of a request."""


class Synthesizer(Component):
    """Tokenizer and network of a folder with config.json, vocab.json and safetensors."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def prepare(self) -> None:
        """Load the network and the tokenizer."""
        _ = self._network, self._tokenizer

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json. Imports no library, so routes can read it. Raises LoadError for another sample rate."""
        file = self._weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use the folder of a VITS model of transformers")
        config = json.loads(file.read_bytes())
        if config.get("sampling_rate") != SAMPLE_RATE_HZ:
            problem = f"{file}: sampling_rate is {config.get('sampling_rate')}, expected {SAMPLE_RATE_HZ}"
            raise LoadError(f"{problem}\n  fix: use a checkpoint of MMS-TTS, such as facebook/mms-tts-eng")
        return config

    @functools.cached_property
    def _network(self) -> Any:
        _ = self.config
        return self._weights.network("float32").eval()

    @functools.cached_property
    def _tokenizer(self) -> Any:
        from transformers import VitsTokenizer

        folder = self._weights.path("*.json")
        tokenizer = VitsTokenizer.from_pretrained(folder, local_files_only=True)
        for name, what in (("phonemize", "phonemes"), ("is_uroman", "Latin letters (uroman)")):
            if getattr(tokenizer, name):
                problem = f"{folder} reads {what}, which another package makes of a text"
                raise LoadError(f"{problem}\n  fix: use a checkpoint that reads letters, such as facebook/mms-tts-eng")
        return tokenizer

    @op
    def tokens(self, text: str) -> Int64[Tensor, "T"]:
        """Token ids of a text: a token per letter, with blanks between them. Unknown letters are left out."""
        import torch

        return torch.tensor(self._tokenizer(text)["input_ids"])

    @op
    def synthesize(
        self, tokens: Int64[Tensor, "T"], speaker: int | None, speed: float, seed: int
    ) -> Float32[Tensor, "S"]:
        """Samples of a text, as the library gives them after `set_seed(seed)`."""
        import torch

        rate = self._network.config.speaking_rate * speed
        with _GLOBAL_GENERATOR, torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._network(input_ids=tokens[None], speaker_id=speaker, speaking_rate=rate).waveform[0]
