"""The sentence encoder on a pretend GPU: the vectors of the library, from the network and from its cache."""

import numpy as np

from mstar.models.sentence_transformer.sentence_transformer import SentenceTransformer
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.requests import EmbeddingRequest
from mstar.testing.local_runtime import LocalRuntime
from tests.models.on_device import place, weights_device
from tests.models.sentence_transformer.minilm import library_vectors
from tests.models.sentence_transformer.test_sentence_transformer import TEXTS


def test_vectors_are_those_of_the_library():
    model = place(SentenceTransformer())
    for _ in range(2):
        outcomes = LocalRuntime(model, seed=1).run_all([EmbeddingRequest(tuple(TEXTS)), EmbeddingRequest(("A dog.",))])
        vectors = [outcome.result[0].cpu().numpy() for outcome in outcomes]
        np.testing.assert_allclose(np.concatenate(vectors), library_vectors([*TEXTS, "A dog."]), atol=1e-5)
    assert weights_device(model.encoder.network) == pretend_gpu()


def test_a_cached_text_copies_nothing_to_the_device():
    model = place(SentenceTransformer())
    model.run(EmbeddingRequest(("A dog.",)))
    with count_traffic() as traffic:
        model.run(EmbeddingRequest(("A dog.",)))
    assert not traffic.to_device
    assert sum(traffic.syncs.values()) == 2, traffic.syncs  # the checks of the vector and of all vectors
