"""Media inputs of one request: reads data: and http URLs, decodes audio and images, limits the decoded size.

Decoding runs in the sandboxed processes of `mstar.media`; their errors become `ApiError` here.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Generator
from contextlib import contextmanager

from mstar.media.decoder_pool import MediaError, shared_decoders
from mstar.requests import AudioInput, ImageInput
from mstar.server.errors import ApiError
from mstar.server.inputs.media_fetcher import MediaFetcher

MAX_DECODED_BYTES = 384 << 20
"""Maximum decoded bytes of all media of one request. Guards against decompression bombs."""


class MediaInputs:
    """Reads and decodes the media of one request, and counts the decoded bytes."""

    def __init__(self, fetcher: MediaFetcher) -> None:
        self._fetcher = fetcher
        self._decoded_bytes = 0

    async def read_url(self, url: str, param: str) -> bytes:
        """Bytes of a base64 data: URL, or the download of any other URL. Raises ApiError."""
        prefix, _, data = url.partition(",")
        if prefix.startswith("data:") and prefix.endswith(";base64"):
            return decode_base64(data, param)
        return await self._fetcher.fetch(url, param)

    async def decode_audio(self, data: bytes, param: str) -> AudioInput:
        """Decode an audio file; `param` names the request field in errors. Raises ApiError."""
        with _translate_media_errors(param):
            audio = await shared_decoders().decode_audio(data)
        self._add_decoded(audio.samples.nbytes, param)
        return audio

    async def decode_image(self, data: bytes, param: str) -> ImageInput:
        """Decode an image file; `param` names the request field in errors. Raises ApiError."""
        with _translate_media_errors(param):
            image = await shared_decoders().decode_image(data)
        self._add_decoded(image.pixels.nbytes, param)
        return image

    def _add_decoded(self, size: int, param: str) -> None:
        self._decoded_bytes += size
        if self._decoded_bytes > MAX_DECODED_BYTES:
            message = (
                f"{param}: the decoded media of this request exceeds {MAX_DECODED_BYTES} bytes. "
                "fix: send fewer or smaller files"
            )
            raise ApiError(413, "too_large", message, param=param)


def decode_base64(data: str, param: str) -> bytes:
    """Decode base64; `param` names the request field in errors. Raises ApiError."""
    try:
        return b64decode(data, validate=True)
    except ValueError:
        message = f"{param}: not valid base64. fix: use the standard alphabet with padding"
        raise ApiError(400, "invalid_base64", message, param=param) from None


@contextmanager
def _translate_media_errors(param: str) -> Generator[None]:
    try:
        yield
    except MediaError as error:
        status = 413 if error.code in ("too_large", "too_long") else 400
        raise ApiError(status, error.code, f"{param}: {error.reason}", param=param) from None
