"""BentoML: a service for each part, batched by its own adaptive rule. Started as `bentoml serve`."""

from typing import Any

import bentoml

from bench.peers.servers import MOST
from bench.peers.traffic import frames_of, text_of

BATCHED = {"batchable": True, "max_batch_size": MOST}


@bentoml.service(workers=1, traffic={"timeout": 120})
class Encode:
    def __init__(self) -> None:
        from bench.peers.pipeline import Encoding

        self.part = Encoding()

    @bentoml.api(**BATCHED)
    def run(self, wishes: list[Any]) -> list[Any]:
        return self.part(wishes)


@bentoml.service(workers=1, traffic={"timeout": 120})
class Write:
    def __init__(self) -> None:
        from bench.peers.pipeline import Writing

        self.part = Writing()

    @bentoml.api(**BATCHED)
    def run(self, wishes: list[Any]) -> list[Any]:
        return self.part(*zip(*wishes, strict=True))


@bentoml.service(workers=1, traffic={"timeout": 120})
class Sound:
    def __init__(self) -> None:
        from bench.peers.pipeline import Sounding

        self.part = Sounding()

    @bentoml.api(**BATCHED)
    def run(self, wishes: list[Any]) -> list[Any]:
        return self.part(wishes)


@bentoml.service(workers=1, traffic={"timeout": 120, "concurrency": 64})
class Voice:
    encode, write, sound = bentoml.depends(Encode), bentoml.depends(Write), bentoml.depends(Sound)

    @bentoml.api
    async def speak(self, frames: str, tokens: int) -> dict[str, str]:
        (embedding,) = await self.encode.to_async.run([frames_of(frames)])
        (written,) = await self.write.to_async.run([(embedding, tokens)])
        (sound,) = await self.sound.to_async.run([written])
        return {"sound": text_of(sound)}
