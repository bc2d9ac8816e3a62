"""V-JEPA 2: embeddings and predictions equal those of transformers; embedding alone runs no predictor."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from mstar.graph import ir
from mstar.models.vjepa2.vision_encoder import preprocess_images
from mstar.models.vjepa2.vjepa2 import VJepa2, VJepa2Encoder
from mstar.plan.compile import plan
from mstar.plan.planned_model import PlannedModel
from mstar.wire.messages import RequestFinished
from tests.integration.deployment_clients import Client, add_frontend
from tests.models.concurrent_clients import in_process, in_processes
from tests.models.transcripts import one_thread
from tests.models.vjepa2 import vjepa2_tiny as tiny

CLOSE = 1e-4
REQUESTS = [
    tiny.watching(1, 4),
    tiny.watching(2, 4, (0, 1, 2, 5), (3, 17)),
    tiny.watching(3, 2),
    tiny.watching(4, 8, tuple(range(12)), (30, 20, 10)),
    tiny.watching(5, 4, (8, 1, 2, 5), (0, 12)),
    tiny.watching(6, 6),
    tiny.watching(7, 1),
    tiny.watching(8, 2, (0, 1), (8,)),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread(), torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save_clips(tmp_path_factory.mktemp("vjepa2"))


@pytest.fixture(scope="module")
def model(saved):
    return VJepa2(saved[0])


@pytest.fixture(scope="module")
def expected(saved):
    """Results of transformers for each request."""
    return [reference(saved[1], request) for request in REQUESTS]


def reference(network, request):
    pixels = preprocess_images(request.clip.frames, 54, 48)[None]
    if not request.target_patches:
        return [network(pixels, skip_predictor=True).last_hidden_state[0]]
    masks = ([torch.tensor([one])] for one in (request.context_patches, request.target_patches))
    given = network(pixels, *masks)
    return [given.last_hidden_state[0], given.predictor_output.last_hidden_state[0]]


def assert_alike(actual, expected):
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=CLOSE)


def test_embeddings_and_predictions_equal_transformers(model, expected):
    for request, values in zip(REQUESTS, expected, strict=True):
        assert_alike([one.value for one in model.run(request).emissions], values)
    assert float((expected[1][1][0] - expected[1][1][1]).abs().max()) > 0.1, "all patches are filled in alike"
    assert float((expected[1][1] - expected[4][1]).abs().max()) > 0.1, "what is shown does not matter"


def test_encoding_alone_runs_no_predictor(saved, monkeypatch):
    model, ran = VJepa2(saved[0]), Counter()
    for name, component in model.components().items():
        load = type(component).network.func
        monkeypatch.setattr(
            type(component).network, "func", lambda one, name=name, load=load: ran.update([name]) or load(one)
        )
    model.run(REQUESTS[0])
    assert ran == {"encoder": 1}
    model.run(REQUESTS[1])
    assert ran == {"encoder": 1, "predictor": 1}


def test_an_encoder_deployment_has_no_predictor(saved):
    deployed = PlannedModel(VJepa2Encoder(saved[0]), plan(VJepa2Encoder(saved[0]).graphs()))
    assert {*deployed.components_at(*deployed.plans.workers)} == {"encoder"}
    embeds = VJepa2(saved[0]).graphs()["embed"]
    assert {one.component for one in ir.flat(embeds.body) if isinstance(one, ir.Call)} == {"encoder"}
    with pytest.raises(NotImplementedError, match="has no predictor\n  fix: "):
        VJepa2Encoder(saved[0]).run(REQUESTS[1])
    with pytest.raises(NotImplementedError, match="2 target patches and no context patches\n  fix: "):
        VJepa2(saved[0]).run(tiny.watching(1, 4, (), (3, 4)))


def test_images_are_resized_as_in_pillow():
    pixels = tiny.picture(3, 90, 120)
    mean, std = (np.array(one, np.float32) for one in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    resized = Image.fromarray(pixels).resize((72, 54), Image.Resampling.BILINEAR).crop((12, 3, 60, 51))
    expected = (np.asarray(resized, np.float32) / 255 - mean) / std
    actual = preprocess_images(pixels[None], 54, 48)[0].movedim(0, -1).numpy()
    np.testing.assert_allclose(actual, expected, atol=1.5 / 255 / 0.224)  # Pillow rounds once more
    assert np.abs(actual - expected).mean() < 0.3 / 255 / 0.224


def answers(deployment):
    """Return the results of concurrent requests; a repeated one disconnects."""
    front_end = add_frontend(deployment, "front_vjepa2")
    leaving = Client(front_end, "vjepa2", REQUESTS[3])
    clients = [Client(front_end, "vjepa2", request, timeout_s=60) for request in REQUESTS]
    leaving.close()
    for client in clients:
        assert isinstance(client.wait(60).end, RequestFinished), client.end
        yield [event.value for _, event in client.log[1:-1]]


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("vjepa2", model) as deployment:
        for actual, values in zip(answers(deployment), expected, strict=True):
            assert_alike(actual, values)


@pytest.mark.nightly
@pytest.mark.timeout(120)
@pytest.mark.parametrize("places", [('"a"', '"a"'), ('"sees"', '"fills"'), ('["one", "two"]', '["one", "two"]')])
def test_processes_equal_transformers(places, saved, expected):
    with in_processes(
        "vjepa2", f"vjepa2@{saved[0]}", dict(zip(("encoder", "predictor"), places, strict=True))
    ) as deployment:
        for actual, values in zip(answers(deployment), expected, strict=True):
            assert_alike(actual, values)
