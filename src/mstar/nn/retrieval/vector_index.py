"""IVF index (inverted file) over vectors: its centroids are in memory, its lists on disk, read as searches need them.

faiss trains the centroids, finds the nearest of them for a query, and scans the lists in memory. Its own on-disk lists
(`OnDiskInvertedLists`) are a memory map: what they keep in memory is up to the kernel, without a budget. Here
`ListCache` reads and evicts lists.

Scores are inner products, which for normalized vectors are cosine similarities. Vectors are float32. An index is built
once and not changed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from mstar.errors import LoadError
from mstar.nn.retrieval.list_cache import ListCache

_FORMAT = 1
_HEADER, _CENTROIDS, _LISTS, _VECTORS = "index.json", "centroids.npy", "lists.npz", "vectors.bin"
_PAGE_BYTES = 4096
"""Lists start at a page of the file, so that a list can be dropped from the page cache."""
_TRAINING_VECTORS_PER_LIST = 64
_TRAINING_ROUNDS = 12
_QUERIES_PER_SCAN = 16
"""faiss scans for fewer than 20 queries without BLAS, so that a score does not depend on the other queries."""
MISSING = -1
"""Number of a passage in a result row that has fewer passages than requested."""


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Sizes of an index, and the model that computed its vectors."""

    passages: int
    dims: int
    lists: int
    embedding: str
    """Model and weights of the vectors. Queries need the same."""
    vector_bytes: int
    """Size of all lists."""
    format: int = _FORMAT


class VectorIndex:
    """An index folder, opened for searches. `budget_bytes` limits the memory of lists; None keeps all that is read."""

    def __init__(self, folder: Path, budget_bytes: int | None = None) -> None:
        self.header = read_header(folder)
        lists = np.load(folder / _LISTS)
        self._bounds: np.ndarray = lists["bounds"]
        self._ids: np.ndarray = lists["ids"]
        """Numbers of the passages, list by list."""
        self._row_of = np.empty_like(self._ids)
        """Row of each passage, counted over all lists."""
        self._row_of[self._ids] = np.arange(len(self._ids))
        self._quantizer = _flat_index(np.load(folder / _CENTROIDS))
        budget = self.header.vector_bytes if budget_bytes is None else budget_bytes
        self.cache = ListCache(folder / _VECTORS, lists["offsets"], self._bounds, self.header.dims, budget)

    def nearest_lists(self, queries: np.ndarray, count: int) -> np.ndarray:
        """Numbers of the lists nearest to each query, the nearest first."""
        count = min(count, self.header.lists)
        parts = [
            self._quantizer.search(queries[start : start + _QUERIES_PER_SCAN], count)[1]
            for start in range(0, len(queries), _QUERIES_PER_SCAN)
        ]
        return np.concatenate(parts) if parts else np.empty((0, count), np.int64)

    def search(self, queries: np.ndarray, count: int, probes: int) -> tuple[np.ndarray, np.ndarray]:
        """Scores and numbers of the `count` passages nearest to each query in its `probes` nearest lists.

        A list that several queries of the batch need is read and scanned once for all of them.
        """
        queries_by_list: defaultdict[int, list[int]] = defaultdict(list)
        for row, numbers in enumerate(self.nearest_lists(queries, probes).tolist()):
            for number in numbers:
                queries_by_list[number].append(row)
        candidates: list[list[tuple[float, int]]] = [[] for _ in queries]
        with self.cache.search([*queries_by_list]) as lists:
            for number, vectors in lists:
                if len(vectors):
                    self._scan(number, vectors, queries, queries_by_list[number], count, candidates)
        scores = np.full((len(queries), count), -np.inf, np.float32)
        ids = np.full((len(queries), count), MISSING, np.int64)
        for row, pairs in enumerate(candidates):
            for rank, (negative, passage) in enumerate(sorted(pairs)[:count]):
                scores[row, rank], ids[row, rank] = -negative, passage
        return scores, ids

    def vectors_of(self, passages: Sequence[int]) -> np.ndarray:
        """Vectors of passages. Their lists are read if they are not in memory."""
        rows = self._row_of[list(passages)]
        numbers = np.searchsorted(self._bounds, rows, side="right") - 1
        result = np.empty((len(rows), self.header.dims), np.float32)
        with self.cache.search(sorted(set(numbers.tolist()))) as lists:
            for number, vectors in lists:
                members = numbers == number
                result[members] = vectors[rows[members] - self._bounds[number]]
        return result

    def prefetch(self, queries: np.ndarray, lists: int) -> None:
        """Read the nearest lists of queries in idle time, because a similar query will follow."""
        ranked = self.nearest_lists(queries, lists)
        self.cache.prefetch([*dict.fromkeys(ranked.T.ravel().tolist())])  # the nearest of every query first

    def close(self) -> None:
        """Release the file and the thread."""
        self.cache.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _scan(
        self,
        number: int,
        vectors: np.ndarray,
        queries: np.ndarray,
        rows: list[int],
        count: int,
        candidates: list[list[tuple[float, int]]],
    ) -> None:
        """Add the best passages of a list to the candidates of its queries."""
        import faiss

        ids = self._ids[self._bounds[number] : self._bounds[number + 1]]
        for start in range(0, len(rows), _QUERIES_PER_SCAN):
            group = rows[start : start + _QUERIES_PER_SCAN]
            scores, members = faiss.knn(
                queries[group], vectors, min(count, len(vectors)), metric=faiss.METRIC_INNER_PRODUCT
            )
            for row, row_scores, row_members in zip(group, scores.tolist(), members, strict=True):
                candidates[row] += zip((-score for score in row_scores), ids[row_members].tolist(), strict=True)


