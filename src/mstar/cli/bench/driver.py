"""Sends requests: by clients that wait for each answer, or at times that are fixed beforehand. It judges nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from random import Random
from typing import Any

from mstar.cli.bench import prompts
from mstar.cli.bench.arrivals import Arrival
from mstar.cli.bench.http_client import ServerAddress, send_request
from mstar.cli.bench.records import LoadRun, RequestRecord
from mstar.cli.bench.request_kinds import REQUEST_KINDS
from mstar.cli.bench.robot_client import RobotClient
from mstar.cli.bench.workload import ROBOT, Traffic, Workload

RETRY_PAUSE_S = 1.0
"""How long a client waits that got no answer and was not told when to come again."""


class Driver:
    """Drives one server with one workload, one run at a time."""

    def __init__(self, site: ServerAddress, workload: Workload, seed: int) -> None:
        self._site = site
        self._workload = workload
        self._seed = seed
        self._runs = 0
        self._rngs: dict[str, Random] = {}
        self._started_at = self._cpu_started_at = 0.0
        self._stop = asyncio.Event()

    async def warm_up(self, kind: str) -> RequestRecord:
        """One request of a kind, which is not counted: it may load something."""
        self._reset()
        if kind != ROBOT:
            return await self._send(0.0, kind, {})
        robot = RobotClient(self._site, self._workload[ROBOT], self._started_at)
        record = await robot.act(0.0)
        await robot.close()
        return record

    async def run_closed_loop(self, clients: int, seconds: float, max_requests: float) -> LoadRun:
        """So many clients, who each ask again when they have their answer, for so long or until so many are asked."""
        self._reset()
        shares = {kind: one.number or 1.0 for kind, one in self._workload.items() if kind != ROBOT}
        draw, numbers = Random(f"{self._seed}/kinds"), count()

        async def ask() -> list[RequestRecord]:
            seen: list[RequestRecord] = []
            while shares and self._now() < seconds and next(numbers) < max_requests:
                (kind,) = draw.choices([*shares], [*shares.values()])
                seen.append(await self._send(self._now(), kind, {}))
                if seen[-1].error:  # who is turned away does not knock all the time
                    await asyncio.sleep(seen[-1].retry_after or RETRY_PAUSE_S)
            return seen

        run = await self._run(asyncio.gather(*(ask() for _ in range(clients))), seconds)
        return LoadRun(float(clients), "clients", *run)

    async def run_open_loop(self, load: float, arrivals: Sequence[Arrival], seconds: float) -> LoadRun:
        """Each request at its time, whatever became of those before it. Robots ask for so many seconds."""
        self._reset()

        async def send() -> list[list[RequestRecord]]:
            asking: list[asyncio.Task[RequestRecord]] = []
            for one in arrivals:
                if (ahead := one.at - self._now()) > 0:
                    await asyncio.sleep(ahead)
                asking.append(asyncio.create_task(self._send(one.at, one.kind, one.overrides)))
            return [[await one for one in asking]]

        unit = "robots" if self._workload.keys() == {ROBOT} else "req/s"
        return LoadRun(load, unit, *await self._run(send(), seconds), window_s=seconds if seconds < inf else 0.0)

    async def _run(
        self, asking: Awaitable[list[list[RequestRecord]]], seconds: float
    ) -> tuple[list[RequestRecord], float]:
        """Robots beside the others: until those have their answers, and at least for so long. All records, CPU time."""
        robots = [asyncio.create_task(one) for one in self._robots()]
        records = await asking
        if robots and seconds < inf:
            await asyncio.sleep(seconds - self._now())
        self._stop.set()
        records += await asyncio.gather(*robots)
        found = sorted((one for own in records for one in own), key=lambda record: record.due_at)
        return found, time.process_time() - self._cpu_started_at

    def _robots(self) -> Iterator[Coroutine[Any, Any, list[RequestRecord]]]:
        """Not all at once: each has a moment of its own in its period."""
        traffic = self._workload.get(ROBOT, Traffic(0))
        draw = Random(f"{self._seed}/robots")
        for _ in range(1 if traffic.number is None else int(traffic.number)):
            yield RobotClient(self._site, traffic, self._started_at).run(draw.random() / traffic.hz, self._stop)

    async def _send(self, due: float, kind: str, overrides: Mapping[str, Any]) -> RequestRecord:
        traffic, rng = self._workload[kind], self._rngs[kind]
        text = overrides.get("text") or prompts.sample_prompt(rng)
        wishes = {**traffic.params, **overrides.get("body", {})}
        asked = REQUEST_KINDS[kind].make_request(text, rng, overrides.get("model", traffic.model), wishes)
        record = RequestRecord(kind, due, due)
        headers = self._site.headers(traffic.server_slo)
        return await send_request(self._site, REQUEST_KINDS[kind], asked, headers, record, self._started_at)

    def _reset(self) -> None:
        self._rngs = {kind: Random(f"{self._seed}/{kind}/{self._runs}") for kind in self._workload}
        self._runs += 1  # a server that remembers prompts has not seen those of the next run
        self._stop.clear()
        self._cpu_started_at = time.process_time()
        self._started_at = time.perf_counter()

    def _now(self) -> float:
        return time.perf_counter() - self._started_at
