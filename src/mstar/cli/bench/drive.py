"""Sends requests: by clients that wait for each answer, or at times that are fixed beforehand. It judges nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from math import inf
from random import Random
from typing import Any

from mstar.cli.bench import texts
from mstar.cli.bench.arrivals import Arrival
from mstar.cli.bench.exchange import Site, exchange
from mstar.cli.bench.kinds import KINDS
from mstar.cli.bench.records import Record, Run
from mstar.cli.bench.robots import Robot
from mstar.cli.bench.workload import ROBOT, Traffic, Workload

PAUSE_S = 1.0
"""How long a client waits that got no answer and was not told when to come again."""


class Driver:
    """Drives one server with one workload, one run at a time."""

    def __init__(self, site: Site, workload: Workload, seed: int) -> None:
        self._site = site
        self._workload = workload
        self._seed = seed
        self._runs = 0
        self._rngs: dict[str, Random] = {}
        self._begun = self._computed = 0.0
        self._over = asyncio.Event()

    async def warm_up(self, kind: str) -> Record:
        """One request of a kind, which is not counted: it may load something."""
        self._reset()
        if kind != ROBOT:
            return await self._ask(0.0, kind, {})
        robot = Robot(self._site, self._workload[ROBOT], self._begun)
        record = await robot.act(0.0)
        await robot.close()
        return record

    async def closed(self, clients: int, seconds: float, most: float) -> Run:
        """So many clients, who each ask again when they have their answer, for so long or until so many are asked."""
        self._reset()
        shares = {kind: one.number or 1.0 for kind, one in self._workload.items() if kind != ROBOT}
        draw, numbers = Random(f"{self._seed}/kinds"), count()

        async def ask() -> list[Record]:
            seen: list[Record] = []
            while shares and self._now() < seconds and next(numbers) < most:
                (kind,) = draw.choices([*shares], [*shares.values()])
                seen.append(await self._ask(self._now(), kind, {}))
                if seen[-1].error:  # who is turned away does not knock all the time
                    await asyncio.sleep(seen[-1].retry_after or PAUSE_S)
            return seen

        run = await self._run(asyncio.gather(*(ask() for _ in range(clients))), seconds)
        return Run(float(clients), "clients", *run)

    async def open(self, load: float, arrivals: Sequence[Arrival], seconds: float) -> Run:
        """Each request at its time, whatever became of those before it. Robots ask for so many seconds."""
        self._reset()

        async def send() -> list[list[Record]]:
            asking: list[asyncio.Task[Record]] = []
            for one in arrivals:
                if (ahead := one.at - self._now()) > 0:
                    await asyncio.sleep(ahead)
                asking.append(asyncio.create_task(self._ask(one.at, one.kind, one.told)))
            return [[await one for one in asking]]

        unit = "robots" if self._workload.keys() == {ROBOT} else "req/s"
        return Run(load, unit, *await self._run(send(), seconds), window_s=seconds if seconds < inf else 0.0)

    async def _run(self, asking: Awaitable[list[list[Record]]], seconds: float) -> tuple[list[Record], float]:
        """Robots beside the others: until those have their answers, and at least for so long. All records, CPU time."""
        robots = [asyncio.create_task(one) for one in self._robots()]
        records = await asking
        if robots and seconds < inf:
            await asyncio.sleep(seconds - self._now())
        self._over.set()
        records += await asyncio.gather(*robots)
        found = sorted((one for own in records for one in own), key=lambda record: record.due)
        return found, time.process_time() - self._computed

    def _robots(self) -> Iterator[Coroutine[Any, Any, list[Record]]]:
        """Not all at once: each has a moment of its own in its period."""
        traffic = self._workload.get(ROBOT, Traffic(0))
        draw = Random(f"{self._seed}/robots")
        for _ in range(1 if traffic.number is None else int(traffic.number)):
            yield Robot(self._site, traffic, self._begun).run(draw.random() / traffic.hz, self._over)

    async def _ask(self, due: float, kind: str, told: Mapping[str, Any]) -> Record:
        traffic, rng = self._workload[kind], self._rngs[kind]
        text = told.get("text") or texts.text(rng)
        wishes = {**traffic.wishes, **told.get("body", {})}
        asked = KINDS[kind].ask(text, rng, told.get("model", traffic.model), wishes)
        record = Record(kind, due, due)
        headers = self._site.headers(traffic.pace)
        return await exchange(self._site, KINDS[kind], asked, headers, record, self._begun)

    def _reset(self) -> None:
        self._rngs = {kind: Random(f"{self._seed}/{kind}/{self._runs}") for kind in self._workload}
        self._runs += 1  # a server that remembers prompts has not seen those of the next run
        self._over.clear()
        self._computed = time.process_time()
        self._begun = time.perf_counter()

    def _now(self) -> float:
        return time.perf_counter() - self._begun