def read_header(folder: Path) -> IndexHeader:
    """Header of an index folder. Raises LoadError."""
    try:
        header = IndexHeader(**json.loads((folder / _HEADER).read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        problem = f"{folder} is not an index: {error}"
        raise LoadError(f"{problem}\n  fix: build one with `mstar index build FOLDER -o {folder}`") from error
    if header.format != _FORMAT:
        problem = f"{folder} has index format {header.format}, supported is {_FORMAT}"
        raise LoadError(f"{problem}\n  fix: build it again with `mstar index build`")
    return header


def write_index(folder: Path, vectors: np.ndarray, embedding: str, list_count: int | None = None) -> IndexHeader:
    """Train the centroids on vectors, assign each vector to its nearest one, and write the lists."""
    faiss = _load_faiss()
    count, dims = vectors.shape
    if not count:
        raise LoadError("there are no passages to index\n  fix: add documents with sentences of eight words or more")
    lists = min(count, list_count or default_list_count(count))
    kmeans = faiss.Kmeans(
        dims,
        lists,
        niter=_TRAINING_ROUNDS,
        spherical=True,
        seed=1,
        min_points_per_centroid=1,
        max_points_per_centroid=_TRAINING_VECTORS_PER_LIST,
    )
    kmeans.train(vectors)
    nearest = kmeans.index.search(vectors, 1)[1].ravel()
    ids = np.argsort(nearest, kind="stable")
    bounds = np.searchsorted(nearest[ids], np.arange(lists + 1)).astype(np.int64)
    sizes = np.diff(bounds) * dims * vectors.itemsize
    offsets = np.concatenate([[0], np.cumsum(-(-sizes // _PAGE_BYTES) * _PAGE_BYTES)])[:-1].astype(np.int64)
    with (folder / _VECTORS).open("wb") as file:
        for number, offset in enumerate(offsets.tolist()):
            file.seek(offset)
            file.write(np.ascontiguousarray(vectors[ids[bounds[number] : bounds[number + 1]]]).tobytes())
    np.save(folder / _CENTROIDS, kmeans.centroids)
    np.savez(folder / _LISTS, bounds=bounds, ids=ids, offsets=offsets)
    header = IndexHeader(count, dims, lists, embedding, int(sizes.sum()))
    (folder / _HEADER).write_text(json.dumps(asdict(header), indent=2) + "\n")  # last: the folder is complete
    return header


def default_list_count(passages: int) -> int:
    """Four times the square root of the number of passages, as faiss recommends."""
    return max(1, min(int(4 * passages**0.5), passages // 8))


def _flat_index(centroids: np.ndarray) -> Any:
    index = _load_faiss().IndexFlatIP(centroids.shape[1])
    index.add(centroids)
    return index


def _load_faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        fix = "pip install 'mstar-serve[retrieval]'"
        raise LoadError(f"the index needs the package faiss-cpu: {error}\n  fix: {fix}") from error
    return faiss
