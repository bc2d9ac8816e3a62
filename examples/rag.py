"""Retrieval-augmented generation (RAG): passages are retrieved while the current sentence is written.

Systems such as PipeRAG hide the latency of the search: each sentence uses the passages that were retrieved for the text
before it, so no token waits for the search.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mstar import Int64, Model, Tensor, Text, loop, walk
from mstar.testing.toy_language import RetrievalLM, Retriever


class Rag(Model):
    """Writes sentence by sentence. The search for the next sentence runs in parallel."""

    def __init__(self) -> None:
        self.lm, self.retriever = RetrievalLM(vocab=83, eos=5, stops=(7, 11, 13, 17, 19)), Retriever()

    @walk
    def answer(self, question: Int64[Tensor, "T"], sentences: int) -> Iterator[Text]:
        kv = self.lm.kv()
        token = self.lm.prefill(question, kv)
        query = self.retriever.embed(question)
        s = loop(steps=sentences, token=token, query=query, passages=self.retriever.search(query))
        for _ in s:
            self.lm.read(s.passages, kv)
            s.passages = self.retriever.search(s.query)  # nothing below depends on it
            t = loop(steps=16, token=s.token)
            for _ in t:
                yield Text(t.token)
                t.token = self.lm.decode(t.token, kv)
                t.stop_when(self.lm.is_stop(t.token))
                t.stop_when(self.lm.is_end(t.token))
            s.token, s.query = t.token, self.lm.query(kv)
            s.stop_when(self.lm.is_end(s.token))


def requests() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    return [
        {"question": rng.integers(0, 61, size), "sentences": sentences} for size, sentences in ((9, 4), (3, 9), (14, 1))
    ]
