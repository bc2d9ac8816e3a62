"""Sentence transformers: vectors equal those of transformers, whatever shares a batch."""

import json
import shutil

import numpy as np
import pytest

from mstar.cli import main
from mstar.errors import LoadError
from mstar.models.sentence_transformer.checkpoint import Checkpoint
from mstar.models.sentence_transformer.sentence_transformer import SentenceTransformer
from mstar.nn.weights.sources import Weights
from mstar.requests import EmbeddingRequest
from tests.models.sentence_transformer.minilm import library_vectors, minilm_folder
from tests.server.model_server import serve_models

TEXTS = [
    "A cat sits on the mat.",
    "A dog.",
    "",
    "The stock market fell by three percent today, and bonds rose.",
    "cat " * 300,
]


@pytest.fixture(scope="module")
def model():
    return SentenceTransformer()


def test_vectors_are_those_of_the_library(model):
    vectors, finish = model.run(EmbeddingRequest(tuple(TEXTS))).result
    assert vectors.shape == (5, 384)
    np.testing.assert_allclose(vectors.numpy(), library_vectors(TEXTS), atol=1e-5)
    assert finish.prompt_tokens["text"] == 9 + 5 + 2 + 15 + 256


def test_similar_texts_are_near():
    texts = ("How do I reset my password?", "I forgot my password.", "The cake is in the oven.")
    first, near, far = SentenceTransformer().run(EmbeddingRequest(texts)).result[0]
    assert first @ near > 0.6
    assert first @ far < 0.3


def test_the_endpoint_returns_vectors_and_usage(model):
    with serve_models({"minilm": model}) as server, server.client() as client:
        answer = client.post("/v1/embeddings", json={"model": "minilm", "input": TEXTS[:2]}).json()
    vectors = np.array([item["embedding"] for item in answer["data"]])
    np.testing.assert_allclose(vectors, library_vectors(TEXTS[:2]), atol=1e-5)
    assert answer["usage"] == {"prompt_tokens": 14, "total_tokens": 14}


def test_many_texts_at_once_have_the_same_vectors():
    encoder, calls = SentenceTransformer().encoder, []
    vectors = encoder.embed_texts(TEXTS * 8, lambda done, total: calls.append((done, total)))
    np.testing.assert_allclose(vectors, np.tile(library_vectors(TEXTS), (8, 1)), atol=1e-5)
    assert calls == [(32, 40), (40, 40)]


def test_documents_are_reranked_by_meaning(model):
    documents = ["The cake is in the oven.", "I forgot my password.", "Passwords are hashed with bcrypt."]
    body = {"model": "minilm", "query": "How do I reset my password?", "documents": documents, "top_n": 2}
    with serve_models({"minilm": model}) as server, server.client() as client:
        answer = client.post("/v1/rerank", json=body).json()
    query, *vectors = library_vectors([body["query"], *documents])
    assert [one["index"] for one in answer["results"]] == [1, 2]
    for one in answer["results"]:
        assert one["relevance_score"] == pytest.approx(float(query @ vectors[one["index"]]), abs=1e-5)
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0


def test_mstar_run_prints_the_vectors(model, capsys):
    assert main(["run", str(minilm_folder()), "A dog."]) == 0
    printed = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(printed["embeddings"], library_vectors(["A dog."]), atol=1e-5)
    with serve_models({"minilm": model}) as server:
        assert main(["run", "minilm", "A dog.", "--url", server.url]) == 0
    assert json.loads(capsys.readouterr().out).keys() == {"embeddings"}


@pytest.fixture
def copy(tmp_path):
    """A copy of the folder whose files can be changed."""
    return shutil.copytree(minilm_folder(), tmp_path / "minilm")


def test_a_plain_encoder_has_mean_pooling_without_normalization(copy):
    (copy / "modules.json").unlink()
    vectors, _ = SentenceTransformer(str(copy)).run(EmbeddingRequest(("A dog.",))).result
    np.testing.assert_allclose(vectors.numpy(), library_vectors(["A dog."], is_normalized=False), atol=1e-5)


def test_other_pooling_is_refused(copy):
    config = copy / "1_Pooling" / "config.json"
    config.write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(LoadError, match=r"unsupported pooling `pooling_mode_max_tokens`\n  fix: use a model with mean"):
        SentenceTransformer(str(copy)).encoder.prepare()
    config.write_text(json.dumps({"pooling_mode_cls_token": True}))
    assert SentenceTransformer(str(copy)).encoder.checkpoint.pooling == "cls"


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512, "pad_token_id": 0}, 512),
        ({"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 1}, 512),
        ({"model_type": "mpnet", "max_position_embeddings": 514}, 512),
    ],
)
def test_a_text_has_no_more_tokens_than_the_network_has_positions(tmp_path, config, limit):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Checkpoint(Weights(str(tmp_path))).max_tokens == limit


def test_a_checkpoint_without_a_limit_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LoadError, match=r"how many tokens a text can have\n  fix: write max_seq_length"):
        _ = Checkpoint(Weights(str(tmp_path))).max_tokens


def test_other_modules_are_refused(tmp_path):
    names = ("Transformer", "Pooling", "Dense", "Normalize")
    modules = [{"type": f"sentence_transformers.models.{name}", "path": name} for name in names]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    checkpoint = Checkpoint(Weights(str(tmp_path)))
    for read in (lambda: checkpoint.pooling, lambda: checkpoint.is_normalized):
        with pytest.raises(LoadError, match="unsupported modules Transformer, Pooling, Dense, Normalize\n  fix: "):
            read()
