"""Index: a component that searches an index folder, with the passages that it was built from.

Its ops read the disk and compute little, so they fit on the worker of the encoder. A cited passage is the one nearest
to a sentence of the answer among those of its searches, so citations need no cooperation of the language model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.retrieval.documents import TextPassage
from mstar.requests import Citation
from mstar.walk.batching import stacked
from mstar.walk.component import Component, op
from mstar.walk.types import Float, Static, Tensor

if TYPE_CHECKING:  # processes that trace models do not import numpy
    import numpy as np

    from mstar.nn.retrieval.document_store import DocumentStore
    from mstar.nn.retrieval.vector_index import VectorIndex

DEFAULT_PROBES = 16
"""Lists that a search scans."""
MIN_CITATION_SCORE = 0.5
"""Minimum cosine similarity of a sentence and the passage that it cites. Unrelated texts are below 0.3 with MiniLM."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A passage that a search has found."""

    number: int
    score: float
    """Cosine similarity to the query."""
    passage: TextPassage


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A sentence of an answer, and its first character there."""

    start: int
    text: str


class Index(Component):
    """Searches the index folder `folder`. Its lists use at most `budget_bytes` bytes of memory; None is their size."""

    supported_settings = ("memory_budget_mb",)

    def __init__(self, folder: str, budget_bytes: int | None = None, probes: int = DEFAULT_PROBES) -> None:
        self._folder = Path(folder).expanduser()
        self._budget_bytes = budget_bytes
        self._probes = probes

    @functools.cached_property
    def vectors(self) -> VectorIndex:
        """The opened index."""
        from mstar.nn.retrieval.vector_index import VectorIndex

        megabytes = self.operator_settings.get("memory_budget_mb")
        return VectorIndex(self._folder, self._budget_bytes if megabytes is None else _parse_megabytes(megabytes))

    @functools.cached_property
    def passages(self) -> DocumentStore:
        """The passages of the index."""
        from mstar.nn.retrieval.document_store import DocumentStore

        return DocumentStore(self._folder)

    def prepare(self) -> None:
        """Open the index. Lists are read by searches."""
        _ = self.vectors, self.passages

    @op(batch=stacked)
    def search(
        self, query: Float[Tensor, "D"], count: Static[int], lookahead_lists: Static[int] = 0
    ) -> list[SearchHit]:
        """The passages nearest to a query, the nearest first.

        Afterwards, in idle time, its `lookahead_lists` nearest lists are read, for a similar query that will follow.
        """
        queries = _to_numpy(query)
        scores, numbers = self.vectors.search(queries, count, self._probes)
        if lookahead_lists:
            self.vectors.prefetch(queries, lookahead_lists)
        hits: Any = [self._hits(*row) for row in zip(numbers.tolist(), scores.tolist(), strict=True)]
        return hits  # one list per row

    @op
    def join(self, results: list[list[SearchHit]], more: list[list[SearchHit]]) -> list[list[SearchHit]]:
        """The results of several searches as one."""
        return [*results, *more]

    @op
    def cite(
        self, sentences: list[TextSpan], vectors: list[Float[Tensor, "D"]], results: list[list[SearchHit]]
    ) -> list[Citation]:
        """For each sentence of an answer, the passage that is nearest to it, if it is near enough."""
        hits = [*{hit.number: hit for query_hits in results for hit in query_hits}.values()]
        if not (hits and sentences):
            return []
        passage_vectors = self.vectors.vectors_of([hit.number for hit in hits])
        citations = list[Citation]()
        for sentence, vector in zip(sentences, vectors, strict=True):
            scores = passage_vectors @ _to_numpy(vector)
            if scores[best := int(scores.argmax())] >= MIN_CITATION_SCORE:
                citations.append(_citation(sentence, hits[best].passage))
        return citations

    def memory_stats(self) -> dict[str, int]:
        """Resident lists in bytes, and counters of hits, misses and prefetched lists."""
        if "vectors" not in vars(self):
            return {}
        cache = self.vectors.cache
        return {"resident_bytes": cache.resident_bytes, "budget_bytes": cache.budget_bytes, **cache.counters}

    def _hits(self, numbers: Sequence[int], scores: Sequence[float]) -> list[SearchHit]:
        from mstar.nn.retrieval.vector_index import MISSING

        pairs = zip(numbers, scores, strict=True)
        return [SearchHit(number, score, self.passages[number]) for number, score in pairs if number != MISSING]


def _parse_megabytes(text: str) -> int:
    try:
        return int(float(text) * 1_000_000)
    except (ValueError, OverflowError):
        raise LoadError(f'memory_budget_mb is {text!r}\n  fix: set it to a number, such as "64"') from None


def _citation(sentence: TextSpan, passage: TextPassage) -> Citation:
    return Citation(
        start=sentence.start,
        end=sentence.start + len(sentence.text),
        url=passage.source,
        title=passage.title,
        cited_text=passage.text,
        cited_start=passage.offset,
    )


def _to_numpy(vectors: Any) -> np.ndarray:
    import numpy as np

    return np.ascontiguousarray(vectors.cpu() if hasattr(vectors, "cpu") else vectors, np.float32)
