"""FLUX: images equal those of diffusers, for all steps, sizes and guidance that share a batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from mstar.models.diffusion.flux import Flux
from mstar.requests import ImageInput, ImageRequest
from mstar.testing.local_runtime import LocalRuntime
from tests.models.diffusion import diffusion_tiny as tiny
from tests.models.transcripts import one_thread

DRAWINGS = [
    ImageRequest("a red cat", 32, 32, 5, 3.5, seed=7),
    ImageRequest("blue dog jumps", 48, 32, 3, 1.0, seed=8),
    ImageRequest("a red cat on the moon", 32, 64, 4, 6.0, seed=9, partial_images=2),
    ImageRequest("slowly", 32, 32, 4, 2.0, seed=2**62),
]


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(scope="module", params=[True, False], ids=["dev", "schnell"])
def pipeline(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("flux")
    made = tiny.save_flux(folder, has_guidance=request.param)
    made.folder = str(folder)
    return made


@pytest.fixture(scope="module")
def model(pipeline):
    return Flux(pipeline.folder)


def images(outcome):
    return [np.asarray(emission.value, np.int16) for emission in outcome.emissions]


def expected_image(pipeline, drawing):
    return np.round(tiny.reference_image(pipeline, drawing, 512)[1] * 255).astype(np.int16)


def test_images_equal_diffusers(model, pipeline):
    for drawing in DRAWINGS:
        drawn = images(model.run(drawing))
        assert len(drawn) == drawing.partial_images + 1
        assert abs(drawn[-1] - expected_image(pipeline, drawing)).max() <= 1
    assert drawn[-1].std() > 5


def test_the_schedule_is_shifted_by_the_size_of_the_image(model, pipeline):
    schedules = []
    for drawing, patches in ((DRAWINGS[1], 96), (replace(DRAWINGS[1], width=32), 64)):
        tiny.reference_image(pipeline, drawing, 512)
        schedules.append(model.denoiser._scheduler((3, patches)).timesteps)
        torch.testing.assert_close(schedules[-1], pipeline.scheduler.timesteps)
    is_shifted = pipeline.scheduler.config.use_dynamic_shifting
    assert torch.equal(*schedules) is not is_shifted


def test_images_that_share_batches_equal_single_ones(model):
    outcomes = LocalRuntime(model, seed=1).run_all(DRAWINGS)
    for drawing, outcome in zip(DRAWINGS, outcomes, strict=True):
        for ours, alone in zip(images(outcome), images(model.run(drawing)), strict=True):
            assert abs(ours - alone).max() <= 1


def test_all_parameters_matter(model, pipeline):
    has_guidance = pipeline.transformer.config.guidance_embeds
    first = images(model.run(DRAWINGS[0]))[0]
    changes = [{"prompt": "blue"}, {"steps": 2}, {"seed": 1}, *([{"guidance": 1.5}] if has_guidance else [])]
    for change in changes:
        assert abs(images(model.run(replace(DRAWINGS[0], **change)))[0] - first).max() > 2, change


def test_what_it_does_not_do_is_rejected(model):
    picture = ImageInput(np.zeros((32, 32, 3), np.uint8))
    for change in ({"negative_prompt": "a dog"}, {"sources": (picture,)}, {"mask": picture}):
        with pytest.raises(NotImplementedError, match=r"no negative prompt\n  fix: "):
            model.run(replace(DRAWINGS[0], **change))
    with pytest.raises(NotImplementedError, match=r"multiples of 4 up to 2048"):
        model.run(replace(DRAWINGS[0], width=34))
