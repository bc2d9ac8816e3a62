"""pi0.5 on a pretend GPU: the actions of lerobot, and one wait in a denoising step."""

import json

import numpy as np
import pytest
import torch

from mstar.launch.local_launcher import LocalLauncher
from mstar.models.pi05.pi05 import Pi05
from mstar.models.pi05.policy import PrefixCache
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.requests import ActionRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.transfer.values import pack, unpack
from tests.models.concurrent_clients import emitted_values, run_clients
from tests.models.on_device import assert_close, emitted, is_on_device, place, weights_device
from tests.models.pi05 import pi05_tiny as tiny
from tests.models.pi05.pi05_replayed import Replayed

CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("pi05"))


@pytest.mark.parametrize("names", [("vision_encoder", "policy"), ("vision_encoder",), ("policy",)], ids="+".join)
def test_actions_are_those_of_lerobot(saved, names):
    model, cases = place(Replayed(saved), *names), [*tiny.golden().values()]
    for outcome, (_, actions) in zip(
        LocalRuntime(model, seed=1).run_all([case for case, _ in cases]), cases, strict=True
    ):
        ((_, actual),) = emitted(outcome)
        np.testing.assert_allclose(actual.numpy(), actions, rtol=0, atol=1e-4)
    networks = {"vision_encoder": model.vision_encoder.network, "policy": model.policy.language_model}
    assert {name for name, network in networks.items() if weights_device(network) == pretend_gpu()} == {*names}


def test_a_chunk_that_continues_another_is_that_of_the_cpu(saved):
    leftover = np.random.default_rng(1).normal(0, 0.3, (8, 32)).astype(np.float32)
    request = ActionRequest(tiny.observation(2), "pick up the cup", seed=4, leftover=leftover, delay=2)
    assert_close(emitted(place(Pi05(saved)).run(request)), emitted(Pi05(saved).run(request)), **CLOSE)


def test_a_denoising_step_waits_once(saved):
    policy = place(Pi05(saved)).policy
    prefixes = [policy.new_state(PrefixCache) for _ in range(3)]
    for row, prefix in enumerate(prefixes):
        policy.prefill([torch.ones(4, 64)] * (1 + row), torch.arange(5), prefix)
    moved = policy.load_state(PrefixCache, unpack(pack(prefixes[0].export())))
    assert is_on_device(moved.layers)
    actions = [torch.ones(10, 32).to(pretend_gpu())] * 3
    columns = {"previous_chunk": actions, "guidance_weights": [torch.zeros(10).to(pretend_gpu())] * 3}
    columns |= {"prefix": [moved, *prefixes[1:]], "steps": [5, 10, 10], "step": [0, 1, 2]}
    for _ in range(2):  # the schedules are computed once
        with count_traffic() as traffic, torch.inference_mode():
            actions = [row for (row,) in policy.ops()["denoise"].run(policy, columns | {"actions": actions}, 3)]
    assert all(map(is_on_device, actions))
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    assert not traffic.to_device


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_worker_with_a_device_and_a_processor_on_the_cpu_acts_as_the_cpu_does(tmp_path):
    low, high = [-1.0] * 32, [2.0] * 32
    folder = tiny.save(tmp_path)
    (tmp_path / "norm_stats.json").write_text(json.dumps({"norm_stats": {"actions": {"q01": low, "q99": high}}}))
    placement = """
        place = { processor = "gpu0", vision_encoder = "gpu1", policy = "gpu0" }
        workers = { gpu0 = { device = "pretend" }, gpu1 = { device = "pretend" } }
    """
    requests = [ActionRequest(tiny.observation(seed), "pick up the cup", seed=seed) for seed in range(3)]
    with LocalLauncher({"pi05": f"pi05@{folder}"}, {"pi05": placement}, standby=False) as deployment:
        clients = run_clients(deployment, "pi05", requests)
    for client, request in zip(clients, requests, strict=True):
        ((_, expected),) = emitted(Pi05(folder).run(request))
        (actual,) = emitted_values(client, "Action")
        np.testing.assert_allclose(np.asarray(actual), expected.numpy(), rtol=0, atol=1e-3)
