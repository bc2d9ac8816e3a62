"""RAG in steps with lookahead, against the same without it: end to end, at equal answers, with a quarter of the index.

Both sides are served, with components of their own and one thread for torch. A request embeds, searches, drafts,
searches again and answers. Before each one all lists are evicted, so that the first search of both sides reads its
lists from the disk. With lookahead, the lists that the second search needs are read while the draft is written.

Workload: SmolLM2-135M-Instruct and all-MiniLM-L6-v2 with their real weights, and an index of the four packages about
Debian of scripts/fetch-corpus, 6,145 passages.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.in_process import NAME, one_thread, serve_in_process
from mstar.errors import LoadError
from mstar.models.rag.rag_in_steps import RagInSteps
from mstar.nn.retrieval.index import DEFAULT_PROBES
from mstar.nn.retrieval.vector_index import VectorIndex, read_header
from mstar.requests import ChatRequest, Message, Sampling
from mstar.wire.messages import RequestFinished

INDEX = Path.home() / ".cache" / "mstar" / "index-debian"
FIX = (
    "scripts/fetch-corpus build/debian debian-policy debian-reference-en developers-reference debian-handbook && "
    f"mstar index build build/debian -o {INDEX}"
)
TARGET = 1.5
BUDGET = 0.25
"""Memory of lists, as a share of all lists."""
LOOKAHEAD_LISTS = 2 * DEFAULT_PROBES
ANSWER_TOKENS = 16
IDLE_TIMEOUT_S = 5.0
QUESTIONS = (
    "How do I report a bug in a Debian package?",
    "Which fields of a control file are mandatory?",
    "What happens to configuration files when a package is purged?",
)


class ServedRag:
    """One side of the comparison."""

    def __init__(self, index: Path, lookahead_lists: int, stack: ExitStack) -> None:
        self._model = RagInSteps(str(index), lookahead_lists)
        budget = read_header(index).vector_bytes * BUDGET
        self._model.index.operator_settings = {"memory_budget_mb": str(budget / 1e6)}  # as a placement does
        self._front_end = stack.enter_context(serve_in_process(self._model))

    def answer(self, question: str) -> tuple[float, Any]:
        """Seconds of a request whose lists are all on the disk, and its emissions and citations."""
        from tests.integration.deployment_clients import Client

        index = self._model.index.vectors
        index.cache.wait_idle(IDLE_TIMEOUT_S)
        index.cache.clear()
        request = ChatRequest((Message("user", (question,)),), Sampling(max_tokens=ANSWER_TOKENS))
        begun = time.perf_counter()
        client = Client(self._front_end, NAME, request, timeout_s=300)
        client.wait(300)
        took = time.perf_counter() - begun
        assert isinstance(client.end, RequestFinished), client.end
        tokens = [int(event.value) for _, event in client.log[1:-1] if event.kind == "Text"]
        return took, (tokens, client.end.result.content.citations)

    def embed(self, text: str) -> np.ndarray:
        """The vector of a text."""
        return self._model.encoder.embed_texts([text])

    def counters(self) -> dict[str, int]:
        """What became of the lists."""
        return self._model.index.memory_stats()


def compare_searches(folder: Path, queries: list[np.ndarray]) -> tuple[list[float], list[float]]:
    """Milliseconds of the second of two searches for similar queries, without and with lookahead after the first."""
    without, ahead = list[float](), list[float]()
    with VectorIndex(folder, int(read_header(folder).vector_bytes * BUDGET)) as index:
        for query, similar in zip(queries[::2], queries[1::2], strict=True):
            for milliseconds, lists in ((without, 0), (ahead, LOOKAHEAD_LISTS)):
                index.cache.clear()
                index.search(query, 4, DEFAULT_PROBES)
                if lists:
                    index.prefetch(query, lists)
                    index.cache.wait_idle(IDLE_TIMEOUT_S)
                begun = time.perf_counter()
                index.search(similar, 4, DEFAULT_PROBES)
                milliseconds.append((time.perf_counter() - begun) * 1000)
    return without, ahead


def rag() -> Claim:
    """Is an answer in steps ready sooner if lists are read while the draft is written?"""
    if not INDEX.is_dir():
        raise LoadError(f"the benchmark needs an index at {INDEX}\n  fix: {FIX}")
    without_s, ahead_s, are_equal = list[float](), list[float](), True
    with one_thread(), ExitStack() as stack:
        without, ahead = (ServedRag(INDEX, lists, stack) for lists in (0, LOOKAHEAD_LISTS))
        for side in (without, ahead):
            side.answer("Hello?")  # the first request loads everything
        for number, question in enumerate(QUESTIONS):
            results = {side: side.answer(question) for side in ((without, ahead), (ahead, without))[number % 2]}
            without_s.append(results[without][0])
            ahead_s.append(results[ahead][0])
            are_equal &= results[without][1] == results[ahead][1]
        queries = [without.embed(text) for question in QUESTIONS for text in (question, f"{question}\nYou can")]
        counters = ahead.counters()
    search_ms, search_ahead_ms = compare_searches(INDEX, queries)
    print_table(
        [
            Row("one after the other", "s", without_s),
            Row("with lookahead", "s", ahead_s),
            Row("  second search, lists on the disk", "ms", search_ms),
            Row("  second search after lookahead", "ms", search_ahead_ms),
        ]
    )
    value = paired_ratio(without_s, ahead_s)
    text = (
        f"an answer in steps is ready at least {TARGET:g} times as fast with lookahead, with equal answers and a "
        f"quarter of the index in memory"
    )
    details = {
        "answers are equal": are_equal,
        "passages": read_header(INDEX).passages,
        "second search, times as fast": round(median(search_ms) / median(search_ahead_ms), 2),
        "prefetched lists": counters["prefetched"],
        "of these used": counters["prefetched_used"],
    }
    return Claim(text, round(value, 3), TARGET, value >= TARGET and are_equal, details)
