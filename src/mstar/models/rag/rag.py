"""RAG (retrieval-augmented generation): MiniLM, an index on disk, and SmolLM2 in one model, with cited answers.

Three components: `encoder` embeds, `index` searches, `lm` writes. A walk embeds the question, searches, reads the
passages found and decodes the answer. Then each sentence of the answer is embedded to find the passage that it cites.
While the model writes, the index reads the lists near the last query, which a similar next query needs (lookahead).
    mstar index build FOLDER -o INDEX; mstar serve rag@INDEX
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from mstar import Text, WalkCall, choose, each, loop, walk
from mstar.errors import Unsupported
from mstar.models.rag.language_model import PASSAGES_PER_SEARCH, RagLanguageModel, message_text
from mstar.models.sentence_transformer.sentence_encoder import SentenceEncoder
from mstar.models.sentence_transformer.sentence_transformer import DEFAULT_WEIGHTS
from mstar.models.smollm2.smollm2 import SmolLm2Text
from mstar.nn.encoder import TenantState
from mstar.nn.retrieval.index import DEFAULT_PROBES, Index, SearchHit
from mstar.nn.weights.sources import Weights
from mstar.requests import ChatRequest, EmbeddingRequest, Finish, Message, Sampling

DEFAULT_INDEX = "~/.cache/mstar/index"


class Rag(SmolLm2Text[RagLanguageModel]):
    """Answers questions about the documents of an index, with citations. `weights` is the folder of the index."""

    fetch_command = f"mstar index build FOLDER -o {DEFAULT_INDEX}"

    def __init__(self, weights: str = DEFAULT_INDEX, lookahead_lists: int = 2 * DEFAULT_PROBES) -> None:
        self.encoder = SentenceEncoder(Weights(DEFAULT_WEIGHTS))
        self.index = Index(weights)
        self.lm = RagLanguageModel()
        self._lookahead_lists = lookahead_lists

    @walk
    def answer(self, chat: ChatRequest, question: EmbeddingRequest) -> Generator[Text, None, Finish]:
        """Search once, then write."""
        return (yield from self.write(chat, self.search(question)))

    def search(self, request: EmbeddingRequest) -> list[list[SearchHit]]:
        """Part of walks: the passages of each text."""
        texts, _ = self.encoder.tokenize(request)
        owner, queries = self.encoder.state(TenantState), each(texts)
        for tokens in queries:
            vector = self.encoder.embed(tokens, owner)
            queries.collect(hits=self.index.search(vector, PASSAGES_PER_SEARCH, self._lookahead_lists))
        return queries.hits

    def write(self, chat: ChatRequest, results: list[list[SearchHit]]) -> Generator[Text, None, Finish]:
        """Part of walks: decode an answer from passages, and cite them."""
        prompt, max_tokens = self.lm.prompt_with(chat, results)
        kv = self.lm.kv()
        first = self.lm.next_token(prompt, kv, chat.sampling)
        s = loop(steps=choose(self.lm.is_end(first, chat.sampling), 0, max_tokens), token=first)
        for _ in s:
            yield Text(s.token)
            s.collect(tokens=s.token)
            s.token = self.lm.next_token(s.token, kv, chat.sampling)
            s.stop_when(self.lm.is_over(s.token, kv, chat.sampling))
        finish = self.lm.finish(prompt, s.token, kv, chat.sampling)
        sentences, request = self.lm.sentences(s.tokens, chat.sampling)
        texts, _ = self.encoder.tokenize(request)
        owner, encoded = self.encoder.state(TenantState), each(texts)
        for tokens in encoded:
            encoded.collect(vectors=self.encoder.embed(tokens, owner))
        return self.lm.add_citations(finish, self.index.cite(sentences, encoded.vectors, results))

    def select_answer(self, chat: ChatRequest, question: EmbeddingRequest) -> WalkCall[Text, Finish]:
        """The walk for a request."""
        return self.answer(chat, question)

    async def route(self, request: ChatRequest) -> Finish:
        """Answer the last message of a conversation."""
        if request.sampling.logprobs is not None:
            raise Unsupported("rag does not return log probabilities\n  fix: set logprobs to false")
        return await self.select_answer(request, EmbeddingRequest((message_text(request.messages[-1]),)))

    def warmup_requests(self) -> Sequence[Any]:
        """One short question."""
        return [ChatRequest((Message("user", ("What is this about?",)),), Sampling(max_tokens=2))]
