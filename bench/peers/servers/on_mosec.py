"""Mosec: a process for each part, with a batch of its own. Its port is told as `--port`."""

from typing import Any

from mosec import Server, Worker

from bench.peers.servers import MOST, WAIT_S
from bench.peers.traffic import frames_of, text_of


class Encode(Worker):
    def __init__(self) -> None:
        from bench.peers.pipeline import Encoding

        self.run = Encoding()

    def forward(self, wishes: list[dict[str, Any]]) -> list[Any]:
        embeddings = self.run([frames_of(wish["frames"]) for wish in wishes])
        return [(one, wish["tokens"]) for one, wish in zip(embeddings, wishes, strict=True)]


class Write(Worker):
    def __init__(self) -> None:
        from bench.peers.pipeline import Writing

        self.run = Writing()

    def forward(self, wishes: list[Any]) -> list[Any]:
        return self.run(*zip(*wishes, strict=True))


class Sound(Worker):
    def __init__(self) -> None:
        from bench.peers.pipeline import Sounding

        self.run = Sounding()

    def forward(self, tokens: list[Any]) -> list[dict[str, str]]:
        return [{"sound": text_of(sound)} for sound in self.run(tokens)]


if __name__ == "__main__":
    server = Server()
    for part in (Encode, Write, Sound):
        server.append_worker(part, max_batch_size=MOST, max_wait_time=int(1000 * WAIT_S), timeout=60)
    server.run()
