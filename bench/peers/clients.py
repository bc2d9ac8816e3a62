"""Clients of the race: one process asks every server in the same way, and notes when what came back.

A connection for each request, over bare sockets under asyncio, so that clients take little of the cores
that they share with what they measure. It knows enough HTTP for the servers of the race, and no more.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
TIMEOUT_S = 120.0
ANYTHING = re.compile(b"")


@dataclass(frozen=True)
class Response:
    """One answer: when it was asked for, its parts with the times at which they came, and its status."""

    sent_at: float
    parts: Sequence[tuple[float, bytes]]
    status: int = 200

    @property
    def content(self) -> bytes:
        """All of it."""
        return b"".join(part for _, part in self.parts)

    @property
    def latency(self) -> float:
        """Seconds until it was whole."""
        return self.parts[-1][0] - self.sent_at

    def first(self, wanted: re.Pattern[bytes] = ANYTHING) -> float:
        """Seconds until a part came in which this is found."""
        return next(at for at, part in self.parts if wanted.search(part)) - self.sent_at


@dataclass(frozen=True)
class LoadResult(Generic[T]):
    """What one server did with some requests, each with its answer."""

    all: Sequence[tuple[T, Response]]

    @property
    def responses(self) -> list[tuple[T, Response]]:
        """Those that are no refusals."""
        return [(requests, answer) for requests, answer in self.all if answer.status == 200]

    @property
    def seconds(self) -> float:
        """From the first question to the end of the last answer."""
        return max(one.sent_at + one.latency for _, one in self.all) - min(one.sent_at for _, one in self.all)

    @property
    def rate(self) -> float:
        """Requests answered a second."""
        return len(self.responses) / self.seconds


async def post(port: int, path: str, body: bytes) -> Response:
    """Ask, and read the answer to its end."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    requests, parts = time.perf_counter(), list[tuple[float, bytes]]()
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            payload = await reader.readuntil(b"\r\n\r\n")
            read = _chunk if b"transfer-encoding: chunked" in payload.lower() else _body_reader(payload)
            while part := await read(reader):
                parts.append((time.perf_counter(), part))
        finally:
            writer.close()
            await writer.wait_closed()
    return Response(requests, parts, int(payload.split()[1]))


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int(await reader.readline(), 16)
    return (await reader.readexactly(size + 2))[:size]


def _body_reader(head: bytes) -> Callable[[asyncio.StreamReader], Awaitable[bytes]]:
    """Reads what is left of a body whose length is told, bit by bit."""
    (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
    left = int(length)

    async def read(reader: asyncio.StreamReader) -> bytes:
        nonlocal left
        part = await reader.read(left)
        left -= len(part)
        return part

    return read


async def closed_loop(ask: Callable[[T], Awaitable[Response]], asks: Sequence[T], clients: int) -> LoadResult[T]:
    """Closed loop: each client sends its next request when it has the response, until all are sent."""
    left: Iterator[T] = iter(asks)

    async def client() -> list[tuple[T, Response]]:
        return [(one, await ask(one)) for one in left]

    answered = await asyncio.gather(*(client() for _ in range(clients)))
    return LoadResult([pair for answers in answered for pair in answers])


async def open_loop(
    ask: Callable[[T], Awaitable[Response]], asks: Sequence[T], rate: float, seed: int
) -> LoadResult[T]:
    """Open loop: Poisson arrivals at a rate, however many requests are pending."""
    chosen, begun, at = random.Random(seed), time.perf_counter(), 0.0
    tasks: list[asyncio.Task[Response]] = []
    for one in asks:
        await asyncio.sleep(begun + at - time.perf_counter())
        tasks.append(asyncio.ensure_future(ask(one)))
        at += chosen.expovariate(rate)
    return LoadResult([*zip(asks, await asyncio.gather(*tasks), strict=True)])
