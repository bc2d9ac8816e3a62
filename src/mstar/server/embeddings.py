"""Embeddings: texts in, a vector for each out, as numbers or as their bytes.

A route may return its vectors together with an `Ending`, which says how many tokens were read; else nobody is told.
"""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from math import isfinite
from typing import Any, cast

from starlette.responses import Response

from mstar.asks import Embedding, Ending
from mstar.server.live import Ended
from mstar.server.refusals import Refusal
from mstar.server.schema import EmbeddingBody
from mstar.server.visit import Visit, answered
from mstar.wire import messages as m


async def embed(visit: Visit) -> Response:
    """POST /v1/embeddings."""
    body = await visit.read(EmbeddingBody)
    served = visit.find(body.model)
    if body.dimensions is not None:
        what = "dimensions: the model gives vectors of one size"
        raise Refusal(400, "unsupported_parameter", what, param="dimensions")
    texts = (body.input,) if isinstance(body.input, str) else tuple(body.input)
    vectors, usage = list[list[float]](), None
    async for news in visit.open(served, Embedding(texts)):
        if isinstance(news, Ended) and isinstance(news.end, m.Finished):
            vectors, usage = _told(news.end.result.it)
    if len(vectors) != len(texts) or not all(isfinite(number) for row in vectors for number in row):
        raise Refusal(500, "model_error", "the model did not give a finite vector for each text")
    coded = _bytes if body.encoding_format == "base64" else list[float]
    data = [{"object": "embedding", "index": index, "embedding": coded(row)} for index, row in enumerate(vectors)]
    return answered({"object": "list", "model": served.name, "data": data, "usage": usage})


def _told(result: Any) -> tuple[list[list[float]], dict[str, int] | None]:
    """The vectors of a result, and what was read, if it says."""
    vectors, ending = cast("tuple[Any, Any]", result) if isinstance(result, tuple) else (result, None)
    read = sum(ending.read.values()) if isinstance(ending, Ending) else None
    usage = None if read is None else {"prompt_tokens": read, "total_tokens": read}
    return vectors.tolist() if hasattr(vectors, "tolist") else vectors, usage


def _bytes(row: list[float]) -> str:
    numbers = array("f", row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()
