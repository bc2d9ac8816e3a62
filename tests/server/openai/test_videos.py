"""Tests of video jobs: status, progress, file content, ownership, quotas and deletion."""

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


def wait_finished(client, video, seconds=20.0):
    """Poll a job until it is completed or failed."""
    deadline = time.monotonic() + seconds
    while (video := client.videos.retrieve(video.id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline, video
        time.sleep(0.02)
    return video


def test_a_video_is_the_output_of_the_model(client):
    video = client.videos.create_and_poll(model="filmer", prompt="a dawn", seconds="2", size="48x32")
    assert (video.status, video.progress, video.seconds, video.size) == ("completed", 100, "2", "48x32")
    assert video.expires_at - video.created_at == videos.JOB_TTL_S
    decoded = frames(client.videos.download_content(video.id).read())
    assert len(decoded) == 16
    for number, frame in enumerate(decoded):
        assert frame.shape == (32, 48, 3)
        assert np.abs(frame.astype(int) - 8 * number).max() <= 3  # H.264 is not exact
    assert video.id in [listed.id for listed in client.videos.list()]


def test_progress_follows_the_generated_frames(client, model_server):
    video = client.videos.create(model="filmer", prompt="slow", seconds="20")
    seen = set()
    while (video := client.videos.retrieve(video.id)).status != "completed":
        seen.add(video.progress)
        time.sleep(0.01)
    assert len(seen - {0}) >= 3
    assert max(seen) < 100
    assert model_server.is_idle()


def test_a_response_recommends_a_poll_interval(model_server):
    with model_server.client("mine") as http:
        fields = {"prompt": (None, "slow"), "model": (None, "filmer"), "seconds": (None, "100")}
        response = http.post("/v1/videos", files=fields)
        assert response.headers["openai-poll-after-ms"] == str(videos.POLL_MS)
        job_id = response.json()["id"]
        early = http.get(f"/v1/videos/{job_id}/content")
        assert (early.status_code, early.json()["error"]["code"]) == (404, "video_not_ready")
        http.delete(f"/v1/videos/{job_id}")


def test_a_reference_image(client):
    image = np.zeros((20, 30, 3), np.uint8)
    video = client.videos.create(model="filmer", prompt="a", seconds="1", input_reference=("a.png", png(image)))
    decoded = frames(client.videos.download_content(wait_finished(client, video).id).read())
    assert decoded[0].shape == (20, 30, 3)


@pytest.mark.parametrize("end", ["completed", "deleted"])
def test_a_job_keeps_the_memory_of_its_image_until_it_ends(client, model_server, end):
    budget, image = model_server.state.memory_budget, np.zeros((64, 64, 3), np.uint8)
    before = budget.held_bytes
    video = client.videos.create(model="filmer", prompt="slow", seconds="20", input_reference=("a.png", png(image)))
    assert budget.held_bytes >= before + image.nbytes
    if end == "deleted":
        client.videos.delete(video.id)
    else:
        wait_finished(client, video)
    deadline = time.monotonic() + 10
    while budget.held_bytes != before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert budget.held_bytes == before


def test_other_parameters_reach_the_model(client, model_server):
    params = {"num_inference_steps": "7", "guidance_scale": "3.5", "negative_prompt": "rain", "seed": "5"}
    wait_finished(client, client.videos.create(model="filmer", prompt="a", seconds="1", extra_body=params))
    request = model_server.models["filmer"].seen[-1]
    assert (request.steps, request.guidance, request.negative_prompt, request.seed) == (7, 3.5, "rain", 5)


def test_a_failure_does_not_leak_internals(client, model_server):
    video = wait_finished(client, client.videos.create(model="filmer", prompt="break it"))
    assert (video.status, video.error.code) == ("failed", "model_error")
    assert "secret" not in video.error.message
    with pytest.raises(NotFoundError, match="failed"):
        client.videos.download_content(video.id)
    assert model_server.is_idle()


def test_deleting_a_job_cancels_it(client, model_server):
    video = client.videos.create(model="filmer", prompt="slow", seconds="100")
    time.sleep(0.1)
    assert client.videos.delete(video.id).deleted
    assert model_server.is_idle()
    with pytest.raises(NotFoundError):
        client.videos.retrieve(video.id)


def test_jobs_are_visible_to_their_owner_only(client, model_server):
    video = client.videos.create(model="filmer", prompt="a", seconds="1")
    with model_server.client("theirs") as http:
        for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content")):
            assert http.request(method, f"/v1/videos/{video.id}{path}").status_code == 404
        assert http.get("/v1/videos").json()["data"] == []
    wait_finished(client, video)


def test_files_are_unlinked_and_closed_with_their_jobs(client):
    before = _count_unlinked_files()
    video = wait_finished(client, client.videos.create(model="filmer", prompt="a", seconds="1"))
    assert _count_unlinked_files() == before + 1
    client.videos.delete(video.id)
    assert _count_unlinked_files() == before


def _count_unlinked_files():
    """Number of open files of this process without a name, empty ones excluded."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        if path.endswith("(deleted)") and os.stat(f"/proc/self/fd/{number}").st_size > 0 and "mstar" not in path:
            count += 1
    return count


def test_a_full_storage_fails_the_job(client, monkeypatch):
    monkeypatch.setattr(videos, "QUOTA_BYTES", 10)
    video = wait_finished(client, client.videos.create(model="filmer", prompt="a", seconds="1"))
    assert (video.status, video.error.code) == ("failed", "storage_full")


def test_without_an_encoder_jobs_are_rejected(model_server, monkeypatch):
    monkeypatch.setattr("mstar.media.mp4.find_spec", lambda name: None)
    with model_server.client("mine") as http:
        response = http.post("/v1/videos", files={"prompt": (None, "a"), "model": (None, "filmer")})
    assert (response.status_code, response.json()["error"]["code"]) == (501, "missing_extra")


@pytest.mark.parametrize(
    "params",
    [{"seconds": "0"}, {"seconds": "nan"}, {"seconds": "1e9"}, {"size": "31x32"}, {"size": "x"}, {"prompt": ""}],
)
def test_invalid_parameters_are_rejected(model_server, params):
    fields = {"model": "filmer", "prompt": "a"} | params
    with model_server.client("mine") as http:
        response = http.post("/v1/videos", files={name: (None, text) for name, text in fields.items()})
    assert response.status_code == 400


def test_a_model_without_videos_names_its_endpoints(client):
    with pytest.raises(NotFoundError, match="/v1/images/generations"):
        client.videos.create(model="painter", prompt="a")
