"""Images and videos, as people ask for them."""

from __future__ import annotations

from base64 import b64decode
from typing import Any

from mstar.cli.conformance import samples
from mstar.cli.conformance.target import Check, ConformanceTarget, ReportedError, require

PATH, EDITS, VIDEOS = "/v1/images/generations", "/v1/images/edits", "/v1/videos"
PROMPT = "a red circle"
PNG = b"\x89PNG"


def _check_images(answer: Any, count: int) -> str:
    files = [b64decode(one.b64_json) for one in answer.data]
    require(len(files) == count and all(file.startswith(PNG) for file in files), f"{len(files)} pictures came")
    return f"{len(files[0])} bytes"


def _generate(site: ConformanceTarget) -> str:
    return _check_images(site.openai.images.generate(model=site.model, prompt=PROMPT, n=2), 2)


def _partial(site: ConformanceTarget) -> str:
    events = list(site.openai.images.generate(model=site.model, prompt=PROMPT, stream=True, partial_images=2))
    kinds = [event.type for event in events]
    require(kinds[-1] == "image_generation.completed", f"the events are {kinds}")
    require(set(kinds[:-1]) <= {"image_generation.partial_image"}, f"the events are {kinds}")
    require(all(b64decode(event.b64_json).startswith(PNG) for event in events), "they are no PNG files")
    return f"{len(events) - 1} partial"


def _edit(site: ConformanceTarget) -> str:
    one, other = (("x.png", samples.png(grey), "image/png") for grey in (80, 160))
    _check_images(site.openai.images.edit(model=site.model, image=[one, other], prompt=PROMPT), 1)
    return _check_images(site.openai.images.edit(model=site.model, image=one, mask=other, prompt=PROMPT), 1)


def _video(site: ConformanceTarget) -> str:
    videos = site.openai.videos
    job = videos.create_and_poll(model=site.model, prompt=PROMPT, seconds="4")
    if job.error:
        raise ReportedError(job.error.code, job.error.message)
    require(job.status == "completed" and job.progress == 100, f"it is {job.status}, and {job.progress} % done")
    file = videos.download_content(job.id).read()
    require(file[4:8] == b"ftyp", "the file is no MP4")
    require(job.id in [one.id for one in videos.list()], "it is not in the list")
    require(videos.delete(job.id).deleted, "it cannot be deleted")
    return f"{len(file)} bytes"


CHECKS = (
    Check(PATH, "generate", _generate),
    Check(PATH, "partial images", _partial),
    Check(EDITS, "edit", _edit),
    Check(VIDEOS, "create, poll, content", _video),
)
