"""`mstar index`: build an index of a folder or a JSONL file, and search it.

Passages are embedded by `sentence-transformer`, by default all-MiniLM-L6-v2, in this process. The folder that is
written is what `mstar.nn.retrieval.index.Index` opens.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mstar.errors import LoadError
from mstar.walk.load import load_model

DEFAULT_ENCODER = "sentence-transformer"


def add_index(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Build an index of documents for retrieval, or search it."
    index = commands.add_parser("index", help=text, description=text)
    verbs = index.add_subparsers(title="commands", required=True, metavar="COMMAND")
    text = "Split documents into passages, embed them, and write an index."
    build = verbs.add_parser("build", help=text, description=text)
    build.add_argument(
        "documents", type=Path, help="Folder of .txt, .md, .rst and .html files, or a JSONL file with `text` per line."
    )
    build.add_argument("-o", "--output", type=Path, required=True, help="Folder of the index. It must not exist.")
    build.add_argument("--lists", type=int, help="Number of inverted lists (default: 4 x the root of the passages).")
    build.set_defaults(run=_build)
    text = "Print the passages nearest to a question, with their sources."
    search = verbs.add_parser("search", help=text, description=text)
    search.add_argument("index", type=Path, help="Folder of the index.")
    search.add_argument("question", help="Question, or any text.")
    search.add_argument("--count", type=int, default=5, help="Passages to print (default 5).")
    search.add_argument("--probes", type=int, default=16, help="Inverted lists to scan (default 16).")
    search.set_defaults(run=_search)


def _build(options: argparse.Namespace) -> None:
    from mstar.nn.retrieval.builder import build_index

    if options.output.exists():
        raise LoadError(f"{options.output} exists\n  fix: choose another folder, or remove it")
    if not options.output.absolute().parent.is_dir():
        raise LoadError(f"{options.output}: its parent folder does not exist\n  fix: create it, or choose another path")
    started_at = time.monotonic()
    encoder: Any = load_model(DEFAULT_ENCODER).components()["encoder"]
    with tempfile.TemporaryDirectory(dir=options.output.absolute().parent, prefix=".index-") as folder:
        header = build_index(
            options.documents, Path(folder), encoder.embed_texts, DEFAULT_ENCODER, options.lists, _print_progress
        )
        shutil.copytree(folder, options.output)
    took = time.monotonic() - started_at
    print(f"indexed {header.passages:,} passages in {header.lists} lists in {took:.0f} s: {options.output}")


def _print_progress(done: int, total: int) -> None:
    """Overwrite one line on the terminal; without one, print every tenth part."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\rembedded {done:,} of {total:,} passages" + ("\n" if done == total else ""))
    elif done == total or done * 10 // total != max(0, done - 32) * 10 // total:
        sys.stderr.write(f"embedded {done:,} of {total:,} passages\n")
    sys.stderr.flush()


def _search(options: argparse.Namespace) -> None:
    from mstar.nn.retrieval.document_store import DocumentStore
    from mstar.nn.retrieval.vector_index import MISSING, VectorIndex

    with VectorIndex(options.index) as index:
        encoder: Any = load_model(index.header.embedding).components()["encoder"]
        scores, numbers = index.search(encoder.embed_texts([options.question]), options.count, options.probes)
    passages = DocumentStore(options.index)
    for score, number in zip(scores[0].tolist(), numbers[0].tolist(), strict=True):
        if number != MISSING:
            passage = passages[number]
            print(f"{score:.3f}  {passage.title} ({passage.source}, character {passage.offset})")
            print(f"       {' '.join(passage.text.split())}\n")
    passages.close()
