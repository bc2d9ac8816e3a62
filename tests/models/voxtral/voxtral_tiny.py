"""Tiny Voxtral with random weights in the published layout, and the outputs of transformers.

Its windows have 2 s instead of 30. The prompts of the requests are those of mistral_common for the same tekken.json.
"""

from __future__ import annotations

import base64
import functools
import json
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import VoxtralConfig, VoxtralForConditionalGeneration, WhisperFeatureExtractor
from transformers.models.voxtral.processing_voxtral import VoxtralProcessor

from mstar.requests import AudioInput, ChatRequest, Message, Sampling, TranscriptionRequest

GOLDEN = Path(__file__).parents[1] / "golden" / "voxtral" / "prompts.json"
NAMES = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"]
NAMES += ["[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"]
NAMES += [
    "[SUFFIX]",
    "[SYSTEM_PROMPT]",
    "[/SYSTEM_PROMPT]",
    "[TOOL_CONTENT]",
    *(f"<SPECIAL_{n}>" for n in range(20, 24)),
]
NAMES += ["[AUDIO]", "[BEGIN_AUDIO]", *(f"<SPECIAL_{n}>" for n in range(26, 34)), "[TRANSCRIBE]"]
IDS = {name: number for number, name in enumerate(NAMES)}
WORDS = [*(bytes([byte]) for byte in range(256)), b"th", b"the", b" a", b"\n\n", b"is", b" is", b"ang", b"lang"]
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
VOCABULARY = len(NAMES) + len(WORDS)
RATE, HOP, BINS, WINDOW_S = 16_000, 160, 32, 2
WINDOW = WINDOW_S * RATE
POSITIONS = WINDOW // HOP // 2
"""Positions of the encoder in a window. The projector groups four."""


