"""Long-form speech recognition: a recording of any length, heard in overlapping chunks at the same time.

The real one is Whisper or a model like it, which hears thirty seconds at once: a long recording is cut into chunks that
overlap, each is encoded and written down by itself, and the texts are stitched together where the chunks overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import Float32, Model, Tensor, Text, each, loop, walk
from mstar.testing.toy_speech import Ear, Scribe, Stitcher


class LongformAsr(Model):
    """Hears all chunks side by side, then stitches what was written down."""

    def __init__(self) -> None:
        self.ear, self.scribe, self.stitcher = Ear(), Scribe(vocab=19, eos=5), Stitcher()

    @walk
    def transcribe(self, sound: Float32[Tensor, "S"]) -> Iterator[Text]:
        chunks = each(self.ear.split(sound))
        for chunk in chunks:
            kv = self.scribe.kv()
            s = loop(steps=24, token=self.scribe.listen(self.ear.encode(chunk), kv))
            for _ in s:
                s.collect(text=s.token)
                s.token = self.scribe.write(s.token, kv)
                s.stop_when(self.scribe.is_end(s.token))
            chunks.collect(text=s.text)
        yield Text(self.stitcher.join(chunks.text))


def requests() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"sound": rng.integers(-99, 99, size).astype(np.float32)} for size in (300, 64, 131)]
