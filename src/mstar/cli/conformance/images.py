"""Conformance checks of image generation, image edits and videos."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, ReportedError, require

PATH = "/v1/images/generations"
EDITS = "/v1/images/edits"
VIDEOS = "/v1/videos"
PROMPT = "a red circle"
PNG = b"\x89PNG"


def _check_images(response: Any, count: int) -> str:
    files = [b64decode(image.b64_json) for image in response.data]
    require(
        len(files) == count and all(file.startswith(PNG) for file in files),
        f"{len(files)} images, expected {count} PNG files",
    )
    return f"{len(files[0])} bytes"


def _generate(target: ConformanceTarget) -> str:
    return _check_images(target.openai.images.generate(model=target.model, prompt=PROMPT, n=2), 2)


def _partial(target: ConformanceTarget) -> str:
    events = list(target.openai.images.generate(model=target.model, prompt=PROMPT, stream=True, partial_images=2))
    kinds = [event.type for event in events]
    require(kinds[-1] == "image_generation.completed", f"the events are {kinds}")
    require(set(kinds[:-1]) <= {"image_generation.partial_image"}, f"the events are {kinds}")
    require(all(b64decode(event.b64_json).startswith(PNG) for event in events), "the images are not PNG files")
    return f"{len(events) - 1} partial"


def _edit(target: ConformanceTarget) -> str:
    first, second = (("x.png", samples.png(gray), "image/png") for gray in (80, 160))
    _check_images(target.openai.images.edit(model=target.model, image=[first, second], prompt=PROMPT), 1)
    return _check_images(target.openai.images.edit(model=target.model, image=first, mask=second, prompt=PROMPT), 1)


def _video(target: ConformanceTarget) -> str:
    videos = target.openai.videos
    job = videos.create_and_poll(model=target.model, prompt=PROMPT, seconds="4")
    if job.error:
        raise ReportedError(job.error.code, job.error.message)
    require(job.status == "completed" and job.progress == 100, f"the status is {job.status} at {job.progress} %")
    file = videos.download_content(job.id).read()
    require(file[4:8] == b"ftyp", "the file is not an MP4")
    require(job.id in [video.id for video in videos.list()], "the video is not in the list")
    require(videos.delete(job.id).deleted, "the video cannot be deleted")
    return f"{len(file)} bytes"


CHECKS = (
    Check(PATH, "generate", _generate),
    Check(PATH, "partial images", _partial),
    Check(EDITS, "edit", _edit),
    Check(VIDEOS, "create, poll, content", _video),
)
