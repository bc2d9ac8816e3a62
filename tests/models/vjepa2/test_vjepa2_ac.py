"""V-JEPA 2-AC: rollouts and plans equal those of the published code, for every placement."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mstar import ClientInput
from mstar.errors import BadShape, LoadError
from mstar.models.vjepa2.cem import CemParams, CrossEntropy
from mstar.models.vjepa2.checkpoint import Checkpoint, Shape, Sizes
from mstar.models.vjepa2.network import Block, apply_actions, fuse_layers
from mstar.models.vjepa2.predictor import Predictor
from mstar.models.vjepa2.vision_encoder import preprocess_images
from mstar.models.vjepa2.vjepa2_ac import VJepa2AC
from mstar.models.vjepa2.world import KVBuffer, RowBlock, World
from mstar.nn import native
from mstar.requests import ActionRequest, RolloutRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from mstar.walk.component import Op
from mstar.wire.messages import RequestFinished
from tests.integration.deployment_clients import Client, add_frontend
from tests.models.concurrent_clients import in_process, in_processes
from tests.models.transcripts import one_thread
from tests.models.vjepa2 import vjepa2_tiny as tiny
from tests.models.vjepa2.vjepa2_published import Published

CLOSE = 1e-4
REQUESTS = [
    tiny.rollout_request(1, 3),
    tiny.acting(10, 2, 16, 3),
    tiny.rollout_request(3, 2, plans=5),
    tiny.acting(16, 1, 9, 2, elites=3),
    tiny.rollout_request(5, 6),
    tiny.acting(8, 3, 24, 2),
    tiny.rollout_request(7, 1, plans=2),
    tiny.acting(2, 2, 64, 1, elites=8),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def golden():
    return load_file(tiny.GOLDEN / "cases.safetensors")


@pytest.fixture(scope="module")
def published():
    return Published(load_file(tiny.GOLDEN / "weights.safetensors"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save_ac(tmp_path_factory.mktemp("vjepa2_ac"))


@pytest.fixture(scope="module")
def model(saved):
    return VJepa2AC(saved)


@pytest.fixture(scope="module")
def predictor(model):
    return model.predictor


@pytest.fixture(scope="module")
def eager(model):
    return [emitted_values(model.run(request).emissions) for request in REQUESTS]


def emitted_values(emissions):
    """Return the emissions by kind, in order."""
    kinds = {}
    for one in emissions:
        kinds.setdefault(type(one).__name__, []).append(np.asarray(one.value))
    return kinds


def assert_alike(actual, expected):
    assert {kind: len(values) for kind, values in actual.items()} == {kind: len(v) for kind, v in expected.items()}
    for kind, values in expected.items():
        for one, other in zip(actual[kind], values, strict=True):
            close(one, other)


def close(actual, expected):
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=0, atol=CLOSE)


def new_world(predictor, seen, pose, ahead=4):
    world = World()
    predictor.observe(seen, pose, ahead, world)
    return world


# ---------------------------------------------------------------- golden data
def test_the_reference_implementation_equals_the_published_code(golden, published):
    g = golden
    close(published.frames(g["enc.clip"][0]).flatten(0, 1)[None], g["enc.tokens_ln"])
    seen, poses = published.rollout(g["enc.z0"][0], g["rollout.actions"], g["rollout.start_pose"][:, 0])
    close(seen[:, 1:], g["rollout.latents"])
    close(poses, g["rollout.poses"])
    goal, start = g["cem.goal"][0], g["cem.start_pose"][0]
    action, rounds = published.cem(g["enc.z0"][0], start, goal, g["cem.noise"], 8)
    close(action, g["cem.action"][0])
    close(torch.stack([costs for _, costs, _ in rounds]), g["cem.costs"])


@pytest.mark.parametrize("heads", [4, 3])
def test_both_networks_equal_the_published_ones(heads, golden, tmp_path):
    checkpoint = Checkpoint(
        tiny.save_ac(tmp_path, num_attention_heads=heads, pred_num_attention_heads=heads), "float32"
    )
    encoder, network, frames = checkpoint.network("encoder"), checkpoint.network("predictor"), golden["enc.clip"]
    if heads == 4:
        close(encoder.encode_frames(frames[0].transpose(0, 1)).flatten(0, 1)[None], golden["enc.tokens_ln"])
        close(encoder(frames), golden["enc.video_tokens_raw"])
        close(encoder(frames[:, :, :1].repeat(1, 1, 2, 1, 1)), golden["enc.tokens_raw"][:, :16])
    else:
        close(encoder(frames[:, :, :1].repeat(1, 1, 2, 1, 1)), golden["heads3.enc_tokens_raw"])
    tokens, conditions = golden["pred_full.tokens"].view(2, 4, 16, 96), ("pred_full.actions", "pred_full.states")
    memory, following = KVBuffer.from_cells(network.empty_cache().repeat_interleave(2, 2)), []
    for step in range(4):
        memory = memory.extended(18, 18)
        given = (golden[name][:, step] for name in conditions)
        following.append(network(tokens[:, step], *given, [RowBlock(None, memory, 18 * step, 0, 2)]))
    expected = golden["pred_full.output" if heads == 4 else "heads3.pred_full_output"]
    close(torch.cat(following, 1), expected)


def test_rollouts_equal_the_published_ones(golden, predictor):
    worlds = [new_world(predictor, golden["enc.z0"][0], pose[0]) for pose in golden["rollout.start_pose"]]
    for step in range(8):
        actions = [golden["rollout.actions"][row : row + 1, step] for row in range(4)]
        predictor.ops()["advance"].run(predictor, {"actions": actions, "world": worlds}, 4)
        close(torch.cat([one.latents for one in worlds]), golden["rollout.latents"][:, step])
        close(torch.cat([one.poses for one in worlds]), golden["rollout.poses"][:, step + 1])


def test_a_plan_equals_the_published_one(golden, model, monkeypatch):
    """Run the walk with the frame, goal and noise of the golden data."""
    start, goal = golden["enc.z0"][0], golden["cem.goal"][0]
    monkeypatch.setattr(model.cem, "noise", lambda step, _: golden["cem.noise"][step])
    monkeypatch.setattr(
        model.encoder, "_encode", lambda pixels, _: [goal if one[0, 0, 0] > 0 else start for one in pixels]
    )
    dark = np.zeros((64, 64, 3), np.uint8)
    seen = {"image": dark, "goal": dark + 255, "pose": golden["cem.start_pose"][0, 0].numpy()}
    request = ActionRequest(seen | {"candidates": 32, "rounds": 4, "elites": 8}, horizon=2)
    (action,) = emitted_values(model.run(request).emissions)["Action"]
    close(action, golden["cem.action"][0])


def test_plans_and_rounds_equal_the_published_ones(golden, predictor, monkeypatch):
    cem, search = CrossEntropy(), CemParams(2, 32, 4, 8)
    monkeypatch.setattr(cem, "noise", lambda step, _: golden["cem.noise"][step])
    here = new_world(predictor, golden["enc.z0"][0], golden["cem.start_pose"][0, 0])
    mean, spread = cem.begin(search)
    for step in range(4):
        close(mean, golden["cem.mean"][step])
        close(spread, golden["cem.std"][step])
        plans, world = cem.sample(mean, spread, step, search), here.fork()
        close(plans.transpose(0, 1), golden["cem.actions"][step])
        for actions in plans:
            predictor.advance(actions, world)
        if step == 0:
            close(world.latents, golden["cem.final_latents_iter0"])
        costs = predictor.distance(golden["cem.goal"][0], world)
        close(costs, golden["cem.costs"][step])
        assert set(costs.topk(8, largest=False).indices.tolist()) == set(golden["cem.topk_indices"][step].tolist())
        mean, spread = cem.refit(plans, costs, mean, spread, search)
    close(mean, golden["cem.mean"][4])


# ---------------------------------------------------------------- walks against the reimplementation
def expected_for(request, published):
    """Return the result of the reimplementation, and the cost gap between the elites and the next best plan."""
    look = lambda name: published.frames(preprocess_images(request.observation[name][None], 64, 64).transpose(0, 1))[-1]  # noqa: E731
    pose = torch.tensor(request.observation["pose"])
    if isinstance(request, RolloutRequest):
        actions = torch.tensor(np.stack(request.actions)).reshape(len(request.actions), -1, 7).transpose(0, 1)
        seen, poses = published.rollout(look("image"), actions, pose.expand(len(actions), -1))
        steps = range(1, seen.shape[1])
        return {"Latents": [seen[:, step] for step in steps], "Action": [poses[:, step] for step in steps]}, 1.0
    seen = request.observation
    elites = seen.get("elites", max(2, seen["candidates"] // 8))
    search = CemParams(request.horizon, seen["candidates"], seen["rounds"], elites, request.seed)
    noise = torch.stack([CrossEntropy().noise(step, search) for step in range(search.rounds)])
    action, rounds = published.cem(look("image"), pose, look("goal"), noise, elites)
    ordered = [costs.sort().values for _, costs, _ in rounds]
    return {"Action": [action]}, min(float(costs[elites] - costs[elites - 1]) for costs in ordered)


def test_requests_equal_the_published_code(eager, published):
    for request, actual in zip(REQUESTS, eager, strict=True):
        expected, gap = expected_for(request, published)
        assert gap > 1e-5, "a tie: whoever rounds differently keeps another plan"
        assert_alike(actual, expected)
    assert np.abs(eager[1]["Action"][0]).max() > 100 * CLOSE, "a plan that does nothing is like any other"


def test_served_results_equal_eager_results_under_any_placement(model, eager):
    placement = random_placement(model.graphs(), random.Random(5))
    outcomes = LocalRuntime(model, placement, seed=5).run_all(REQUESTS)
    for outcome, expected in zip(outcomes, eager, strict=True):
        assert_alike(emitted_values(outcome.emissions), expected)


def test_concurrent_requests_equal_single_requests(model, eager):
    with in_process("vjepa2_ac", model) as deployment:
        for actual, expected in zip(run_clients(deployment, leavers=3), eager, strict=True):
            assert_alike(actual, expected)


def run_clients(deployment, leavers):
    """Return the results of concurrent requests, while others connect and disconnect."""
    front_end, chosen = add_frontend(deployment, "front_vjepa2_ac"), random.Random(1)
    leaving = [Client(front_end, "vjepa2_ac", tiny.acting(one, 3, 48, 50)) for one in range(leavers)]
    clients = [Client(front_end, "vjepa2_ac", request, timeout_s=60) for request in REQUESTS]
    chosen.shuffle(leaving)
    answers = []
    for client in clients:
        if leaving:
            leaving.pop().close()
        client.wait(60)
        assert isinstance(client.end, RequestFinished), client.end
        kinds = {}
        for _, event in client.log[1:-1]:
            kinds.setdefault(event.kind, []).append(np.asarray(event.value))
        answers.append(kinds)
    for one in leaving:
        assert one.end is None, "it had ended before it went away"
        one.close()
    return answers


# ---------------------------------------------------------------- sessions
def test_actions_sent_one_by_one_give_the_same_rollout(model, eager):
    first, *others = REQUESTS[4].actions
    outcome = model.run(replace(REQUESTS[4], actions=(first,)), inputs=[ClientInput(one) for one in others])
    assert_alike(emitted_values(outcome.emissions), eager[4])


def test_a_session_plans_from_each_new_observation(model, eager):
    """Ticks of a control loop: each sends the executed action and the new observation, and returns a plan."""
    ticks = [{"image": tiny.picture(seed), "pose": tiny.pose(seed), "action": tiny.pose(seed) / 20} for seed in (3, 4)]
    eager_actions = emitted_values(model.run(REQUESTS[1], inputs=[ClientInput(one) for one in ticks]).emissions)[
        "Action"
    ]
    assert len(eager_actions) == 3
    close(eager_actions[0], eager[1]["Action"][0])
    with in_process("vjepa2_ac", model) as deployment:
        stream = add_frontend(deployment, "front_ticks").open_stream("vjepa2_ac", REQUESTS[1])
        actions = [event.value for event in stream.turn(30)]
        for tick in ticks:
            stream.send_input(tick)
            actions += [event.value for event in stream.turn(30)]
        stream.close()
    assert_alike({"Action": actions}, {"Action": eager_actions})
    anew = replace(REQUESTS[1], observation=dict(REQUESTS[1].observation) | {"image": ticks[-1]["image"]})
    fresh = emitted_values(model.run(anew).emissions)["Action"][0]
    assert np.abs(np.asarray(actions[-1]) - fresh).max() > 100 * CLOSE, "what was seen before does not matter"


# ---------------------------------------------------------------- ops that run
def ops_of(model, request, monkeypatch):
    """Number of runs per op for a request."""
    ran, run = Counter(), Op.run
    with monkeypatch.context() as patch:
        patch.setattr(Op, "run", lambda op, *given: ran.update([op.name]) or run(op, *given))
        model.run(request)
    return dict(ran)


def test_a_request_runs_only_the_ops_it_needs(model, monkeypatch):
    clip = np.stack([tiny.picture(seed) for seed in range(8)])
    rollout = tiny.rollout_request(1, 3)
    of_clip = RolloutRequest(dict(rollout.observation) | {"image": clip}, rollout.actions)
    assert ops_of(model, of_clip, monkeypatch) == {"encode_frame": 1, "observe": 1, "advance": 3, "read_world": 3}
    plan = {
        "encode_frame": 2,
        "observe": 1,
        "advance": 6,
        "distance": 3,
        "begin": 1,
        "sample": 3,
        "refit": 3,
        "best_actions": 1,
    }
    assert ops_of(model, tiny.acting(2, 2, 16, 3), monkeypatch) == plan


def test_only_the_last_frame_of_a_clip_is_encoded(model, eager):
    clip = np.stack([tiny.picture(9), *[tiny.picture(1)] * 2])
    request = RolloutRequest(dict(REQUESTS[0].observation) | {"image": clip}, REQUESTS[0].actions)
    assert_alike(emitted_values(model.run(request).emissions), eager[0])


# ---------------------------------------------------------------- world states
def test_forks_share_their_prefix_and_diverge(golden, predictor):
    draw = torch.Generator().manual_seed(0)
    past, plans = torch.randn(3, 1, 7, generator=draw) * 0.1, torch.randn(2, 40, 7, generator=draw) * 0.1
    world = new_world(predictor, golden["enc.z0"][0], golden["cem.start_pose"][0, 0])
    for action in past:
        predictor.advance(action, world)
    together, alone, before = world.fork(), [world.fork() for _ in range(40)], world.shared
    for actions in plans:
        predictor.advance(actions, together)
        columns = {"actions": list(actions[:, None]), "world": alone}
        predictor.ops()["advance"].run(predictor, columns, 40)
    assert together.shared is before, "plans read what was seen before where it lies"
    assert together.own.length == 2 * 18
    close(torch.cat([one.latents for one in alone]), together.latents)
    close(torch.cat([one.poses for one in alone]), together.poses)
    predictor.advance(past[0], world)
    close(world.latents, published_after(golden, predictor, [*past, past[0]]))


def test_layers_equal_the_fused_call(golden, predictor, model, monkeypatch):
    assert predictor.network._fused is not None, "there are kernels here"
    draw = torch.Generator().manual_seed(1)
    past, plans, results = torch.randn(2, 1, 7, generator=draw), torch.randn(3, 40, 7, generator=draw) * 0.1, []
    for _ in range(2):
        world = new_world(predictor, golden["enc.z0"][0], golden["cem.start_pose"][0, 0])
        for action in past * 0.1:
            predictor.advance(action, world)
        parted = new_world(predictor, golden["enc.z0"][0], golden["cem.start_pose"][0, 0])
        for actions in plans:  # some share a long prefix, others none
            columns = {"actions": [actions, actions[:3]], "world": [world, parted]}
            predictor.ops()["advance"].run(predictor, columns, 2)
        picture = preprocess_images(tiny.picture(3)[None], 64, 64)
        results.append([world.latents, parted.latents, model.encoder.network.encode_frames(picture)])
        monkeypatch.setitem(vars(predictor.network), "_fused", None)
        monkeypatch.setitem(vars(model.encoder.network), "_fused", None)
    for one, other in zip(*results, strict=True):
        close(one, other)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_layers_are_fused_where_that_is_faster(has_bf16, monkeypatch):
    monkeypatch.setattr(native, "supports_bf16_matmul", lambda: has_bf16)
    for hidden, dtype in ((384, torch.float32), (384, torch.bfloat16), (640, torch.float32), (640, torch.bfloat16)):
        shape = Shape(width=96, depth=1, heads=4, hidden=hidden, eps=1e-6)
        made = fuse_layers(torch.nn.ModuleList([Block(shape)]).to(dtype), shape)
        assert (made is not None) == (hidden == 384 or (dtype is torch.bfloat16 and not has_bf16))


def published_after(golden, predictor, actions):
    """Return the state of a world without forks after these actions."""
    world = new_world(predictor, golden["enc.z0"][0], golden["cem.start_pose"][0, 0])
    for action in actions:
        predictor.advance(action, world)
    return world.latents


def test_an_observation_replaces_the_prediction(golden, predictor, published):
    """A tick of a session: the executed action, the next frame, and plans from there."""
    frames, poses = golden["enc.tokens_ln"].view(4, 16, 96), golden["rollout.poses"][0]
    actions = golden["rollout.actions"][0]
    world = new_world(predictor, frames[0], poses[0])
    for tick in range(1, 3):
        predictor.advance(actions[tick - 1 : tick], world)
        predictor.observe(frames[tick], poses[tick], 2, world)
    plans, fork = golden["cem.actions"][0, :, 0], world.fork()
    predictor.advance(plans, fork)
    given = torch.cat([actions[:2].expand(32, -1, -1), plans[:, None]], 1)
    expected, _ = published.step(frames[:3].expand(32, -1, -1, -1), given, poses[:3].expand(32, -1, -1))
    close(fork.latents, expected[:, -1])


def test_a_world_is_exported_and_rolled_back(golden, predictor):
    actions = golden["rollout.actions"]
    world = new_world(predictor, golden["enc.z0"][0], golden["cem.start_pose"][0, 0])
    predictor.advance(actions[:1, 0], world)
    many = world.fork()
    predictor.advance(actions[:, 1], many)
    elsewhere, mark = predictor.load_state(World, many.export()), many.snapshot()
    predictor.advance(actions[:, 2], many)
    predictor.advance(actions[:, 2], elsewhere)
    close(elsewhere.latents, many.latents)
    many.rollback(mark)
    predictor.advance(actions[:, 2], many)
    close(many.latents, elsewhere.latents)


def test_invalid_world_operations_are_rejected(golden, predictor):
    seen, pose = golden["enc.z0"][0], golden["cem.start_pose"][0, 0]
    with pytest.raises(BadShape, match="has no observation\n  fix: observe"):
        predictor.advance(torch.zeros(1, 7), World())
    world = new_world(predictor, seen, pose)
    predictor.advance(torch.zeros(4, 7), world)
    with pytest.raises(BadShape, match="has 4 plans, and there are actions for 3\n  fix: "):
        predictor.advance(torch.zeros(3, 7), world)
    with pytest.raises(BadShape, match="has 4 plans, and the observation is one frame\n  fix: "):
        predictor.observe(seen, pose, 1, world)
    world = new_world(predictor, seen, pose, 64)
    for _ in range(64):
        predictor.advance(torch.zeros(1, 7), world)
    with pytest.raises(BadShape, match="has 64 frames, the maximum\n  fix: "):
        predictor.advance(torch.zeros(1, 7), world)


def test_poses_rotate_as_in_scipy():
    from scipy.spatial.transform import Rotation

    draw = np.random.default_rng(2)
    poses, actions = (torch.tensor(draw.uniform(-3, 3, (50, 7)), dtype=torch.float32) for _ in range(2))
    turns = [Rotation.from_euler("xyz", one[:, 3:6].double().numpy()) for one in (actions, poses)]
    close(
        Rotation.from_euler("xyz", apply_actions(poses, actions)[:, 3:6].double()).as_matrix(),
        (turns[0] * turns[1]).as_matrix(),
    )


# ---------------------------------------------------------------- checkpoints and errors
def test_published_weights_are_loaded():
    folder = tiny.GOLDEN / "published"
    held = torch.load(folder / "vjepa2-ac-vitg.pt", weights_only=True)
    named = {"encoder": "module.backbone.", "predictor": "module."}
    own = {
        f"{part}.{name.removeprefix(start)}": held[part][name] for part, start in named.items() for name in held[part]
    }
    published, checkpoint = Published(own, heads=1, grid=2), Checkpoint(str(folder), "float32")
    clip = torch.randn(1, 3, 4, 32, 32, generator=torch.Generator().manual_seed(0))
    close(checkpoint.network("encoder")(clip), published.encode(clip))
    seen, predictor = published.frames(clip[0])[0], Predictor(checkpoint)
    world = new_world(predictor, seen, torch.zeros(7))
    predictor.advance(torch.ones(1, 7), world)
    close(world.latents, published.rollout(seen, torch.ones(1, 1, 7), torch.zeros(1, 7))[0][:, 1])
    sizes = Sizes.from_config({})
    assert (sizes.encoder.hidden, sizes.predictor.depth, sizes.grid) == (6144, 24, 16), "those of the published .pt"


@pytest.mark.parametrize("part", ["encoder", "predictor"])
def test_a_worker_reads_only_its_tensors(part, saved, tmp_path):
    folder, tensors = Path(tiny.save_ac(tmp_path)), load_file(Path(saved) / "model.safetensors")
    own = {name: one for name, one in tensors.items() if name.startswith(part)}
    save_file(own, folder / "model.safetensors")
    assert Checkpoint(str(folder), "float32").network(part) is not None
    with pytest.raises(LoadError, match="do not match the "):
        Checkpoint(str(folder), "float32").network({"encoder": "predictor", "predictor": "encoder"}[part])


def test_mismatched_weights_are_rejected(tmp_path):
    folder = tiny.save_ac(tmp_path, pred_num_hidden_layers=5)
    with pytest.raises(LoadError, match=r"predictor of V-JEPA 2-AC: [\s\S]*predictor_blocks\.4[\s\S]*\n  fix: "):
        Checkpoint(folder, "float32").network("predictor")


def test_bfloat16_is_close(saved, golden):
    predictor = Predictor(Checkpoint(saved, "bfloat16"))
    world = new_world(predictor, golden["enc.z0"][0], golden["rollout.start_pose"][0, 0])
    for step in range(8):
        predictor.advance(golden["rollout.actions"][:1, step], world)
    apart = (world.latents - golden["rollout.latents"][:1, -1]).abs()
    assert CLOSE < float(apart.mean()) < 0.05, "bfloat16 precision, not a wrong result"
    assert world.latents.dtype == torch.float32


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        ({"image": tiny.picture(0), "goal": tiny.picture(1)}, r"missing fields \['pose'\]"),
        ({"image": tiny.picture(0), "pose": tiny.pose(0), "goal": 0, "gaol": 1}, r"unknown fields \['gaol'\]"),
        ({"image": tiny.picture(0), "pose": tiny.pose(0)}, r"missing fields \['goal'\]"),
        (dict(REQUESTS[1].observation) | {"candidates": 10**6}, "candidates must be 2 to 4096"),
        (dict(REQUESTS[1].observation) | {"elites": 17}, "elites at most candidates"),
    ],
)
def test_unsupported_requests_are_rejected(model, observation, message):
    with pytest.raises(NotImplementedError, match=rf"{message}[\s\S]*\n  fix: "):
        model.run(ActionRequest(observation))


PLACES = {
    "one worker": {"encoder": '"a"', "predictor": '"a"', "cem": '"a"'},
    "apart": {"encoder": '"sees"', "predictor": '"imagines"', "cem": '"sees"'},
    "two predictors": {"encoder": '"sees"', "predictor": '["one", "two"]', "cem": '["one", "two"]'},
}


@pytest.mark.nightly
@pytest.mark.parametrize("places", PLACES)
def test_processes_give_the_eager_result(places, saved, eager):
    with in_processes("vjepa2_ac", f"vjepa2-ac@{saved}", PLACES[places]) as deployment:
        for actual, expected in zip(run_clients(deployment, leavers=6), eager, strict=True):
            assert_alike(actual, expected)
