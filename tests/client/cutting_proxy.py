"""A TCP proxy that cuts the connections of one client at random moments, in ways in which networks do."""

import asyncio
from contextlib import asynccontextmanager, suppress

CHUNK_BYTES = 4096
WAYS = ("reset", "finish", "vanish")
"""Both ends see a reset; both see the end of the stream; the client is gone, and the server does not notice."""


class CuttingProxy:
    """Cuts each of the first `cuts` connections after a random number of bytes in both directions."""

    def __init__(self, port, rng, cuts, max_bytes):
        self._port = port
        self._rng = rng
        self._cuts = cuts
        self._max_bytes = max_bytes
        self.ways = []
        """How each connection was cut so far."""
        self._vanished = []

    async def serve(self, reader, writer):
        """Serve one connection of the client."""
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.transport.abort()
            return
        self._left = self._rng.randrange(self._max_bytes) if self._cuts > 0 else None
        self._cuts -= 1
        pumps = [
            asyncio.create_task(self._forward(reader, upstream_writer)),
            asyncio.create_task(self._forward(upstream_reader, writer)),
        ]
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        is_cut = any(pump.result() for pump in done)
        for pump in pumps:
            pump.cancel()
        way = self._rng.choice(WAYS) if is_cut else "finish"
        if is_cut:
            self.ways.append(way)
        for end in (writer, upstream_writer):
            if way == "vanish" and end is upstream_writer:
                self._vanished.append(end)
            elif way == "finish":
                end.close()
            else:
                end.transport.abort()

    async def _forward(self, reader, writer):
        """Forward bytes; whether the connection is to be cut."""
        with suppress(ConnectionError):
            while data := await reader.read(CHUNK_BYTES):
                if self._left is not None:
                    data, self._left = data[: self._left], max(0, self._left - len(data))
                writer.write(data)
                if self._left == 0:
                    return True
                await writer.drain()
        return False

    def close(self):
        """Close the connections that have vanished."""
        for end in self._vanished:
            end.transport.abort()


@asynccontextmanager
async def cut_connections(port, rng, cuts, max_bytes):
    """Yields the proxy and its URL."""
    proxy = CuttingProxy(port, rng, cuts, max_bytes)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    try:
        yield proxy, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        proxy.close()
