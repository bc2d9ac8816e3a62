"""A TCP load balancer: each connection goes to a server that is ready, and is reset when its server is not any more."""

import asyncio
import itertools
from contextlib import asynccontextmanager, suppress

CHECK_INTERVAL_S = 0.2
CHECK_TIMEOUT_S = 1.0
CHUNK_BYTES = 1 << 16


class Balancer:
    """Balances between servers, given as (address, port), in turns. `ready` are those that answered the last check."""

    def __init__(self, servers):
        self.servers = servers
        self.ready = set()
        self._turns = itertools.count()
        self._connections = {server: set() for server in servers}

    async def serve(self, reader, writer):
        """Serve one connection of a client."""
        ready = [server for server in self.servers if server in self.ready]
        if not ready:
            writer.transport.abort()
            return
        server = ready[next(self._turns) % len(ready)]
        try:
            upstream_reader, upstream_writer = await asyncio.wait_for(asyncio.open_connection(*server), CHECK_TIMEOUT_S)
        except (OSError, TimeoutError):
            writer.transport.abort()
            return
        ends = (writer.transport, upstream_writer.transport)
        self._connections[server].add(ends)
        try:
            pumps = [
                asyncio.create_task(_forward(reader, upstream_writer)),
                asyncio.create_task(_forward(upstream_reader, writer)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            for pump in pumps:
                pump.cancel()
        finally:
            self._connections[server].discard(ends)
            for end in (writer, upstream_writer):
                end.close()

    async def check(self, server):
        """Check a server again and again."""
        while True:
            if await _is_ready(server):
                self.ready.add(server)
            else:
                self.ready.discard(server)
                for ends in [*self._connections[server]]:
                    for end in ends:
                        end.abort()
            await asyncio.sleep(CHECK_INTERVAL_S)


async def _is_ready(server):
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(*server)
            try:
                writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k\r\n")
                writer.write(b"Connection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    return False


async def _forward(reader, writer):
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def balance(servers):
    """Balance between servers; returns the balancer and its URL."""
    balancer = Balancer(servers)
    listener = await asyncio.start_server(balancer.serve, "127.0.0.1", 0)
    checks = [asyncio.create_task(balancer.check(server)) for server in servers]
    try:
        yield balancer, f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    finally:
        for task in checks:
            task.cancel()
        listener.close()
