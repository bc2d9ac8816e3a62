"""Embeddings: texts in, a vector for each out, as numbers or as their bytes."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from math import isfinite
from typing import Any

from starlette.responses import Response

from mstar.asks import Embedding
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
    vectors: list[list[float]] = []
    async for news in visit.open(served, Embedding(texts)):
        if isinstance(news, Ended) and isinstance(news.end, m.Finished):
            vectors = _rows(news.end.result.it)
    if len(vectors) != len(texts) or not all(isfinite(number) for row in vectors for number in row):
        raise Refusal(500, "model_error", "the model did not give a finite vector for each text")
    coded = _bytes if body.encoding_format == "base64" else list[float]
    data = [{"object": "embedding", "index": index, "embedding": coded(row)} for index, row in enumerate(vectors)]
    return answered({"object": "list", "model": served.name, "data": data, "usage": None})


def _rows(result: Any) -> list[list[float]]:
    return result.tolist() if hasattr(result, "tolist") else result


def _bytes(row: list[float]) -> str:
    numbers = array("f", row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()