def config(positions: int = POSITIONS) -> VoxtralConfig:
    """Config of the tiny model."""
    audio = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    audio |= {"num_mel_bins": BINS, "max_source_positions": positions, "vocab_size": 10}
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": VOCABULARY, "max_position_embeddings": 2048}
    text |= {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    return VoxtralConfig(audio_config=audio, text_config=text, audio_token_id=IDS["[AUDIO]"])


def save(folder: Path, *, window_s: int = WINDOW_S, ends: bool = False) -> str:
    """Save the checkpoint, and return its folder. Its answers end by themselves only with `ends`."""
    torch.manual_seed(0)
    network = VoxtralForConditionalGeneration(config(window_s * RATE // HOP // 2)).eval()
    for name, weight in network.named_parameters():
        if weight.ndim > 1 and "embed_positions" not in name:
            torch.nn.init.normal_(weight, std=1.5 * weight[0].numel() ** -0.5)
    network.lm_head.weight.data[IDS["</s>"]] *= 1.6 if ends else 0
    network.save_pretrained(folder)
    (folder / "tekken.json").write_text(json.dumps(_tekken(window_s)))
    WhisperFeatureExtractor(feature_size=BINS).save_pretrained(folder)
    return str(folder)


def _tekken(window_s: int) -> dict[str, Any]:
    """A tokenizer in Mistral's format, which mistral_common reads too."""
    spectrogram = {"num_mel_bins": BINS, "hop_length": HOP, "window_size": 400}
    audio = {
        "sampling_rate": RATE,
        "frame_rate": 12.5,
        "chunk_length_s": window_s,
        "audio_encoding_config": spectrogram,
    }
    sizes = {"num_vocab_tokens": len(WORDS), "default_vocab_size": VOCABULARY, "default_num_special_tokens": len(NAMES)}
    return {
        "config": {"pattern": PATTERN, "version": "v7", **sizes},
        "special_tokens": [{"rank": rank, "token_str": name, "is_control": True} for name, rank in IDS.items()],
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": word.decode("latin-1")}
            for rank, word in enumerate(WORDS)
        ],
        "audio": audio,
    }


# ---------------------------------------------------------------- requests
@functools.cache
def sound(seed: int, seconds: float = 1.5, rate: int = RATE) -> AudioInput:
    """Hums that change in pitch and loudness over time."""
    rng = np.random.default_rng(seed)
    at = np.arange(int(seconds * rate)) / rate
    hums = (np.sin(2 * np.pi * rng.uniform(100, 4000) * at + 3 * np.sin(rng.uniform(1, 9) * at)) for _ in range(4))
    return AudioInput((sum(hums) * np.abs(np.sin(rng.uniform(2, 7) * at)) / 5).astype(np.float32), rate)


def chat(*parts: Any, steps: int = 9, **sampling: Any) -> ChatRequest:
    """One message of the user."""
    return ChatRequest((Message("user", parts),), Sampling(max_tokens=steps, **sampling))


_TURNS = (
    Message("user", (sound(1), "what is the word?")),
    Message("assistant", ("a dog",)),
    Message("user", ("And this?", sound(2, 0.3))),
)
_RULES = (Message("system", ("be a dog",)), Message("system", ("x",)), Message("user", ("hi",)))
_JOINED = (
    Message("user", ("one", "two", sound(3), "")),
    Message("user", (sound(4), "three")),
    Message("user", ("4 5",)),
)
CHATS = {
    "text": chat("Who is the king?", steps=12),
    "audio": chat(sound(1), "what is the word?"),
    "audio only": chat(sound(5, 2.0)),
    "long": chat(sound(6, 5.5), "é\n\n  the [AUDIO] lang", steps=7),
    "several": chat(sound(1), sound(2, 0.3), "which?", sound(1), steps=5),
    "turns": ChatRequest(_TURNS, Sampling(max_tokens=8)),
    "joined": ChatRequest(_JOINED, Sampling(max_tokens=6)),
    "system": ChatRequest(_RULES, Sampling(max_tokens=10)),
}
TRANSCRIPTIONS = {
    "plain": TranscriptionRequest(sound(1)),
    "language": TranscriptionRequest(sound(1), language="en"),
    "long transcript": TranscriptionRequest(sound(7, 4.1), language="fr"),
}
REQUESTS: dict[str, ChatRequest | TranscriptionRequest] = {**CHATS, **TRANSCRIPTIONS}


def sounds_of(request: ChatRequest | TranscriptionRequest) -> list[AudioInput]:
    """Audio of a request, in order."""
    if isinstance(request, TranscriptionRequest):
        return [request.audio]
    return [part for message in request.messages for part in message.parts if isinstance(part, AudioInput)]


# ---------------------------------------------------------------- reference
class Reference:
    """transformers' own model and feature extraction, one request at a time, with prompts of mistral_common."""

    def __init__(self, folder: str, window_s: int = WINDOW_S) -> None:
        self.network = VoxtralForConditionalGeneration.from_pretrained(folder).eval()
        self.extractor = WhisperFeatureExtractor.from_pretrained(folder)
        self.window = window_s * RATE
        self.prompts = json.loads(GOLDEN.read_text())

    def features(self, sounds: list[AudioInput]) -> torch.Tensor:
        """Windows of several sounds, by the code of the library's processor."""
        options = {**VoxtralProcessor.audio_kwargs, "pad_to_multiple_of": self.window}
        frames = (
            options.pop("max_source_positions") * self.window // VoxtralProcessor.audio_kwargs["pad_to_multiple_of"]
        )
        processor: Any = SimpleNamespace(feature_extractor=self.extractor)
        samples = [one.samples for one in sounds]
        return VoxtralProcessor._retrieve_input_features(processor, samples, frames, **options)

    def write(self, name: str) -> list[int]:
        """Return the tokens of a greedy answer or transcript."""
        request = REQUESTS[name]
        prompt = self.prompts[name]
        steps = request.sampling.max_tokens if isinstance(request, ChatRequest) else prompt.count(IDS["[AUDIO]"])
        return self.generate(prompt, sounds_of(request), steps)

    @torch.inference_mode()
    def generate(self, prompt: list[int], sounds: list[AudioInput], steps: int) -> list[int]:
        """Return the tokens of a greedy answer to a prompt."""
        tokens = torch.tensor([prompt])
        audio = {"input_features": self.features(sounds)} if sounds else {}
        options = {"max_new_tokens": steps, "do_sample": False, "pad_token_id": IDS["<pad>"]}
        written = self.network.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), **audio, **options)
        answer = written[0, len(prompt) :].tolist()
        return list(takewhile(lambda token: token != IDS["</s>"], answer))
