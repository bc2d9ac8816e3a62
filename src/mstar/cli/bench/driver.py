"""Load generator: closed loop (clients that wait for each response) or open loop (fixed arrival times).

It records what happens. `metrics` evaluates it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from random import Random
from typing import Any

from mstar.cli.bench import prompts
from mstar.cli.bench.arrivals import Arrival, replayed_params, replayed_text
from mstar.cli.bench.http_client import ServerAddress, send_request
from mstar.cli.bench.records import LoadRun, RequestRecord
from mstar.cli.bench.request_kinds import REQUEST_KINDS
from mstar.cli.bench.robot_client import RobotClient
from mstar.cli.bench.workload import ROBOT, Traffic, Workload

RETRY_PAUSE_S = 1.0
"""Seconds a closed-loop client waits after an error without Retry-After."""


class Driver:
    """Runs one workload against one server, one load level at a time."""

    def __init__(self, server: ServerAddress, workload: Workload, seed: int) -> None:
        self._server = server
        self._workload = workload
        self._seed = seed
        self._runs = 0
        self._rngs: dict[str, Random] = {}
        self._started_at = self._cpu_started_at = 0.0
        self._stop = asyncio.Event()

    async def warm_up(self, kind: str) -> RequestRecord:
        """Send one request that is not measured, because the first one can load or compile something."""
        self._reset()
        if kind != ROBOT:
            return await self._send(0.0, kind, {})
        robot = RobotClient(self._server, self._workload[ROBOT], self._started_at)
        record = await robot.act(0.0)
        await robot.close()
        return record

    async def run_closed_loop(self, clients: int, seconds: float, max_requests: float) -> LoadRun:
        """Run `clients` concurrent clients for `seconds`, or until `max_requests` are sent."""
        self._reset()
        shares = {kind: traffic.number or 1.0 for kind, traffic in self._workload.items() if kind != ROBOT}
        draw, numbers = Random(f"{self._seed}/kinds"), count()

        async def run_client() -> list[RequestRecord]:
            records: list[RequestRecord] = []
            while shares and self._now() < seconds and next(numbers) < max_requests:
                (kind,) = draw.choices([*shares], [*shares.values()])
                records.append(await self._send(self._now(), kind, {}))
                if records[-1].error:  # back off, as a real client does
                    await asyncio.sleep(records[-1].retry_after or RETRY_PAUSE_S)
            return records

        run = await self._run(asyncio.gather(*(run_client() for _ in range(clients))), seconds)
        return LoadRun(float(clients), "clients", *run)

    async def run_open_loop(self, load: float, arrivals: Sequence[Arrival], seconds: float) -> LoadRun:
        """Send each request at its arrival time, even if earlier ones still run. Robots run for `seconds`."""
        self._reset()

        async def send() -> list[list[RequestRecord]]:
            tasks: list[asyncio.Task[RequestRecord]] = []
            for arrival in arrivals:
                if (delay := arrival.at - self._now()) > 0:
                    await asyncio.sleep(delay)
                tasks.append(asyncio.create_task(self._send(arrival.at, arrival.kind, arrival.overrides)))
            return [[await task for task in tasks]]

        unit = "robots" if self._workload.keys() == {ROBOT} else "req/s"
        return LoadRun(load, unit, *await self._run(send(), seconds), window_s=seconds if seconds < inf else 0.0)

    async def _run(
        self, clients: Awaitable[list[list[RequestRecord]]], seconds: float
    ) -> tuple[list[RequestRecord], float]:
        """Run robots until the other clients finish, at least for `seconds`. Returns all records and the CPU time."""
        robots = [asyncio.create_task(robot) for robot in self._robots()]
        records = await clients
        if robots and seconds < inf:
            await asyncio.sleep(seconds - self._now())
        self._stop.set()
        records += await asyncio.gather(*robots)
        ordered = sorted((record for group in records for record in group), key=lambda record: record.due_at)
        return ordered, time.process_time() - self._cpu_started_at

    def _robots(self) -> Iterator[Coroutine[Any, Any, list[RequestRecord]]]:
        """One coroutine per robot, each with a random phase in its period."""
        traffic = self._workload.get(ROBOT, Traffic(0))
        draw = Random(f"{self._seed}/robots")
        for _ in range(1 if traffic.number is None else int(traffic.number)):
            yield RobotClient(self._server, traffic, self._started_at).run(draw.random() / traffic.hz, self._stop)

    async def _send(self, due: float, kind: str, overrides: Mapping[str, Any]) -> RequestRecord:
        traffic, rng = self._workload[kind], self._rngs[kind]
        text = replayed_text(overrides) or prompts.sample_prompt(rng)
        params = {**traffic.params, **replayed_params(kind, overrides)}
        body = REQUEST_KINDS[kind].make_request(text, rng, overrides.get("model", traffic.model), params)
        record = RequestRecord(kind, due, due)
        headers = self._server.headers(traffic.server_slo or overrides.get("slo", ""))
        return await send_request(self._server, REQUEST_KINDS[kind], body, headers, record, self._started_at)

    def _reset(self) -> None:
        self._rngs = {kind: Random(f"{self._seed}/{kind}/{self._runs}") for kind in self._workload}
        self._runs += 1  # new prompts in each run, so that a prefix cache has not seen them
        self._stop.clear()
        self._cpu_started_at = time.process_time()
        self._started_at = time.perf_counter()

    def _now(self) -> float:
        return time.perf_counter() - self._started_at
