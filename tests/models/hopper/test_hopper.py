"""Hopper: actions equal those of the published policy, alone and batched, and a robot hops with them."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bench.multimodal.hopper import PYTHON, hop
from mstar.errors import LoadError
from mstar.models.hopper.hopper import Hopper
from mstar.requests import ActionRequest
from mstar.testing.parity import parity_all
from tests.integration.deployment_clients import Oracle, add_frontend, run_clients
from tests.models.concurrent_clients import in_process, in_processes

GOLDEN = load_file(Path(__file__).parents[1] / "golden" / "hopper" / "hop.safetensors")
REQUESTS = [ActionRequest({"state": state}) for state in GOLDEN["states"]]
FILE = Path(__file__).parents[3] / "src" / "mstar" / "models" / "hopper" / "hopper.py"


@pytest.fixture(scope="module")
def model():
    return Hopper()


def test_actions_equal_the_published_policy(model):
    for request, expected in zip(REQUESTS, GOLDEN["actions"], strict=True):
        (action,) = model.run(request).emissions
        assert (dict(action.clock), action.value.dtype) == ({"rate": 50}, np.float32)
        np.testing.assert_array_equal(action.value, [expected.astype(np.float32)])


def test_robots_share_a_forward_pass(model):
    parity_all(model, REQUESTS[:8], schedules=4)


def test_concurrent_requests_equal_single_requests(model):
    with in_process("hopper", model) as deployment:
        run_clients(add_frontend(deployment, "front_hopper"), "hopper", Oracle(model, REQUESTS), len(REQUESTS))


def test_the_robot_spec_matches_the_warmup_request(model):
    seen = model.robot_spec()["observation"]["state"]
    (warm,) = model.warmup_requests()
    state = warm.observation["state"]
    assert (state.dtype.name, [*state.shape]) == (seen["dtype"], seen["shape"])
    (action,) = model.run(warm).emissions
    assert [*action.value.shape] == model.robot_spec()["actions"]["shape"]


def test_files_without_a_policy_are_rejected(tmp_path):
    file = tmp_path / "policy.safetensors"
    with pytest.raises(LoadError, match=r"not a policy with three layers[\s\S]*fix: "):
        Hopper(str(file)).policy.prepare()
    save_file({"0.w": np.zeros((15, 3))}, file)
    with pytest.raises(LoadError, match=r"three layers: '0.b'[\s\S]*fix: "):
        Hopper(str(file)).policy.prepare()


@pytest.mark.nightly
@pytest.mark.parametrize("workers", ['"a"', '["a", "b"]', '["a", "b", "c"]'])
def test_processes_give_the_eager_result(workers, model):
    with in_processes("hopper", f"{FILE}:Hopper", {"policy": workers}) as deployment:
        run_clients(add_frontend(deployment, "front_hopper"), "hopper", Oracle(model, REQUESTS), len(REQUESTS))


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.skipif(not PYTHON.exists(), reason="the robot has no venv here: run scripts/install-clients")
def test_a_robot_hops_as_far_as_with_a_local_policy(tmp_path, report):
    result = hop(tmp_path)
    late = sum(seconds > 0.02 for seconds in result["took_s"])
    report(
        f"Hopper: {result['metres']:.1f} m, return {sum(result['rewards']):.0f}, {late} of 400 replies later than 20 ms"
    )
    assert result["apart"] < 1e-6
    assert not result["is_down"]
    assert 13 < result["metres"] < 16
    assert sum(result["rewards"]) > 800
    frames = np.load(tmp_path / "frames.npy")
    assert [*frames.shape] == [8, 200, 180, 3]
    assert all((one != other).mean() > 0.01 for one, other in pairwise(frames))
