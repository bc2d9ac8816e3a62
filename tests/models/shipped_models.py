"""The shipped models, each with what makes one, and seeded requests for it.

Models whose weights are packaged run with them, the others with the tiny random weights of their own tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mstar.models.assistant.assistant import Assistant
from mstar.models.bagel.bagel import Bagel
from mstar.models.causal_lm.causal_lm import CausalLanguageModel
from mstar.models.csm import csm
from mstar.models.csm.csm import Csm
from mstar.models.dia.dia import Dia
from mstar.models.diffusion.flux import Flux
from mstar.models.diffusion.ltx import Ltx
from mstar.models.diffusion.sd3 import StableDiffusion3
from mstar.models.diffusion.wan import Wan
from mstar.models.faces.faces import Faces
from mstar.models.hibari.tts import Hibari
from mstar.models.hopper.hopper import Hopper
from mstar.models.kokoro.checkpoint import DEFAULT_WEIGHTS
from mstar.models.kokoro.kokoro import Kokoro
from mstar.models.orpheus import orpheus
from mstar.models.orpheus.orpheus import Orpheus
from mstar.models.parakeet.parakeet import Parakeet
from mstar.models.pi05.pi05 import Pi05
from mstar.models.qwen3_omni.qwen3_omni import Qwen3Omni
from mstar.models.qwen3_tts import qwen3_tts
from mstar.models.qwen3_tts.qwen3_tts import Qwen3Tts
from mstar.models.sentence_transformer.sentence_transformer import SentenceTransformer
from mstar.models.smollm2.smollm2 import SmolLm2
from mstar.models.smolvlm.smolvlm import SmolVlm
from mstar.models.terrain.terrain import Terrain
from mstar.models.vits.vits import Vits
from mstar.models.vjepa2.vjepa2 import VJepa2
from mstar.models.vjepa2.vjepa2_ac import VJepa2AC
from mstar.models.voxtral.voxtral import Voxtral
from mstar.models.wav2vec2.wav2vec2 import Wav2Vec2
from mstar.models.whisper.whisper import Whisper
from mstar.requests import (
    ActionRequest,
    AudioInput,
    ChatRequest,
    EmbeddingRequest,
    ImageInput,
    ImageRequest,
    Message,
    Sampling,
    SpeechRequest,
    TranscriptionRequest,
    VideoRequest,
)

WORDS = ["the", "a", "red", "cat", "dog", "runs", "slowly", "over", "seven", "quiet", "rivers", "while", "it", "rains"]
DRAWN_WORDS = ["a", "red", "blue", "green", "cat", "dog", "runs", "on", "the", "moon", "slowly", "and", "jumps"]
"""Words of the tokenizer of the tiny diffusion models."""
RATE_HZ = 16_000


@dataclass(frozen=True)
class ShippedModel:
    """A model, which `make` creates with files in an empty folder, and what draws a request for it."""

    make: Callable[[Path], Any]
    draw: Callable[[random.Random], Any]


def _text(rng: random.Random, least: int = 1, most: int = 12, words: list[str] = WORDS) -> str:
    return " ".join(rng.choice(words) for _ in range(rng.randint(least, most)))


def _sampling(rng: random.Random, max_tokens: int) -> Sampling:
    temperature, top_p = rng.choice(((0.0, 1.0), (0.7, 0.9), (1.0, 1.0), (1.3, 0.95)))
    options = {"frequency_penalty": rng.choice((0.0, 0.3)), "logprobs": rng.choice((None, 0))}
    return Sampling(rng.randint(1, max_tokens), temperature, top_p=top_p, seed=rng.randrange(2**40), **options)


def _picture(rng: random.Random) -> ImageInput:
    shape = rng.choice(((64, 64, 3), (40, 60, 3), (70, 30, 3)))
    return ImageInput(np.random.default_rng(rng.randrange(2**40)).integers(0, 255, shape, np.uint8))


def _sound(rng: random.Random, most_s: float = 2.0) -> AudioInput:
    generator = np.random.default_rng(rng.randrange(2**40))
    at = np.arange(int(RATE_HZ * rng.uniform(0.5, most_s))) / RATE_HZ
    tone = np.sin(2 * np.pi * rng.uniform(90, 300) * at) * np.abs(np.sin(2 * np.pi * rng.uniform(1, 4) * at))
    return AudioInput((0.3 * tone + generator.normal(0, 0.05, len(at))).astype(np.float32), RATE_HZ)


def _chat(rng: random.Random) -> ChatRequest:
    """Prompts of a few to a hundred tokens; some begin with the same ones. Log probabilities show every bit."""
    shared = rng.choice(("", "You are a helpful assistant that answers briefly, in the words of a sailor. "))
    turns = [Message("system", (shared,))] if shared else []
    text = _text(rng, 1, rng.choice((5, 20, 60)))
    return ChatRequest((*turns, Message("user", (text,))), _sampling(rng, 8))


def _short_chat(rng: random.Random) -> ChatRequest:
    """Prompts for tokenizers whose tokens are letters."""
    return ChatRequest((Message("user", (_text(rng, 1, rng.choice((3, 25))),)),), _sampling(rng, 8))


def _seen_chat(rng: random.Random, sampling: Sampling | None = None, **options: Any) -> ChatRequest:
    parts: list[Any] = [_text(rng)]
    if rng.random() < 0.6:
        parts.insert(rng.randint(0, 1), _picture(rng))
    return ChatRequest((Message("user", tuple(parts)),), sampling or _sampling(rng, 8), **options)


def _speech(rng: random.Random, voices: tuple[str, ...] = ("",), most: int = 6) -> SpeechRequest:
    return SpeechRequest(_text(rng, 1, most).capitalize() + ".", rng.choice(voices), seed=rng.randrange(2**40))


# ---------------------------------------------------------------- models with tiny weights
def _causal_lm(family: str) -> ShippedModel:
    def make(folder: Path) -> Any:
        from tests.models.causal_lm import causal_lm_tiny

        return CausalLanguageModel(str(causal_lm_tiny.save(folder, family)))

    return ShippedModel(make, _short_chat)


def _make_smolvlm(folder: Path) -> Any:
    from tests.models.smolvlm import smolvlm_tiny

    return SmolVlm(smolvlm_tiny.save(folder))


def _make_orpheus(folder: Path) -> Any:
    from tests.models.orpheus import orpheus_tiny

    return Orpheus(*orpheus_tiny.save(folder), sampling=replace(orpheus.DEFAULT_SAMPLING, max_tokens=45))


def _make_csm(folder: Path) -> Any:
    from tests.models.csm import csm_tiny

    return Csm(csm_tiny.save(folder), sampling=replace(csm.DEFAULT_SAMPLING, max_tokens=10))


def _draw_csm(rng: random.Random) -> SpeechRequest:
    return replace(_speech(rng, ("", "1", "9")), text=f"w{rng.randint(6, 99)} w7 w9")


def _make_dia(folder: Path) -> Any:
    from tests.models.dia import dia_tiny

    return Dia(dia_tiny.save(folder, frames=24))


def _make_qwen3_tts(folder: Path) -> Any:
    from tests.models.qwen3_tts import qwen3_tts_tiny

    sampling = replace(qwen3_tts.DEFAULT_SAMPLING, max_tokens=10)
    return Qwen3Tts(qwen3_tts_tiny.save(folder), sampling=sampling)


def _make_qwen3_omni(folder: Path) -> Any:
    from tests.models.qwen3_omni import qwen3_omni_tiny

    codes = Sampling(max_tokens=9, temperature=0.9, top_k=50, repetition_penalty=1.05)
    return Qwen3Omni(qwen3_omni_tiny.save(folder), code_sampling=codes)


def _draw_omni(rng: random.Random) -> ChatRequest:
    parts: list[Any] = [_text(rng)]
    if rng.random() < 0.5:
        parts.append(_sound(rng))
    if rng.random() < 0.5:
        parts.append(_picture(rng))
    rng.shuffle(parts)
    return ChatRequest((Message("user", tuple(parts)),), _sampling(rng, 7), audio_output=rng.random() < 0.7)


def _make_sd3(folder: Path) -> Any:
    from tests.models.diffusion import diffusion_tiny

    diffusion_tiny.save_sd3(folder)
    return StableDiffusion3(str(folder))


def _make_flux(folder: Path) -> Any:
    from tests.models.diffusion import diffusion_tiny

    diffusion_tiny.save_flux(folder)
    return Flux(str(folder))


def _make_wan(folder: Path) -> Any:
    from tests.models.diffusion import diffusion_tiny

    diffusion_tiny.save_wan(folder)
    return Wan(str(folder), fps=diffusion_tiny.FPS)


def _make_ltx(folder: Path) -> Any:
    from tests.models.diffusion import diffusion_tiny

    diffusion_tiny.save_ltx(folder)
    return Ltx(str(folder), fps=diffusion_tiny.FPS)


def _draw_image(rng: random.Random) -> ImageRequest:
    width, height = rng.choice(((32, 32), (48, 32), (32, 64)))
    guidance, seed = rng.choice((1.0, 3.5, 6.0)), rng.randrange(2**40)
    text = _text(rng, 1, 6, DRAWN_WORDS)
    return ImageRequest(text, width, height, rng.randint(2, 6), guidance, seed=seed, partial_images=rng.choice((0, 1)))


def _draw_video(rng: random.Random) -> VideoRequest:
    guidance, seed = rng.choice((1.0, 4.0)), rng.randrange(2**40)
    text = _text(rng, 1, 6, DRAWN_WORDS)
    return VideoRequest(text, rng.choice((0.5, 1.0)), 32, 32, seed=seed, steps=rng.randint(2, 5), guidance=guidance)


def _make_bagel(folder: Path) -> Any:
    from tests.models.bagel import bagel_tiny

    return Bagel(bagel_tiny.save(folder))


def _draw_bagel(rng: random.Random) -> Any:
    text = " ".join(f"w{rng.randint(5, 299)}" for _ in range(rng.randint(1, 9)))
    if rng.random() < 0.4:
        image = ImageInput(np.random.default_rng(rng.randrange(2**40)).integers(0, 255, (64, 64, 3), np.uint8))
        parts = (image, text) if rng.random() < 0.5 else (text,)
        return ChatRequest((Message("user", parts),), _sampling(rng, 8))
    width, height = rng.choice(((32, 32), (48, 32), (32, 64)))
    return ImageRequest(text, width, height, steps=rng.randint(2, 5), seed=rng.randrange(2**40))


def _make_pi05(folder: Path) -> Any:
    from tests.models.pi05 import pi05_tiny

    return Pi05(pi05_tiny.save(folder))


def _draw_pi05(rng: random.Random) -> ActionRequest:
    from tests.models.pi05 import pi05_tiny

    observation = pi05_tiny.observation(rng.randrange(2**30), rng.randint(1, 3))
    return ActionRequest(observation, rng.choice(("pick up_the cup", "fold a shirt")), seed=rng.randrange(2**40))


def _make_vjepa2(folder: Path) -> Any:
    from tests.models.vjepa2 import vjepa2_tiny

    return VJepa2(vjepa2_tiny.save_clips(folder)[0])


def _draw_clip(rng: random.Random) -> Any:
    from tests.models.vjepa2 import vjepa2_tiny

    shown, hidden = rng.choice((((), ()), ((0, 1, 2), (4, 7)), ((1, 3), (0, 2))))
    return vjepa2_tiny.watching(rng.randrange(2**30), rng.choice((2, 4)), shown, hidden)


def _make_vjepa2_ac(folder: Path) -> Any:
    from tests.models.vjepa2 import vjepa2_tiny

    return VJepa2AC(vjepa2_tiny.save_ac(folder))


def _draw_world(rng: random.Random) -> Any:
    from tests.models.vjepa2 import vjepa2_tiny

    if rng.random() < 0.5:
        return vjepa2_tiny.rollout_request(rng.randrange(2**30), rng.randint(1, 4), rng.choice((0, 2, 5)))
    return vjepa2_tiny.acting(rng.randrange(2**30), rng.randint(1, 2), rng.choice((8, 16)), rng.randint(1, 2), elites=4)


def _make_tiny_kokoro(folder: Path) -> Any:
    from tests.models.kokoro import kokoro_tiny

    return Kokoro(kokoro_tiny.save(folder))


def _make_kokoro(folder: Path) -> Any:
    """The published weights if they were fetched, else tiny ones."""
    is_fetched = Path(DEFAULT_WEIGHTS).expanduser().is_dir()
    return Kokoro() if is_fetched else _make_tiny_kokoro(folder)


def _make_faces(folder: Path) -> Any:
    from tests.models.faces import faces_tiny

    return Faces(faces_tiny.save(folder))


def _make_whisper(folder: Path) -> Any:
    from tests.models.whisper import whisper_tiny

    whisper_tiny.save(folder)
    return Whisper(str(folder))


def _make_parakeet(folder: Path) -> Any:
    from tests.models.parakeet import parakeet_tiny

    return Parakeet(parakeet_tiny.save(folder))


def _make_wav2vec2(folder: Path) -> Any:
    from tests.models.wav2vec2 import wav2vec2_tiny

    return Wav2Vec2(wav2vec2_tiny.save(folder))


def _make_voxtral(folder: Path) -> Any:
    from tests.models.voxtral import voxtral_tiny

    return Voxtral(voxtral_tiny.save(folder))


def _draw_voxtral(rng: random.Random) -> ChatRequest | TranscriptionRequest:
    """A chat with or without audio, or a transcription."""
    if rng.random() < 0.3:
        return TranscriptionRequest(_sound(rng), rng.choice(("", "en")), temperature=rng.choice((0.0, 0.8)))
    parts: list[Any] = [_text(rng), *(_sound(rng, 3.0) for _ in range(rng.randint(0, 2)))]
    rng.shuffle(parts)
    return ChatRequest((Message("user", tuple(parts)),), _sampling(rng, 8))


def _make_vits(folder: Path) -> Any:
    from tests.models.vits import vits_tiny

    return Vits(vits_tiny.save(folder))


def _draw_embedding(rng: random.Random) -> EmbeddingRequest:
    return EmbeddingRequest(tuple(_text(rng, 1, rng.choice((4, 30))) for _ in range(rng.randint(1, 4))))


def _draw_action(rng: random.Random) -> ActionRequest:
    state = np.random.default_rng(rng.randrange(2**40)).normal(0, 1, 15).astype(np.float32)
    return ActionRequest({"state": state})


def _draw_transcription(rng: random.Random) -> TranscriptionRequest:
    temperature = rng.choice((0.0, 0.0, 0.8))
    return TranscriptionRequest(_sound(rng), temperature=temperature, word_timestamps=rng.random() < 0.3)


def _draw_assistant(rng: random.Random) -> Any:
    """Silero, Whisper, SmolLM2 and Hibari in one request."""
    return ChatRequest((Message("user", (_sound(rng),)),), _sampling(rng, 8), audio_output=rng.random() < 0.5)


SHIPPED_MODELS: dict[str, ShippedModel] = {
    "smollm2": ShippedModel(lambda _: SmolLm2(), _chat),
    **{f"causal-lm {family}": _causal_lm(family) for family in ("llama", "qwen3", "gemma3", "phi", "gpt2", "bloom")},
    "smolvlm": ShippedModel(_make_smolvlm, _seen_chat),
    "sentence-transformer": ShippedModel(lambda _: SentenceTransformer(), _draw_embedding),
    "kokoro": ShippedModel(_make_kokoro, _speech),
    "orpheus": ShippedModel(_make_orpheus, lambda rng: _speech(rng, ("", "leo", "zoe"))),
    "hibari": ShippedModel(lambda _: Hibari(), _speech),
    "qwen3-tts": ShippedModel(_make_qwen3_tts, lambda rng: replace(_speech(rng), text=f"w{rng.randint(5, 99)} w7 w9")),
    "csm": ShippedModel(_make_csm, _draw_csm),
    "dia": ShippedModel(_make_dia, lambda rng: replace(_speech(rng), text=f"[S1] {_text(rng)} [S2] {_text(rng)}")),
    "qwen3-omni": ShippedModel(_make_qwen3_omni, _draw_omni),
    "whisper": ShippedModel(lambda _: Whisper(), _draw_transcription),
    "whisper (three languages)": ShippedModel(_make_whisper, _draw_transcription),
    "parakeet": ShippedModel(
        _make_parakeet, lambda rng: TranscriptionRequest(_sound(rng), word_timestamps=rng.random() < 0.3)
    ),
    "wav2vec2": ShippedModel(
        _make_wav2vec2, lambda rng: TranscriptionRequest(_sound(rng), word_timestamps=rng.random() < 0.3)
    ),
    "voxtral": ShippedModel(_make_voxtral, _draw_voxtral),
    "vits": ShippedModel(_make_vits, _speech),
    "assistant": ShippedModel(lambda _: Assistant(), _draw_assistant),
    "sd3": ShippedModel(_make_sd3, _draw_image),
    "flux": ShippedModel(_make_flux, _draw_image),
    "wan": ShippedModel(_make_wan, _draw_video),
    "ltx": ShippedModel(_make_ltx, _draw_video),
    "bagel": ShippedModel(_make_bagel, _draw_bagel),
    "terrain": ShippedModel(lambda _: Terrain(), lambda rng: ImageRequest("", seed=rng.randrange(2**40), steps=2)),
    "faces": ShippedModel(_make_faces, lambda rng: ImageRequest("", seed=rng.randrange(2**40))),
    "hopper": ShippedModel(lambda _: Hopper(), _draw_action),
    "pi05": ShippedModel(_make_pi05, _draw_pi05),
    "vjepa2": ShippedModel(_make_vjepa2, _draw_clip),
    "vjepa2-ac": ShippedModel(_make_vjepa2_ac, _draw_world),
}
