"""Measure the recall of an index: `python -m tools.retrieval_recall INDEX [--queries 200] [--probes 16]`.

Queries are made from the corpus (known-item search): from random passages, the sentence with the most words, without
the rest of the passage and without its title. A query is answered if its passage is among the first five. The exact
search scans all lists; the difference to it is what the index misses, the rest is what the embeddings miss.
"""

from __future__ import annotations

import argparse
import random
import re
from pathlib import Path
from typing import Any

import numpy as np

from mstar.nn.retrieval.document_store import DocumentStore
from mstar.nn.retrieval.vector_index import VectorIndex
from mstar.walk.load import load_model

RANK = 5
MIN_WORDS, MAX_WORDS = 8, 40
"""Words of a sentence that is a query."""


def make_queries(passages: DocumentStore, count: int) -> dict[int, str]:
    """A sentence of each of `count` random passages, by number of the passage."""
    queries = dict[int, str]()
    for number in random.Random(1).sample(range(len(passages)), len(passages)):
        sentences = re.split(r"(?<=[.!?])\s+", " ".join(passages[number].text.split()))
        if len(sentences) > 1 and MIN_WORDS <= len((longest := max(sentences, key=len)).split()) <= MAX_WORDS:
            queries[number] = longest
        if len(queries) == count:
            break
    return queries


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("index", type=Path)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--probes", type=int, default=16)
    options = parser.parse_args()
    queries = make_queries(DocumentStore(options.index), options.queries)
    with VectorIndex(options.index) as index:
        encoder: Any = load_model(index.header.embedding).components()["encoder"]
        vectors, wanted = encoder.embed_texts([*queries.values()]), np.array([*queries])[:, None]
        results = {probes: index.search(vectors, RANK, probes)[1] for probes in (options.probes, index.header.lists)}
    recall, exact = ((numbers == wanted).any(axis=1).mean() for numbers in results.values())
    overlap = np.mean([len({*one} & {*other}) / RANK for one, other in zip(*results.values(), strict=True)])
    print(f"{len(queries)} queries, {index.header.passages} passages, {options.probes} of {index.header.lists} lists")
    print(f"recall@{RANK} of the passage: {recall:.3f}; with all lists: {exact:.3f}")
    print(f"share of the exact first {RANK} that are found: {overlap:.3f}")


if __name__ == "__main__":
    main()
