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

from mstar.cli.bench.exchange import LONGEST_S, Site
from mstar.cli.bench.readers import Failed
from mstar.cli.bench.records import SKIPPED, Record, retry_after
from mstar.cli.bench.workload import ROBOT, Traffic
from mstar.server import openpi

_STATUSES = {"overloaded": 429, "unavailable": 503}
"""By what the server says when it hangs up."""


class Robot:
    """One robot and its call, which is made again when it was ended."""

    def __init__(self, site: Site, traffic: Traffic, begun: float) -> None:
        told = "" if traffic.pace else f"&hz={traffic.hz:.4g}"  # how soon a server of ours is to answer
        self._url = f"ws{site.url.removeprefix('http')}{site.prefix}/?model={quote(traffic.model)}{told}"
        self._headers = site.headers(traffic.pace)
        self._prompt = {"prompt": str(traffic.wishes.get("prompt", "fold the towel"))}
        self._period = 1 / traffic.hz
        self._begun = begun
        self._line: ClientConnection | None = None
        self._seen = b""

    async def run(self, first: float, over: asyncio.Event) -> list[Record]:
        """Ask at every tick until it is over."""
        records: list[Record] = []
        tick = first
        while not await self._is_over(tick, over):
            record = await self.act(tick)
            records.append(record)
            tick += self._period
            while tick < record.ended:
                records.append(Record(ROBOT, tick, tick, ended=tick, error=SKIPPED))
                tick += self._period
        await self.close()
        return records

    async def _is_over(self, tick: float, over: asyncio.Event) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), max(0.0, tick - self._now()))
        return over.is_set()

    async def act(self, due: float) -> Record:
        """One tick."""
        record = Record(ROBOT, due, self._now())
        try:
            async with asyncio.timeout(LONGEST_S):
                line = self._line or await self._called()
                await line.send(self._seen)
                answer = await line.recv()
            now = self._now()
            if isinstance(answer, str):
                await line.wait_closed()
                record.status = _STATUSES.get(line.close_reason or "", 500)
                raise Failed(answer)
            record.status = 200
            record.parts.append((now, float(len(openpi.unpack(answer)["actions"]))))
        except InvalidStatus as error:
            record.status, record.retry_after = error.response.status_code, retry_after(_lower(error.response.headers))
            record.error = f"{record.status} {(error.response.body or b'').decode(errors='replace')[:300]}"
        except (Failed, OSError, TimeoutError, WebSocketException, ValueError, LookupError, TypeError) as error:
            record.error = str(error) or type(error).__name__
        record.ended = self._now()
        if record.error:
            await self.close()
        return record

    async def _called(self) -> ClientConnection:
        self._line = await connect(self._url, additional_headers=self._headers, compression=None, max_size=None)
        told = openpi.unpack(await self._line.recv(decode=False))
        if "observation" not in told:
            raise Failed("the server does not say what its robot sees")
        seen = {name: np.zeros(one["shape"], one["dtype"]) for name, one in told["observation"].items()}
        self._seen = openpi.pack(seen | self._prompt)
        return self._line

    async def close(self) -> None:
        """Hang up."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()

    def _now(self) -> float:
        return time.perf_counter() - self._begun


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.raw_items()}
