"""Videos as jobs: a client asks for one, looks how far it is, and fetches the file.

A job is kept by the front end that took it, and its file has no name on the disk: nobody else can open it, and it is
gone with the process. Files are MP4, for which PyAV is needed; without it jobs are refused before anything is made.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
import tempfile
import time
import weakref
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Annotated, Any, BinaryIO, cast

from pydantic import ConfigDict, Field
from starlette.responses import Response

from mstar.asks import Filming, Picture
from mstar.errors import LoadError
from mstar.media.films import Film, check_films
from mstar.server.door import Door, Served
from mstar.server.forms import read_form
from mstar.server.live import Deliver
from mstar.server.refusals import Refusal
from mstar.server.schema import Name, Seed, Strict
from mstar.server.shelf import Shelf, tenant_of
from mstar.server.visit import BROKEN, Passage, Poured, Visit, answered

log = logging.getLogger("mstar.server")

JOBS = 64
"""So many jobs a tenant may have, finished ones included."""
KEPT_S = 3600
"""For so many seconds a job is kept."""
AT_ONCE = 4
"""So many jobs run at the same time; others are queued."""
QUOTA_BYTES = 4 << 30
"""So much all files may take together."""
POLL_MS = 500
PIECE = 1 << 18


class FilmingForm(Strict):
    """What a client wants filmed, in a form, where everything is a text."""

    model_config = ConfigDict(strict=False)
    model: Name
    prompt: Annotated[str, Field(min_length=1, max_length=32_000)]
    seconds: Annotated[float, Field(gt=0, le=120)] = 4.0
    size: Annotated[str, Field(pattern=r"^[1-9]\d{1,3}x[1-9]\d{1,3}$")] | None = None
    negative_prompt: Annotated[str, Field(max_length=32_000)] = ""
    num_inference_steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100)] | None = None
    seed: Seed | None = None


@dataclass(eq=False)
class Job:
    """One video that is made, or was."""

    name: str
    served: Served
    ask: Filming
    file: BinaryIO
    status: str = "queued"
    progress: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    completed: int | None = None
    error: Refusal | None = None
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it."""
        told = self.error and {"code": self.error.code, "message": self.error.message}
        return {
            "id": self.name,
            "object": "video",
            "model": self.served.name,
            "status": self.status,
            "progress": self.progress,
            "prompt": self.ask.prompt,
            "seconds": f"{self.ask.seconds:g}",
            "size": f"{self.ask.width}x{self.ask.height}" if self.ask.width else "auto",
            "created_at": self.created,
            "completed_at": self.completed,
            "expires_at": self.created + KEPT_S,
            "error": told,
        }


# ---------------------------------------------------------------- routes
async def create(visit: Visit) -> Response:
    """POST /v1/videos."""
    form = await read_form(visit, FilmingForm, {"input_reference": 1})
    served = visit.find(form.body.model)
    try:
        check_films()
    except LoadError:
        raise Refusal(501, "no_encoder", "this server cannot write video files") from None
    ask = _filming(form.body, next(iter(await form.pictures("input_reference")), None))
    studio = _studio(visit)
    job = studio.shelf.put(tenant_of(visit), lambda name: Job(name, served, ask, _unnamed_file()))
    job.task = asyncio.create_task(studio.make(visit.door, job, visit.passage))
    return _told(job)


async def show(visit: Visit) -> Response:
    """GET /v1/videos/{video}."""
    return _told(_job(visit))


async def catalogue(visit: Visit) -> Response:
    """GET /v1/videos: all of them, the newest first."""
    jobs = [job.content for job in reversed(_studio(visit).shelf.all(tenant_of(visit)))]
    ends = {"first_id": jobs[0]["id"], "last_id": jobs[-1]["id"]} if jobs else {"first_id": None, "last_id": None}
    return answered({"object": "list", "data": jobs, "has_more": False, **ends})


async def delete(visit: Visit) -> Response:
    """DELETE /v1/videos/{video}; one that is being made is given up."""
    name = visit.request.path_params["video"]
    _studio(visit).shelf.take(tenant_of(visit), name)
    return answered({"id": name, "object": "video.deleted", "deleted": True})


