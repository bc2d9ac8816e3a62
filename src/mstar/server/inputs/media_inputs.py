"""Files of clients as what models take, whether they came along or are named by a URL. What is wrong is told as ever.

Decoding is done by `mstar.media`, in processes that can be killed.
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
"""How much the files of one request may come to when they are decoded: what is small on the wire can be large here."""


class MediaInputs:
    """The files of one request."""

    def __init__(self, fetcher: MediaFetcher) -> None:
        self._fetcher = fetcher
        self._decoded_bytes = 0

    async def read_url(self, url: str, param: str) -> bytes:
        """The file that a URL holds, or names."""
        head, _, data = url.partition(",")
        if head.startswith("data:") and head.endswith(";base64"):
            return decode_base64(data, param)
        return await self._fetcher.fetch(url, param)

    async def decode_audio(self, data: bytes, param: str) -> AudioInput:
        """The sound in a file that came as this parameter."""
        with _translate_media_errors(param):
            sound = await shared_decoders().decode_audio(data)
        self._add_decoded(sound.samples.nbytes, param)
        return sound

    async def decode_image(self, data: bytes, param: str) -> ImageInput:
        """The picture in a file that came as this parameter."""
        with _translate_media_errors(param):
            picture = await shared_decoders().decode_image(data)
        self._add_decoded(picture.pixels.nbytes, param)
        return picture

    def _add_decoded(self, size: int, param: str) -> None:
        self._decoded_bytes += size
        if self._decoded_bytes > MAX_DECODED_BYTES:
            what = f"{param}: the files of a request may come to {MAX_DECODED_BYTES} bytes when they are decoded"
            raise ApiError(413, "too_large", what, param=param)


def decode_base64(data: str, param: str) -> bytes:
    """The file that came in base64 as this parameter."""
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise ApiError(400, "invalid_base64", f"{param}: it is not base64", param=param) from None


@contextmanager
def _translate_media_errors(param: str) -> Generator[None]:
    try:
        yield
    except MediaError as error:
        status = 413 if error.code in ("too_large", "too_long") else 400
        raise ApiError(status, error.code, f"{param}: {error.reason}", param=param) from None
