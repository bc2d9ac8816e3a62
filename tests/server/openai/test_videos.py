"""Videos are jobs: their state is told truly, their file is what the model filmed, and they end when they should."""

import io
import os
import time

import av
import numpy as np
import pytest
from openai import NotFoundError, OpenAI

from mstar.server.access.api_keys import ApiKeys
from mstar.server.openai import videos
from tests.server.model_server import serve_models
from tests.server.openai.test_images import png
from tests.server.toy_image_models import FPS, ImageGenerator, VideoGenerator

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")


@pytest.fixture(scope="module")
def model_server():
    with serve_models(
        {"filmer": VideoGenerator(), "painter": ImageGenerator()}, ApiKeys(["mine", "theirs"])
    ) as started:
        yield started


@pytest.fixture(scope="module")
def client(model_server):
    with OpenAI(base_url=f"{model_server.url}/v1", api_key="mine", max_retries=0) as client:
        yield client


def frames(data):
    with av.open(io.BytesIO(data)) as file:
        assert file.streams.video[0].average_rate == FPS
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(video=0)]


def wait_finished(client, video, seconds=3.0):
    """A job when it is over."""
    deadline = time.monotonic() + seconds
    while (video := client.videos.retrieve(video.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, video
        time.sleep(0.02)
    return video


def test_a_video_is_what_the_model_filmed(client):
    video = client.videos.create_and_poll(model="filmer", prompt="a dawn", seconds="2", size="48x32")
    assert (video.status, video.progress, video.seconds, video.size) == ("completed", 100, "2", "48x32")
    assert video.expires_at - video.created_at == videos.JOB_TTL_S
    made = frames(client.videos.download_content(video.id).read())
    assert len(made) == 16
    for number, frame in enumerate(made):
        assert frame.shape == (32, 48, 3)
        assert np.abs(frame.astype(int) - 8 * number).max() <= 3  # H.264 is not exact
    assert video.id in [one.id for one in client.videos.list()]


def test_progress_is_how_much_was_filmed(client, model_server):
    video = client.videos.create(model="filmer", prompt="slow", seconds="4")
    seen = set()
    while (video := client.videos.retrieve(video.id)).status != "completed":
        seen.add(video.progress)
        time.sleep(0.01)
    assert len(seen - {0}) >= 3
    assert max(seen) < 100
    assert model_server.is_idle()


def test_a_client_is_told_when_to_look_again(model_server):
    with model_server.client("mine") as http:
        answer = http.post("/v1/videos", files={"prompt": (None, "slow"), "model": (None, "filmer")})
        assert answer.headers["openai-poll-after-ms"] == str(videos.POLL_MS)
        name = answer.json()["id"]
        early = http.get(f"/v1/videos/{name}/content")
        assert (early.status_code, early.json()["error"]["code"]) == (404, "video_not_ready")
        http.delete(f"/v1/videos/{name}")


def test_a_picture_to_begin_with(client):
    picture = np.zeros((20, 30, 3), np.uint8)
    video = client.videos.create(model="filmer", prompt="a", seconds="1", input_reference=("a.png", png(picture)))
    made = frames(client.videos.download_content(wait_finished(client, video).id).read())
    assert made[0].shape == (20, 30, 3)


def test_other_parameters_reach_the_model(client, model_server):
    wishes = {"num_inference_steps": "7", "guidance_scale": "3.5", "negative_prompt": "rain", "seed": "5"}
    wait_finished(client, client.videos.create(model="filmer", prompt="a", seconds="1", extra_body=wishes))
    seen = model_server.models["filmer"].seen[-1]
    assert (seen.steps, seen.guidance, seen.negative_prompt, seen.seed) == (7, 3.5, "rain", 5)


def test_a_failure_does_not_leak_internals(client, model_server):
    video = wait_finished(client, client.videos.create(model="filmer", prompt="break it"))
    assert (video.status, video.error.code) == ("failed", "model_error")
    assert "secret" not in video.error.message
    with pytest.raises(NotFoundError, match="failed"):
        client.videos.download_content(video.id)
    assert model_server.is_idle()


def test_a_job_that_is_deleted_is_given_up(client, model_server):
    video = client.videos.create(model="filmer", prompt="slow", seconds="100")
    time.sleep(0.1)
    assert client.videos.delete(video.id).deleted
    assert model_server.is_idle()
    with pytest.raises(NotFoundError):
        client.videos.retrieve(video.id)


def test_jobs_are_their_owners(client, model_server):
    video = client.videos.create(model="filmer", prompt="a", seconds="1")
    with model_server.client("theirs") as http:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            assert http.request(method, f"/v1/videos/{video.id}{path}").status_code == 404
        assert http.get("/v1/videos").json()["data"] == []
    wait_finished(client, video)


def test_files_have_no_name_and_go_with_their_jobs(client):
    before = _count_unlinked_files()
    video = wait_finished(client, client.videos.create(model="filmer", prompt="a", seconds="1"))
    assert _count_unlinked_files() == before + 1
    client.videos.delete(video.id)
    assert _count_unlinked_files() == before


def _count_unlinked_files():
    """How many files this process has open that have no name."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        found += path.endswith("(deleted)") and os.stat(f"/proc/self/fd/{number}").st_size > 0 and "mstar" not in path
    return found


def test_there_is_room_for_only_so_much(client, monkeypatch):
    monkeypatch.setattr(videos, "QUOTA_BYTES", 10)
    video = wait_finished(client, client.videos.create(model="filmer", prompt="a", seconds="1"))
    assert (video.status, video.error.code) == ("failed", "storage_full")


def test_without_an_encoder_nothing_is_filmed(model_server, monkeypatch):
    monkeypatch.setattr("mstar.media.mp4.find_spec", lambda name: None)
    with model_server.client("mine") as http:
        answer = http.post("/v1/videos", files={"prompt": (None, "a"), "model": (None, "filmer")})
    assert (answer.status_code, answer.json()["error"]["code"]) == (501, "no_encoder")


@pytest.mark.parametrize(
    "wish", [{"seconds": "0"}, {"seconds": "nan"}, {"seconds": "1e9"}, {"size": "31x32"}, {"size": "x"}, {"prompt": ""}]
)
def test_invalid_parameters_are_rejected(model_server, wish):
    fields = {"model": "filmer", "prompt": "a"} | wish
    with model_server.client("mine") as http:
        answer = http.post("/v1/videos", files={name: (None, text) for name, text in fields.items()})
    assert answer.status_code == 422


def test_a_model_that_films_nothing_says_what_it_serves(client):
    with pytest.raises(NotFoundError, match="/v1/images/generations"):
        client.videos.create(model="painter", prompt="a")
