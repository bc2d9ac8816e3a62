"""RAG with real weights: answers cite the passage that they are from, alone, in parallel, and by the OpenAI SDK."""

import pytest
import torch
from openai import OpenAI

from mstar.errors import LoadError
from mstar.models.rag.language_model import PASSAGES_PER_SEARCH, RagLanguageModel, merge_hits
from mstar.models.rag.rag import Rag
from mstar.models.rag.rag_in_steps import RagInSteps
from mstar.nn.retrieval.documents import TextPassage
from mstar.nn.retrieval.index import Index, SearchHit, TextSpan
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.requests import ChatRequest, Message, Sampling
from mstar.testing.parity import parity_all
from tests.models.rag.corpus import build_small_index
from tests.models.transcripts import detokenize_emissions
from tests.server.model_server import serve_models

QUESTION = "How do I open the studio?"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_small_index(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def rag(corpus):
    return Rag(str(corpus[1]))


def hit(number, text="A cat sleeps."):
    return SearchHit(number, 0.5, TextPassage(f"{number}.md", "Cats", 7, text))


def check_citations(citations, text, pages):
    assert citations
    for citation in citations:
        assert text[citation.start : citation.end].strip() == text[citation.start : citation.end] != ""
        document = (pages / citation.url).read_text("utf-8")
        assert document[citation.cited_start : citation.cited_start + len(citation.cited_text)] == citation.cited_text


def test_a_question_finds_its_passage(rag):
    (vector,) = rag.encoder.embed_texts(["How is a planted bug found by the tests?"])
    hits = rag.index.search(vector, 3)
    assert hits[0].passage.source == "mutation-testing.md"
    assert [one.score for one in hits] == sorted((one.score for one in hits), reverse=True)


def test_a_sentence_cites_the_passage_that_says_it(rag, corpus):
    (vector,) = rag.encoder.embed_texts([QUESTION])
    results = [rag.index.search(vector, PASSAGES_PER_SEARCH)]
    text = "The studio is a web page that the server delivers at its own address. Bananas are rich in potassium."
    sentence, other = text.split(". ")
    spans = [TextSpan(0, f"{sentence}."), TextSpan(text.index(other), other)]
    vectors = [*rag.encoder.embed_texts([span.text for span in spans])]
    (citation,) = rag.index.cite(spans, vectors, results)
    assert text[citation.start : citation.end] == f"{sentence}."
    assert "The studio is a web page that the server delivers" in citation.cited_text
    check_citations([citation], text, corpus[0])


def test_nothing_is_cited_without_passages_or_sentences(rag):
    assert rag.index.cite([], [], [[hit(0)]]) == []
    assert rag.index.cite([TextSpan(0, "A.")], [rag.encoder.embed_texts(["A."])[0]], [[]]) == []


def test_new_hits_of_a_second_search_follow_those_of_the_first():
    first, second = [hit(1), hit(2), hit(3)], [hit(4), hit(3), hit(5), hit(6)]
    assert [one.number for one in merge_hits([first, second])] == [1, 2, 3, 4, 5]
    assert [one.number for one in merge_hits([first])] == [1, 2, 3]
    assert merge_hits([]) == []


def test_the_memory_budget_of_a_placement(corpus):
    place = dict.fromkeys(("encoder", "index", "lm"), "a")
    placement = parse_placement({"place": place, "components": {"index": {"memory_budget_mb": "0.04"}}})
    model = Rag(str(corpus[1]))
    planned = PlannedModel(model, plan(model.graphs(), placement), settings=placement.component_settings)
    planned.apply_settings("index")
    assert model.index.vectors.cache.budget_bytes == 40_000
    assert model.index.memory_stats()["budget_bytes"] == 40_000
    model.index.vectors.close()


def test_a_budget_that_is_no_number_is_refused(corpus):
    index = Index(str(corpus[1]))
    index.operator_settings = {"memory_budget_mb": "much"}
    with pytest.raises(LoadError, match=r"memory_budget_mb is 'much'\n  fix: set it to a number"):
        index.prepare()


@pytest.mark.slow
def test_the_prompt_of_the_answer_starts_like_that_of_the_draft():
    lm, chat = RagLanguageModel(), ChatRequest((Message("user", (QUESTION,)),))
    first, second = [hit(1), hit(2, "A dog barks.")], [hit(3, "A bird sings.")]
    draft, _ = lm.prompt_with(chat, [first])
    answer, _ = lm.prompt_with(chat, [first, second])
    question = len(lm.tokenize(f"Question: {QUESTION}\nAnswer in one or two sentences.")) + 8
    assert answer[: len(draft) - question].tolist() == draft[:-question].tolist()
    assert "A dog barks.\n\nA bird sings." in lm.detokenize(answer.tolist())


@pytest.mark.slow
def test_sentences_have_their_positions():
    lm = RagLanguageModel()
    text = "It is a page. Open it!\nThen press g.STOP more"
    spans, request = lm.sentences([*torch.tensor(lm.tokenize(text))[:, None]], Sampling(stop_strings=("STOP",)))
    assert request.texts == ("It is a page.", "Open it!", "Then press g.")
    assert all(text[span.start :].startswith(span.text) for span in spans)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", [Rag, RagInSteps])
def test_answers_cite_and_are_equal_in_parallel(corpus, kind):
    model = kind(str(corpus[1]))
    request = ChatRequest((Message("user", (QUESTION,)),), Sampling(max_tokens=24, frequency_penalty=0.2))
    outcome = model.run(request)
    text = detokenize_emissions(model, outcome.emissions)
    check_citations(outcome.result.citations, text, corpus[0])
    assert {citation.url for citation in outcome.result.citations} == {"studio.md"}
    parity_all(model, [request], schedules=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_served_answer_has_annotations(rag, corpus):
    ask = {"model": "rag", "messages": [{"role": "user", "content": QUESTION}], "max_completion_tokens": 24}
    with (
        serve_models({"rag": rag}) as server,
        OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client,
    ):
        message = client.chat.completions.create(**ask).choices[0].message
        chunks = [*client.chat.completions.create(**ask, stream=True)]
    annotations = message.annotations
    assert annotations
    for annotation in annotations:
        assert annotation.type == "url_citation"
        source = annotation.url_citation
        assert (source.url, source.title) == ("studio.md", "Studio")
        assert 0 <= source.start_index < source.end_index <= len(message.content)
        document = (corpus[0] / source.url).read_text("utf-8")
        assert document[source.start_char_index : source.end_char_index] == source.cited_text
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    (streamed,) = [delta.annotations for delta in deltas if getattr(delta, "annotations", None)]
    assert streamed == [annotation.model_dump() for annotation in annotations]
