"""RAG with real weights, its encoder and language model on a pretend GPU, answers and cites what it does on the CPU."""

import pytest

from mstar.models.rag.rag import Rag
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.requests import ChatRequest, Message, Sampling
from tests.models.rag.corpus import build_small_index
from tests.models.transcripts import one_thread


def answer(index, device):
    model = Rag(str(index))
    for component in model.components().values():
        if component.runs_on_device:
            component.device = device
    outcome = model.run(ChatRequest((Message("user", ("How do I open the studio?",)),), Sampling(max_tokens=12)))
    assert device is None or model.lm.decoder.device == device
    finish = outcome.result
    return [int(emission.value) for emission in outcome.emissions], finish.citations


@pytest.mark.nightly
def test_the_answer_is_that_of_the_cpu(tmp_path):
    with one_thread():
        _, index = build_small_index(tmp_path)
        assert answer(index, pretend_gpu()) == answer(index, None)
