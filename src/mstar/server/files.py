"""Files of clients as what models take, whether they came along or are named by a URL. What is wrong is told as ever.

Decoding is done by `mstar.media`, in processes that can be killed.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Generator
from contextlib import contextmanager

from mstar.asks import Picture, Sound
from mstar.media.decode import BadMedia, decoders
from mstar.server.fetch import Fetcher
from mstar.server.refusals import Refusal

DECODED_BYTES = 384 << 20
"""How much the files of one request may come to when they are decoded: what is small on the wire can be large here."""


class Files:
    """The files of one request."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._decoded = 0

    async def at(self, url: str, param: str) -> bytes:
        """The file that a URL holds, or names."""
        head, _, data = url.partition(",")
        if head.startswith("data:") and head.endswith(";base64"):
            return file_of(data, param)
        return await self._fetcher.fetch(url, param)

    async def sound(self, data: bytes, param: str) -> Sound:
        """The sound in a file that came as this parameter."""
        with _refusing(param):
            sound = await decoders().sound(data)
        self._count(sound.samples.nbytes, param)
        return sound

    async def picture(self, data: bytes, param: str) -> Picture:
        """The picture in a file that came as this parameter."""
        with _refusing(param):
            picture = await decoders().picture(data)
        self._count(picture.pixels.nbytes, param)
        return picture

    def _count(self, size: int, param: str) -> None:
        self._decoded += size
        if self._decoded > DECODED_BYTES:
            what = f"{param}: the files of a request may come to {DECODED_BYTES} bytes when they are decoded"
            raise Refusal(413, "too_large", what, param=param)


def file_of(data: str, param: str) -> bytes:
    """The file that came in base64 as this parameter."""
    try:
        return b64decode(data, validate=True)
    except ValueError:
        raise Refusal(400, "invalid_base64", f"{param}: it is not base64", param=param) from None


@contextmanager
def _refusing(param: str) -> Generator[None]:
    try:
        yield
    except BadMedia as error:
        status = 413 if error.code in ("too_large", "too_long") else 400
        raise Refusal(status, error.code, f"{param}: {error.what}", param=param) from None
