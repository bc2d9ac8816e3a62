"""Mosec: a process for each part, with a batch of its own. Its port is told as `--port`."""

from typing import Any

from mosec import Server, Worker

from bench.peers.servers import BATCH_WAIT_S, MAX_BATCH_SIZE
from bench.peers.traffic import decode_frames, encode_array


class Encode(Worker):
    def __init__(self) -> None:
        from bench.peers.pipeline import EncoderStage

        self.run = EncoderStage()

    def forward(self, requests: list[dict[str, Any]]) -> list[Any]:
        embeddings = self.run([decode_frames(params["frames"]) for params in requests])
        return [(one, params["tokens"]) for one, params in zip(embeddings, requests, strict=True)]


class Write(Worker):
    def __init__(self) -> None:
        from bench.peers.pipeline import GenerateStage

        self.run = GenerateStage()

    def forward(self, requests: list[Any]) -> list[Any]:
        return self.run(*zip(*requests, strict=True))


class Sound(Worker):
    def __init__(self) -> None:
        from bench.peers.pipeline import VocoderStage

        self.run = VocoderStage()

    def forward(self, tokens: list[Any]) -> list[dict[str, str]]:
        return [{"sound": encode_array(sound)} for sound in self.run(tokens)]


if __name__ == "__main__":
    server = Server()
    for part in (Encode, Write, Sound):
        server.append_worker(part, max_batch_size=MAX_BATCH_SIZE, max_wait_time=int(1000 * BATCH_WAIT_S), timeout=60)
    server.run()
