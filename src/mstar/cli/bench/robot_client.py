"""Simulated robots of a load test, over openpi's WebSocket protocol: one observation per tick, actions before the next.

Observations are zeros in the shapes of the server's metadata. A late response skips ticks: a robot does not request
actions for the past.
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
"""HTTP status by the reason with which the server closes the WebSocket."""


class RobotClient:
    """One robot with its WebSocket, which reconnects after an error."""

    def __init__(self, server: ServerAddress, traffic: Traffic, started_at: float) -> None:
        hz = "" if traffic.server_slo else f"&hz={traffic.hz:.4g}"  # sets the deadline of each response
        self._url = f"ws{server.url.removeprefix('http')}{server.prefix}/?model={quote(traffic.model)}{hz}"
        self._headers = server.headers(traffic.server_slo)
        self._prompt = {"prompt": str(traffic.params.get("prompt", "fold the towel"))}
        self._period = 1 / traffic.hz
        self._started_at = started_at
        self._websocket: ClientConnection | None = None
        self._observation = b""

    async def run(self, first: float, stop: asyncio.Event) -> list[RequestRecord]:
        """Send an observation at every tick until `stop` is set."""
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

    async def _is_stopped(self, tick: float, stop: asyncio.Event) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), max(0.0, tick - self._now()))
        return stop.is_set()

    async def act(self, due: float) -> RequestRecord:
        """Send one observation and wait for the actions. Errors go to the record."""
        record = RequestRecord(ROBOT, due, self._now())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                websocket = self._websocket or await self._connect()
                await websocket.send(self._observation)
                response = await websocket.recv()
            now = self._now()
            if isinstance(response, str):
                await websocket.wait_closed()
                record.status = _STATUS_BY_REASON.get(websocket.close_reason or "", 500)
                raise ResponseError(response)
            record.status = 200
            record.chunks.append((now, float(len(openpi.unpack(response)["actions"]))))
        except InvalidStatus as error:
            record.status = error.response.status_code
            record.retry_after = parse_retry_after(_lowercase_headers(error.response.headers))
            record.error = f"{record.status} {(error.response.body or b'').decode(errors='replace')[:300]}"
        except (ResponseError, OSError, TimeoutError, WebSocketException, ValueError, LookupError, TypeError) as error:
            record.error = str(error) or type(error).__name__
        record.ended_at = self._now()
        if record.error:
            await self.close()
        return record

    async def _connect(self) -> ClientConnection:
        self._websocket = await connect(self._url, additional_headers=self._headers, compression=None, max_size=None)
        metadata = openpi.unpack(await self._websocket.recv(decode=False))
        if "observation" not in metadata:
            raise ResponseError("the server's metadata has no observation spec")
        arrays = {name: np.zeros(spec["shape"], spec["dtype"]) for name, spec in metadata["observation"].items()}
        self._observation = openpi.pack(arrays | self._prompt)
        return self._websocket

    async def close(self) -> None:
        """Close the WebSocket."""
        websocket, self._websocket = self._websocket, None
        if websocket is not None:
            await websocket.close()

    def _now(self) -> float:
        return time.perf_counter() - self._started_at


def _lowercase_headers(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.raw_items()}