async def content(visit: Visit) -> Response:
    """GET /v1/videos/{video}/content: the file."""
    job = _job(visit)
    if (variant := visit.request.query_params.get("variant", "video")) != "video":
        raise Refusal(400, "unsupported_parameter", f"variant: there is no {variant!r}, only 'video'", param="variant")
    if job.status != "completed":
        raise Refusal(404, "video_not_ready", f"the video is {job.status}; its status tells when it is completed")
    size = os.fstat(job.file.fileno()).st_size
    return Poured(_pieces(job, size), "video/mp4", {"Content-Length": str(size), "Cache-Control": "no-store"})


# ---------------------------------------------------------------- behind them
class Studio:
    """Where one front end's videos are made and kept."""

    def __init__(self) -> None:
        self.shelf = Shelf[Job]("video", JOBS, KEPT_S, _drop)
        self._places = asyncio.Semaphore(AT_ONCE)

    async def make(self, door: Door, job: Job, passage: Passage) -> None:
        """Have a video made, and say how that went."""
        try:
            async with self._places:
                job.status = "in_progress"
                await self._film(door, job, passage)
            job.status, job.progress, job.completed = "completed", 100, int(time.time())
        except Refusal as refusal:
            _fail(job, refusal)
        except Exception:
            log.exception("video %s", job.name)
            _fail(job, BROKEN)
        finally:
            job.task = None  # it holds the job, and the job its file

    async def _film(self, door: Door, job: Job, passage: Passage) -> None:
        live = door.open(job.served, job.ask, by=passage)
        film: Film | None = None
        with ThreadPoolExecutor(1) as thread:  # one, so that a film is finished after what is fed when this is given up
            do = functools.partial(asyncio.get_running_loop().run_in_executor, thread)
            try:
                async for news in live:
                    if isinstance(news, Deliver) and news.kind == "Video":
                        fps = float(dict(news.clock)["fps"])
                        film = film or Film(job.file, fps)
                        await do(film.feed, news.value)
                        job.progress = min(99, int(100 * film.count / (job.ask.seconds * fps)))
                        self._account()
                if film is None:
                    raise Refusal(500, "model_error", "the model made no video")
            finally:
                live.close()
                if film is not None:
                    await do(film.finish)
        self._account()  # an encoder holds much back until it is finished

    def _account(self) -> None:
        """Refuse to take more of the disk than may be."""
        if sum(os.fstat(job.file.fileno()).st_size for job in self.shelf.everything()) > QUOTA_BYTES:
            raise Refusal(507, "storage_full", "there is no room for more videos; delete some")


def _unnamed_file() -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile())


def _fail(job: Job, why: Refusal) -> None:
    job.status, job.error = "failed", why
    job.file.truncate(0)


def _drop(job: Job) -> None:
    """Give a job up if it is being made. Its file goes when the last who reads it is done."""
    if job.task is not None:
        job.task.cancel()


async def _pieces(job: Job, size: int) -> AsyncGenerator[bytes]:
    for start in range(0, size, PIECE):
        yield await asyncio.to_thread(os.pread, job.file.fileno(), PIECE, start)


def _filming(body: FilmingForm, source: Picture | None) -> Filming:
    width, height = map(int, body.size.split("x")) if body.size else (0, 0)
    if width % 2 or height % 2:
        raise Refusal(422, "invalid_value", f"size: {body.size} is not even both ways", param="size")
    seed = body.seed if body.seed is not None else secrets.randbits(62)
    return Filming(
        body.prompt,
        body.seconds,
        width,
        height,
        seed,
        source,
        steps=body.num_inference_steps or 0,
        guidance=body.guidance_scale or 0.0,
        negative=body.negative_prompt,
    )


def _studio(visit: Visit) -> Studio:
    state = visit.request.app.state
    if not hasattr(state, "studio"):
        state.studio = Studio()
    return state.studio


def _job(visit: Visit) -> Job:
    return _studio(visit).shelf.find(tenant_of(visit), visit.request.path_params["video"])


def _told(job: Job) -> Response:
    is_over = job.status in ("completed", "failed")
    return answered(job.content, headers={} if is_over else {"openai-poll-after-ms": str(POLL_MS)})
