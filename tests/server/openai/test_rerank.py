"""Tests of /v1/rerank: order, scores, top_n, documents, and rejected bodies."""

import math

import pytest

QUERY, DOCUMENTS = "banana", ["kiwi", "papaya", "aaaaaa"]
"""The toy vectors are the length of a text, and its count of the letter `a` plus a half."""
SCORES = {
    text: (6 * len(text) + 3.5 * (text.count("a") + 0.5))
    / (math.hypot(6, 3.5) * math.hypot(len(text), text.count("a") + 0.5))
    for text in DOCUMENTS
}


@pytest.fixture(scope="module")
def client(server):
    with server.client() as opened:
        yield opened


def rerank(client, **fields):
    return client.post("/v1/rerank", json={"model": "vectors", "query": QUERY, "documents": DOCUMENTS} | fields)


def test_documents_are_ordered_by_their_similarity(client):
    answer = rerank(client).json()
    results = answer["results"]
    assert [one["index"] for one in results] == [1, 2, 0]
    assert [one["relevance_score"] for one in results] == pytest.approx([SCORES[DOCUMENTS[n]] for n in (1, 2, 0)])
    assert (answer["model"], answer["usage"]) == ("vectors", None)
    assert answer["id"].startswith("rerank-")
    assert all(one.keys() == {"index", "relevance_score"} for one in results)


def test_the_first_ones_with_their_documents(client):
    results = rerank(client, top_n=2, return_documents=True).json()["results"]
    assert [one["document"] for one in results] == [{"text": "papaya"}, {"text": "aaaaaa"}]


def test_documents_can_be_objects(client):
    results = rerank(client, documents=[{"text": text} for text in DOCUMENTS], top_n=9).json()["results"]
    assert [one["index"] for one in results] == [1, 2, 0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"documents": []}, "documents"),
        ({"query": ""}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"documents": ["a"] * 1001}, "documents"),
    ],
)
def test_invalid_bodies_are_named(client, fields, param):
    response = rerank(client, **fields)
    assert response.status_code == 400
    assert param in response.json()["error"]["message"]


def test_a_vector_that_is_not_finite_is_an_error(client):
    assert rerank(client, documents=["nan"]).json()["error"]["code"] == "model_error"


def test_a_model_without_embeddings_is_refused(client):
    response = rerank(client, model="parrot")
    assert response.status_code == 404
    assert "/v1/chat/completions" in response.json()["error"]["message"]
