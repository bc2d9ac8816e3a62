"""Sentence encoder: text to one vector, with a result cache per tenant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mstar import Float, Int64, Tensor, View, op
from mstar.models.sentence_transformer.checkpoint import Checkpoint
from mstar.nn.encoder import Encoder, TenantState
from mstar.nn.weights.progress import Progress, ignore_progress
from mstar.nn.weights.sources import PINNED_PACKAGES, Weights
from mstar.requests import EmbeddingRequest, Finish
from mstar.walk.batching import ONE_ROW, Layout, ragged, rows
from mstar.walk.twin import OpBody, TwinSizes

_BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Padded lengths in tokens. Texts of one bucket share a batch."""
_TEXTS_PER_BATCH = 32


class SentenceEncoder(Encoder):
    """A text encoder of transformers with its tokenizer, pooling and normalization."""

    runs_on_device = True

    def __init__(self, weights: Weights) -> None:
        self.checkpoint = Checkpoint(weights)
        super().__init__(self.checkpoint.network, buckets=_BUCKETS, has_row_products=True)
        self.weights = PINNED_PACKAGES.get(weights.source.removeprefix("package:"), ())

    def prepare(self) -> None:
        """Load the network and the tokenizer, and check the pooling."""
        super().prepare()
        _ = self.checkpoint.tokenizer, self.checkpoint.pooling

    def prepare_twin(self, sizes: TwinSizes) -> Mapping[str, OpBody]:  # noqa: ARG002 - the checkpoint decides
        """Load the tokenizer. Vectors are random, equal for equal texts."""
        _ = self.checkpoint.tokenizer
        return self.own_bodies("tokenize", "stack") | {"embed": SentenceEncoder._embed_randomly}

    def _embed_randomly(self, tokens: Tensor, owner: View[TenantState], layout: Layout) -> Any:  # noqa: ARG002 - as `embed`
        """`embed` without the network."""
        import torch
        from torch.nn.functional import normalize

        seeds = [hash(tuple(part.tolist())) for part in tokens.split(list(layout.lengths))]
        size = self.checkpoint.vector_size
        vectors = [torch.randn(size, generator=torch.Generator().manual_seed(seed % 2**63)) for seed in seeds]
        return normalize(torch.stack(vectors), dim=1)

    @op
    def tokenize(self, request: EmbeddingRequest) -> tuple[list[Int64[Tensor, "T"]], Finish]:
        """Token ids of each text, and their number."""
        import torch

        encoded = self.checkpoint.tokenizer.encode_batch_fast(list(request.texts))
        tokens = [torch.tensor(text.ids) for text in encoded]
        return tokens, Finish(prompt_tokens={"text": sum(map(len, tokens))})

    @op(batch=ragged("T"))
    def embed(
        self, tokens: Int64[Tensor, "T"], owner: View[TenantState], layout: Layout = ONE_ROW
    ) -> Float[Tensor, "D"]:
        """The vector of a text."""
        tenants = [state.tenant for state in rows(owner)]
        return self._vectors(self._encode(tokens.split(list(layout.lengths)), tenants))

    def embed_texts(self, texts: Sequence[str], progress: Progress = ignore_progress) -> Any:
        """Vectors of many texts as one float32 array, to build an index: in batches of similar length, not cached."""
        import numpy as np

        self.prepare_once()
        self.cache.limit_bytes = 0
        tokens = [encoded.ids for encoded in self.checkpoint.tokenizer.encode_batch_fast(list(texts))]
        order = sorted(range(len(texts)), key=lambda number: len(tokens[number]))
        vectors = np.empty((len(texts), self.network.config.hidden_size), np.float32)
        for start in range(0, len(order), _TEXTS_PER_BATCH):
            batch = order[start : start + _TEXTS_PER_BATCH]
            vectors[batch] = self._embed_batch([tokens[number] for number in batch])
            progress(start + len(batch), len(order))
        return vectors

    def _embed_batch(self, tokens: Sequence[Sequence[int]]) -> Any:
        import torch

        columns = {"tokens": [torch.tensor(ids) for ids in tokens], "owner": [TenantState()] * len(tokens)}
        results = self.ops()["embed"].run(self, columns, len(tokens))
        return torch.stack([vector for (vector,) in results]).cpu().numpy()

    def _vectors(self, hidden_states: Sequence[Tensor]) -> Any:
        import torch
        from torch.nn.functional import normalize

        is_mean = self.checkpoint.pooling == "mean"
        vectors = torch.stack([hidden.mean(0) if is_mean else hidden[0] for hidden in hidden_states])
        return normalize(vectors, dim=1) if self.checkpoint.is_normalized else vectors

    @op
    def stack(self, vectors: list[Float[Tensor, "D"]]) -> Float[Tensor, "N D"]:
        """All vectors of a request as one array."""
        import torch

        return torch.stack(vectors)
