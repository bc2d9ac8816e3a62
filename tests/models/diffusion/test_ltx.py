"""LTX-Video: latents and videos equal those of diffusers, from text or an image, batched, placed and over HTTP."""

import io
import time
from dataclasses import replace

import av
import numpy as np
import pytest

from mstar.launch.local_launcher import LocalLauncher
from mstar.models.diffusion.ltx import Ltx
from mstar.models.diffusion.params import DefaultParams
from mstar.requests import ImageInput, VideoRequest
from mstar.testing.local_runtime import LocalRuntime
from mstar.walk.load import load_model
from tests.models.concurrent_clients import in_process
from tests.models.diffusion import diffusion_tiny as tiny
from tests.models.diffusion.concurrent_images import assert_close, emitted_images
from tests.models.diffusion.test_wan import coarse
from tests.models.transcripts import one_thread
from tests.server.model_server import serve_models

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # of diffusers, with a new numpy
SOURCE = ImageInput(np.random.default_rng(0).integers(0, 255, (50, 70, 3), np.uint8))
FILMINGS = [
    VideoRequest("a red cat", 1.0, 64, 64, seed=3, steps=5, guidance=4.0, negative_prompt="dog"),
    VideoRequest("blue dog jumps", 2.0, 96, 32, seed=4, steps=4, guidance=1.0),
    VideoRequest("a red cat on the moon", 1.0, 32, 96, seed=5, source=SOURCE, steps=6, guidance=3.0),
    VideoRequest("the green dog", 1.0, 64, 64, seed=6, steps=8, guidance=3.0),
    VideoRequest("slowly", 1.0, 64, 64, seed=2**62, steps=3, guidance=1.0),
    VideoRequest("a cat and a dog", 2.0, 64, 64, seed=8, source=SOURCE, steps=4, guidance=1.0),
    VideoRequest("the moon", 0.1, 64, 64, seed=9, steps=3, guidance=6.0),
]
LATE_NOISE = {"decode_timestep": 0.05, "decode_noise_scale": 0.025}


@pytest.fixture(scope="module", autouse=True)
def single():
    with one_thread():
        yield


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ltx")
    made = tiny.save_ltx(folder)
    made.folder = str(folder)
    return made


@pytest.fixture(scope="module")
def file(pipeline, tmp_path_factory):
    file = tmp_path_factory.mktemp("model") / "ltx_shown.py"
    file.write_text(tiny.LTX_FILE.format(folder=pipeline.folder, fps=tiny.FPS))
    return file


@pytest.fixture(scope="module")
def model(file):
    return load_model(str(file))


@pytest.fixture(scope="module")
def expected(pipeline):
    """Results of diffusers per latent frame: latents and decoded frames, as the model above emits them."""
    return [tiny.expected_ltx(*tiny.reference_ltx(pipeline, filming)) for filming in FILMINGS]


def values(outcome):
    return [np.asarray(emission.value) for emission in outcome.emissions]


# ---------------------------------------------------------------- videos
def test_latents_and_videos_equal_diffusers(model, expected):
    for filming, one in zip(FILMINGS, expected, strict=True):
        assert_close(values(model.run(filming)), one)


@pytest.mark.parametrize("decode", [{}, LATE_NOISE, {"decode_timestep": 0.1}], ids=["default", "both", "timestep"])
def test_a_decoder_that_draws_noise_is_supported(tmp_path, decode):
    pipeline = tiny.save_ltx(tmp_path, is_conditioned=True)
    model = Ltx(str(tmp_path), fps=tiny.FPS, **decode)
    for filming in FILMINGS[:3]:
        frames = values(model.run(filming))
        assert_pixels(frames, tiny.reference_ltx(pipeline, filming, **decode)[1])
        again = values(Ltx(str(tmp_path), fps=tiny.FPS, **decode).run(filming))
        assert all(map(np.array_equal, frames, again)), "its noise depends on the seed of the request only"


def assert_pixels(frames, expected):
    assert len(frames[0]) == 1
    assert {len(one) for one in frames[1:]} <= {8}
    frames = np.concatenate(frames)
    assert frames.dtype == np.uint8
    assert frames.shape == expected.shape
    assert np.abs(frames - 255 * expected).max() < 0.51


def test_pixels_equal_the_decoder_output(pipeline):
    model = Ltx(pipeline.folder, fps=tiny.FPS)
    for filming in FILMINGS[:2]:
        assert_pixels(values(model.run(filming)), tiny.reference_ltx(pipeline, filming)[1])


def test_the_frame_rate_is_an_input_of_the_network(pipeline, model):
    other = Ltx(pipeline.folder, fps=2 * tiny.FPS)
    filming = replace(FILMINGS[0], seconds=0.5)  # the same number of frames
    assert other.run(filming).emissions[0].fps == 2 * tiny.FPS
    frames = np.concatenate(values(other.run(filming)))
    slow = np.concatenate(values(Ltx(pipeline.folder, fps=tiny.FPS).run(FILMINGS[0])))
    assert frames.shape == slow.shape
    assert np.abs(frames.astype(int) - slow).max() > 2


