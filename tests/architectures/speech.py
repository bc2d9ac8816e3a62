"""Speech recognition and synthesis of transformers: texts equal those of the library, sound up to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as t

from mstar.cli.port.tiny_config import tiny_fields
from mstar.requests import SpeechRequest, TranscriptionRequest
from tests.architectures.architecture import SPEECH, TRANSCRIPTIONS, Architecture
from tests.models.csm import csm_tiny
from tests.models.dia import dia_tiny
from tests.models.parakeet import parakeet_tiny
from tests.models.vits import vits_tiny
from tests.models.voxtral import voxtral_tiny
from tests.models.wav2vec2 import wav2vec2_tiny
from tests.models.whisper import whisper_tiny
from tests.models.whisper.test_whisper_checkpoints import generated

CTC = (
    *("Wav2Vec2ForCTC", "HubertForCTC", "WavLMForCTC", "UniSpeechForCTC", "UniSpeechSatForCTC"),
    *("SEWForCTC", "SEWDForCTC"),
)


# ---------------------------------------------------------------- transcriptions
def compare_ctc(model: Any, folder: str) -> str:
    """Texts of sounds of three lengths."""
    return _compare_texts(model, [wav2vec2_tiny.library_text(folder, sound.samples) for sound in _sounds()])


def compare_parakeet(model: Any, folder: str) -> str:
    """Texts of sounds of three lengths."""
    return _compare_texts(model, [parakeet_tiny.library_text(folder, sound.samples) for sound in _sounds()])


def _sounds() -> list[Any]:
    return [parakeet_tiny.sound(seed, seconds) for seed, seconds in enumerate((0.7, 1.5, 2.2))]


def _compare_texts(model: Any, expected: list[str]) -> str:
    texts = [model.run(TranscriptionRequest(sound)).result.text for sound in _sounds()]
    assert texts == expected
    assert sum(map(len, texts)) > 20, "the tiny network writes hardly any text"
    return f"{sum(map(len, texts))} characters of {len(texts)} sounds"


def compare_whisper(model: Any, folder: str) -> str:
    """Tokens of a sound, up to where the reference stops."""
    sound = whisper_tiny.sound(1)
    network = t.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    start = [whisper_tiny.BEGIN, whisper_tiny.EN, whisper_tiny.TRANSCRIBE]
    tokens = [token for token in generated(network, sound, start)[0] if token < whisper_tiny.END]
    expected = "".join(whisper_tiny.LETTERS[token] for token in tokens).strip()
    text = model.run(TranscriptionRequest(sound, language="en")).result.text
    assert len(expected) > 20
    assert text.startswith(expected), f"{text!r} instead of {expected!r}"
    return f"{len(expected)} characters"


def compare_voxtral(model: Any, folder: str) -> str:
    """Tokens of a transcript, and of an answer about audio."""
    reference, counts = voxtral_tiny.Reference(folder), list[int]()
    for name in ("language", "several"):
        tokens = [int(emission.value) for emission in model.run(voxtral_tiny.REQUESTS[name]).emissions]
        assert tokens == reference.write(name)
        counts.append(len(tokens))
    return f"{counts[0]} tokens of a transcript, {counts[1]} of an answer about sounds"


# ---------------------------------------------------------------- speech
def compare_vits(model: Any, folder: str) -> str:
    """Sound of two texts with seeds."""
    count = 0
    for text, seed in (("hello there", 3), ("a", 4)):
        (audio,) = model.run(SpeechRequest(text, seed=seed)).emissions
        expected = vits_tiny.library_sound(folder, text, seed)
        assert audio.value.shape == expected.shape, f"{audio.value.shape} instead of {expected.shape}"
        difference = float(abs(audio.value - expected).max())
        assert difference < 1e-4, f"samples differ by {difference:.1e}"
        count += len(expected)
    return f"{count} samples within 0.0001"


def compare_csm(model: Any, folder: str) -> str:
    """Sound of a text, greedy."""
    from dataclasses import replace

    frames = 5
    model.sampling = replace(model.sampling, max_tokens=frames, temperature=0.0, top_k=0)
    sound = np.concatenate([one.value.numpy() for one in model.run(SpeechRequest("w7 w8 w9", "1")).emissions])
    _, expected = csm_tiny.Library(folder).speak("w7 w8 w9", "1", frames)
    shorter = min(len(sound), len(expected))
    difference = float(abs(torch.from_numpy(sound[:shorter]) - expected[:shorter]).max())
    assert shorter > 2 * csm_tiny.HOP, "the tiny network ends at once"
    assert difference < 1e-4, f"samples differ by {difference:.1e}"
    return f"{shorter} samples within 0.0001"


def compare_dia(model: Any, folder: str) -> str:
    """Sound of a dialogue, greedy."""
    from dataclasses import replace

    text, library = "[S1] Hello there. [S2] Hi.", dia_tiny.Library(folder)
    model.sampling = replace(model.decoder.checkpoint.sampling, max_tokens=20, temperature=0.0)
    sound = np.concatenate([one.value.numpy() for one in model.run(SpeechRequest(text)).emissions])
    expected = library.decode(library.write(text, 20, do_sample=False)).numpy()
    assert len(sound) == len(expected) > 10 * dia_tiny.HOP
    difference = float(abs(sound - expected).max())
    assert difference < 1e-4, f"samples differ by {difference:.1e}"
    return f"{len(sound)} samples within 0.0001"


# ---------------------------------------------------------------- not supported
def save_config(folder: Path, name: str) -> Path:
    """Save the config of a class: a folder is refused before its tensors are read."""
    config_class: Any = getattr(t, name).config_class
    config_class(**tiny_fields(config_class), architectures=[name]).save_pretrained(folder)
    return folder


def must_be_refused(model: Any, _: Any) -> str:
    """Fail: nothing of it is compared."""
    raise AssertionError(f"{type(model).__name__} serves it, and nothing was compared")


def refused(name: str, endpoint: str) -> Architecture:
    """An architecture that is not supported."""
    return Architecture(name, endpoint, lambda folder: save_config(folder, name), must_be_refused)


def _ctc(name: str) -> Architecture:
    return Architecture(
        name,
        TRANSCRIPTIONS,
        lambda folder: wav2vec2_tiny.save(folder, name),
        compare_ctc,
        is_fast=name in ("Wav2Vec2ForCTC", "HubertForCTC"),
    )


SPEECH_ARCHITECTURES = (
    Architecture("WhisperForConditionalGeneration", TRANSCRIPTIONS, whisper_tiny.save, compare_whisper),
    Architecture("ParakeetForCTC", TRANSCRIPTIONS, parakeet_tiny.save, compare_parakeet),
    *map(_ctc, CTC),
    Architecture("VoxtralForConditionalGeneration", TRANSCRIPTIONS, voxtral_tiny.save, compare_voxtral),
    Architecture("VitsModel", SPEECH, vits_tiny.save, compare_vits, is_fast=True),
    Architecture("CsmForConditionalGeneration", SPEECH, csm_tiny.save, compare_csm),
    Architecture("DiaForConditionalGeneration", SPEECH, dia_tiny.save, compare_dia),
    refused("Wav2Vec2BertForCTC", TRANSCRIPTIONS),
    refused("MoonshineForConditionalGeneration", TRANSCRIPTIONS),
    refused("ParakeetForTDT", TRANSCRIPTIONS),
    refused("SpeechT5ForTextToSpeech", SPEECH),
    refused("BarkModel", SPEECH),
)
