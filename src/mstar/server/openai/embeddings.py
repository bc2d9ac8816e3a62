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

from mstar.frontend.response_stream import RequestEnded
from mstar.requests import EmbeddingRequest, Finish
from mstar.server.errors import ApiError
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.openai.schema import EmbeddingBody
from mstar.wire import messages as m


async def create_embeddings(exchange: HttpExchange) -> Response:
    """POST /v1/embeddings."""
    body = await exchange.read_json(EmbeddingBody)
    served = exchange.resolve_model(body.model)
    if body.dimensions is not None:
        what = "dimensions: the model gives vectors of one size"
        raise ApiError(400, "unsupported_parameter", what, param="dimensions")
    texts = (body.input,) if isinstance(body.input, str) else tuple(body.input)
    vectors, usage = list[list[float]](), None
    async for news in exchange.start_requests(served, EmbeddingRequest(texts)):
        if isinstance(news, RequestEnded) and isinstance(news.end, m.RequestFinished):
            vectors, usage = _parse_result(news.end.result.content)
    if len(vectors) != len(texts) or not all(isfinite(number) for row in vectors for number in row):
        raise ApiError(500, "model_error", "the model did not give a finite vector for each text")
    coded = _to_base64 if body.encoding_format == "base64" else list[float]
    data = [{"object": "embedding", "index": index, "embedding": coded(row)} for index, row in enumerate(vectors)]
    return json_response({"object": "list", "model": served.name, "data": data, "usage": usage})


def _parse_result(result: Any) -> tuple[list[list[float]], dict[str, int] | None]:
    """The vectors of a result, and what was read, if it says."""
    vectors, ending = cast("tuple[Any, Any]", result) if isinstance(result, tuple) else (result, None)
    read = sum(ending.prompt_tokens.values()) if isinstance(ending, Finish) else None
    usage = None if read is None else {"prompt_tokens": read, "total_tokens": read}
    return vectors.tolist() if hasattr(vectors, "tolist") else vectors, usage


def _to_base64(row: list[float]) -> str:
    numbers = array("f", row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()