def test_all_parameters_matter(model):
    filming = replace(FILMINGS[5], guidance=4.0)
    other = ImageInput(255 - SOURCE.pixels)
    changes = [{"prompt": "a red cat"}, {"negative_prompt": "dog"}, {"guidance": 1.5}, {"steps": 3}, {"seed": 1}]
    first = values(model.run(filming))[-1]
    for change in [*changes, {"source": None}, {"source": other}]:
        assert np.abs(values(model.run(replace(filming, **change)))[-1] - first).max() > 0.01, change


# ---------------------------------------------------------------- batches and placements
def test_concurrent_requests_equal_single_requests(model, expected):
    with in_process("ltx", model) as deployment:
        for actual, one in zip(emitted_images(deployment, "ltx", FILMINGS), expected, strict=True):
            assert_close(actual, one)


def test_requests_of_one_size_share_forward_passes(model, expected):
    alike = [0, 3, 4]
    runtime = LocalRuntime(model, seed=3)
    for number, outcome in zip(alike, runtime.run_all([FILMINGS[number] for number in alike]), strict=True):
        assert_close(values(outcome), expected[number])
    sizes = [size for name, size in runtime.batches if name == "denoiser.step"]
    assert sum(sizes) == 5 + 8 + 3
    assert max(sizes) > 1


PLACES = {
    "one": dict.fromkeys(("t5", "denoiser", "vae"), '"a"'),
    "apart": {"t5": '"a"', "denoiser": '"b"', "vae": '"c"'},
    "replicas": {"t5": '"c"', "denoiser": '["a", "b"]', "vae": '"c"'},
}
"""One worker; one worker per component; two denoisers. All three on the same three workers."""


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_processes_equal_diffusers_under_any_placement(file, expected):
    texts = {name: "[place]\n" + "\n".join(map(" = ".join, places.items())) for name, places in PLACES.items()}
    with LocalLauncher(dict.fromkeys(PLACES, str(file)), texts, standby=False) as deployment:
        for place in PLACES:
            for actual, one in zip(emitted_images(deployment, place, FILMINGS, disconnects=6), expected, strict=True):
                assert_close(actual, one)
        assert not deployment.recent_exits


@pytest.mark.nightly
@pytest.mark.timeout(120)
def test_two_ranks_that_split_the_frames_equal_diffusers(file, expected):
    text = "[place]\n" + "\n".join(map(" = ".join, PLACES["one"].items())) + "\n[workers.a]\nranks = 2\n"
    with LocalLauncher({"ltx": str(file)}, {"ltx": text}, standby=False) as deployment:
        for actual, one in zip(emitted_images(deployment, "ltx", FILMINGS), expected, strict=True):
            assert_close(actual, one)
        assert not deployment.recent_exits


# ---------------------------------------------------------------- over HTTP
def test_a_video_job_returns_a_file(pipeline, monkeypatch):
    monkeypatch.setattr("mstar.models.diffusion.ltx.DEFAULT_PARAMS", DefaultParams(64, 64, 3, 3.0, 96))
    form = {"model": "ltx", "prompt": "a red cat", "seconds": "2", "size": "96x64", "seed": "5"}
    with serve_models({"ltx": Ltx(pipeline.folder, fps=tiny.FPS)}) as server, server.client() as http:
        job = http.post("/v1/videos", files={name: (None, text) for name, text in form.items()}).json()
        deadline = time.monotonic() + 60
        while job["status"] in ("queued", "in_progress"):
            assert time.monotonic() < deadline, job
            job = http.get(f"/v1/videos/{job['id']}").json()
        assert job["status"] == "completed", job
        data = http.get(f"/v1/videos/{job['id']}/content").content
    with av.open(io.BytesIO(data)) as film:
        assert film.streams.video[0].average_rate == tiny.FPS
        made = np.stack([frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)])
    form = VideoRequest("a red cat", 2.0, 96, 64, seed=5, steps=3, guidance=3.0)
    _, expected = tiny.reference_ltx(pipeline, form)
    assert made.shape == expected.shape == (17, 64, 96, 3)
    here, before = (np.abs(coarse(made) - 255 * coarse(np.roll(expected, by, 0))).mean() for by in (0, 1))
    assert 2 * here < before, "each frame is the one that diffusers makes, as far as H.264 keeps it"


# ---------------------------------------------------------------- errors
@pytest.mark.parametrize("change", [{"width": 48}, {"height": 33}, {"height": 1312}, {"seconds": 33.0}])
def test_unsupported_videos_are_rejected(model, change):
    sizes, lengths = "sides must be multiples of 32 up to 1280", "33 s of video requested, maximum 32.1 s"
    with pytest.raises(NotImplementedError, match=rf"({sizes}|{lengths})\n  fix: "):
        model.run(replace(FILMINGS[0], **change))
