"""Media inputs of one request: reads data: and http URLs, decodes audio and images, reserves their memory.

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
from mstar.server.inputs.memory_budget import Reservation


class MediaInputs:
    """Reads and decodes the media of one request. Decoded bytes count against the memory budget of the server."""

    def __init__(self, fetcher: MediaFetcher, memory: Reservation, tenant: str) -> None:
        self._fetcher = fetcher
        self._memory = memory
        self._tenant = tenant

    async def read_url(self, url: str, param: str) -> bytes:
        """Bytes of a base64 data: URL, or the download of any other URL. Raises ApiError."""
        prefix, _, data = url.partition(",")
        if prefix.startswith("data:") and prefix.endswith(";base64"):
            return decode_base64(data, param)
        data = await self._fetcher.fetch(url, param)
        self._memory.add(len(data), param)
        return data

    async def decode_audio(self, data: bytes, param: str) -> AudioInput:
        """Decode an audio file; `param` names the request field in errors. Raises ApiError."""
        with _translate_media_errors(param):
            return await shared_decoders().decode_audio(data, self._tenant, lambda size: self._memory.add(size, param))

    async def decode_image(self, data: bytes, param: str) -> ImageInput:
        """Decode an image file; `param` names the request field in errors. Raises ApiError."""
        with _translate_media_errors(param):
            return await shared_decoders().decode_image(data, self._tenant, lambda size: self._memory.add(size, param))


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
