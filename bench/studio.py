"""The studio: size of its files and of a page visit, first paint, frame rate under load, and the cost of a viewer.

A headless browser without a graphics card shows the page of a real server. The cost of a viewer is measured beside
SmolLM2 with its real weights, which keeps all cores busy: windows of time with a viewer that reads `/v1/events` and
without, in turns. It is reported twice: as throughput that is left, and as CPU time that is left.

Workload: 200 requests to a toy model over three workers whose ops sleep 50 ms (bench/models/three_workers.py), as many
as a busy deployment of one host has; SmolLM2-135M with 16 streams of 160 tokens for the cost of a viewer.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from bench.claims import Claim, Row, paired_ratio, print_table
from bench.http.client import model_file, serve
from bench.http.load_generator import LoadSpec, run_load
from bench.http.overhead import CONCURRENCY, QUESTIONS
from bench.models.three_workers import PLACEMENT

STATIC = Path(__file__).parents[1] / "src" / "mstar" / "studio" / "static"
MAX_PAGE_KB, MAX_PAINT_S, MIN_FPS, MIN_LEFT = 80, 1.0, 30, 0.98
"""Limits: all files and a visit, compressed; median first paint; frame rate; throughput and CPU left by a viewer."""
PAINTS, LIVE, WATCHED_S = 5, 200, 8.0
PAIRS, WINDOW_S, SETTLE_S = 10, 2.0, 0.3
"""Number of windows with a viewer, and without; the first moment of each is dropped."""
STEP_S = 0.02
"""Tokens that arrive within this time are of one step."""
FRAMES = """seconds => new Promise(done => {
    let frames = 0, begun = performance.now();
    const next = now => { frames += 1; now - begun < 1000 * seconds ? requestAnimationFrame(next)
                                                                   : done(1000 * frames / (now - begun)); };
    requestAnimationFrame(next);
})"""
PAINT = """new Promise(done => new PerformanceObserver(list =>
    list.getEntriesByName('first-contentful-paint').forEach(one => done(one.startTime)))
    .observe({type: 'paint', buffered: true}))"""
LOADED = """performance.getEntriesByType('navigation').concat(performance.getEntriesByType('resource'))
    .filter(one => !new URL(one.name).pathname.startsWith('/v1/')).map(one => one.encodedBodySize)"""


# ---------------------------------------------------------------- the page
def page_size(url: str) -> float:
    """Compressed kB of all files of the page."""
    files = [path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()]
    return sum(_transfer_size(url + ("/" if name == "index.html" else f"/studio/{name}")) for name in files) / 1000


def _transfer_size(address: str) -> int:
    requests = urllib.request.Request(address, headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(requests) as answer:
        return len(answer.read())


def first_paints(browser: Any, url: str) -> tuple[list[float], list[float]]:
    """First contentful paint in seconds, and kB loaded by a visit with an empty cache, for each visit."""
    paints, loaded = [], []
    for _ in range(PAINTS):
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(f"{url}/#/graph")
        paints.append(page.evaluate(PAINT) / 1000)
        page.get_by_role("navigation").first.wait_for()
        loaded.append(sum(page.evaluate(LOADED)) / 1000)
        context.close()
    return paints, loaded


def frames(browser: Any, url: str) -> tuple[float, float]:
    """Frames per second of the graph under load, and the smallest number of live requests."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    port = int(url.rpartition(":")[2])
    asking = threading.Thread(target=run_load, args=(LoadSpec(port, "60 0.05", WATCHED_S + 6, concurrency=LIVE),))
    asking.start()
    try:
        page.goto(f"{url}/#/graph/model")
        page.locator("canvas").first.wait_for()
        time.sleep(4)  # until all have come
        live = [_live(url)]
        shown = page.evaluate(FRAMES, WATCHED_S)
        live.append(_live(url))
    finally:
        asking.join()
        context.close()
    return shown, min(live)


def _live(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("mstar_responses_in_progress"))


def measure_page() -> dict[str, list[float]]:
    """Everything that needs a browser."""
    from tests.studio.browser import open_browser, start_server

    manifest = f'[models.model]\nmodel = "{model_file("three_workers")}"\n{PLACEMENT}'
    with (
        tempfile.TemporaryDirectory() as folder,
        start_server(Path(folder), manifest, "--max-running-requests", "256") as server,
    ):
        server.wait_ready()
        with open_browser() as browser:
            paints, loaded = first_paints(browser, server.url)
            shown, live = frames(browser, server.url)
        return {"size": [page_size(server.url)], "loaded": loaded, "paints": paints, "frames": [shown], "live": [live]}


# ---------------------------------------------------------------- a viewer
VIEWER = """
import sys, urllib.request
answer = urllib.request.urlopen(sys.argv[1] + "/v1/events")
print(answer.readline(), flush=True)
while answer.readline():
    pass
"""


@contextmanager
def viewer(url: str) -> Iterator[None]:
    """A viewer in its own process that reads the live feed, as a page does."""
    reader = subprocess.Popen([sys.executable, "-S", "-c", VIEWER, url], stdout=subprocess.PIPE)
    assert reader.stdout is not None
    try:
        reader.stdout.readline()  # its own start is not what is measured
        yield
    finally:
        reader.kill()
        reader.communicate()


def cpu_seconds(front: int) -> float:
    """CPU seconds of the front end and its children except the worker, which takes whatever is left."""
    children = [pid for path in Path(f"/proc/{front}/task").glob("*/children") for pid in path.read_text().split()]
    used = [sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])) for pid in children]
    own = sum(map(int, Path(f"/proc/{front}/stat").read_text().rpartition(")")[2].split()[11:13]))
    return (own + sum(used) - max(used)) / os.sysconf("SC_CLK_TCK")


