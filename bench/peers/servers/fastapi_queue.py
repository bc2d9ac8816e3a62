"""FastAPI with a queue: what has come is a batch, which runs in a thread while the next one gathers."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.pipeline import Array, FullPipeline
from bench.peers.servers import BATCH_WAIT_S, MAX_BATCH_SIZE
from bench.peers.traffic import decode_frames, encode_array

whole = FullPipeline()
waiting: asyncio.Queue[tuple[Any, int, asyncio.Future[Array]]] = asyncio.Queue()


class SpeechRequest(BaseModel):
    frames: str
    tokens: int


async def collect_batch() -> list[tuple[Any, int, asyncio.Future[Array]]]:
    """The next batch: one request, and those that arrive soon after."""
    batch = [await waiting.get()]
    try:
        async with asyncio.timeout(BATCH_WAIT_S):
            while len(batch) < MAX_BATCH_SIZE:
                batch.append(await waiting.get())
    except TimeoutError:
        pass
    return batch


async def run_batches() -> None:
    """Batch after batch."""
    while True:
        frames, counts, futures = zip(*await collect_batch(), strict=True)
        for future, sound in zip(futures, await asyncio.to_thread(whole, frames, counts), strict=True):
            future.set_result(sound)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    task = asyncio.create_task(run_batches())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/")
async def speak(request: SpeechRequest) -> dict[str, str]:
    future = asyncio.get_running_loop().create_future()
    waiting.put_nowait((decode_frames(request.frames), request.tokens, future))
    return {"sound": encode_array(await future)}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
