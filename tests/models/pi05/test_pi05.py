"""pi0.5: actions equal those of lerobot and openpi, for all observations and placements."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mstar.config import RuntimeConfig
from mstar.errors import LoadError
from mstar.launch.in_process import InProcessLauncher
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.pi05.pi05 import Pi05
from mstar.nn.weights import checkpoints
from mstar.plan.compile import plan
from mstar.plan.placement import parse_placement
from mstar.plan.planned_model import PlannedModel
from mstar.requests import ActionRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from mstar.walk.component import Op
from tests.models.concurrent_clients import run_clients
from tests.models.pi05 import pi05_replayed
from tests.models.pi05 import pi05_tiny as tiny
from tests.models.pi05.pi05_published import Published
from tests.models.pi05.pi05_replayed import Replayed
from tests.tiers import ci_cases

CLOSE = 1e-4
TASK = "pick up_the cup\n"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("pi05"))


@pytest.fixture(scope="module")
def model(saved):
    return Pi05(saved)


@pytest.fixture(scope="module")
def replayed(saved):
    return Replayed(saved)


@pytest.fixture(scope="module")
def cases(replayed):
    """Golden requests: one to three cameras, 11 to 48 tokens, five steps, and a previous chunk."""
    expected, (first, _) = tiny.golden(), tiny.golden()["b1 0"]
    golden = load_file(tiny.GOLDEN / "chunking.safetensors")
    for name in sorted({key.partition(".")[0] for key in golden}):
        delay, horizon, steps = golden[f"{name}.told"].tolist()
        request = ActionRequest({}, leftover=golden[f"{name}.left"].numpy(), delay=delay, horizon=horizon)
        _, left, trust = replayed.processor.init_chunk(request)
        expected[name] = first | {"left": left, "trust": trust, "steps": steps}, golden[f"{name}.actions"].numpy()
    assert len(expected) == 8
    return expected


def actions_of(outcome):
    (only,) = outcome.emissions
    return np.asarray(only.value)


def assert_alike(actual, wanted):
    assert actual.dtype == wanted.dtype
    assert wanted.std() > 100 * CLOSE
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=CLOSE)


# ---------------------------------------------------------------- equal actions
def test_actions_equal_lerobot(replayed, cases):
    for case, actions in cases.values():
        assert_alike(actions_of(replayed.run(case)), actions)
    firsts = [actions[0] for _, actions in cases.values()]
    assert min(np.abs(one - other).max() for one in firsts for other in firsts if one is not other) > 100 * CLOSE


def test_the_reference_implementation_equals_the_published_code(saved):
    golden, published = load_file(tiny.GOLDEN / "cases.safetensors"), Published(saved)
    for name, steps in (("b1", 10), ("b3", 10), ("b1_steps5", 5)):
        given = [golden[f"{name}.{key}"] for key in ("images", "image_masks", "tokens", "token_mask", "noise")]
        torch.testing.assert_close(published.actions(*given, steps), golden[f"{name}.actions"], rtol=0, atol=1e-5)


def run_actions(deployment, name, requests, leavers):
    """Return the actions of concurrent robots, while others disconnect."""
    clients = run_clients(deployment, name, requests, leavers, 0.1)
    return [np.asarray(client.log[1][1].value) for client in clients]


def test_concurrent_requests_equal_single_requests(replayed, cases):
    with InProcessLauncher({"pi05": PlannedModel(replayed, plan(replayed.graphs()))}) as deployment:
        actual = run_actions(deployment, "pi05", [case for case, _ in cases.values()] * 2, leavers=4)
    for actions, (_, wanted) in zip(actual, [*cases.values()] * 2, strict=True):
        assert_alike(actions, wanted)


# ---------------------------------------------------------------- unneeded work is not done
def test_cameras_that_are_absent_are_not_encoded(model, monkeypatch):
    ran, run, batches = Counter(), Op.run, []
    monkeypatch.setattr(
        Op,
        "run",
        lambda op, one, *more, **others: ran.update([f"{one.name}.{op.name}"]) or run(op, one, *more, **others),
    )
    monkeypatch.setattr(
        model.vision_encoder.network, "forward", _recording(batches, model.vision_encoder.network.forward)
    )
    wanted = {
        "processor.process": 1,
        "processor.init_chunk": 1,
        "policy.prefill": 1,
        "policy.denoise": 10,
        "processor.unnormalize": 1,
    }
    for cameras in (1, 2, 3):
        ran.clear(), batches.clear()
        model.run(ActionRequest(tiny.observation(1, cameras), TASK))
        assert ran == {**wanted, "vision_encoder.image": cameras}
        assert sum(batches) == cameras


def _recording(batches, forward):
    def noted(pixels):
        batches.append(len(pixels))
        return forward(pixels)

    return noted


def test_a_worker_loads_only_its_components(saved, monkeypatch):
    model = Pi05(saved)
    placement = parse_placement({"place": {"processor": "a", "vision_encoder": "a", "policy": "b"}})
    deployed = PlannedModel(model, plan(model.graphs(), placement))
    read, names = checkpoints.read_tensors, []

    def noting(*given):
        tensors = read(*given)
        names.extend(tensors)
        return tensors

    monkeypatch.setattr(checkpoints, "read_tensors", noting)
    for component in deployed.components_at("a"):
        getattr(model, component).prepare()
    assert names
    assert all(".vision_tower." in name or ".multi_modal_projector." in name for name in names)
    for component in deployed.components_at("b"):
        getattr(model, component).prepare()
    assert {*names} == {*tiny.weights()} - {"paligemma_with_expert.gemma_expert.lm_head.weight"}


# ---------------------------------------------------------------- preprocessing and postprocessing
def test_task_and_state_are_tokenized_as_published(model):
    pose = np.array([-1.5, -1, -0.9999, 0, 0.5, 0.9999, 1, 2], np.float32)
    seen = {**tiny.observation(1, 1), "state": pose}
    _, tokens = model.processor.process(ActionRequest(seen, TASK))
    words = model.checkpoint.tokenizer
    assert words.decode(tokens.tolist()) == "Task: pick up the cup, State: -1 0 0 128 192 255 255 255;\nAction: "
    assert int(tokens[0]) == words.bos_id()


def test_images_keep_their_aspect_ratio(model):
    picture = np.full((24, 40, 3), 255, np.uint8)
    seen = {**tiny.observation(1, 1), "base_0_rgb": picture}
    (view,), _ = model.processor.process(ActionRequest(seen, TASK))
    assert view.shape == (3, 32, 32)
    is_white = (view == 1).all(0)
    assert is_white[6:25].all()  # 19 rows of 32, from 40 by 24
    assert (view[:, :6] == -1).all()
    assert (view[:, 25:] == -1).all()
    exact = np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)
    (view,), _ = model.processor.process(ActionRequest({**seen, "base_0_rgb": exact}, TASK))
    np.testing.assert_allclose(view.permute(1, 2, 0), exact / 255 * 2 - 1, atol=1e-6)


STATS = {
    "state": {"mean": [0] * 5, "std": [1] * 5, "q01": [0, 0, 0, 0, 0], "q99": [2, 2, 2, 2, 4]},
    "actions": {"mean": [0] * 3, "std": [1] * 3, "q01": [-2, 0, 5], "q99": [2, 1, 9]},
}


@pytest.fixture
def scaled(tmp_path):
    tiny.save(tmp_path)
    (tmp_path / "assets" / "arm").mkdir(parents=True)
    (tmp_path / "assets" / "arm" / "norm_stats.json").write_text(json.dumps({"norm_stats": STATS}))
    return Pi05(str(tmp_path))


def test_values_are_normalized_by_quantiles(model, scaled):
    seen = tiny.observation(1)
    low, high = (np.array(STATS["actions"][name]) for name in ("q01", "q99"))
    pose = ((seen["state"] + 1) / 2 * (np.array(STATS["state"]["q99"]) + 1e-6)).astype(np.float32)
    plain = actions_of(model.run(ActionRequest(seen, TASK)))
    there = actions_of(scaled.run(ActionRequest({**seen, "state": pose}, TASK)))
    np.testing.assert_allclose(there, (plain[:, :3] + 1) / 2 * (high - low + 1e-6) + low, rtol=0, atol=1e-4)
    _, left, _ = scaled.processor.init_chunk(ActionRequest({}, leftover=there[4:]))
    np.testing.assert_allclose(left[:6, :3], plain[4:, :3], rtol=0, atol=1e-5)
    assert not left[6:].any()
    assert not left[:, 3:].any()
    assert scaled.robot_spec()["actions"] == {"dtype": "float32", "shape": [10, 3]}


def test_a_chunk_continues_the_previous_one(model):
    seen, again = tiny.observation(1), tiny.observation(2)
    before = actions_of(model.run(ActionRequest(seen, TASK)))
    alone = actions_of(model.run(ActionRequest(again, TASK, seed=1)))
    after = actions_of(model.run(ActionRequest(again, TASK, seed=1, leftover=before[3:], delay=2, horizon=5)))
    far, near = (np.abs(one[:2] - before[3:5]).max() for one in (alone, after))
    assert near < 0.2 * far
    np.testing.assert_array_equal(alone, actions_of(model.run(ActionRequest(again, TASK, seed=1))))
    assert np.abs(alone - actions_of(model.run(ActionRequest(again, TASK, seed=2)))).max() > 0.1


# ---------------------------------------------------------------- files
def test_the_lerobot_layout_gives_the_same(model, tmp_path):
    names = [f"observation.images.{name}" for name in tiny.CAMERAS]
    features = {name: {"type": "VISUAL", "shape": [3, 32, 32]} for name in names}
    features["observation.state"] = {"type": "STATE", "shape": [5]}
    config = {"type": "pi05", "chunk_size": 10, "max_action_dim": 32, "num_inference_steps": 10}
    golden = tiny.weights() | {"paligemma_with_expert.paligemma.lm_head.weight": tiny.weights()[EMBEDDINGS].clone()}
    tensors = {f"model.{name}": one for name, one in golden.items() if name != EMBEDDINGS}
    tiny.save(tmp_path, tensors, **config, input_features=features)
    seen = tiny.observation(4, 2)
    renamed = {f"observation.{'state' if name == 'state' else f'images.{name}'}": one for name, one in seen.items()}
    actual = actions_of(Pi05(str(tmp_path)).run(ActionRequest(renamed, TASK)))
    np.testing.assert_array_equal(actual, actions_of(model.run(ActionRequest(seen, TASK))))


EMBEDDINGS = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"


def test_bfloat16_weights_are_supported(model, tmp_path):
    half = Pi05(tiny.save(tmp_path, {name: one.to(torch.bfloat16) for name, one in tiny.weights().items()}))
    actual, wanted = (actions_of(one.run(ActionRequest(tiny.observation(1), TASK))) for one in (half, model))
    assert actual.dtype == np.float32
    assert 0 < np.abs(actual - wanted).max() < 0.2


def test_unsupported_requests_are_rejected(model, scaled, tmp_path):
    seen = tiny.observation(1)
    refused = {
        "the observation has `base_0_rgb`, `pose`, expected `state` and one or more of": {"pose": 1, "base_0_rgb": 1},
        "the observation has `state`, expected": {"state": seen["state"]},
        r"`base_0_rgb` is float64\[24, 40, 3\], expected uint8": {**seen, "base_0_rgb": seen["base_0_rgb"] / 255},
        r"`state` is list\[\], expected float": {**seen, "state": [0.0] * 5},
        r"`state` is float32\[1, 5\], expected float\[.numbers.\]": {**seen, "state": seen["state"][None]},
    }
    for words, observation in refused.items():
        with pytest.raises(NotImplementedError, match=f"{words}.*\n  fix: "):
            model.run(ActionRequest(observation, TASK))
    with pytest.raises(NotImplementedError, match=r"`state` is float32\[6\], expected float\[5\]\n  fix: "):
        scaled.run(ActionRequest(tiny.observation(1, numbers=6), TASK))
    with pytest.raises(NotImplementedError, match=r"`leftover` is float32\[4, 32\], expected .*3\]\n  fix: "):
        scaled.run(ActionRequest(seen, TASK, leftover=np.zeros((4, 32), np.float32)))
    with pytest.raises(NotImplementedError, match="tokens, maximum 200\n  fix: "):
        model.run(ActionRequest(seen, "up " * 200))


def test_invalid_checkpoints_are_rejected(scaled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    with pytest.raises(LoadError, match="does not define the chunk size\n  fix: "):
        Pi05(str(folder)).robot_spec()
    tiny.save(folder, {name: one for name, one in tiny.weights().items() if not name.startswith("time_mlp_in")})
    with pytest.raises(LoadError, match=r"have no tensor time_mlp_in.weight\n  fix: "):
        Pi05(str(folder)).policy.prepare()
    (scales := folder / "policy_preprocessor_step_3_normalizer_processor.safetensors").touch()
    with pytest.raises(LoadError, match="normalization statistics in the lerobot format\n  fix: "):
        Pi05(str(folder)).robot_spec()
    scales.unlink()
    for robot in "ab":
        (folder / robot).mkdir()
        (folder / robot / "norm_stats.json").write_text("{}")
    with pytest.raises(LoadError, match=r"has 2 norm_stats.json files, 1 expected\n  fix: "):
        Pi05(str(folder)).robot_spec()


# ---------------------------------------------------------------- placements
@pytest.mark.slow
@pytest.mark.parametrize("seed", ci_cases(range(4), 0))
def test_any_schedule_and_placement_gives_the_same(replayed, cases, seed):
    placement = random_placement(replayed.graphs(), random.Random(seed))
    outcomes = LocalRuntime(replayed, placement, seed=seed).run_all([case for case, _ in cases.values()])
    for outcome, (_, wanted) in zip(outcomes, cases.values(), strict=True):
        assert_alike(actions_of(outcome), wanted)


HERE = """

