"""Hopper: its actions are those of the published policy, for one robot and for many, and with them a robot hops."""

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


def test_actions_are_those_of_the_published_policy(model):
    for ask, wanted in zip(REQUESTS, GOLDEN["actions"], strict=True):
        (action,) = model.run(ask).emissions
        assert (dict(action.clock), action.value.dtype) == ({"rate": 50}, np.float32)
        np.testing.assert_array_equal(action.value, [wanted.astype(np.float32)])


def test_many_robots_share_a_forward(model):
    parity_all(model, REQUESTS[:8], schedules=4)


def test_a_crowd_is_told_what_each_would_be_told_alone(model):
    with in_process("hopper", model) as deployment:
        run_clients(add_frontend(deployment, "front_hopper"), "hopper", Oracle(model, REQUESTS), len(REQUESTS))


def test_it_says_what_it_sees_and_is_warm_with_that(model):
    seen = model.robot_spec()["observation"]["state"]
    (warm,) = model.warmup_requests()
    state = warm.observation["state"]
    assert (state.dtype.name, [*state.shape]) == (seen["dtype"], seen["shape"])
    (action,) = model.run(warm).emissions
    assert [*action.value.shape] == model.robot_spec()["actions"]["shape"]


def test_weights_that_are_no_policy_are_refused(tmp_path):
    file = tmp_path / "policy.safetensors"
    with pytest.raises(LoadError, match=r"no policy of three layers[\s\S]*fix: "):
        Hopper(str(file)).policy.prepare()
    save_file({"0.w": np.zeros((15, 3))}, file)
    with pytest.raises(LoadError, match=r"three layers: '0.b'[\s\S]*fix: "):
        Hopper(str(file)).policy.prepare()


@pytest.mark.slow
@pytest.mark.parametrize("workers", ['"a"', '["a", "b"]', '["a", "b", "c"]'])
def test_processes_give_what_is_computed_eagerly(workers, model):
    with in_processes("hopper", f"{FILE}:Hopper", {"policy": workers}) as deployment:
        run_clients(add_frontend(deployment, "front_hopper"), "hopper", Oracle(model, REQUESTS), len(REQUESTS))


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.skipif(not PYTHON.exists(), reason="the robot has no venv here: run scripts/install-clients")
def test_a_robot_hops_as_far_as_with_its_policy_beside_it(tmp_path, report):
    told = hop(tmp_path)
    late = sum(seconds > 0.02 for seconds in told["took_s"])
    report(f"Hopper: {told['metres']:.1f} m, return {sum(told['rewards']):.0f}, {late} of 400 replies later than 20 ms")
    assert told["apart"] < 1e-6
    assert not told["is_down"]
    assert 13 < told["metres"] < 16
    assert sum(told["rewards"]) > 800
    frames = np.load(tmp_path / "frames.npy")
    assert [*frames.shape] == [8, 200, 180, 3]
    assert all((one != other).mean() > 0.01 for one, other in pairwise(frames))
