"""Wan: videos equal those of diffusers, from text or an image, batched and over HTTP."""

import io
import json
import random
import shutil
import time
from dataclasses import replace

import av
import numpy as np
import pytest
import torch

from mstar.errors import LoadError
from mstar.launch.local_launcher import LocalLauncher
from mstar.models.diffusion.params import DefaultParams
from mstar.models.diffusion.wan import Wan
from mstar.requests import ImageInput, VideoRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.testing.parity import random_placement
from mstar.walk.load import load_model
from tests.models.concurrent_clients import in_process
from tests.models.diffusion import diffusion_tiny as tiny
from tests.models.diffusion.concurrent_images import assert_close, emitted_images
from tests.server.model_server import serve_models

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of diffusers, with a new numpy
SOURCE = ImageInput(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8))
FILMINGS = [
    VideoRequest("a red cat", 1.0, 32, 32, seed=3, steps=5, guidance=4.0, negative_prompt="dog"),
    VideoRequest("blue dog jumps", 0.5, 64, 32, seed=4, steps=4, guidance=1.0),
    VideoRequest("a red cat on the moon", 1.0, 32, 64, seed=5, source=SOURCE, steps=6, guidance=5.0),
    VideoRequest("the green dog", 1.0, 32, 32, seed=6, steps=12, guidance=3.0),
    VideoRequest("slowly", 1.0, 32, 32, seed=7, steps=3, guidance=1.0),
    VideoRequest("a cat and a dog", 1.0, 32, 32, seed=8, source=SOURCE, steps=4, guidance=2.0),
    VideoRequest("the moon", 0.1, 64, 64, seed=9, steps=3, guidance=6.0),
    VideoRequest("a red moon", 1.5, 32, 32, seed=10, steps=20, guidance=2.0),
]


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wan")
    made = tiny.save_wan(folder)
    made.folder = str(folder)
    return made


