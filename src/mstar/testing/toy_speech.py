# pyright: basic
"""Fake speech models for tests: text to speech and speech recognition. `toy_language` explains the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from mstar.testing.lazy_numpy import np
from mstar.testing.toy_language import WIDTH, TokenDecoder, ToyComponent, kv_entries, split_rows, to_floats, to_token
from mstar.walk.batching import ONE_ROW, Layout, padded, ragged, rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV, State
from mstar.walk.types import Float32, Int64, Tensor


# ---------------------------------------------------------------- states
@dataclass
class CodecState(State):
    """State of a streaming codec: its last frames and their number."""

    tail: list[int] = field(default_factory=list[int])
    count: int = 0


# ---------------------------------------------------------------- text to speech
class AudioEncoder(ToyComponent):
    """Encodes spectrogram frames to one embedding each."""

    @op(batch=padded("F"))
    def encode(self, mel: Float32[Tensor, "F 80"], layout: Layout = ONE_ROW) -> Float32[Tensor, "F 64"]:
        """Embeddings of all frames of a row; padding is ignored."""
        out = np.zeros((*mel.shape[:2], WIDTH), np.float32)
        for row, length in enumerate(layout.lengths):
            out[row, :length] = to_floats(self.weighted_digest(mel[row, :length]), (length, WIDTH))
        return cast("Any", out)


class Snac(ToyComponent):
    """Audio codec decoder: a window of 28 codes gives the audio of its middle frames."""

    @op(batch=stacked)
    def decode(self, codes: Int64[Tensor, "28 1"]) -> Float32[Tensor, "2048"]:
        """Audio of a window."""
        return cast("Any", np.stack([to_floats(self.weighted_digest(window), (2048,)) for window in codes]))


class StreamingCodec(ToyComponent):
    """Streaming codec decoder: one frame at a time, with a state of earlier frames."""

    @op(batch=stacked)
    def decode(self, frame: Int64[Tensor, "8"], state: CodecState) -> Float32[Tensor, "1920"]:
        """Audio of the next frame."""
        audio: list[Any] = []
        for codes, past in zip(frame, rows(state), strict=True):
            past.tail = [*past.tail[-3:], self.weighted_digest(codes)]
            past.count += 1
            audio.append(to_floats(self.weighted_digest(past.tail, past.count), (1920,)))
        return cast("Any", np.stack(audio))


class Talker(TokenDecoder):
    """Generates the first code of each speech frame, conditioned on the hidden states of a thinker."""

    @op(batch=ragged("T"))
    def prefill(
        self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]:
        """Prefill: read the prompt, return the first code and its hidden state."""
        for ids, cache in zip(split_rows(tokens, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, ids))
        return self._next(kv)

    @op(batch=stacked)
    def talk(
        self, frame: Int64[Tensor, "16"], thought: Float32[Tensor, "64"], kv: KV
    ) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]:
        """Decode: read a frame and a thinker state, return the next frame's first code and its hidden state."""
        for codes, hidden, cache in zip(frame, thought, rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(codes, hidden))
        return self._next(kv)

    @op
    def pad(self) -> Float32[Tensor, "64"]:
        """Thinker state after the end of the text."""
        return to_floats(self.seed, (WIDTH,))

    def _next(self, kv: KV) -> tuple[Any, Any]:
        digests = [self.cache_digest(cache) for cache in rows(kv)]
        codes = [to_token(number, self.vocab) for number in digests]
        hidden = [to_floats(number, (WIDTH,)) for number in digests]
        return np.stack(codes), np.stack(hidden)


class CodePredictor(ToyComponent):
    """RVQ code predictor: fifteen residual codes per frame, one after the other, with a KV cache per frame."""

    @op(batch=stacked)
    def start(self, code: Int64[Tensor, "1"]) -> Int64[Tensor, "16"]:
        """A frame with only its first code."""
        frames = np.zeros((len(code), 16), np.int64)
        frames[:, :1] = code
        return cast("Any", frames)

    @op(batch=stacked)
    def extend(
        self, frame: Int64[Tensor, "16"], hidden: Float32[Tensor, "64"], step: int, kv: KV
    ) -> Int64[Tensor, "16"]:
        """The frame with one more code, after the first `step` + 1."""
        frames = np.array(frame)
        for codes, thought, at, cache in zip(frames, hidden, rows(step), rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(codes[: at + 1], thought))
            codes[at + 1] = self.cache_digest(cache) % 1024
        return cast("Any", frames)


class Vocoder(ToyComponent):
    """Vocoder: reads frames of codes with context, and returns the audio of the fresh ones."""

    hop = 1920
    """Samples per frame."""

    @op(batch=ragged("W"))
    def decode(self, codes: Int64[Tensor, "W 16"], fresh: int, layout: Layout = ONE_ROW) -> Float32[Tensor, "S"]:
        """Audio of the last `fresh` frames."""
        pairs = zip(split_rows(codes, layout), rows(fresh), strict=True)
        return cast("Any", [to_floats(self.weighted_digest(frames, new), (new * self.hop,)) for frames, new in pairs])


# ---------------------------------------------------------------- speech recognition
class ChunkedAudioEncoder(ToyComponent):
    """Splits a long recording into overlapping chunks, and encodes them."""

    chunk = 64
    overlap = 16
    hop = 8

    @op
    def split(self, sound: Float32[Tensor, "S"]) -> list[Float32[Tensor, "C"]]:
        """Overlapping chunks; the last can be shorter."""
        stride = self.chunk - self.overlap
        return [sound[at : at + self.chunk] for at in range(0, max(1, len(sound) - self.overlap), stride)]

    @op(batch=ragged("C"))
    def encode(self, chunk: Float32[Tensor, "C"], layout: Layout = ONE_ROW) -> Float32[Tensor, "F 64"]:
        """One embedding per eight samples."""
        parts = split_rows(chunk, layout)
        return cast(
            "Any", [to_floats(self.weighted_digest(part), (-(-len(part) // self.hop), WIDTH)) for part in parts]
        )


class AsrDecoder(TokenDecoder):
    """Transcribes a chunk of audio."""

    @op(batch=ragged("F"))
    def listen(self, features: Float32[Tensor, "F 64"], kv: KV, layout: Layout = ONE_ROW) -> Int64[Tensor, "1"]:
        """Prefill: read the embeddings of a chunk, return the first token."""
        for part, cache in zip(split_rows(features, layout), rows(kv), strict=True):
            kv_entries(cache).extend(self.weighted_digest(frame) for frame in part)
        return self._next(kv)

    @op(batch=stacked)
    def write(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]:
        """Decode: read one token, return the next one."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        return self._next(kv)

    def _next(self, kv: KV) -> Any:
        return np.stack([to_token(self.cache_digest(cache), self.vocab) for cache in rows(kv)])


class TranscriptMerger(ToyComponent):
    """Merges the transcripts of overlapping chunks."""

    @op
    def join(self, pieces: list[list[Int64[Tensor, "1"]]]) -> Int64[Tensor, "U"]:
        """One text; a token that ends one piece and begins the next appears once."""
        joined: list[int] = []
        for piece in pieces:
            tokens = [int(token[0]) for token in piece]
            joined += tokens[1:] if joined and tokens and tokens[0] == joined[-1] else tokens
        return cast("Any", np.array(joined, np.int64))