class Here(Replayed):
    def __init__(self):
        super().__init__({saved!r})
"""
PLACES = {
    "one": {"processor": '"a"', "vision_encoder": '"a"', "policy": '"a"'},
    "apart": {"processor": '"a"', "vision_encoder": '"a"', "policy": '"b"'},
    "split": {"processor": '"a"', "vision_encoder": '"c"', '"policy.prefill"': '"a"', '"policy.denoise"': '"b"'},
    "replicas": {"processor": '"a"', "vision_encoder": '"a"', "policy": '["b", "c"]'},
}
"""One worker; vision encoder and policy apart; a prefix that moves; two policies. All on the same three workers."""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_processes_equal_lerobot_under_any_placement(saved, cases, tmp_path):
    file = tmp_path / "pi05_here.py"
    file.write_text(Path(pi05_replayed.__file__).read_text() + HERE.format(saved=saved))
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    with LocalLauncher(
        dict.fromkeys(PLACES, f"{file}:Here"), texts, standby=False, options=RuntimeConfig(threads=1)
    ) as deployment:
        for place in PLACES:
            actual = run_actions(deployment, place, [case for case, _ in cases.values()] * 2, leavers=6)
            for actions, (_, wanted) in zip(actual, [*cases.values()] * 2, strict=True):
                assert_alike(actions, wanted)
        assert not deployment.recent_exits
