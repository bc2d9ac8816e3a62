"""BAGEL on a pretend GPU: the tokens and images of the CPU, and few waits in a denoising step."""

import pytest
import torch

from mstar import KV
from mstar.models.bagel.bagel import Bagel
from mstar.models.bagel.guidance import DEFAULT_GUIDANCE, DrawParams
from mstar.models.bagel.noise import draw_noise
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.requests import Sampling
from mstar.testing.local_runtime import LocalRuntime
from mstar.transfer.values import pack, unpack
from tests.models.bagel import bagel_tiny as tiny
from tests.models.bagel.test_bagel import LONGER, REQUESTS, SHORT, WIDE
from tests.models.on_device import assert_close, emitted, is_on_device, place, weights_device

PIXELS = {"rtol": 0, "atol": 1}
"""Pixels are truncated, so rounding can change one by 1."""


@pytest.fixture(scope="module", autouse=True)
def inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return tiny.save(tmp_path_factory.mktemp("bagel"))


@pytest.fixture(scope="module")
def model(saved):
    return place(Bagel(saved))


@pytest.fixture(scope="module")
def expected(saved):
    model = Bagel(saved)
    return {name: emitted(model.run(request)) for name, request in REQUESTS.items()}


def check(model, names, expected):
    outcomes = LocalRuntime(model, max_batched_tokens=40, seed=1).run_all([REQUESTS[name] for name in names])
    for name, outcome in zip(names, outcomes, strict=True):
        assert_close(emitted(outcome), expected[name], **PIXELS)
        assert [value.tolist() for kind, value in emitted(outcome) if kind == "Text"] == [
            value.tolist() for kind, value in expected[name] if kind == "Text"
        ]


def test_tokens_and_images_are_those_of_the_cpu(model, expected):
    check(model, [*REQUESTS], expected)
    for component in (model.vision_encoder, model.vae):
        assert weights_device(component.network) == pretend_gpu()
    assert model.lm.decoder.store.device == model.lm.decoder.device == pretend_gpu()


@pytest.mark.parametrize("name", ["lm", "vae", "vision_encoder", "guidance"])
def test_one_component_can_be_on_the_device_alone(saved, expected, name):
    check(place(Bagel(saved), name), ["changed", "seen"], expected)


def prompt(model):
    """A cache with text, latents, an image and text."""
    kv = model.lm.new_state(KV)
    model.lm.hidden_states(model.processor.tokenize(SHORT), kv)
    model.lm.read_latents(*model.vae.encode(model.processor.vae_pixels(WIDE)[0], 0, 1), kv)
    model.lm.read_image(model.vision_encoder.encode(model.processor.vit_pixels(WIDE)), kv)
    model.lm.hidden_states(model.processor.tokenize(LONGER), kv)
    return kv


def test_a_cache_is_recomputed_and_moved(model, monkeypatch):
    x, kv, dropped = draw_noise((32, 16), 0, 0), prompt(model), prompt(model)
    monkeypatch.setattr(model.lm.decoder.store, "swap_bytes", 0)
    dropped.evict()
    assert dropped.is_dropped
    model.lm.restore([dropped])
    moved = model.lm.load_state(KV, unpack(pack(kv.export())))
    first, *others = (model.lm.flow(x, 0.5, 8, cache).cpu() for cache in (kv, dropped, moved))
    for other in others:
        torch.testing.assert_close(first, other, rtol=0, atol=1e-4)


def test_steps_have_few_waits(model):
    caches = [prompt(model) for _ in range(3)]
    x, guidance = [draw_noise((32, 16), row, 0).to(pretend_gpu()) for row in range(3)], model.guidance
    params = [DrawParams(DEFAULT_GUIDANCE, 64, 32, row, (49,), is_text_only=False) for row in range(3)]
    steps = [row.flow_step(1) for row in params]
    columns = {"x": x, "time": [0.5] * 3, "columns": [8] * 3, "kv": caches}
    with count_traffic() as flowing:
        v = [row for (row,) in model.lm.ops()["flow"].run(model.lm, columns, 3)]
    assert all(map(is_on_device, v))
    assert sum(flowing.syncs.values()) == 1, flowing.syncs
    assert sum(flowing.to_device.values()) == 2, flowing.to_device
    columns = {"x": x, "v": v, "no_text": v, "no_image": v, "params": params, "flow_step": steps}
    with count_traffic() as guiding:
        guidance.ops()["advance"].run(guidance, columns, 3)
    assert sum(guiding.syncs.values()) == 2, guiding.syncs
    assert not guiding.to_device
    columns = {"tokens": [torch.tensor([7 + row]) for row in range(3)], "kv": caches, "sampling": [Sampling()] * 3}
    for _ in range(2):
        with count_traffic() as decoding:
            model.lm.ops()["next_token"].run(model.lm, columns, 3)
    assert sum(decoding.syncs.values()) <= 2, decoding.syncs
    assert sum(decoding.to_device.values()) <= 3, decoding.to_device
