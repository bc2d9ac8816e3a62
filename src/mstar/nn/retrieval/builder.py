"""Builds an index folder from documents: passages, their vectors, and the lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mstar.errors import LoadError
from mstar.nn.retrieval.document_store import write_passages
from mstar.nn.retrieval.documents import read_documents, split_passages
from mstar.nn.retrieval.vector_index import IndexHeader, write_index
from mstar.nn.weights.progress import Progress, ignore_progress


def build_index(
    documents: Path,
    folder: Path,
    embed: Callable[[list[str], Progress], Any],
    embedding: str,
    lists: int | None = None,
    progress: Progress = ignore_progress,
) -> IndexHeader:
    """Write an index of documents to an empty folder. `embed` returns the normalized vectors of texts as float32.

    Texts are embedded with their title before them: a passage often does not name what it is about.
    """
    passages = [passage for document in read_documents(documents) for passage in split_passages(document)]
    if not passages:
        raise LoadError(f"{documents} has no passages\n  fix: add documents with at least one sentence of eight words")
    vectors = embed([f"{passage.title}\n{passage.text}" for passage in passages], progress)
    write_passages(folder, passages)
    return write_index(folder, vectors, embedding, lists)
