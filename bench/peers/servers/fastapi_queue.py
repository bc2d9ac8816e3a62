"""FastAPI with a queue: what has come is a batch, which runs in a thread while the next one gathers."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.pipeline import Array, Whole
from bench.peers.servers import MOST, WAIT_S
from bench.peers.traffic import frames_of, text_of

whole = Whole()
waiting: asyncio.Queue[tuple[Any, int, asyncio.Future[Array]]] = asyncio.Queue()


class Wish(BaseModel):
    frames: str
    tokens: int


async def gather() -> list[tuple[Any, int, asyncio.Future[Array]]]:
    """The next batch: one, and those who come soon after."""
    batch = [await waiting.get()]
    try:
        async with asyncio.timeout(WAIT_S):
            while len(batch) < MOST:
                batch.append(await waiting.get())
    except TimeoutError:
        pass
    return batch


async def run() -> None:
    """Batch after batch."""
    while True:
        frames, counts, futures = zip(*await gather(), strict=True)
        for future, sound in zip(futures, await asyncio.to_thread(whole, frames, counts), strict=True):
            future.set_result(sound)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    task = asyncio.create_task(run())
    yield
    task.cancel()


app = FastAPI(lifespan=lifespan)


@app.post("/")
async def speak(wish: Wish) -> dict[str, str]:
    future = asyncio.get_running_loop().create_future()
    waiting.put_nowait((frames_of(wish.frames), wish.tokens, future))
    return {"sound": text_of(await future)}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
