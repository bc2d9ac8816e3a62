"""SD3, FLUX, Wan and LTX-Video on a pretend GPU: latents and pixels of the CPU, and few waits in a denoising step."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar.models.diffusion.flux import Flux
from mstar.models.diffusion.ltx import Ltx
from mstar.models.diffusion.params import DiffusionParams
from mstar.models.diffusion.sd3 import StableDiffusion3
from mstar.models.diffusion.wan import Wan
from mstar.nn.diffusion.flow_head import DenoisingState
from mstar.nn.encoder import TenantState
from mstar.nn.pretend_gpu import count_traffic, pretend_gpu
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.load import load_model
from tests.models.diffusion import diffusion_tiny as tiny
from tests.models.diffusion import test_ltx
from tests.models.diffusion.test_sd3 import DRAWINGS
from tests.models.diffusion.test_wan import FILMINGS
from tests.models.on_device import assert_close, emitted, is_on_device, place, weights_device

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of diffusers, with a new numpy
CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module")
def sd3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sd3")
    tiny.save_sd3(folder)
    return str(folder)


@pytest.fixture(scope="module")
def flux(tmp_path_factory):
    folder = tmp_path_factory.mktemp("flux")
    tiny.save_flux(folder)
    return str(folder)


@pytest.fixture(scope="module")
def wan(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wan")
    tiny.save_wan(folder)
    return str(folder)


@pytest.fixture(scope="module")
def ltx(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ltx")
    tiny.save_ltx(folder, is_conditioned=True)
    return str(folder)


def check(file, requests):
    """Emissions of requests that share batches on the device, against those of the CPU one by one."""
    model = place(load_model(str(file)))
    outcomes = LocalRuntime(model, seed=2).run_all(requests)
    for outcome, request in zip(outcomes, requests, strict=True):
        assert_close(emitted(outcome), emitted(load_model(str(file)).run(request)), **CLOSE)
    for component in model.components().values():
        assert weights_device(component.network) == pretend_gpu()


def test_images_are_those_of_the_cpu(sd3, tmp_path):
    file = tmp_path / "sd3_shown.py"
    file.write_text(tiny.SD3_FILE.format(folder=sd3))
    check(file, [DRAWINGS[number] for number in (0, 1, 2, 4)])


def test_images_of_flux_are_those_of_the_cpu(flux):
    drawings = [replace(DRAWINGS[number], negative_prompt="") for number in (0, 1)]
    model = place(Flux(flux))
    for outcome, drawing in zip(LocalRuntime(model, seed=2).run_all(drawings), drawings, strict=True):
        ((_, ours),), ((_, expected),) = emitted(outcome), emitted(Flux(flux).run(drawing))
        assert np.abs(np.asarray(ours, np.int16) - np.asarray(expected, np.int16)).max() <= 1
    for component in model.components().values():
        assert weights_device(component.network) == pretend_gpu()


def test_videos_are_those_of_the_cpu(wan, tmp_path):
    file = tmp_path / "wan_shown.py"
    file.write_text(tiny.WAN_FILE.format(folder=wan, fps=tiny.FPS))
    check(file, [FILMINGS[number] for number in (0, 1, 2, 4)])


def test_videos_of_ltx_are_those_of_the_cpu(ltx, tmp_path):
    file = tmp_path / "ltx_shown.py"
    file.write_text(tiny.LTX_FILE.format(folder=ltx, fps=f"{tiny.FPS}, decode_timestep=0.1"))
    check(file, [test_ltx.FILMINGS[number] for number in (0, 1, 2, 4)])


def test_pixels_are_bytes_on_the_device(sd3):
    vae = place(StableDiffusion3(sd3)).vae
    assert is_on_device(vae.decode_image(torch.zeros(4, 8, 8)))


def test_a_prompt_in_the_cache_is_not_encoded_again(sd3):
    t5 = place(StableDiffusion3(sd3)).t5
    first = t5._encode([["a red cat"]], [TenantState()])[0][0]
    with count_traffic() as traffic:
        again = t5._encode([["a red cat"]], [TenantState()])[0][0]
    assert not traffic.syncs
    assert not traffic.to_device
    assert torch.equal(first.cpu(), again.cpu())


def step_traffic(denoiser, x, conditions, count):
    """Traffic of the fourth denoising step of requests with guidance."""
    params = [DiffusionParams(["a", ""], [*x.shape[1:]], 8 + row, 4.0, row) for row in range(count)]
    states, latents = [DenoisingState() for _ in params], [x.to(pretend_gpu())] * count
    conditions = {name: [value.to(pretend_gpu())] * count for name, value in conditions.items()}
    for _ in range(4):
        columns = conditions | {"x": latents, "params": params, "schedule_state": states}
        with count_traffic() as traffic, torch.inference_mode():
            latents = [row for (row,) in denoiser.ops()["step"].run(denoiser, columns, count)]
    assert all(map(is_on_device, latents))
    return traffic


@pytest.mark.parametrize("count", [1, 3])
def test_a_denoising_step_of_an_image_waits_once(sd3, count):
    text, pooled = torch.ones(2, 20, 48), torch.ones(2, 40)
    traffic = step_traffic(
        place(StableDiffusion3(sd3)).denoiser, torch.ones(4, 16, 16), {"text": text, "pooled": pooled}, count
    )
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    assert sum(traffic.to_device.values()) == 2, traffic.to_device


@pytest.mark.parametrize("count", [1, 3])
def test_a_denoising_step_of_flux_waits_once(flux, count):
    conditions = {"text": torch.ones(1, 20, 48), "pooled": torch.ones(1, 32)}
    traffic = step_traffic(place(Flux(flux)).denoiser, torch.ones(4, 16, 16), conditions, count)
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    assert sum(traffic.to_device.values()) <= 3, traffic.to_device


@pytest.mark.parametrize("count", [1, 3])
def test_a_denoising_step_of_ltx_waits_once(ltx, count):
    conditions = {"text": torch.ones(2, 128, 48), "known": torch.ones(8, 1, 2, 2)}
    traffic = step_traffic(place(Ltx(ltx)).denoiser, torch.ones(8, 3, 2, 2), conditions, count)
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    assert sum(traffic.to_device.values()) <= 3, traffic.to_device


@pytest.mark.parametrize("count", [1, 3])
def test_a_denoising_step_of_a_video_waits_once(wan, count):
    conditions = {"text": torch.ones(2, 512, 48), "known": torch.ones(48, 1, 4, 4)}
    traffic = step_traffic(place(Wan(wan)).denoiser, torch.ones(48, 3, 4, 4), conditions, count)
    assert sum(traffic.syncs.values()) == 1, traffic.syncs
    assert sum(traffic.to_device.values()) <= 3, traffic.to_device
