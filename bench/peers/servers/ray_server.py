"""Ray Serve: a deployment for each part, batched where it runs; values go from one to the next by reference."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from bench.peers.servers import BATCH_WAIT_S, MAX_BATCH_SIZE

DEPLOYMENT_OPTIONS = {"ray_actor_options": {"num_cpus": 0.1}, "max_ongoing_requests": 64}
batched = serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=BATCH_WAIT_S)


@serve.deployment(**DEPLOYMENT_OPTIONS)
class Encode:
    def __init__(self) -> None:
        from bench.peers.pipeline import EncoderStage

        self.part = EncoderStage()

    @batched
    async def __call__(self, frames: list[Any]) -> list[Any]:
        return self.part(frames)


@serve.deployment(**DEPLOYMENT_OPTIONS)
class Write:
    def __init__(self) -> None:
        from bench.peers.pipeline import GenerateStage

        self.part = GenerateStage()

    @batched
    async def __call__(self, embeddings: list[Any], counts: list[int]) -> list[Any]:
        return self.part(embeddings, counts)


@serve.deployment(**DEPLOYMENT_OPTIONS)
class Sound:
    def __init__(self) -> None:
        from bench.peers.pipeline import VocoderStage

        self.part = VocoderStage()

    @batched
    async def __call__(self, tokens: list[Any]) -> list[Any]:
        return self.part(tokens)


@serve.deployment(**DEPLOYMENT_OPTIONS)
class SpeechIngress:
    def __init__(self, encode: Any, write: Any, sound: Any) -> None:
        self.parts = encode, write, sound

    async def __call__(self, request: Request) -> dict[str, str]:
        from bench.peers.traffic import decode_frames, encode_array

        encode, write, sound = self.parts
        params = await request.json()
        written = write.remote(encode.remote(decode_frames(params["frames"])), params["tokens"])
        return {"sound": encode_array(await sound.remote(written))}


def main(port: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that what follows is undone
    seen = {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    ray.init(
        num_cpus=len(os.sched_getaffinity(0)),
        _node_ip_address="127.0.0.1",
        include_dashboard=False,
        runtime_env={"env_vars": seen},
        log_to_driver=False,
        object_store_memory=300_000_000,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(SpeechIngress.bind(Encode.bind(), Write.bind(), Sound.bind()), route_prefix="/")
        while True:
            time.sleep(1)
    finally:
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
