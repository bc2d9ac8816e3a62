"""Long-form speech recognition: a recording of any length, heard in overlapping chunks at the same time.

The real one is Whisper or a model like it, which hears thirty seconds at once: a long recording is cut into chunks that
overlap, each is encoded and written down by itself, and the texts are stitched together where the chunks overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import Float32, Model, Tensor, Text, each, loop, walk
from mstar.testing.toy_speech import AsrDecoder, ChunkedAudioEncoder, TranscriptMerger


class LongformAsr(Model):
    """Hears all chunks side by side, then stitches what was written down."""

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
