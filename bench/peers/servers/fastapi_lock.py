"""FastAPI with a lock around the model: one request at a time, which is what most people write first."""

import sys
import threading

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from bench.peers.pipeline import FullPipeline
from bench.peers.traffic import decode_frames, encode_array

app, whole, lock = FastAPI(), FullPipeline(), threading.Lock()


class SpeechRequest(BaseModel):
    frames: str
    tokens: int


@app.post("/")
def speak(request: SpeechRequest) -> dict[str, str]:
    with lock:
        (sound,) = whole([decode_frames(request.frames)], [request.tokens])
    return {"sound": encode_array(sound)}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
