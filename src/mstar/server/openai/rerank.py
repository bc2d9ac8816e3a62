"""Rerank endpoint (`/v1/rerank` of Jina and vLLM, `/v2/rerank` of Cohere): documents ordered by relevance to a query.

Any model that embeds serves it. The score is the cosine similarity of the embeddings (a bi-encoder): query and document
are embedded separately. It is not the score of a cross-encoder, which reads both together and ranks better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import Any

from starlette.responses import Response

from mstar.requests import EmbeddingRequest
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.openai.embeddings import embed
from mstar.server.openai.schema import RerankBody


async def rerank(exchange: HttpExchange) -> Response:
    """POST /v1/rerank."""
    body = await exchange.read_json(RerankBody)
    served = exchange.resolve_model(body.model)
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    (query, *documents), usage = await embed(exchange, served, EmbeddingRequest((body.query, *texts)))
    scores = [_cosine_similarity(query, document) for document in documents]
    ranked = sorted(range(len(texts)), key=lambda number: -scores[number])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": number, "relevance_score": scores[number]} for number in ranked]
    if body.return_documents:
        results = [result | {"document": {"text": texts[result["index"]]}} for result in results]
    return json_response(
        {"id": f"rerank-{exchange.context.id}", "model": served.name, "usage": usage, "results": results}
    )


def _cosine_similarity(one: Sequence[float], other: Sequence[float]) -> float:
    """Cosine of the angle between two vectors; 0 if one of them is zero."""
    length = math.hypot(*one) * math.hypot(*other)
    return sum(map(mul, one, other)) / length if length else 0.0
