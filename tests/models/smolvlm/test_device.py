"""SmolVLM on a pretend GPU writes what transformers writes on the CPU."""

import pytest
import torch

from mstar.launch.local_launcher import LocalLauncher
from mstar.models.smolvlm.smolvlm import SmolVlm
from mstar.nn.pretend_gpu import pretend_gpu
from mstar.testing.local_runtime import LocalRuntime
from tests.models.concurrent_clients import emitted_values, run_clients
from tests.models.on_device import is_on_device, place, weights_device
from tests.models.smolvlm import smolvlm_tiny as tiny
from tests.models.smolvlm.test_smolvlm import CHATS, tokens_of, unrecorded

NAMES = ["words", "one", "several", "two", "one"]
REQUESTS = [CHATS[name] for name in NAMES]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def expected(saved):
    reference = tiny.Reference(saved)
    return [reference.write(request) for request in REQUESTS]


@pytest.mark.parametrize("names", [("vision_encoder", "lm"), ("vision_encoder",), ("lm",)], ids="+".join)
def test_the_tokens_are_those_of_the_cpu(saved, expected, names):
    model = unrecorded(place(SmolVlm(saved), *names))
    outcomes = LocalRuntime(model, max_batched_tokens=60, seed=1).run_all(REQUESTS)
    assert [tokens_of(outcome) for outcome in outcomes] == expected
    devices = {"lm": model.lm.decoder.device, "vision_encoder": weights_device(model.vision_encoder.network)}
    assert {name for name, device in devices.items() if device == pretend_gpu()} == {*names}
    cached = [*model.vision_encoder.cache._entries.values()]
    assert len(cached) == 5
    assert all(is_on_device(value) == ("vision_encoder" in names) for value in cached)


PLACEMENT = """
[place]
processor = "gpu1"
vision_encoder = "gpu0"
lm = "gpu1"

[workers.gpu0]
device = "pretend"
[workers.gpu1]
device = "pretend"
"""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_workers_with_devices_answer_as_transformers_does(saved, expected):
    with LocalLauncher({"vlm": f"smolvlm@{saved}"}, {"vlm": PLACEMENT}, standby=False) as deployment:
        clients = run_clients(deployment, "vlm", REQUESTS)
    assert [torch.cat(emitted_values(client, "Text")).tolist() for client in clients] == expected