@pytest.fixture(scope="module")
def file(pipeline, tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "wan_shown.py"
    file.write_text(tiny.WAN_FILE.format(folder=pipeline.folder, fps=tiny.FPS))
    return file


@pytest.fixture(scope="module")
def model(file):
    return load_model(str(file))


@pytest.fixture(scope="module")
def expected(pipeline):
    """Results of diffusers per latent frame: latents and decoded frames."""
    shows = []
    for filming in FILMINGS:
        latents, frames = tiny.reference_video(pipeline, filming)
        if filming.source is not None:
            latents = latents[:, 1:]  # diffusers leaves unused values in the first frame
        parts = [frames[:1], *np.split(frames[1:], range(4, len(frames) - 1, 4))][: 1 + len(frames) // 4]
        shows.append((latents, parts))
    return shows


def assert_right(actual, expected):
    latents, parts = expected
    assert len(actual) == len(parts)
    sizes = [np.asarray(one).size - part.size for one, part in zip(actual, parts, strict=True)]
    frames = [np.asarray(one)[size:].reshape(part.shape) for one, part, size in zip(actual, parts, sizes, strict=True)]
    assert_close(frames, parts)
    channels, count, height, width = latents.shape
    frames = [np.asarray(one)[:size].reshape(channels, height, width) for one, size in zip(actual, sizes, strict=True)]
    assert_close(frames[-count:], [*latents.transpose(0, 1).numpy()])


def values(outcome):
    return [emission.value for emission in outcome.emissions]


# ---------------------------------------------------------------- videos
def test_latents_and_videos_equal_diffusers(model, expected):
    for filming, one in zip(FILMINGS, expected, strict=True):
        assert_right(values(model.run(filming)), one)


def test_wan_2_1_is_supported(tmp_path):
    pipeline, filming = tiny.save_wan(tmp_path, is_old=True), FILMINGS[1]
    _, expected = tiny.reference_video(pipeline, filming)
    frames = torch.cat(values(Wan(str(tmp_path), fps=tiny.FPS).run(filming)))
    assert frames.shape == expected.shape
    assert np.abs(frames.numpy() - 255 * expected).max() < 0.53
    with pytest.raises(NotImplementedError, match=r"support text-to-video only, .* source image\n  fix: "):
        Wan(str(tmp_path)).run(FILMINGS[2])


def test_all_parameters_matter(model):
    filming = replace(FILMINGS[5], guidance=4.0)
    other = ImageInput(255 - SOURCE.pixels)
    changes = [{"prompt": "a red cat"}, {"negative_prompt": "dog"}, {"guidance": 1.5}, {"steps": 3}, {"seed": 1}]
    first = values(model.run(filming))[-1]
    for change in [*changes, {"source": None}, {"source": other}]:
        assert (values(model.run(replace(filming, **change)))[-1] - first).abs().max() > 0.01, change


def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("wan", model) as deployment:
        for actual, one in zip(emitted_images(deployment, "wan", FILMINGS), expected, strict=True):
            assert_right(actual, one)


def test_requests_of_one_size_share_forward_passes(model, expected):
    alike = [0, 3, 4]
    runtime = LocalRuntime(model, seed=3)
    for number, outcome in zip(alike, runtime.run_all([FILMINGS[number] for number in alike]), strict=True):
        assert_right(values(outcome), expected[number])
    sizes = [size for name, size in runtime.batches if name == "denoiser.step"]
    assert sum(sizes) == 5 + 12 + 3
    assert max(sizes) > 1


def test_a_video_continues_after_its_state_moved(model, expected):
    moved = 0
    for seed in range(4):
        placement = random_placement(model.graphs(), random.Random(seed))
        runtime = LocalRuntime(model, placement, seed=seed, min_stream_buffers=True)
        for number, outcome in enumerate(runtime.run_all(FILMINGS[:2])):
            assert_right(values(outcome), expected[number])
        moved += len(placement.workers()) > 1
    assert moved


@pytest.mark.parametrize("forwards", [(1, 4), (0, 5)])
def test_without_guidance_the_negative_branch_is_not_computed(model, forwards, monkeypatch):
    number, steps = forwards
    network, sizes = model.denoiser.network, []
    run = network.forward
    monkeypatch.setattr(network, "forward", lambda x, *more, **others: sizes.append(len(x)) or run(x, *more, **others))
    model.run(FILMINGS[number])
    assert sizes == [1 if FILMINGS[number].guidance <= 1 else 2] * steps


# ---------------------------------------------------------------- over HTTP
def coarse(frames):
    """Brightness of each eighth of a frame: H.264 does not keep finer detail and color."""
    count, height, width, _ = frames.shape
    return frames.mean(-1).reshape(count, height // 8, 8, width // 8, 8).mean((2, 4))


def test_a_video_job_reports_progress_and_returns_a_file(pipeline, monkeypatch):
    model = Wan(pipeline.folder, fps=tiny.FPS)
    monkeypatch.setattr("mstar.models.diffusion.wan.DEFAULT_PARAMS", DefaultParams(64, 32, 3, 5.0, 64))
    decode = model.vae.decode_pixels
    monkeypatch.setattr(
        model.vae, "decode_pixels", lambda *given: time.sleep(0.05) or decode(*given)
    )  # the job can be polled meanwhile
    form = {"model": "wan", "prompt": "a red cat", "seconds": "2", "size": "64x32", "seed": "5"}
    with serve_models({"wan": model}) as house, house.client() as http:
        job = http.post("/v1/videos", files={name: (None, text) for name, text in form.items()}).json()
        seen, deadline = [], time.monotonic() + 10
        while job["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline, job
            job = http.get(f"/v1/videos/{job['id']}").json()
            seen.append(job["progress"])
        assert job["status"] == "completed", job
        data = http.get(f"/v1/videos/{job['id']}/content").content
    assert seen == sorted(seen)
    assert len({*seen} - {0, 100}) >= 3
    with av.open(io.BytesIO(data)) as film:
        assert film.streams.video[0].average_rate == tiny.FPS
        made = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])
    form = VideoRequest("a red cat", 2.0, 64, 32, seed=5, steps=3, guidance=5.0)
    _, expected = tiny.reference_video(pipeline, form)
    assert made.shape == expected.shape == (17, 32, 64, 3)
    here, before = (np.abs(coarse(made) - 255 * coarse(np.roll(expected, by, 0))).mean() for by in (0, 1))
    assert 4 * here < before, "each frame is the one that diffusers makes, as far as H.264 keeps it"


# ---------------------------------------------------------------- placements
PLACES = {
    "one": dict.fromkeys(("umt5", "denoiser", "vae"), '"a"'),
    "apart": {"umt5": '"a"', "denoiser": '"b"', "vae": '"c"'},
    "replicas": {"umt5": '"c"', "denoiser": '["a", "b"]', "vae": '"c"'},
}
"""One worker; one worker per component; two denoisers. All three on the same three workers."""


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_processes_equal_diffusers_under_any_placement(file, expected):
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    with LocalLauncher(dict.fromkeys(PLACES, str(file)), texts, standby=False) as deployment:
        for place in PLACES:
            for actual, one in zip(emitted_images(deployment, place, FILMINGS, disconnects=6), expected, strict=True):
                assert_right(actual, one)
        assert not deployment.recent_exits


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_two_ranks_that_split_the_frames_equal_diffusers(file, expected):
    text = "[place]\n" + "\n".join(map(" = ".join, PLACES["one"].items())) + "\n[workers.a]\nranks = 2\n"
    with LocalLauncher({"wan": str(file)}, {"wan": text}, standby=False) as deployment:
        for actual, one in zip(emitted_images(deployment, "wan", FILMINGS), expected, strict=True):
            assert_right(actual, one)
        assert not deployment.recent_exits


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize("change", [{"width": 48}, {"height": 33}, {"height": 1312}, {"seconds": 16.0}])
def test_unsupported_videos_are_rejected(model, change):
    sizes, lengths = (
        "sides must be multiples of 32 up to 1280",
        "16 s of video requested, maximum 15.1 s",
    )
    with pytest.raises(NotImplementedError, match=rf"({sizes}|{lengths})\n  fix: "):
        model.run(replace(FILMINGS[0], **change))


def test_two_transformer_checkpoints_are_rejected(pipeline, tmp_path):
    shutil.copytree(pipeline.folder, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model_index.json"
    index = json.loads(file.read_bytes())
    file.write_text(json.dumps(index | {"boundary_ratio": 0.875}))
    with pytest.raises(LoadError, match=r"two transformers, for high and for low noise .*\n  fix: "):
        Wan(str(tmp_path)).denoiser.prepare()


def test_pixels_equal_the_decoder_output(pipeline, model):
    filming = FILMINGS[6]
    (frames,) = values(Wan(pipeline.folder, fps=tiny.FPS).run(filming))
    (numbers,) = values(model.run(filming))
    assert frames.dtype == torch.uint8
    assert (frames.flatten() - 255 * numbers[-frames.numel() :]).abs().max() < 0.51
