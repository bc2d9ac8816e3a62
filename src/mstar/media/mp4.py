"""Films for clients: frames become one MP4 file (H.264), as they come.

This needs PyAV, whose wheels bring x264, which is under the GPL; that is why it is an extra. There is no second format:
a client that asks for a video expects a file that every browser plays, and nothing else here makes one.
"""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec
from typing import Any, BinaryIO

from mstar.errors import LoadError
from mstar.media.images import to_pixels


def require_mp4() -> None:
    """Raise LoadError if films cannot be made here."""
    if find_spec("av") is None:
        raise LoadError("making an MP4 needs av, not installed here\n  fix: pip install 'mstar-serve[media]'")


class Mp4Writer:
    """A film that is written to a file. Used by one thread at a time."""

    def __init__(self, file: BinaryIO, fps: float) -> None:
        import av  # only who films needs it

        self._av = av
        self._file = file
        self._container = av.open(file, "w", format="mp4")
        self._stream: Any = self._container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        self._stream.pix_fmt = "yuv420p"
        self.frame_count = 0
        """How many frames it has."""

    def feed(self, frames: Any) -> None:
        """More frames, all of the same size, which is even both ways. Raises ValueError."""
        for pixels in to_pixels(frames, 4):
            height, width, _ = pixels.shape
            if self.frame_count == 0:
                self._stream.width, self._stream.height = width, height
            if height % 2 or width % 2 or (width, height) != (self._stream.width, self._stream.height):
                what = (
                    f"a frame has {width} x {height} pixels in a film of {self._stream.width} x {self._stream.height}"
                )
                raise ValueError(f"{what}\n  fix: emit frames of one size, even both ways")
            self._container.mux(self._stream.encode(self._av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            self.frame_count += 1

    def finish(self) -> None:
        """Write what was held back, and close. The file stays open."""
        if self.frame_count:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        self._file.flush()
