"""Language models whose worker has a device: the answers of the library, from a worker process with a pretend GPU."""

import pytest
import torch

from mstar.launch.local_launcher import LocalLauncher
from mstar.requests import Sampling
from tests.models.causal_lm import causal_lm_tiny as tiny
from tests.models.causal_lm.test_causal_lm import NEW, QUESTION, chat
from tests.models.concurrent_clients import emitted_values, run_clients
from tests.tiers import ci_cases

pytestmark = pytest.mark.slow
PLACEMENT = """
[place]
lm = "gpu0"

[workers.gpu0]
device = "pretend"

[components.lm]
dtype = "float32"
"""
SAMPLED = {"temperature": 0.8, "seed": 7, "top_k": 0, "top_p": 1.0}


def answers(folder, requests):
    """Texts that a worker process with a pretend GPU writes."""
    from mstar.models.causal_lm.language_model import LanguageModel
    from mstar.nn.weights.sources import Weights

    with LocalLauncher({"lm": f"causal-lm@{folder}"}, {"lm": PLACEMENT}, standby=False) as deployment:
        clients = run_clients(deployment, "lm", requests)
        assert deployment.status.devices() == {"gpu0": {"lm.lm": "pretend"}}
    tokenizer = LanguageModel(Weights(str(folder))).tokenizer
    return [tokenizer.decode([int(token) for token in torch.cat(emitted_values(client, "Text"))]) for client in clients]


@pytest.mark.parametrize("family", ci_cases(["llama", "bloom"], "llama"))
def test_a_worker_with_a_device_answers_as_the_library_does(tmp_path, family):
    folder = tiny.save(tmp_path, family)
    requests = [chat(QUESTION), chat(QUESTION, sampling=Sampling(NEW, temperature=0.8, seed=7))]
    expected = [
        tiny.library_answer(folder, QUESTION, NEW, do_sample=False),
        tiny.library_answer(folder, QUESTION, NEW, do_sample=True, **SAMPLED),
    ]
    assert answers(folder, requests) == expected
