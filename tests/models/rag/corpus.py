"""A small corpus: three pages of this documentation, as passages in an index with the vectors of MiniLM."""

import functools
import shutil
from pathlib import Path

from mstar.models.sentence_transformer.sentence_transformer import SentenceTransformer
from mstar.nn.retrieval.builder import build_index

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("studio.md", "releasing.md", "mutation-testing.md")


@functools.cache
def _embed():
    return SentenceTransformer().encoder.embed_texts


def build_small_index(folder):
    """Write the pages to FOLDER/pages and an index to FOLDER/index; return both."""
    pages, index = folder / "pages", folder / "index"
    pages.mkdir()
    index.mkdir()
    for page in PAGES:
        shutil.copy(DOCS / page, pages / page)
    build_index(pages, index, _embed(), "sentence-transformer")
    return pages, index
