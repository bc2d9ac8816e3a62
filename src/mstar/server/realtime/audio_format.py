"""Audio formats of a realtime session: bytes of a client to and from 16-bit PCM at 24 kHz, which the session uses."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from mstar.errors import MissingExtra
from mstar.media.audio import PcmEncoder, Resampler
from mstar.media.g711 import G711_RATE_HZ, Law, decode_g711, encode_g711
from mstar.media.vad import SAMPLE_RATE, pcm_to_samples
from mstar.server.errors import ApiError, missing_extra_error
from mstar.server.realtime.config import AudioFormat, SessionConfig

_LAWS: dict[str, Law] = {"audio/pcmu": "ulaw", "audio/pcma": "alaw"}


class InputDecoder:
    """Decodes the audio of a client, which arrives in parts."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._law: Law | None = _LAWS.get(audio_format.type)
        self._resampler = Resampler(SAMPLE_RATE)

    def decode(self, encoded: Any) -> bytes:
        """Base64 of the format to PCM. Some samples are delayed by the resampler. Raises ApiError."""
        data = _decode_base64(encoded, sample_bytes=2 if self._law is None else 1)
        if self._law is None:
            return data
        return PcmEncoder().feed(self._resampler.feed(decode_g711(data, self._law), G711_RATE_HZ))

    def flush(self) -> bytes:
        """The delayed samples. Another stream can follow."""
        delayed, self._resampler = self._resampler.finish(), Resampler(SAMPLE_RATE)
        return PcmEncoder().feed(delayed)


class OutputEncoder:
    """Encodes the audio of one response."""

    def __init__(self, audio_format: AudioFormat) -> None:
        self._law: Law | None = _LAWS.get(audio_format.type)
        self._resampler = Resampler(G711_RATE_HZ)

    def encode(self, pcm: bytes) -> bytes:
        """PCM to the format. Some samples are delayed by the resampler."""
        if self._law is None:
            return pcm
        return encode_g711(self._resampler.feed(pcm_to_samples(pcm), SAMPLE_RATE), self._law)

    def finish(self) -> bytes:
        """The delayed samples."""
        return b"" if self._law is None else encode_g711(self._resampler.finish(), self._law)


def check_formats(config: SessionConfig) -> None:
    """Raise ApiError if a format needs a package that is not installed."""
    if all(audio_format.type not in _LAWS for audio_format in config.formats):
        return
    try:
        Resampler(SAMPLE_RATE).feed(pcm_to_samples(b""), G711_RATE_HZ)
    except MissingExtra as error:
        raise missing_extra_error(str(error)) from error


def _decode_base64(encoded: Any, sample_bytes: int) -> bytes:
    try:
        data = b64decode(encoded, validate=True)
    except (TypeError, ValueError):
        data = None
    if data is None or len(data) % sample_bytes:
        message = "audio: not base64 of whole samples. fix: send mono audio of the session's input format in base64"
        raise ApiError(400, "invalid_value", message, param="audio")
    return data
