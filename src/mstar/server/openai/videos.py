"""Video generation endpoints (OpenAI `/v1/videos`): asynchronous jobs, polled until the MP4 file can be downloaded.

Jobs live in the memory of one front end, with a TTL and a limit per tenant. Their files are unnamed temporary files:
no other process can open them, and they disappear with this one. MP4 needs PyAV; without it jobs are rejected (501).
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, BinaryIO, cast

from pydantic import ConfigDict, Field
from starlette.responses import Response

from mstar.errors import MissingExtra
from mstar.frontend.response_stream import Deliver
from mstar.media.mp4 import Mp4Writer, require_mp4
from mstar.requests import ImageInput, VideoRequest
from mstar.server.errors import ApiError, missing_extra_error
from mstar.server.http_exchange import HttpExchange, RequestContext, json_response
from mstar.server.inputs.memory_budget import Reservation
from mstar.server.inputs.multipart import read_form
from mstar.server.openai.schema import Name, Seed, StrictModel
from mstar.server.robotics.ttl_store import TtlStore, tenant_name
from mstar.server.state import ServedModel, ServerState
from mstar.server.stream_response import StreamResponse
from mstar.server.unexpected_errors import report_exception

MAX_JOBS_PER_TENANT = 64
"""Maximum jobs of one tenant, including finished ones."""
JOB_TTL_S = 3600
"""Seconds before a job and its file are deleted."""
MAX_RUNNING_JOBS = 4
"""Maximum jobs of one tenant rendered concurrently; further jobs of the tenant are queued."""
QUOTA_BYTES = 4 << 30
"""Maximum total bytes of all video files."""
POLL_MS = 500
"""Poll interval recommended to clients, in the header `openai-poll-after-ms`."""
CHUNK_BYTES = 1 << 18
"""Bytes per chunk of a download."""


class VideoForm(StrictModel):
    """Form fields of `POST /v1/videos`. They arrive as text, so numbers are coerced."""

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
    """One video job and its file."""

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
        """The OpenAI `video` object."""
        error = self.error and {"code": self.error.code, "message": self.error.message}
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
            "error": error,
        }


# ---------------------------------------------------------------- endpoints
async def create(exchange: HttpExchange) -> Response:
    """POST /v1/videos."""
    form = await read_form(exchange, VideoForm, {"input_reference": 1})
    served = exchange.resolve_model(form.body.model)
    try:
        require_mp4()
    except MissingExtra as error:
        raise missing_extra_error(str(error)) from None
    request = _to_video_request(form.body, next(iter(await form.decode_images("input_reference")), None))
    jobs = _video_jobs(exchange)
    job = jobs.store.put(tenant_name(exchange), lambda job_id: VideoJob(job_id, served, request, _unnamed_file()))
    job.task = asyncio.create_task(jobs.run(exchange.state, job, exchange.context))
    job.task.add_done_callback(functools.partial(_release_input, job, exchange.context.take_memory()))
    return _job_response(job)


async def retrieve(exchange: HttpExchange) -> Response:
    """GET /v1/videos/{video}."""
    return _job_response(_job(exchange))


async def list_videos(exchange: HttpExchange) -> Response:
    """GET /v1/videos: all jobs of the tenant, newest first."""
    jobs = [job.content for job in reversed(_video_jobs(exchange).store.items_of(tenant_name(exchange)))]
    if exchange.state.siblings is not None:
        jobs += await exchange.state.siblings.merge_lists(exchange.request.scope)
        jobs.sort(key=lambda job: job["created_at"], reverse=True)
    ends = {"first_id": jobs[0]["id"], "last_id": jobs[-1]["id"]} if jobs else {"first_id": None, "last_id": None}
    return json_response({"object": "list", "data": jobs, "has_more": False, **ends})


async def delete(exchange: HttpExchange) -> Response:
    """DELETE /v1/videos/{video}; cancels a job that is running."""
    job_id = exchange.request.path_params["video"]
    _video_jobs(exchange).store.remove(tenant_name(exchange), job_id)
    return json_response({"id": job_id, "object": "video.deleted", "deleted": True})


async def content(exchange: HttpExchange) -> Response:
    """GET /v1/videos/{video}/content: the MP4 file."""
    job = _job(exchange)
    if (variant := exchange.request.query_params.get("variant", "video")) != "video":
        message = f"variant: {variant[:64]!r} is not supported. fix: use 'video' or omit it"
        raise ApiError(400, "unsupported_parameter", message, param="variant")
    if job.status != "completed":
        fix = "create it again" if job.status == "failed" else f"poll GET /v1/videos/{job.job_id} until it is completed"
        message = f"the video is {job.status}, not completed. fix: {fix}"
        raise ApiError(404, "video_not_ready", message)
    size = os.fstat(job.file.fileno()).st_size
    return StreamResponse(
        _file_chunks(job, size), "video/mp4", {"Content-Length": str(size), "Cache-Control": "no-store"}
    )


# ---------------------------------------------------------------- jobs
class VideoJobs:
    """Job runner and job store of one front end."""

    def __init__(self, id_mark: str = "") -> None:
        self.store = TtlStore[VideoJob]("video", MAX_JOBS_PER_TENANT, JOB_TTL_S, _drop, id_mark)
        self._slots = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(MAX_RUNNING_JOBS))
        """By tenant: jobs of one tenant do not delay those of another."""

    async def run(self, state: ServerState, job: VideoJob, context: RequestContext) -> None:
        """Render one job and record its outcome. Does not raise."""
        try:
            async with self._slots[context.tenant_name]:
                job.status = "in_progress"
                await self._render(state, job, context)
            job.status, job.progress, job.completed = "completed", 100, int(time.time())
        except ApiError as error:
            _fail(job, error)
        except Exception as error:  # noqa: BLE001 - any other exception is reported
            _fail(job, report_exception(error, state, context))
        finally:
            job.task = None  # breaks the reference cycle of task and job, so that the file closes

    async def _render(self, state: ServerState, job: VideoJob, context: RequestContext) -> None:
        stream = state.start_requests(job.served_model, job.request, context=context)
        writer: Mp4Writer | None = None
        with ThreadPoolExecutor(1) as executor:  # one thread: on cancellation `finish` runs after a pending `feed`
            run = functools.partial(asyncio.get_running_loop().run_in_executor, executor)
            try:
                async for event in stream:
                    if isinstance(event, Deliver) and event.kind == "Video":
                        fps = float(dict(event.clock)["fps"])
                        writer = writer or Mp4Writer(job.file, fps)
                        await run(writer.feed, event.value)
                        job.progress = min(99, int(100 * writer.frame_count / (job.request.seconds * fps)))
                        self._check_quota()
                if writer is None:
                    raise ApiError(500, "model_error", "the model produced no video")
            finally:
                stream.close()
                if writer is not None:
                    await run(writer.finish)
        self._check_quota()  # the encoder buffers frames until it is finished

    def _check_quota(self) -> None:
        """Raise ApiError if the files exceed the disk quota."""
        total = sum(os.fstat(job.file.fileno()).st_size for job in self.store.values())
        if total > QUOTA_BYTES:
            message = f"video storage is full ({total} bytes, the limit is {QUOTA_BYTES}). fix: delete videos and retry"
            raise ApiError(507, "storage_full", message)


def _unnamed_file() -> BinaryIO:
    return cast("BinaryIO", tempfile.TemporaryFile())


def _fail(job: VideoJob, error: ApiError) -> None:
    job.status, job.error = "failed", error
    job.file.truncate(0)


def _release_input(job: VideoJob, memory: Reservation | None, _: asyncio.Task[None]) -> None:
    """Drop the source image with its bytes in the memory budget. A callback of the task: `finally` does not run in a
    task that is cancelled before it starts."""
    job.request = replace(job.request, source=None)
    if memory is not None:
        memory.close()


def _drop(job: VideoJob) -> None:
    """Cancel a removed job. Its file closes after the last download of it ends."""
    if job.task is not None:
        job.task.cancel()


async def _file_chunks(job: VideoJob, size: int) -> AsyncGenerator[bytes]:
    for start in range(0, size, CHUNK_BYTES):
        yield await asyncio.to_thread(os.pread, job.file.fileno(), CHUNK_BYTES, start)


def _to_video_request(body: VideoForm, source: ImageInput | None) -> VideoRequest:
    width, height = map(int, body.size.split("x")) if body.size else (0, 0)
    if width % 2 or height % 2:
        message = f"size: {body.size} has an odd side. fix: use an even width and height"
        raise ApiError(400, "invalid_value", message, param="size")
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
        state.video_jobs = VideoJobs(exchange.state.id_mark)
    return state.video_jobs


def _job(exchange: HttpExchange) -> VideoJob:
    return _video_jobs(exchange).store.find(tenant_name(exchange), exchange.request.path_params["video"])


def _job_response(job: VideoJob) -> Response:
    is_done = job.status in ("completed", "failed")
    return json_response(job.content, headers={} if is_done else {"openai-poll-after-ms": str(POLL_MS)})
