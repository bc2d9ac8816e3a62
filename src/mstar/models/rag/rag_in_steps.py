"""RAG in steps: search, draft an answer, search again with the draft, and answer from what both searches found.

The draft uses words of the documents, so it is often nearer to the right passages than the question (as in HyDE and
ITER-RETGEN). It is not emitted. Its query is near the question: the lists that it needs are read while it is written.
"""

from __future__ import annotations

from collections.abc import Generator

from mstar import Text, WalkCall, choose, loop, walk
from mstar.models.rag.language_model import DRAFT_TOKENS
from mstar.models.rag.rag import Rag
from mstar.requests import ChatRequest, EmbeddingRequest, Finish, Sampling


class RagInSteps(Rag):
    """Answers like `rag`, with a second search for a draft of the answer."""

    @walk
    def answer_in_steps(
        self, chat: ChatRequest, question: EmbeddingRequest, drafting: Sampling
    ) -> Generator[Text, None, Finish]:
        """Search, draft, search again, write."""
        results = self.search(question)
        prompt, _ = self.lm.prompt_with(chat, results)
        kv = self.lm.kv()
        first = self.lm.next_token(prompt, kv, drafting)
        s = loop(steps=choose(self.lm.is_end(first, drafting), 0, DRAFT_TOKENS), token=first)
        for _ in s:
            s.collect(tokens=s.token)
            s.token = self.lm.next_token(s.token, kv, drafting)
            s.stop_when(self.lm.is_over(s.token, kv, drafting))
        more = self.search(self.lm.draft_query(question, s.tokens))
        return (yield from self.write(chat, self.index.join(results, more)))

    def select_answer(self, chat: ChatRequest, question: EmbeddingRequest) -> WalkCall[Text, Finish]:
        """The walk for a request."""
        return self.answer_in_steps(chat, question, Sampling(max_tokens=DRAFT_TOKENS))
