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

from mstar.errors import LoadError
from mstar.frontend.response_stream import Deliver
from mstar.media.mp4 import Mp4Writer, require_mp4
from mstar.requests import ImageInput, VideoRequest
from mstar.server.errors import ApiError
from mstar.server.http_exchange import INTERNAL_ERROR, HttpExchange, RequestContext, StreamResponse, json_response
from mstar.server.inputs.multipart import read_form
from mstar.server.openai.schema import Name, Seed, StrictModel
from mstar.server.robotics.ttl_store import TtlStore, tenant_name
from mstar.server.state import ServedModel, ServerState

log = logging.getLogger("mstar.server")

MAX_JOBS_PER_TENANT = 64
"""So many jobs a tenant may have, finished ones included."""
JOB_TTL_S = 3600
"""For so many seconds a job is kept."""
MAX_RUNNING_JOBS = 4
"""So many jobs run at the same time; others are queued."""
QUOTA_BYTES = 4 << 30
"""So much all files may take together."""
POLL_MS = 500
CHUNK_BYTES = 1 << 18


class VideoForm(StrictModel):
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
class VideoJob:
    """One video that is made, or was."""

    job_id: str
    served_model: ServedModel
    request: VideoRequest
    file: BinaryIO
    status: str = "queued"
    progress: int = 0
    created: int = field(default_factory=lambda: int(time.time()))
    completed: int | None = None
    error: ApiError | None = None
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        weakref.finalize(self, self.file.close)

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it."""
        told = self.error and {"code": self.error.code, "message": self.error.message}
        return {
            "id": self.job_id,
            "object": "video",
            "model": self.served_model.name,
            "status": self.status,
            "progress": self.progress,
            "prompt": self.request.prompt,
            "seconds": f"{self.request.seconds:g}",
            "size": f"{self.request.width}x{self.request.height}" if self.request.width else "auto",
            "created_at": self.created,
            "completed_at": self.completed,
            "expires_at": self.created + JOB_TTL_S,
            "error": told,
        }


# ---------------------------------------------------------------- routes
async def create(exchange: HttpExchange) -> Response:
    """POST /v1/videos."""
    form = await read_form(exchange, VideoForm, {"input_reference": 1})
    served = exchange.resolve_model(form.body.model)
    try:
        require_mp4()
    except LoadError:
        raise ApiError(501, "no_encoder", "this server cannot write video files") from None
    ask = _to_video_request(form.body, next(iter(await form.decode_images("input_reference")), None))
    studio = _video_jobs(exchange)
    job = studio.store.put(tenant_name(exchange), lambda name: VideoJob(name, served, ask, _unnamed_file()))
    job.task = asyncio.create_task(studio.run(exchange.state, job, exchange.context))
    return _job_response(job)


async def retrieve(exchange: HttpExchange) -> Response:
    """GET /v1/videos/{video}."""
    return _job_response(_job(exchange))


async def list_videos(exchange: HttpExchange) -> Response:
    """GET /v1/videos: all of them, the newest first."""
    jobs = [job.content for job in reversed(_video_jobs(exchange).store.items_of(tenant_name(exchange)))]
    ends = {"first_id": jobs[0]["id"], "last_id": jobs[-1]["id"]} if jobs else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": jobs, "has_more": False, **ends})


async def delete(exchange: HttpExchange) -> Response:
    """DELETE /v1/videos/{video}; one that is being made is given up."""
    name = exchange.request.path_params["video"]
    _video_jobs(exchange).store.remove(tenant_name(exchange), name)
    return json_response({"id": name, "object": "video.deleted", "deleted": True})


async def content(exchange: HttpExchange) -> Response:
    """GET /v1/videos/{video}/content: the file."""
    job = _job(exchange)
    if (variant := exchange.request.query_params.get("variant", "video")) != "video":
        raise ApiError(400, "unsupported_parameter", f"variant: there is no {variant!r}, only 'video'", param="variant")
    if job.status != "completed":
        raise ApiError(404, "video_not_ready", f"the video is {job.status}; its status tells when it is completed")
    size = os.fstat(job.file.fileno()).st_size
    return StreamResponse(
        _file_chunks(job, size), "video/mp4", {"Content-Length": str(size), "Cache-Control": "no-store"}
    )


# ---------------------------------------------------------------- behind them
class VideoJobs:
    """Where one front end's videos are made and kept."""

    def __init__(self) -> None:
        self.store = TtlStore[VideoJob]("video", MAX_JOBS_PER_TENANT, JOB_TTL_S, _drop)
        self._slots = asyncio.Semaphore(MAX_RUNNING_JOBS)

    async def run(self, state: ServerState, job: VideoJob, context: RequestContext) -> None:
        """Have a video made, and say how that went."""
        try:
            async with self._slots:
                job.status = "in_progress"
                await self._render(state, job, context)
            job.status, job.progress, job.completed = "completed", 100, int(time.time())
        except ApiError as refusal:
            _fail(job, refusal)
        except Exception:
            log.exception("video %s", job.job_id)
            _fail(job, INTERNAL_ERROR)
        finally:
            job.task = None  # it holds the job, and the job its file

    async def _render(self, state: ServerState, job: VideoJob, context: RequestContext) -> None:
        live = state.start_requests(job.served_model, job.request, context=context)
        film: Mp4Writer | None = None
        with ThreadPoolExecutor(1) as thread:  # one, so that a film is finished after what is fed when this is given up
            do = functools.partial(asyncio.get_running_loop().run_in_executor, thread)
            try:
                async for news in live:
                    if isinstance(news, Deliver) and news.kind == "Video":
                        fps = float(dict(news.clock)["fps"])
                        film = film or Mp4Writer(job.file, fps)
                        await do(film.feed, news.value)
                        job.progress = min(99, int(100 * film.frame_count / (job.request.seconds * fps)))
                        self._check_quota()
                if film is None:
                    raise ApiError(500, "model_error", "the model made no video")
            finally:
                live.close()
                if film is not None:
                    await do(film.finish)
        self._check_quota()  # an encoder holds much back until it is finished

    def _check_quota(self) -> None:
        """Refuse to take more of the disk than may be."""
        if sum(os.fstat(job.file.fileno()).st_size for job in self.store.values()) > QUOTA_BYTES:
            raise ApiError(507, "storage_full", "there is no room for more videos; delete some")


