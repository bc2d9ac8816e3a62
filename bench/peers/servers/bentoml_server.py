"""BentoML: a service for each part, batched by its own adaptive rule. Started as `bentoml serve`."""

from typing import Any

import bentoml

from bench.peers.servers import MAX_BATCH_SIZE
from bench.peers.traffic import decode_frames, encode_array

BATCHED = {"batchable": True, "max_batch_size": MAX_BATCH_SIZE}


@bentoml.service(workers=1, traffic={"timeout": 120})
class Encode:
    def __init__(self) -> None:
        from bench.peers.pipeline import EncoderStage

        self.part = EncoderStage()

    @bentoml.api(**BATCHED)
    def run(self, requests: list[Any]) -> list[Any]:
        return self.part(requests)


@bentoml.service(workers=1, traffic={"timeout": 120})
class Write:
    def __init__(self) -> None:
        from bench.peers.pipeline import GenerateStage

        self.part = GenerateStage()

    @bentoml.api(**BATCHED)
    def run(self, requests: list[Any]) -> list[Any]:
        return self.part(*zip(*requests, strict=True))


@bentoml.service(workers=1, traffic={"timeout": 120})
class Sound:
    def __init__(self) -> None:
        from bench.peers.pipeline import VocoderStage

        self.part = VocoderStage()

    @bentoml.api(**BATCHED)
    def run(self, requests: list[Any]) -> list[Any]:
        return self.part(requests)


@bentoml.service(workers=1, traffic={"timeout": 120, "concurrency": 64})
class SpeechService:
    encode, write, sound = bentoml.depends(Encode), bentoml.depends(Write), bentoml.depends(Sound)

    @bentoml.api
    async def speak(self, frames: str, tokens: int) -> dict[str, str]:
        (embedding,) = await self.encode.to_async.run([decode_frames(frames)])
        (written,) = await self.write.to_async.run([(embedding, tokens)])
        (sound,) = await self.sound.to_async.run([written])
        return {"sound": encode_array(sound)}
