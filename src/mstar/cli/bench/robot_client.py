"""Robots that call as openpi's clients do: they say what they see at every tick, and need actions before the next.

What they see is nothing but zeros, of the shapes that the server says. An answer that comes late costs a tick: a robot
does not ask for what it needed a while ago.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from mstar.cli.bench.http_client import REQUEST_TIMEOUT_S, ServerAddress
from mstar.cli.bench.records import SKIPPED, RequestRecord, parse_retry_after
from mstar.cli.bench.response_readers import ResponseError
from mstar.cli.bench.workload import ROBOT, Traffic
from mstar.server.robotics import openpi

_STATUS_BY_REASON = {"overloaded": 429, "unavailable": 503}
"""By what the server says when it hangs up."""


class RobotClient:
    """One robot and its call, which is made again when it was ended."""

    def __init__(self, site: ServerAddress, traffic: Traffic, started_at: float) -> None:
        told = "" if traffic.server_slo else f"&hz={traffic.hz:.4g}"  # how soon a server of ours is to answer
        self._url = f"ws{site.url.removeprefix('http')}{site.prefix}/?model={quote(traffic.model)}{told}"
        self._headers = site.headers(traffic.server_slo)
        self._prompt = {"prompt": str(traffic.params.get("prompt", "fold the towel"))}
        self._period = 1 / traffic.hz
        self._started_at = started_at
        self._websocket: ClientConnection | None = None
        self._observation = b""

    async def run(self, first: float, stop: asyncio.Event) -> list[RequestRecord]:
        """Ask at every tick until it is over."""
        records: list[RequestRecord] = []
        tick = first
        while not await self._is_stopped(tick, stop):
            record = await self.act(tick)
            records.append(record)
            tick += self._period
            while tick < record.ended_at:
                records.append(RequestRecord(ROBOT, tick, tick, ended_at=tick, error=SKIPPED))
                tick += self._period
        await self.close()
        return records

    async def _is_stopped(self, tick: float, over: asyncio.Event) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), max(0.0, tick - self._now()))
        return over.is_set()

    async def act(self, due: float) -> RequestRecord:
        """One tick."""
        record = RequestRecord(ROBOT, due, self._now())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                line = self._websocket or await self._connect()
                await line.send(self._observation)
                answer = await line.recv()
            now = self._now()
            if isinstance(answer, str):
                await line.wait_closed()
                record.status = _STATUS_BY_REASON.get(line.close_reason or "", 500)
                raise ResponseError(answer)
            record.status = 200
            record.chunks.append((now, float(len(openpi.unpack(answer)["actions"]))))
        except InvalidStatus as error:
            record.status, record.retry_after = (
                error.response.status_code,
                parse_retry_after(_lowercase_headers(error.response.headers)),
            )
            record.error = f"{record.status} {(error.response.body or b'').decode(errors='replace')[:300]}"
        except (ResponseError, OSError, TimeoutError, WebSocketException, ValueError, LookupError, TypeError) as error:
            record.error = str(error) or type(error).__name__
        record.ended_at = self._now()
        if record.error:
            await self.close()
        return record

    async def _connect(self) -> ClientConnection:
        self._websocket = await connect(self._url, additional_headers=self._headers, compression=None, max_size=None)
        told = openpi.unpack(await self._websocket.recv(decode=False))
        if "observation" not in told:
            raise ResponseError("the server does not say what its robot sees")
        seen = {name: np.zeros(one["shape"], one["dtype"]) for name, one in told["observation"].items()}
        self._observation = openpi.pack(seen | self._prompt)
        return self._websocket

    async def close(self) -> None:
        """Hang up."""
        line, self._websocket = self._websocket, None
        if line is not None:
            await line.close()

    def _now(self) -> float:
        return time.perf_counter() - self._started_at


def _lowercase_headers(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.raw_items()}