def _unnamed_file() -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile())


def _fail(job: VideoJob, error: ApiError) -> None:
    job.status, job.error = "failed", error
    job.file.truncate(0)


def _drop(job: VideoJob) -> None:
    """Give a job up if it is being made. Its file goes when the last who reads it is done."""
    if job.task is not None:
        job.task.cancel()


async def _file_chunks(job: VideoJob, size: int) -> AsyncGenerator[bytes]:
    for start in range(0, size, CHUNK_BYTES):
        yield await asyncio.to_thread(os.pread, job.file.fileno(), CHUNK_BYTES, start)


def _to_video_request(body: VideoForm, source: ImageInput | None) -> VideoRequest:
    width, height = map(int, body.size.split("x")) if body.size else (0, 0)
    if width % 2 or height % 2:
        raise ApiError(422, "invalid_value", f"size: {body.size} is not even both ways", param="size")
    seed = body.seed if body.seed is not None else secrets.randbits(62)
    return VideoRequest(
        body.prompt,
        body.seconds,
        width,
        height,
        seed,
        source,
        steps=body.num_inference_steps or 0,
        guidance=body.guidance_scale or 0.0,
        negative_prompt=body.negative_prompt,
    )


def _video_jobs(exchange: HttpExchange) -> VideoJobs:
    state = exchange.request.app.state
    if not hasattr(state, "video_jobs"):
        state.video_jobs = VideoJobs()
    return state.video_jobs


def _job(exchange: HttpExchange) -> VideoJob:
    return _video_jobs(exchange).store.find(tenant_name(exchange), exchange.request.path_params["video"])


def _job_response(job: VideoJob) -> Response:
    is_over = job.status in ("completed", "failed")
    return json_response(job.content, headers={} if is_over else {"openai-poll-after-ms": str(POLL_MS)})
