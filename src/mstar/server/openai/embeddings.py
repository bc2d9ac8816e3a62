"""Embeddings endpoint (OpenAI `/v1/embeddings`): one vector per text, as floats or base64.

A route returns an array of vectors, or a tuple of the array and a `Finish` with the prompt tokens; without the latter
`usage` is null. Vectors are not truncated: `dimensions` is not supported.
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
from mstar.server.state import ServedModel
from mstar.wire import messages as m


async def create_embeddings(exchange: HttpExchange) -> Response:
    """POST /v1/embeddings."""
    body = await exchange.read_json(EmbeddingBody)
    served = exchange.resolve_model(body.model)
    if body.dimensions is not None:
        message = f"dimensions: {body.dimensions} is not supported, the model has one vector size. fix: omit dimensions"
        raise ApiError(400, "unsupported_parameter", message, param="dimensions")
    texts = (body.input,) if isinstance(body.input, str) else tuple(body.input)
    vectors, usage = await embed(exchange, served, EmbeddingRequest(texts))
    encode = _to_base64 if body.encoding_format == "base64" else list[float]
    data = [{"object": "embedding", "index": index, "embedding": encode(row)} for index, row in enumerate(vectors)]
    return json_response({"object": "list", "model": served.name, "data": data, "usage": usage})


async def embed(
    exchange: HttpExchange, served: ServedModel, request: EmbeddingRequest
) -> tuple[list[list[float]], dict[str, int] | None]:
    """Vectors of texts, and the token usage if the model reports it. Raises ApiError."""
    vectors, usage = list[list[float]](), None
    async for event in exchange.start_requests(served, request):
        if isinstance(event, RequestEnded) and isinstance(event.end, m.RequestFinished):
            vectors, usage = _parse_result(event.end.result.content)
    count = len(request.texts)
    if len(vectors) != count or not all(isfinite(number) for row in vectors for number in row):
        message = f"the model returned {len(vectors)} vectors for {count} texts, or a vector that is not finite"
        raise ApiError(500, "model_error", message)
    return vectors, usage


def _parse_result(result: Any) -> tuple[list[list[float]], dict[str, int] | None]:
    """Split a route's result into vectors and token usage."""
    vectors, finish = cast("tuple[Any, Any]", result) if isinstance(result, tuple) else (result, None)
    total = sum(finish.prompt_tokens.values()) if isinstance(finish, Finish) else None
    usage = None if total is None else {"prompt_tokens": total, "total_tokens": total}
    return vectors.tolist() if hasattr(vectors, "tolist") else vectors, usage


def _to_base64(row: list[float]) -> str:
    numbers = array("f", row)
    if sys.byteorder == "big":
        numbers.byteswap()
    return b64encode(numbers.tobytes()).decode()
