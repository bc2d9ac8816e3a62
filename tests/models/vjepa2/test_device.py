"""V-JEPA 2 and V-JEPA 2-AC on a pretend GPU: embeddings, worlds and plans of the CPU."""

import random

import pytest
import torch

from mstar.models.vjepa2.cem import CemParams
from mstar.models.vjepa2.vjepa2 import VJepa2
from mstar.models.vjepa2.vjepa2_ac import VJepa2AC
from mstar.models.vjepa2.world import World
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from mstar.transfer.values import pack, unpack
from tests.models.on_device import assert_close, emitted, is_on_device, place, weights_device
from tests.models.vjepa2 import test_vjepa2, test_vjepa2_ac
from tests.models.vjepa2 import vjepa2_tiny as tiny

CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save_ac(tmp_path_factory.mktemp("vjepa2_ac"))


def test_rollouts_and_plans_are_those_of_the_cpu(saved):
    model, expected = place(VJepa2AC(saved)), VJepa2AC(saved)
    requests = test_vjepa2_ac.REQUESTS
    outcomes = LocalRuntime(model, seed=1).run_all(requests)
    for outcome, request in zip(outcomes, requests, strict=True):
        assert_close(emitted(outcome), emitted(expected.run(request)), **CLOSE)
    for component in (model.encoder, model.predictor):
        assert weights_device(component.network) == pretend_gpu()


@pytest.mark.parametrize("name", ["encoder", "predictor", "cem"])
def test_one_component_can_be_on_the_device_alone(saved, name):
    for request in test_vjepa2_ac.REQUESTS[:2]:
        outcome = LocalRuntime(place(VJepa2AC(saved), name), seed=1).run_all([request])[0]
        assert_close(emitted(outcome), emitted(VJepa2AC(saved).run(request)), **CLOSE)


def test_a_world_moves_between_workers(saved):
    model = place(VJepa2AC(saved))
    placement = random_placement(model.graphs(), random.Random(1))
    request = test_vjepa2_ac.REQUESTS[1]
    (outcome,) = LocalRuntime(model, placement, seed=1).run_all([request])
    assert_close(emitted(outcome), emitted(VJepa2AC(saved).run(request)), **CLOSE)
    world = model.predictor.new_state(World)
    model.predictor.observe(torch.ones(16, 96), torch.zeros(7), 2, world)
    model.predictor.advance(torch.zeros(1, 7), world)
    loaded = model.predictor.load_state(World, unpack(pack(world.export())))
    model.predictor.advance(torch.zeros(3, 7), loaded)
    assert loaded.latents.shape == (3, 16, 96)
    assert all(map(is_on_device, (loaded.latents, loaded.poses, loaded.shared.cells, loaded.own.cells)))


def test_a_round_of_the_planner_waits_only_for_the_checks_of_results(saved):
    model = place(VJepa2AC(saved))
    world, params, goal = model.predictor.new_state(World), CemParams(2, 9, 1, 3), torch.ones(16, 96).to(pretend_gpu())
    model.predictor.observe(torch.ones(16, 96), torch.zeros(7), 2, world)
    for _ in range(2):
        mean, spread = model.cem.begin(params)
        fork = world.fork()
        with count_traffic() as sampling:
            plans = model.cem.sample(mean, spread, 0, params)
        with count_traffic() as advancing:
            for step in range(params.horizon):
                model.predictor.advance(plans[step], fork)
        with count_traffic() as refitting:
            costs = model.predictor.distance(goal, fork)
            model.cem.refit(plans, costs, mean, spread, params)
    assert not advancing.syncs
    assert not advancing.to_device
    assert sum(sampling.syncs.values()) == 1, sampling.syncs
    assert sum(refitting.syncs.values()) == 3, refitting.syncs
    assert not refitting.to_device


def test_embeddings_and_predictions_are_those_of_the_cpu(tmp_path):
    folder, _ = tiny.save_clips(tmp_path)
    model, expected = place(VJepa2(folder)), VJepa2(folder)
    requests = test_vjepa2.REQUESTS
    for outcome, request in zip(LocalRuntime(model, seed=1).run_all(requests), requests, strict=True):
        assert_close(emitted(outcome), emitted(expected.run(request)), **CLOSE)
    for component in model.components().values():
        assert weights_device(component.network) == pretend_gpu()
