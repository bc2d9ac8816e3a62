# pyright: basic
"""Toy components for speech, spoken and heard: see `toys` for the arithmetic and what it is good for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from mstar.testing.toy_language import WIDTH, TokenDecoder, ToyComponent, kv_entries, split_rows, to_floats, to_token
from mstar.walk.batching import ONE_ROW, Layout, padded, ragged, rows, stacked
from mstar.walk.component import op
from mstar.walk.states import KV, State
from mstar.walk.types import Float32, Int64, Tensor


# ---------------------------------------------------------------- states
@dataclass
class CodecState(State):
    """What a streaming codec remembers: its last frames, and how many there were."""

    tail: list[int] = field(default_factory=list[int])
    count: int = 0


# ---------------------------------------------------------------- speaking
class AudioEncoder(ToyComponent):
    """Spectrogram frames to embeddings, one for each."""

    @op(batch=padded("F"))
    def encode(self, mel: Float32[Tensor, "F 80"], layout: Layout = ONE_ROW) -> Float32[Tensor, "F 64"]:
        """The frames, seen as a whole. What fills up the shorter rows is not looked at."""
        out = np.zeros((*mel.shape[:2], WIDTH), np.float32)
        for row, length in enumerate(layout.lengths):
            out[row, :length] = to_floats(self.weighted_digest(mel[row, :length]), (length, WIDTH))
        return cast("Any", out)


class Snac(ToyComponent):
    """Codes to sound: a window of 28 codes gives the sound of its middle ones."""

    @op(batch=stacked)
    def decode(self, codes: Int64[Tensor, "28 1"]) -> Float32[Tensor, "2048"]:
        """The sound of a window."""
        return cast("Any", np.stack([to_floats(self.weighted_digest(window), (2048,)) for window in codes]))


class StreamingCodec(ToyComponent):
    """Codes to sound one frame at a time, with a memory of the frames before."""

    @op(batch=stacked)
    def decode(self, frame: Int64[Tensor, "8"], state: CodecState) -> Float32[Tensor, "1920"]:
        """The sound of one frame after those that the state has seen."""
        sounds: list[Any] = []
        for codes, past in zip(frame, rows(state), strict=True):
            past.tail = [*past.tail[-3:], self.weighted_digest(codes)]
            past.count += 1
            sounds.append(to_floats(self.weighted_digest(past.tail, past.count), (1920,)))
        return cast("Any", np.stack(sounds))


class Talker(TokenDecoder):
    """Writes the first code of each frame of speech, led by a thinker's hidden states."""

    @op(batch=ragged("T"))
    def prefill(
        self, tokens: Int64[Tensor, "T"], kv: KV, layout: Layout = ONE_ROW
    ) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]:
        """Read the prompt; the first code, and the hidden state behind it."""
        for ids, cache in zip(split_rows(tokens, layout), rows(kv), strict=True):
            kv_entries(cache).extend(map(int, ids))
        return self._next(kv)

    @op(batch=stacked)
    def talk(
        self, frame: Int64[Tensor, "16"], thought: Float32[Tensor, "64"], kv: KV
    ) -> tuple[Int64[Tensor, "1"], Float32[Tensor, "64"]]:
        """Read a frame and a thought; the next frame's first code, and the hidden state behind it."""
        for codes, hidden, cache in zip(frame, thought, rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(codes, hidden))
        return self._next(kv)

    @op
    def pad(self) -> Float32[Tensor, "64"]:
        """The thought of one who has nothing more to say."""
        return to_floats(self.seed, (WIDTH,))

    def _next(self, kv: KV) -> tuple[Any, Any]:
        marks = [self.cache_digest(cache) for cache in rows(kv)]
        codes, hidden = [to_token(mark, self.vocab) for mark in marks], [to_floats(mark, (WIDTH,)) for mark in marks]
        return np.stack(codes), np.stack(hidden)


