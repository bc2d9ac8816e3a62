"""FastAPI with a lock around the model: one request at a time, which is what most people write first."""

import sys
import threading

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.pipeline import Whole
from bench.peers.traffic import frames_of, text_of

app, whole, lock = FastAPI(), Whole(), threading.Lock()


class Wish(BaseModel):
    frames: str
    tokens: int


@app.post("/")
def speak(wish: Wish) -> dict[str, str]:
    with lock:
        (sound,) = whole([frames_of(wish.frames)], [wish.tokens])
    return {"sound": text_of(sound)}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
