"""Language model of RAG: SmolLM2 with prompts that contain passages, and answers as sentences to cite."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from mstar import Int64, Tensor, op
from mstar.models.smollm2.smollm2 import LanguageModel
from mstar.nn.retrieval.index import SearchHit, TextSpan
from mstar.requests import ChatRequest, Citation, EmbeddingRequest, Finish, Message, Sampling

PASSAGES_PER_SEARCH = 3
"""Passages of one search. A model of this size reads few with attention, and each takes 130 tokens to prefill."""
MAX_PASSAGES = 5
"""Passages in a prompt after several searches."""
DRAFT_TOKENS = 32
"""Maximum tokens of a draft, which is a query."""
_PROMPT = (
    "Answer the question with the following text.\n\n{passages}\n\nQuestion: {question}\n"
    "Answer in one or two sentences."
)
"""Without titles and numbers of passages: a model of this size repeats them."""
_SENTENCE = re.compile(r"\S.*?(?:[.!?](?=\s)|\n|\Z)", re.DOTALL)


class RagLanguageModel(LanguageModel):
    """Reads passages before the question."""

    @op
    def prompt_with(self, chat: ChatRequest, results: list[list[SearchHit]]) -> tuple[Int64[Tensor, "T"], int]:
        """Apply the chat template with passages before the last message; also the maximum tokens of the answer."""
        *messages, last = chat.messages
        passages = "\n\n".join(" ".join(hit.passage.text.split()) for hit in merge_hits(results))
        text = _PROMPT.format(passages=passages, question=message_text(last))
        return self.prompt(replace(chat, messages=(*messages, Message(last.role, (text,)))))

    @op
    def draft_query(self, question: EmbeddingRequest, draft: list[Int64[Tensor, "1"]]) -> EmbeddingRequest:
        """The question and the draft of an answer, as the query of the next search."""
        return EmbeddingRequest((f"{question.texts[0]}\n{self.detokenize([*map(int, draft)])}",))

    @op
    def sentences(
        self, tokens: list[Int64[Tensor, "1"]], sampling: Sampling
    ) -> tuple[list[TextSpan], EmbeddingRequest]:
        """Sentences of an answer with their positions, and the same as texts to embed."""
        text = self.detokenize([*map(int, tokens)])
        for stop in sampling.stop_strings:
            text = text.partition(stop)[0]
        spans = [*_split_sentences(text)]
        return spans, EmbeddingRequest(tuple(span.text for span in spans))

    @op
    def add_citations(self, finish: Finish, citations: list[Citation]) -> Finish:
        """The result of a walk with the sources of its text."""
        return replace(finish, citations=tuple(citations))


def merge_hits(results: Sequence[Sequence[SearchHit]]) -> list[SearchHit]:
    """The passages for a prompt: those of the first search, then new ones of later searches.

    The first ones stay first, so that the prefix cache has their KV cache pages from the prompt of the draft.
    """
    merged = dict[int, SearchHit]()
    for hits in results:
        for hit in hits:
            merged.setdefault(hit.number, hit)
    return [*merged.values()][:MAX_PASSAGES]


def message_text(message: Message) -> str:
    """The text of a message."""
    return "".join(part for part in message.parts if isinstance(part, str))


def _split_sentences(text: str) -> Iterator[TextSpan]:
    for sentence in _SENTENCE.finditer(text):
        yield TextSpan(sentence.start(), sentence[0].rstrip())
