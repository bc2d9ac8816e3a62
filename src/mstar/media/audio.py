"""Streaming audio encoders: samples to PCM, WAV, MP3, Opus, AAC or FLAC, at the requested sample rate.

One resampler and one encoder serve the whole stream, so that chunk boundaries are inaudible. Decoding is in
`decoder_pool`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from mstar.errors import MissingExtra

Samples = np.ndarray[Any, np.dtype[np.float32]]

UNKNOWN_SIZE = 0xFFFFFFFF
"""Size in a WAV header of a stream whose length is unknown."""


@dataclass(frozen=True, slots=True)
class Format:
    """Output format with its media type, sample rates and codec."""

    media_type: str
    rates: tuple[int, ...] = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
    """Supported sample rates in Hz."""
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
        options={"page_duration": "60000", "fflags": "+bitexact"},  # otherwise streams get a random serial number
    ),
    "aac": Format("audio/aac", container="adts", codec="aac"),
    "flac": Format("audio/flac", container="flac", codec="flac"),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm"),
}
"""Formats by their API names. Headers that would need a rewrite at the end are disabled."""


class Encoder(Protocol):
    """Incremental encoder: samples in, bytes out."""

    def feed(self, samples: Samples) -> bytes:
        """Encode samples. Returns the bytes that are ready."""
        ...

    def finish(self) -> bytes:
        """Flush the encoder."""
        ...


class PcmEncoder:
    """16-bit little-endian PCM."""

    def feed(self, samples: Samples) -> bytes:
        """Encode samples."""
        return (np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes()

    def finish(self) -> bytes:
        """Flush. Nothing is buffered."""
        return b""


class WavEncoder(PcmEncoder):
    """WAV with an open-ended header."""

    def __init__(self, rate: int) -> None:
        format_chunk = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16)
        self._header = (
            struct.pack("<4sI4s", b"RIFF", UNKNOWN_SIZE, b"WAVE")
            + format_chunk
            + struct.pack("<4sI", b"data", UNKNOWN_SIZE)
        )

    def feed(self, samples: Samples) -> bytes:
        """Encode samples, after the header."""
        header, self._header = self._header, b""
        return header + super().feed(samples)

    def finish(self) -> bytes:
        """Flush: the header, if no sample was encoded."""
        return self._header


class FFmpegEncoder:
    """Compressed formats (MP3, Opus, AAC, FLAC), encoded with FFmpeg's libraries."""

    def __init__(self, format: Format, rate: int) -> None:
        import av  # optional dependency, for compressed formats only

        self._av = av
        self._rate = rate
        self._sink = _ByteSink()
        options = dict(format.options or {}) | {"flush_packets": "1"}
        self._container = av.open(self._sink, "w", format=format.container, options=options)
        self._stream: Any = self._container.add_stream(format.codec, rate=rate, layout="mono")

    def feed(self, samples: Samples) -> bytes:
        """Encode samples. Returns the bytes that are ready."""
        if len(samples):
            frame = self._av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
            frame.sample_rate = self._rate
            self._container.mux(self._stream.encode(frame))
        return self._sink.drain()

    def finish(self) -> bytes:
        """Flush the encoder and close the container."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.drain()


class _ByteSink:
    """Output of an encoder. Not seekable, because sent bytes cannot change."""

    def __init__(self) -> None:
        self._written = bytearray()

    def write(self, data: bytes) -> int:
        self._written += data
        return len(data)

    def drain(self) -> bytes:
        data = bytes(self._written)
        self._written.clear()
        return data


class Resampler:
    """Resamples a stream to the sample rate of the client. The source rate can change."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._source_rate = rate
        self._stream: Any = None

    def feed(self, samples: Samples, rate: int) -> Samples:
        """Resample. Some samples are delayed by the filter."""
        rest = self.finish() if rate != self._source_rate else samples[:0]
        if rate != self._source_rate:
            self._source_rate = rate
            self._stream = _make_resampler(rate, self._rate) if rate != self._rate else None
        if self._stream is not None:
            samples = self._stream.resample_chunk(samples)
        return np.concatenate((rest, samples)) if len(rest) else samples

    def finish(self) -> Samples:
        """Flush the delayed samples."""
        empty = np.zeros(0, np.float32)
        return empty if self._stream is None else self._stream.resample_chunk(empty, last=True)


def _make_resampler(source: int, target: int) -> Any:
    _require_package("soxr", f"resampling from {source} to {target} Hz", "media")
    import soxr  # optional dependency, for resampling only

    return soxr.ResampleStream(source, target, 1, dtype="float32")


def _require_package(package: str, what: str, extra: str) -> None:
    if find_spec(package) is None:
        raise MissingExtra.from_package(what, package, extra)


class AudioStreamEncoder:
    """Encodes one audio stream of a response."""

    def __init__(self, name: str, rate: int) -> None:
        format = FORMATS[name]
        if rate not in format.rates:
            rates = ", ".join(map(str, format.rates))
            raise ValueError(f"{name} does not support {rate} Hz\n  fix: use one of {rates}")
        if format.codec:
            _require_package("av", f"the format {name}", "media")
        self.format = format
        self.rate = rate
        self.duration_s = 0.0
        """Seconds of audio encoded so far."""
        self._encoder: Encoder = (
            FFmpegEncoder(format, rate) if format.codec else WavEncoder(rate) if name == "wav" else PcmEncoder()
        )
        self._resampler = Resampler(rate)

    @property
    def media_type(self) -> str:
        """Media type for the Content-Type header. PCM includes its rate."""
        is_pcm = self.format is FORMATS["pcm"]
        return f"{self.format.media_type};rate={self.rate}" if is_pcm else self.format.media_type

    def feed(self, value: Any, rate: int) -> bytes:
        """Encode the samples of an emission: an array of any library, at this rate."""
        samples = to_samples(value)
        self.duration_s += len(samples) / rate
        return self._encoder.feed(self._resampler.feed(samples, rate))

    def finish(self) -> bytes:
        """Flush the resampler and the encoder."""
        return self._encoder.feed(self._resampler.finish()) + self._encoder.finish()


def to_samples(value: Any) -> Samples:
    """Convert an emission to mono float32 samples from -1 to 1. Integers are read as 16-bit."""
    if not isinstance(value, np.ndarray) and hasattr(value, "detach"):  # a tensor, possibly of a dtype numpy lacks
        value = value.detach().float().numpy() if value.is_floating_point() else value.numpy()
    array = np.asarray(value).reshape(-1)
    samples = array.astype(np.float32, copy=False)
    return samples / np.float32(32768) if array.dtype.kind in "iu" else samples
