"""Long-form speech recognition (ASR): overlapping chunks, transcribed in parallel.

The published models, such as Whisper, encode thirty seconds at once. A long recording is split into overlapping chunks,
each chunk is encoded and decoded on its own, and the transcripts are merged at their overlaps.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import Float32, Model, Tensor, Text, each, loop, walk
from mstar.testing.toy_speech import AsrDecoder, ChunkedAudioEncoder, TranscriptMerger


class LongformAsr(Model):
    """Transcribes all chunks in parallel, then merges the transcripts."""

    def __init__(self) -> None:
        self.audio_encoder, self.decoder, self.merger = (
            ChunkedAudioEncoder(),
            AsrDecoder(vocab=19, eos=5),
            TranscriptMerger(),
        )

    @walk
    def transcribe(self, sound: Float32[Tensor, "S"]) -> Iterator[Text]:
        chunks = each(self.audio_encoder.split(sound))
        for chunk in chunks:
            kv = self.decoder.kv()
            s = loop(steps=24, token=self.decoder.listen(self.audio_encoder.encode(chunk), kv))
            for _ in s:
                s.collect(text=s.token)
                s.token = self.decoder.write(s.token, kv)
                s.stop_when(self.decoder.is_end(s.token))
            chunks.collect(text=s.text)
        yield Text(self.merger.join(chunks.text))


def requests() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"sound": rng.integers(-99, 99, size).astype(np.float32)} for size in (300, 64, 131)]
