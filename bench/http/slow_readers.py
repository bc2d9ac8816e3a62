"""Five thousand clients that read slowly: the delay of the streams beside them.

Workload: a toy model whose op sleeps 100 ms and computes nothing (bench/models/long_words.py): 50 streams of ten
words/s, the reading speed of a chat, whose clients read at once, and 5,000 with words of 4 kB whose clients have a
receive buffer of 4 kB and read 2 kB of it every 30 s, as a phone on a bad connection does.
"""

from __future__ import annotations

import asyncio
import json
import socket

from bench.claims import Claim, Row, print_table
from bench.http.client import ask, model_file, percentile, raise_file_limit, serve

SLOW, ACTIVE, WORDS, PERIOD_S = 5_000, 50, 200, 0.1
SLOW_WORDS, SLOW_LETTERS = 1_000, 4_000
READ_BYTES, READ_INTERVAL_S = 2_000, 30.0
CONNECT_BATCH = 100
"""How many clients connect at the same time."""
FULL_S = 20.0
"""Seconds until the buffers of all slow readers are full."""
MAX_EXTRA_MS = 5.0


async def _read_slowly(port: int) -> int:
    """Ask for a long response and read it slowly, until cancelled. Returns the bytes that were read by then."""
    loop, total = asyncio.get_running_loop(), 0
    text = f"{SLOW_WORDS} 0 {SLOW_LETTERS}"
    content = json.dumps({"model": "model", "stream": True, "messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # the kernel doubles it
        connection.setblocking(False)
        await loop.sock_connect(connection, ("127.0.0.1", port))
        await loop.sock_sendall(connection, head + content)
        try:
            while data := await loop.sock_recv(connection, READ_BYTES):
                total += len(data)
                await asyncio.sleep(READ_INTERVAL_S)
        except asyncio.CancelledError:
            return total
    raise RuntimeError("the server closed the connection of a slow reader")


async def _delays(port: int) -> list[float]:
    """Milliseconds from the emission of a word to its client, of all words of the active streams."""
    clients = [await ask(port, f"{WORDS} {PERIOD_S} 0") for _ in range(ACTIVE)]
    for client in clients:
        await client.ended
    if not all(client.is_whole for client in clients):
        raise RuntimeError("a stream beside the slow readers was not whole")
    return [1000 * delay for client in clients for delay in client.delays]


async def _measure(port: int) -> tuple[list[float], list[float], list[int]]:
    await _delays(port)  # the first ones make what is made once
    alone = await _delays(port)
    readers: list[asyncio.Task[int]] = []
    for _ in range(SLOW // CONNECT_BATCH):
        readers += [asyncio.create_task(_read_slowly(port)) for _ in range(CONNECT_BATCH)]
        await asyncio.sleep(0.1)
    await asyncio.sleep(FULL_S)
    beside = await _delays(port)
    for reader in readers:
        if reader.done():
            reader.result()  # raises what ended it
        reader.cancel()
    return alone, beside, await asyncio.gather(*readers)


def slow_readers() -> Claim:
    """The headline."""
    raise_file_limit()
    flags = ("--max-running-requests", str(SLOW + ACTIVE), "--max-queued-requests", str(SLOW))
    with serve(model_file("long_words"), *flags) as (port, _):
        alone, beside, read = asyncio.run(_measure(port))
    print_table(
        [
            Row(f"a word to its client, {ACTIVE} speak", "ms", alone),
            Row(f"the same beside {SLOW} slow readers", "ms", beside),
            Row("what a slow reader has read", "bytes", [float(count) for count in read]),
        ]
    )
    p99 = {"alone": percentile(alone, 0.99), "beside": percentile(beside, 0.99)}
    extra = round(p99["beside"] - p99["alone"], 2)
    details = {"p99_ms": {name: round(value, 2) for name, value in p99.items()}, "reading": sum(map(bool, read))}
    claim = f"{SLOW} clients that read slowly delay the words of other streams by {MAX_EXTRA_MS:g} ms (p99) or less"
    return Claim(claim, extra, MAX_EXTRA_MS, is_met=extra <= MAX_EXTRA_MS and all(read), details=details)
