"""Game day: mixed load on a real server while faults come from a seeded list, and a judge of what was promised.

1. Start `mstar serve` with a manifest, API keys, models with published weights and toy models; take reference texts.
2. Run the load (bench/game_day/load.py). Inject the faults of the seed (schedule.py, faults.py), one after another.
3. Stop the load, look for what is left, and stop the server.
4. Judge every promise (promises.py) and write docs/game-day.md with a picture of the run (report.py, timeline.py).

Workload: SmolLM2-135M-Instruct, Hibari and, from five minutes on, Whisper tiny.en, with published weights; toy models
for texts that are known at every step. It stands for a small deployment with several tenants on one machine.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM

from bench.claims import Claim, Row, print_table
from bench.game_day.client import Request, send
from bench.game_day.faults import FAULTS, Fault, fault_specs
from bench.game_day.load import Kind, Load
from bench.game_day.observations import FaultRecord, Observations, Probe, Shutdown
from bench.game_day.promises import judge
from bench.game_day.report import write_report
from bench.game_day.schedule import PlannedFault, plan_faults
from bench.game_day.server import Server
from bench.repository import ROOT

DEFAULT_MINUTES = 30.0
SHORT_MINUTES = 5.0
"""Minutes from which on all models with published weights are served, and their workers are killed too."""
OVERHEAD_S = 30.0
"""Seconds for the start, the end of the load and the shutdown of a run, beside its minutes."""
START_TIMEOUT_S = 120.0
SETTLE_TIMEOUT_S = 6.0
"""Seconds in which running requests end after the load, and their resources are freed."""
PROBE_INTERVAL_S, PROBE_TIMEOUT_S = 0.5, 5.0
SAMPLE_INTERVAL_S = 0.25
SHUTDOWN_TIMEOUT_S = 25.0
RESOURCES = (
    *("mstar_process_requests", "mstar_streams_open", "mstar_queue_length", "mstar_ready_calls", "mstar_states"),
    *("mstar_engine_states", "mstar_exported_states", "mstar_kv_pages_used", "mstar_shm_slots"),
)
"""Metrics that must be 0 without requests."""


def game_day(minutes: float = DEFAULT_MINUTES, seed: int | None = None) -> Claim:
    """Run a game day, judge it, and write its report."""
    began = time.monotonic()
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="game-day-") as folder:
        day = GameDay(Path(folder), minutes, seed, began)
        seen = asyncio.run(day.run())
        log = day.server_log()
    judgment = judge(seen)
    write_report(ROOT, seen, judgment, datetime.now(UTC).strftime("%Y-%m-%d %H:%M"))
    for name, verdict in judgment.verdicts.items():
        state = "kept" if verdict.is_kept else "BROKEN" if verdict.checked else "not checked"
        print(f"{name:16} {state:12} {verdict.checked:6} observations")
        for line in verdict.broken[:5]:
            print(f"    {line}")
        if len(verdict.broken) > 5:
            print(f"    and {len(verdict.broken) - 5} more")
    if judgment.share < 1:
        path = Path(tempfile.gettempdir(), f"game-day-{seed}.log")
        path.write_bytes(log)
        print(f"log of the server: {path}")
    injected = [fault for fault in seen.faults if not fault.skipped]
    print_table(
        [
            Row("server ready", "s", [seen.start_s]),
            Row("load", "s", [seen.load_s]),
            Row("requests", "requests", [len(seen.requests)]),
            Row("faults", "faults", [len(injected)]),
            Row("longest pause of a response", "s", [max(one.longest_gap_s for one in seen.requests)]),
        ]
    )
    share = round(judgment.share, 3)
    details = {
        "minutes": minutes,
        "seed": seed,
        "kept": len(judgment.kept),
        "checked": len(judgment.checked),
        "broken": sorted(set(judgment.checked) - set(judgment.kept)),
        "requests": len(seen.requests),
        "faults": [fault.name for fault in injected],
        "skipped": [fault.name for fault in seen.faults if fault.skipped],
    }
    text = "share of the promises of docs/runtime.md that are kept under mixed load while faults are injected"
    return Claim(text, share, 1.0, not details["broken"] and bool(judgment.checked), details)


class GameDay:
    """One run."""

    def __init__(self, folder: Path, minutes: float, seed: int, began: float) -> None:
        is_short = minutes < SHORT_MINUTES
        self._real_models: tuple[str, ...] = ("chat", "voice") if is_short else ("chat", "voice", "asr")
        self._reloaded: tuple[str, ...] = () if is_short else self._real_models
        """Models with published weights whose workers are killed: a reload must fit into a slot."""
        self._seen = Observations(seed, minutes, request_timeout_s=20.0 if is_short else 120.0)
        self._deadline = began + minutes * 60 + OVERHEAD_S
        self._began = began
        self._server = Server(folder, self._real_models, self._seen.request_timeout_s)
        self._load = Load(self._server, self._real_models, seed, self._seen.request_timeout_s)

    async def run(self) -> Observations:
        """Start, load, inject, stop."""
        try:
            await self._start()
            run_directory = self._server.open_run_directory()
            await self._run_load()
            await self._shut_down(run_directory)
        finally:
            self._server.close()
        self._seen.requests = self._load.records
        self._seen.rollouts = self._server.rollouts(self._load.origin)
        return self._seen

    def server_log(self) -> bytes:
        """Everything that the server wrote to its log."""
        return self._server.log_path.read_bytes()

    async def _start(self) -> None:
        probing = asyncio.create_task(self._probe_start())
        await asyncio.to_thread(self._server.wait_ready, START_TIMEOUT_S)
        self._seen.start_s = time.monotonic() - self._began
        probing.cancel()
        print(f"ready after {self._seen.start_s:.1f} s at port {self._server.port}, seed {self._seen.seed}", flush=True)
        await self._load.take_references()

    async def _probe_start(self) -> None:
        """Look at `/ready` while the server starts."""
        while not self._server.port:
            await asyncio.sleep(PROBE_INTERVAL_S)
        while True:
            self._seen.probes.append(await self._probe())
            await asyncio.sleep(PROBE_INTERVAL_S)

    # ---------------------------------------------------------------- load
    async def _run_load(self) -> None:
        seen, load = self._seen, self._load
        # The faults follow from the seed and the minutes alone; a slow start cuts the last ones.
        faults = plan_faults(seen.seed, seen.minutes * 60 - OVERHEAD_S / 2, fault_specs(self._reloaded))
        left_s = self._deadline - time.monotonic() - SETTLE_TIMEOUT_S - OVERHEAD_S / 5
        load.begin()
        seen.samples.append(self._server.sample(load.clock()))
        observing = [asyncio.create_task(one) for one in (self._observe_processes(), self._observe_probes())]
        loops = load.tasks()
        await self._inject_all(faults, min(seen.minutes * 60, left_s))
        seen.load_s = load.clock()
        load.stop()
        _, running = await asyncio.wait(loops, timeout=SETTLE_TIMEOUT_S / 2)
        for task in running:  # endless requests: the client leaves
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        seen.leftovers = await self._wait_idle()
        seen.samples.append(self._server.sample(load.clock()))
        for task in observing:
            task.cancel()

    async def _inject_all(self, faults: Sequence[PlannedFault], load_s: float) -> None:
        clock = self._load.clock
        for planned in faults:
            await asyncio.sleep(max(0.0, planned.at - clock()))
            if clock() + planned.seconds > load_s:
                reason = "the load ended before: the server started slowly, or an earlier fault took long"
                self._record(FaultRecord(planned.name, planned.target, clock(), clock(), skipped=reason))
                continue
            await self._inject(FAULTS[planned.name](self._server, self._load, planned))
        await asyncio.sleep(max(0.0, load_s - clock()))

    async def _inject(self, fault: Fault) -> None:
        clock, planned = self._load.clock, fault.planned
        begun = clock()
        if reason := fault.reason_against():
            self._record(FaultRecord(planned.name, planned.target, begun, begun, skipped=reason))
            return
        try:
            await fault.apply()
        except ProcessLookupError as error:
            self._record(FaultRecord(planned.name, planned.target, begun, clock(), skipped=str(error)))
            return
        try:
            await asyncio.sleep(planned.seconds)
        finally:
            await fault.undo()
        self._record(FaultRecord(planned.name, planned.target, begun, clock(), fault.note))

    def _record(self, fault: FaultRecord) -> None:
        self._seen.faults.append(fault)
        end = f"skipped: {fault.skipped}" if fault.skipped else f"for {fault.ended - fault.begun:.1f} s. {fault.note}"
        print(f"{fault.begun:7.1f} s  {fault.name} of {fault.target} {end}", flush=True)

    # ---------------------------------------------------------------- observation
    async def _observe_processes(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            self._seen.samples.append(self._server.sample(self._load.clock()))

    async def _observe_probes(self) -> None:
        while True:
            self._seen.probes.append(await self._probe())
            await asyncio.sleep(PROBE_INTERVAL_S)

    async def _probe(self) -> Probe:
        begun = time.monotonic()
        health, _ = await self._get("/health")
        health_s = time.monotonic() - begun
        ready, body = await self._get("/ready")
        return Probe(begun - self._load.origin, health, health_s, ready, body)

    async def _get(self, path: str) -> tuple[int, str]:
        """Status, and the phase if the body has one."""
        request = Request("GET", path, self._server.keys["operator"])
        try:
            answer = await asyncio.wait_for(send(self._server.port, request), PROBE_TIMEOUT_S)
        except (OSError, TimeoutError):
            return 0, ""
        return answer.status, _phase(bytes(answer.body))

    async def _wait_idle(self) -> dict[str, float]:
        """Resource counts that are not 0 some seconds after the last request."""
        until = time.monotonic() + SETTLE_TIMEOUT_S / 2
        while left := await self._resources():
            if time.monotonic() > until:
                break
            await asyncio.sleep(PROBE_INTERVAL_S)
        return left

    async def _resources(self) -> dict[str, float]:
        answer = await send(self._server.port, Request("GET", "/metrics", self._server.keys["operator"]))
        return nonzero_metrics(bytes(answer.body).decode(), RESOURCES)

    # ---------------------------------------------------------------- end
    async def _shut_down(self, run_directory: int) -> None:
        load, server = self._load, self._server
        kind = Kind("shutdown", "toy", "bob", 0.0, load.count("bob", 80, 0.02))
        chance = random.Random(self._seen.seed)
        running = [asyncio.create_task(load.record(kind, *kind.make(chance))) for _ in range(4)]
        await asyncio.sleep(0.5)
        begun = load.clock()
        server.processes()
        server.signal(SIGTERM)
        await asyncio.sleep(0.3)
        self._seen.probes.append(await self._probe())
        refused = await load.record(kind, *kind.make(chance))
        records = [await task for task in running]
        exit_code = await asyncio.to_thread(server.wait, SHUTDOWN_TIMEOUT_S)
        self._seen.shutdown = Shutdown(
            begun,
            load.clock() - begun,
            exit_code,
            refused,
            records,
            await asyncio.to_thread(server.left_processes),
            server.left_files(run_directory),
        )


def _phase(body: bytes) -> str:
    try:
        parsed = json.loads(body)
    except ValueError:
        return ""
    return str(parsed.get("phase", "")) if isinstance(parsed, dict) else ""


def nonzero_metrics(page: str, names: Sequence[str]) -> dict[str, float]:
    """The series of these metrics with a value other than 0."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line.partition("{")[0].partition(" ")[0] in names)
    return {series: float(value) for series, _, value in lines if float(value)}
