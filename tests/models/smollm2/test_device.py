"""SmolLM2 with its real weights on a pretend GPU writes what it writes on the CPU."""

import pytest

from mstar.models.smollm2.smollm2 import LanguageModel
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.requests import ChatRequest, Message, Sampling
from mstar.walk.states import KV

SAMPLING = Sampling(max_tokens=8, temperature=0.7, top_p=0.9, seed=3)


def write(device):
    lm = LanguageModel()
    lm.name, lm.device = "lm", device
    tokens, _ = lm.prompt(ChatRequest((Message("user", ("Where is Paris?",)),)))
    kv, written = lm.make_state(KV), []
    for _ in range(SAMPLING.max_tokens):
        tokens = lm.next_token(tokens, kv, SAMPLING)
        written.append(int(tokens))
    assert device is None or lm.decoder.device == device
    return written


@pytest.mark.nightly
def test_the_tokens_are_those_of_the_cpu():
    assert write(pretend_gpu()) == write(None)
