"""Files of clients as what models take. What is wrong with a file is told as every refusal is.

Decoding is done by `mstar.media`, in processes that can be killed.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from mstar.asks import Picture, Sound
from mstar.media.decode import BadMedia, decoders
from mstar.server.refusals import Refusal


async def sound_in(data: bytes, param: str) -> Sound:
    """The sound in a file that came as this parameter."""
    with _refusing(param):
        return await decoders().sound(data)


async def picture_in(data: bytes, param: str) -> Picture:
    """The picture in a file that came as this parameter."""
    with _refusing(param):
        return await decoders().picture(data)


@contextmanager
def _refusing(param: str) -> Generator[None]:
    try:
        yield
    except BadMedia as error:
        status = 413 if error.code in ("too_large", "too_long") else 400
        raise Refusal(status, error.code, f"{param}: {error.what}", param=param) from None
