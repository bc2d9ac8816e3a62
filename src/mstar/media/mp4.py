"""MP4 encoder: video frames to one MP4 file (H.264), frame by frame.

Needs PyAV, whose wheels include x264 (GPL); therefore it is an optional extra. MP4 is the only video format, because
every browser plays it.
"""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec
from typing import Any, BinaryIO

from mstar.errors import MissingExtra
from mstar.media.images import to_pixels


def require_mp4() -> None:
    """Raise MissingExtra if PyAV is not installed."""
    if find_spec("av") is None:
        raise MissingExtra.from_package("encoding MP4", "av", "media")


class Mp4Writer:
    """Writes one MP4 file. Used by one thread at a time."""

    def __init__(self, file: BinaryIO, fps: float) -> None:
        import av  # optional dependency, for video only

        self._av = av
        self._file = file
        self._container = av.open(file, "w", format="mp4")
        self._stream: Any = self._container.add_stream("libx264", rate=Fraction(fps).limit_denominator(1001))
        self._stream.pix_fmt = "yuv420p"
        self.frame_count = 0
        """Number of frames encoded so far."""

    def feed(self, frames: Any) -> None:
        """Encode frames of equal and even size. Raises ValueError."""
        for pixels in to_pixels(frames, 4):
            height, width, _ = pixels.shape
            if self.frame_count == 0:
                self._stream.width, self._stream.height = width, height
            if height % 2 or width % 2 or (width, height) != (self._stream.width, self._stream.height):
                size = f"{self._stream.width} x {self._stream.height}"
                what = f"a frame has {width} x {height} pixels, the video {size}"
                raise ValueError(f"{what}\n  fix: emit frames of one size with even sides")
            self._container.mux(self._stream.encode(self._av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            self.frame_count += 1

    def finish(self) -> None:
        """Flush the encoder and write the index. The file stays open."""
        if self.frame_count:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        self._file.flush()
