"""Stable Diffusion 3: images equal those of diffusers, for all steps, sizes and guidance that share a batch."""

import io
import json
import shutil
from base64 import b64decode
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from mstar.errors import LoadError
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.diffusion.sd3 import StableDiffusion3
from mstar.models.diffusion.text_encoders import T5
from mstar.nn.encoder import ContentCache, TenantState
from mstar.requests import ImageInput, ImageRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.load import load_model
from tests.models.concurrent_clients import in_process
from tests.models.diffusion import diffusion_tiny as tiny
from tests.models.diffusion.concurrent_images import assert_close, emitted_images
from tests.server.model_server import serve_models

DRAWINGS = [
    ImageRequest("a red cat", 32, 32, 5, 4.0, seed=7),
    ImageRequest("blue dog jumps", 48, 32, 3, 1.0, seed=8),
    ImageRequest("a red cat on the moon", 32, 64, 7, 6.0, seed=9, partial_images=2),
    ImageRequest("the green dog", 32, 32, 20, 3.5, "a cat", seed=10),
    ImageRequest("slowly", 32, 32, 4, 1.0, seed=11, partial_images=1),
    ImageRequest("a cat and a dog", 64, 64, 3, 7.0, "red", seed=12),
    ImageRequest("a red moon", 32, 32, 12, 2.0, seed=2**62),
    ImageRequest("the moon", 48, 32, 6, 5.0, seed=14, partial_images=3),
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sd3")
    made = tiny.save_sd3(folder)
    made.folder = str(folder)
    return made


@pytest.fixture(scope="module")
def file(pipeline, tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "sd3_shown.py"
    file.write_text(tiny.SD3_FILE.format(folder=pipeline.folder))
    return file


@pytest.fixture(scope="module")
def model(file):
    return load_model(str(file))


@pytest.fixture(scope="module")
def expected(pipeline):
    """Results of diffusers: last latents, image, and latents after each step."""
    made = [tiny.reference_image(pipeline, drawing) for drawing in DRAWINGS]
    return [(tiny.expected_emissions(latents[-1], picture), latents) for latents, picture in made]


def values(outcome):
    return [emission.value for emission in outcome.emissions]


# ---------------------------------------------------------------- images
def test_latents_and_images_equal_diffusers(model, expected):
    for drawing, (numbers, latents) in zip(DRAWINGS, expected, strict=True):
        shows = values(model.run(drawing))
        assert_close(shows[-1:], [numbers])
        steps = [drawing.steps * (show + 1) // len(shows) for show in range(len(shows))]
        assert len(shows) == drawing.partial_images + 1
        for show, step in zip(shows, steps, strict=True):
            noisy = latents[step - 1].flatten()
            torch.testing.assert_close(show[: len(noisy)], noisy, rtol=0, atol=1e-4)


def test_all_parameters_matter(model):
    drawing = DRAWINGS[3]
    changes = [{"prompt": "a red cat"}, {"negative_prompt": ""}, {"guidance": 1.5}, {"steps": 19}, {"seed": 1}]
    first = values(model.run(drawing))[0]
    for change in changes:
        assert (values(model.run(replace(drawing, **change)))[0] - first).abs().max() > 0.01, change


def test_an_image_is_uint8(pipeline):
    (picture,) = values(StableDiffusion3(pipeline.folder).run(DRAWINGS[1]))
    _, expected = tiny.reference_image(pipeline, DRAWINGS[1], length=256)
    assert picture.dtype == torch.uint8
    assert np.abs(picture.numpy() - 255 * expected).max() < 0.53
    assert picture.shape == (32, 48, 3)


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("sd3", model) as deployment:
        shows = emitted_images(deployment, "sd3", DRAWINGS)
    for drawing, one, (numbers, _) in zip(DRAWINGS, shows, expected, strict=True):
        assert len(one) == drawing.partial_images + 1
        assert_close(one[-1:], [numbers])


# ---------------------------------------------------------------- batches and caches
TEXTS = ("clip", "clip_2", "t5")


@pytest.fixture
def seen(model, monkeypatch):
    """Batch size of each forward pass, by network."""
    sizes = {name: [] for name in ("clip", "clip_2", "t5", "denoiser", "vae")}
    for name, batches in sizes.items():
        getattr(model, name).prepare_once()  # reads the empty text, which is not counted
        if name in TEXTS:
            monkeypatch.setattr(getattr(model, name), "cache", ContentCache(1 << 20))
        network = getattr(model, name).network
        forward = "decode" if name == "vae" else "forward"
        run = getattr(network, forward)

        def counting(first, *more, run=run, batches=batches, **others):
            batches.append(len(first))
            return run(first, *more, **others)

        monkeypatch.setattr(network, forward, counting)
    return sizes


def test_without_guidance_the_negative_branch_is_not_computed(model, seen):
    model.run(DRAWINGS[1])
    assert seen == {"clip": [1], "clip_2": [1], "t5": [1], "denoiser": [1] * 3, "vae": [1]}


def test_branches_share_a_forward_pass_and_only_previews_are_decoded(model, seen):
    model.run(DRAWINGS[5])
    assert seen == {"clip": [1, 1], "clip_2": [1, 1], "t5": [1, 1], "denoiser": [2] * 3, "vae": [1]}


def test_previews_are_decoded(model, seen):
    model.run(replace(DRAWINGS[5], partial_images=2))
    assert seen["vae"] == [1] * 3
    model.run(replace(DRAWINGS[5], partial_images=9))
    assert len(seen["vae"]) == 3 + 3, "no more often than there are steps"
    assert seen["t5"] == [1, 1], "and each text is read once"


def test_texts_are_cached_per_tenant_and_the_empty_text_for_all(model, monkeypatch):
    texts, read = Counter(), T5._run_network
    monkeypatch.setattr(T5, "_run_network", lambda self, given: texts.update(given) or read(self, given))
    monkeypatch.setattr(model.t5, "cache", ContentCache(1 << 20))
    mine, theirs = TenantState(), TenantState()
    mine.tenant, theirs.tenant = "mine", "theirs"
    first = model.t5.encode(["a cat", ""], mine)
    torch.testing.assert_close(model.t5.encode(["a cat", ""], mine), first)
    model.t5.encode(["a dog", "a cat"], mine)
    assert texts == Counter({"a cat": 1, "": 1, "a dog": 1})
    torch.testing.assert_close(model.t5.encode(["a cat", ""], theirs), first)
    assert texts == Counter({"a cat": 2, "": 1, "a dog": 1})


def test_requests_of_one_size_share_forward_passes(model, seen, expected):
    alike = [0, 3, 4, 6]
    outcomes = LocalRuntime(model, seed=3).run_all([DRAWINGS[number] for number in alike])
    assert_close([values(one)[-1] for one in outcomes], [expected[number][0] for number in alike])
    guided = sum(DRAWINGS[number].steps * (1 + (DRAWINGS[number].guidance > 1)) for number in alike)
    assert sum(seen["denoiser"]) == guided
    assert max(seen["denoiser"]) == 7
    assert len(seen["denoiser"]) < 2 * max(drawing.steps for drawing in DRAWINGS)


# ---------------------------------------------------------------- placements
def test_served_results_equal_eager_results_under_any_schedule(model, expected):
    for number, outcome in enumerate(LocalRuntime(model, seed=5, min_stream_buffers=True).run_all(DRAWINGS[:3])):
        assert_close(values(outcome)[-1:], [expected[number][0]])


PLACES = {
    "one": dict.fromkeys((*TEXTS, "denoiser", "vae"), '"a"'),
    "apart": {**dict.fromkeys(TEXTS, '"a"'), "denoiser": '"b"', "vae": '"c"'},
    "replicas": {**dict.fromkeys(TEXTS, '"c"'), "denoiser": '["a", "b"]', "vae": '"c"'},
}
"""One worker; one worker per component; two denoisers. All three on the same three workers."""


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_processes_equal_diffusers_under_any_placement(file, expected):
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    with LocalLauncher(dict.fromkeys(PLACES, str(file)), texts, standby=False) as deployment:
        for place in PLACES:
            shows = emitted_images(deployment, place, DRAWINGS, disconnects=6)
            assert_close([one[-1] for one in shows], [numbers for numbers, _ in expected])
        assert not deployment.recent_exits


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_two_ranks_that_split_the_image_equal_diffusers(file, expected):
    text = "[place]\n" + "\n".join(map(" = ".join, PLACES["one"].items())) + "\n[workers.a]\nranks = 2\n"
    with LocalLauncher({"sd3": str(file)}, {"sd3": text}, standby=False) as deployment:
        shows = emitted_images(deployment, "sd3", DRAWINGS)
        assert_close([one[-1] for one in shows], [numbers for numbers, _ in expected])
        assert not deployment.recent_exits


def test_a_part_is_loaded_alone(pipeline, tmp_path):
    shutil.copytree(f"{pipeline.folder}/vae", tmp_path / "vae")
    model = StableDiffusion3(str(tmp_path))
    model.vae.prepare()
    with pytest.raises(LoadError, match=r"no weights at .*text_encoder_3\n  fix: "):
        model.t5.prepare()


def test_partial_images_are_streamed_over_http(pipeline):
    model = StableDiffusion3(pipeline.folder)
    body = {"model": "sd3", "prompt": "a red cat", "size": "48x32", "num_inference_steps": 4, "seed": 3}
    with serve_models({"sd3": model}) as house, house.client() as http:
        answer = http.post("/v1/images/generations", json=body | {"stream": True, "partial_images": 1})
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    actual = [np.asarray(Image.open(io.BytesIO(b64decode(event["b64_json"])))) for event in events]
    expected = values(model.run(ImageRequest("a red cat", 48, 32, 4, seed=3, partial_images=1)))
    assert [event["type"].rpartition(".")[2] for event in events] == ["partial_image", "completed"]
    for one, other in zip(actual, expected, strict=True):
        assert np.abs(one.astype(int) - other.numpy()).max() <= 1


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize(
    "change",
    [{"width": 34}, {"height": 1}, {"width": 196}, {"sources": (ImageInput(np.zeros((32, 32, 3), np.uint8)),)}],
)
def test_unsupported_requests_are_rejected(model, change):
    with pytest.raises(NotImplementedError, match=r"(multiples of 4 up to 192|does not edit)[\s\S]*\n  fix: "):
        model.run(replace(DRAWINGS[0], **change))


def test_the_size_has_a_default(pipeline):
    (picture,) = values(StableDiffusion3(pipeline.folder).run(ImageRequest("a cat", steps=1)))
    assert picture.shape == (32, 32, 3)


def test_mismatched_weights_are_rejected(pipeline, tmp_path):
    shutil.copytree(pipeline.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    tensors["more"] = tensors.pop("decoder.conv_in.bias")
    save_file(tensors, path)
    with pytest.raises(LoadError, match=r"AutoencoderKL: `decoder.conv_in.bias`, `more` are missing[\s\S]*\n  fix: "):
        StableDiffusion3(str(tmp_path)).vae.prepare()
    (tmp_path / "vae" / "config.json").unlink()
    with pytest.raises(LoadError, match=r"config.json is missing\n  fix: "):
        StableDiffusion3(str(tmp_path)).run(DRAWINGS[0])