class CodePredictor(ToyComponent):
    """Completes a frame: fifteen residual codes, one after the other, with a cache of its own for each frame."""

    @op(batch=stacked)
    def start(self, code: Int64[Tensor, "1"]) -> Int64[Tensor, "16"]:
        """A frame that holds its first code only."""
        frames = np.zeros((len(code), 16), np.int64)
        frames[:, :1] = code
        return cast("Any", frames)

    @op(batch=stacked)
    def extend(
        self, frame: Int64[Tensor, "16"], hidden: Float32[Tensor, "64"], step: int, kv: KV
    ) -> Int64[Tensor, "16"]:
        """The frame with one more code, after the `step` + 1 it has."""
        frames = np.array(frame)
        for codes, thought, at, cache in zip(frames, hidden, rows(step), rows(kv), strict=True):
            kv_entries(cache).append(self.weighted_digest(codes[: at + 1], thought))
            codes[at + 1] = self.cache_digest(cache) % 1024
        return cast("Any", frames)


class Vocoder(ToyComponent):
    """Frames of codes to sound: sees earlier frames too, and gives the sound of the fresh ones."""

    hop = 1920
    """Samples for each frame."""

    @op(batch=ragged("W"))
    def decode(self, codes: Int64[Tensor, "W 16"], fresh: int, layout: Layout = ONE_ROW) -> Float32[Tensor, "S"]:
        """The sound of the last `fresh` frames."""
        pairs = zip(split_rows(codes, layout), rows(fresh), strict=True)
        return cast("Any", [to_floats(self.weighted_digest(frames, new), (new * self.hop,)) for frames, new in pairs])


# ---------------------------------------------------------------- hearing
class ChunkedAudioEncoder(ToyComponent):
    """Cuts a long recording into overlapping chunks, and encodes them."""

    chunk, overlap, hop = 64, 16, 8

    @op
    def split(self, sound: Float32[Tensor, "S"]) -> list[Float32[Tensor, "C"]]:
        """Chunks that overlap; the last may be shorter."""
        stride = self.chunk - self.overlap
        return [sound[at : at + self.chunk] for at in range(0, max(1, len(sound) - self.overlap), stride)]

    @op(batch=ragged("C"))
    def encode(self, chunk: Float32[Tensor, "C"], layout: Layout = ONE_ROW) -> Float32[Tensor, "F 64"]:
        """An embedding for every eight samples."""
        parts = split_rows(chunk, layout)
        return cast(
            "Any", [to_floats(self.weighted_digest(part), (-(-len(part) // self.hop), WIDTH)) for part in parts]
        )


class AsrDecoder(TokenDecoder):
    """Writes down what it hears in a chunk."""

    @op(batch=ragged("F"))
    def listen(self, heard: Float32[Tensor, "F 64"], kv: KV, layout: Layout = ONE_ROW) -> Int64[Tensor, "1"]:
        """Read a chunk's embeddings; the first token."""
        for part, cache in zip(split_rows(heard, layout), rows(kv), strict=True):
            kv_entries(cache).extend(self.weighted_digest(frame) for frame in part)
        return self._next(kv)

    @op(batch=stacked)
    def write(self, token: Int64[Tensor, "1"], kv: KV) -> Int64[Tensor, "1"]:
        """Write a token down; the one that follows it."""
        for ids, cache in zip(token, rows(kv), strict=True):
            kv_entries(cache).append(int(ids[0]))
        return self._next(kv)

    def _next(self, kv: KV) -> Any:
        return np.stack([to_token(self.cache_digest(cache), self.vocab) for cache in rows(kv)])


class TranscriptMerger(ToyComponent):
    """Joins the texts of overlapping chunks."""

    @op
    def join(self, pieces: list[list[Int64[Tensor, "1"]]]) -> Int64[Tensor, "U"]:
        """One text; where a piece begins with the token that ended the one before, that is said once."""
        joined: list[int] = []
        for piece in pieces:
            tokens = [int(token[0]) for token in piece]
            joined += tokens[1:] if joined and tokens and tokens[0] == joined[-1] else tokens
        return cast("Any", np.array(joined, np.int64))