class Stream(asyncio.Protocol):
    """A client that asks again and again, and notes when tokens come."""

    def __init__(self, question: str, came: list[float]) -> None:
        body = {"model": "model", "stream": True, "temperature": 0, "max_tokens": 160}
        content = json.dumps(body | {"messages": [{"role": "user", "content": question}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n"
        self._request = f"{head}Content-Type: application/json\r\n\r\n".encode() + content
        self._arrivals = came

    def connection_made(self, transport: Any) -> None:
        """Ask."""
        self.transport = transport
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note when each token came; at the end ask the same again."""
        self._arrivals.extend([time.perf_counter()] * data.count(b'"content":'))
        if b"data: [DONE]" in data:
            self.transport.write(self._request)


def rate(came: list[float]) -> float:
    """Tokens a second, by whole steps: tokens come in heaps, and where a window cuts between two must not count."""
    first, last = came[0], came[-1]
    return sum(one > first + STEP_S for one in came) / (last - first)


async def throughput(port: int, front: int) -> dict[str, list[float]]:
    """Tokens a second, and processors that all but the worker take, window after window."""
    came, results = list[float](), {name: list[float]() for name in ("alone", "watched", "idle", "busy")}
    loop = asyncio.get_running_loop()
    made = [loop.create_connection(lambda one=one: Stream(one, came), "127.0.0.1", port) for one in QUESTIONS]
    connections = await asyncio.gather(*made)
    await asyncio.sleep(4)  # the first ones make what is made once

    async def window(speed: str, cost: str) -> None:
        await asyncio.sleep(SETTLE_S)
        came.clear()
        begun, before = time.perf_counter(), cpu_seconds(front)
        await asyncio.sleep(WINDOW_S)
        results[cost].append((cpu_seconds(front) - before) / (time.perf_counter() - begun))
        results[speed].append(rate(came))

    for pair in range(PAIRS):
        for is_watched in (False, True)[:: 1 if pair % 2 else -1]:
            with viewer(f"http://127.0.0.1:{port}") if is_watched else nullcontext():
                await window(*(("watched", "busy") if is_watched else ("alone", "idle")))
    for transport, _ in connections:
        transport.abort()
    return results


def viewer_cpu_share(rates: dict[str, list[float]]) -> float:
    """Share of all CPU time that a viewer takes."""
    more = [busy - idle for busy, idle in zip(rates["busy"], rates["idle"], strict=True)]
    return statistics.median(more) / (os.cpu_count() or 1)


# ---------------------------------------------------------------- the claim
def studio() -> Claim:
    """Measure the cost of a viewer, then the page."""
    with serve("smollm2") as (port, front):
        rates = asyncio.run(throughput(port, front))
    results = measure_page()
    print_table(
        [
            Row("all files of the page, compressed", "kB", results["size"]),
            Row("files loaded by a visit, compressed", "kB", results["loaded"]),
            Row("first contentful paint", "s", results["paints"]),
            Row(f"the graph with {LIVE} live requests", "frames/s", results["frames"]),
            Row(f"SmolLM2, {CONCURRENCY} streams, no viewer", "tokens/s", rates["alone"]),
            Row("  with a viewer", "tokens/s", rates["watched"]),
            Row("  with a viewer", "of it", [a / b for a, b in zip(rates["watched"], rates["alone"], strict=True)]),
            Row("CPUs of all processes but the worker, no viewer", "", rates["idle"]),
            Row("  with a viewer", "", rates["busy"]),
        ]
    )
    return studio_claim(
        {
            "all_files_kb": round(results["size"][0], 1),
            "visit_kb": round(max(results["loaded"]), 1),
            "first_paint_s": round(statistics.median(results["paints"]), 2),
            "frames_per_s": round(results["frames"][0], 1),
            "throughput_left_by_a_viewer": round(paired_ratio(rates["watched"], rates["alone"]), 3),
            "cpu_left_by_a_viewer": round(1 - viewer_cpu_share(rates), 3),
            "live_requests": round(results["live"][0]),
        }
    )


def studio_claim(figures: dict[str, float]) -> Claim:
    """The smallest of six ratios of a figure to its target."""
    ratios = {
        "all_files_kb": MAX_PAGE_KB / figures["all_files_kb"],
        "visit_kb": MAX_PAGE_KB / figures["visit_kb"],
        "first_paint_s": MAX_PAINT_S / figures["first_paint_s"],
        "frames_per_s": figures["frames_per_s"] / MIN_FPS,
        "throughput_left_by_a_viewer": figures["throughput_left_by_a_viewer"] / MIN_LEFT,
        "cpu_left_by_a_viewer": figures["cpu_left_by_a_viewer"] / MIN_LEFT,
    }
    value = round(min(ratios.values()), 2)
    more = figures | {"ratio_to_target": {name: round(ratio, 2) for name, ratio in ratios.items()}}
    claim = (
        f"all files of the studio and the files of a visit are at most {MAX_PAGE_KB} kB, the first paint is within "
        f"{MAX_PAINT_S:g} s, {LIVE} live requests are shown at {MIN_FPS} frames/s or more, and a viewer leaves "
        f"{MIN_LEFT:g} of the throughput and of the CPU; smallest ratio to its target"
    )
    is_met = min(ratios.values()) >= 1 and figures["live_requests"] >= 0.95 * LIVE
    return Claim(claim, value, 1.0, is_met, more)
