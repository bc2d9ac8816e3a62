"""The language model of Orpheus on a pretend GPU writes the codes that it writes on the CPU."""

import torch

from mstar.models.orpheus.language_model import LanguageModel
from mstar.models.orpheus.orpheus import Orpheus
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.requests import Sampling
from mstar.walk.states import KV
from tests.models.orpheus import orpheus_tiny as tiny

SAMPLING = Sampling(max_tokens=21, temperature=0.6, top_p=0.8, repetition_penalty=1.3, seed=11)


def write(saved, device):
    lm = Orpheus(*saved).lm
    assert type(lm) is LanguageModel
    lm.device = device
    tokens, kv, codes = lm.prompt("Hm?", "zac"), lm.make_state(KV), []
    for _ in range(SAMPLING.max_tokens):
        tokens = lm.next_token(tokens, kv, SAMPLING)
        codes.append(int(lm.token_to_code(tokens)))
    assert device is None or lm.decoder.device == device
    return codes


def test_the_codes_are_those_of_the_cpu(tmp_path):
    saved = tiny.save(tmp_path)
    with torch.inference_mode():
        assert write(saved, pretend_gpu()) == write(saved, None)
