"""Sound for clients: a stream of samples becomes one stream of bytes, in the format and at the rate they asked for.

One resampler and one encoder last for the whole stream, so that nothing is heard where two emissions meet. Decoding
what clients send is done elsewhere.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from mstar.errors import LoadError

Samples = np.ndarray[Any, np.dtype[np.float32]]

UNKNOWN_SIZE = 0xFFFFFFFF
"""The size in a WAV header of what is not yet known to end."""


@dataclass(frozen=True, slots=True)
class Format:
    """A format that clients may ask for."""

    media_type: str
    rates: tuple[int, ...] = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
    """How many samples a second it can have."""
    container: str = ""
    codec: str = ""
    options: Mapping[str, str] | None = None


_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
FORMATS: dict[str, Format] = {
    "mp3": Format("audio/mpeg", container="mp3", codec="libmp3lame", options={"write_xing": "0", "id3v2_version": "0"}),
    "opus": Format(
        "audio/ogg",
        _OPUS_RATES,
        container="ogg",
        codec="libopus",
        options={"page_duration": "60000", "fflags": "+bitexact"},  # else each stream gets a number by chance
    ),
    "aac": Format("audio/aac", container="adts", codec="aac"),
    "flac": Format("audio/flac", container="flac", codec="flac"),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm"),
}
"""By the names that clients know. A header that would have to be written again at the end is left out."""


class Encoder(Protocol):
    """Samples in, bytes out, as they come."""

    def feed(self, samples: Samples) -> bytes:
        """What these samples add."""
        ...

    def finish(self) -> bytes:
        """What was held back."""
        ...


class PcmEncoder:
    """16 bits a sample, the lower byte first, and nothing else."""

    def feed(self, samples: Samples) -> bytes:
        """What these samples add."""
        return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()

    def finish(self) -> bytes:
        """What was held back."""
        return b""


class WavEncoder(PcmEncoder):
    """One header that leaves the length open, then the samples."""

    def __init__(self, rate: int) -> None:
        about = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
        self._header = (
            struct.pack("<4sI4s", b"RIFF", UNKNOWN_SIZE, b"WAVE") + about + struct.pack("<4sI", b"data", UNKNOWN_SIZE)
        )

    def feed(self, samples: Samples) -> bytes:
        """What these samples add."""
        header, self._header = self._header, b""
        return header + super().feed(samples)

    def finish(self) -> bytes:
        """What was held back: the header, if there was no sound."""
        return self._header


class FFmpegEncoder:
    """A compressed format, by FFmpeg's libraries."""

    def __init__(self, format: Format, rate: int) -> None:
        import av  # only who compresses needs it

        self._av = av
        self._rate = rate
        self._sink = _ByteSink()
        options = dict(format.options or {}) | {"flush_packets": "1"}
        self._container = av.open(self._sink, "w", format=format.container, options=options)
        self._stream: Any = self._container.add_stream(format.codec, rate=rate, layout="mono")

    def feed(self, samples: Samples) -> bytes:
        """What these samples add."""
        if len(samples):
            frame = self._av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
            frame.sample_rate = self._rate
            self._container.mux(self._stream.encode(frame))
        return self._sink.drain()

    def finish(self) -> bytes:
        """What was held back."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.drain()


class _ByteSink:
    """What an encoder writes to. It cannot seek, and so nothing that was sent is changed."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def drain(self) -> bytes:
        taken = bytes(self._written)
        self._written.clear()
        return taken


class Resampler:
    """From the rates that a model emits to the one that a client wants."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._source_rate = rate
        self._stream: Any = None

    def feed(self, samples: Samples, rate: int) -> Samples:
        """The next samples at the client's rate; some are held back."""
        rest = self.finish() if rate != self._source_rate else samples[:0]
        if rate != self._source_rate:
            self._source_rate = rate
            self._stream = _make_resampler(rate, self._rate) if rate != self._rate else None
        if self._stream is not None:
            samples = self._stream.resample_chunk(samples)
        return np.concatenate((rest, samples)) if len(rest) else samples

    def finish(self) -> Samples:
        """The samples that were held back."""
        none = np.zeros(0, np.float32)
        return none if self._stream is None else self._stream.resample_chunk(none, last=True)


def _make_resampler(source: int, target: int) -> Any:
    _require_package("soxr", f"from {source} to {target} samples a second", "media")
    import soxr  # only who changes rates needs it

    return soxr.ResampleStream(source, target, 1, dtype="float32")


def _require_package(package: str, what: str, extra: str) -> None:
    if find_spec(package) is None:
        raise LoadError(f"{what} needs {package}, not installed here\n  fix: pip install 'mstar-serve[{extra}]'")


class AudioStreamEncoder:
    """One stream of sound on its way to a client."""

    def __init__(self, name: str, rate: int) -> None:
        format = FORMATS[name]
        if rate not in format.rates:
            rates = ", ".join(map(str, format.rates))
            raise ValueError(f"{name} has {rates} samples a second, and not {rate}\n  fix: ask for one of these")
        if format.codec:
            _require_package("av", f"the format {name}", "media")
        self.format = format
        self.rate = rate
        self.duration_s = 0.0
        """How much sound was fed."""
        self._encoder: Encoder = (
            FFmpegEncoder(format, rate) if format.codec else WavEncoder(rate) if name == "wav" else PcmEncoder()
        )
        self._resampler = Resampler(rate)

    @property
    def media_type(self) -> str:
        """What its bytes are, for an HTTP header."""
        is_bare = self.format is FORMATS["pcm"]
        return f"{self.format.media_type};rate={self.rate}" if is_bare else self.format.media_type

    def feed(self, value: Any, rate: int) -> bytes:
        """What an emission adds: samples as an array of any library, at this rate."""
        samples = to_samples(value)
        self.duration_s += len(samples) / rate
        return self._encoder.feed(self._resampler.feed(samples, rate))

    def finish(self) -> bytes:
        """What was held back."""
        return self._encoder.feed(self._resampler.finish()) + self._encoder.finish()


def to_samples(value: Any) -> Samples:
    """An emission's value as mono float32, from -1 to 1. Whole numbers are taken as 16 bits."""
    if not isinstance(value, np.ndarray) and hasattr(value, "detach"):  # a tensor, perhaps of a type numpy has not
        value = value.detach().float().numpy() if value.is_floating_point() else value.numpy()
    array = np.asarray(value).reshape(-1)
    samples = array.astype(np.float32, copy=False)
    return samples / np.float32(32768) if array.dtype.kind in "iu" else samples
