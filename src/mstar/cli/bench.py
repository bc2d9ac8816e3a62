"""`mstar bench`: a load on a running server, and what its clients saw of it.

The loop is closed: so many clients each ask, wait for the end of the answer, and ask again. So it tells how a server
does at its own pace, and not what it does when more comes than it can serve.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mstar.cli.conformance import samples
from mstar.errors import LoadError, MstarError, counted, listed

if TYPE_CHECKING:
    from mstar.client import AsyncClient

HEARD_S = 5.0
"""How long the sound is that is sent to be written down."""
TOKENS = 64
RATE = 24_000
COLUMNS = "{:>7} {:>5} {:>6} {:>7} {:>23} {:>17} {:>9} {:>8} {:>14}"
HEAD = ("clients", "ok", "failed", "req/s", "first ms p50/95/99", "gap ms p50/99", "tokens/s", "audio x", "RTF p50/95")


@dataclass(slots=True)
class Sample:
    """What one client saw of one answer."""

    seconds: float = 0.0
    first_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list[float])
    tokens: int = 0
    audio_s: float = 0.0
    """How long the sound is that was made, or written down."""
    error: str = ""


def add_bench(commands: Any) -> None:
    """Add the command to a parser."""
    text = "put a load on a running server, and say how its answers came"
    bench = commands.add_parser("bench", help=text, description=text)
    bench.add_argument("url", help="where the server is: http://host:port")
    bench.add_argument("--key", default="", help="an API key")
    bench.add_argument("--model", required=True)
    bench.add_argument("--surface", choices=[*STREAMS], default="chat", help="what is asked for (chat)")
    bench.add_argument("--concurrency", type=_levels, default=[1, 4, 16], help="how many clients, in turn (1,4,16)")
    bench.add_argument("--requests", type=int, default=32, help="how many requests for each number of clients (32)")
    bench.add_argument("--json", action="store_true", help="print JSON instead of a table")
    bench.set_defaults(run=_bench)


def _levels(text: str) -> list[int]:
    levels = [int(level) for level in text.split(",")]
    if min(levels) < 1:
        raise ValueError
    return levels


def _bench(options: argparse.Namespace) -> None:
    try:
        rows = asyncio.run(_levelled(options))
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[client]'") from error
    if options.json:
        told = {"url": options.url, "model": options.model, "surface": options.surface, "levels": rows}
        print(json.dumps(told, indent=2))
    errors = Counter({code: count for row in rows for code, count in row["errors"].items()})
    if errors:
        what = f"{counted(sum(errors.values()), 'request')} failed: {listed(errors)}"
        raise MstarError(f"{what}\n  fix: see the server's log, or ask with fewer clients")


async def _levelled(options: argparse.Namespace) -> list[dict[str, Any]]:
    from mstar.client import AsyncClient

    rows: list[dict[str, Any]] = []
    async with AsyncClient(options.url, options.key, patience_s=0.0) as client:
        await STREAMS[options.surface](client, options.model, 0).result()  # not counted: it may load something
        if not options.json:
            print(COLUMNS.format(*HEAD))
        for level in options.concurrency:
            rows.append(_row(level, *await _load(client, options, level)))
            if not options.json:
                print(_shown(rows[-1]), flush=True)
    return rows


async def _load(client: AsyncClient, options: argparse.Namespace, level: int) -> tuple[list[Sample], float]:
    """What so many clients saw, and how long it took in all."""
    numbers = iter(range(1, options.requests + 1))

    async def ask() -> list[Sample]:
        return [await _sample(client, options.surface, options.model, number) for number in numbers]

    begun = time.perf_counter()
    seen = await asyncio.gather(*(ask() for _ in range(level)))
    return [sample for own in seen for sample in own], time.perf_counter() - begun


async def _sample(client: AsyncClient, surface: str, model: str, number: int) -> Sample:
    from mstar.client import ClientError, Refused

    sample = Sample()
    begun = last = time.perf_counter()
    try:
        stream = STREAMS[surface](client, model, number)
        async for _ in stream:
            now = time.perf_counter()
            if sample.first_s:
                sample.gaps_s.append(now - last)
            else:
                sample.first_s = now - begun
            last = now
        result = await stream.result()
    except ClientError as error:
        sample.error = error.code if isinstance(error, Refused) else type(error).__name__
        return sample
    sample.seconds = time.perf_counter() - begun
    sample.first_s = sample.first_s or sample.seconds
    sample.tokens = result.usage.get("completion_tokens", 0)
    sample.audio_s = len(result.data) / 2 / RATE if surface == "speech" else result.usage.get("seconds", 0.0)
    return sample


def _chat(client: AsyncClient, model: str, number: int) -> Any:
    return client.chat(model, f"Tell me a story about the number {number}.", max_tokens=TOKENS, temperature=0)


def _speech(client: AsyncClient, model: str, number: int) -> Any:
    text = f"This is sentence number {number}, and it is said to see how fast that goes."
    return client.speech(model, text, response_format="pcm", sample_rate=RATE, seed=number)


def _transcriptions(client: AsyncClient, model: str, _: int) -> Any:
    return client.transcribe(model, samples.wav(HEARD_S))


STREAMS = {"chat": _chat, "speech": _speech, "transcriptions": _transcriptions}


# ---------------------------------------------------------------- figures
def _row(level: int, seen: Sequence[Sample], seconds: float) -> dict[str, Any]:
    good = [sample for sample in seen if not sample.error]
    return {
        "concurrency": level,
        "ok": len(good),
        "errors": dict(Counter(sample.error for sample in seen if sample.error)),
        "seconds": seconds,
        "requests_per_s": len(good) / seconds,
        "first_ms": _percentiles([sample.first_s * 1000 for sample in good]),
        "gap_ms": _percentiles([gap * 1000 for sample in good for gap in sample.gaps_s]),
        "tokens_per_s": sum(sample.tokens for sample in good) / seconds,
        "audio_s_per_s": sum(sample.audio_s for sample in good) / seconds,
        "rtf": _percentiles([sample.seconds / sample.audio_s for sample in good if sample.audio_s]),
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {f"p{part}": ordered[min(len(ordered) * part // 100, len(ordered) - 1)] for part in (50, 95, 99) if ordered}


def _shown(row: dict[str, Any]) -> str:
    def joined(name: str, form: str, *parts: str) -> str:
        return " ".join(format(row[name][part], form) for part in parts) if row[name] else "-"

    return COLUMNS.format(
        row["concurrency"],
        row["ok"],
        sum(row["errors"].values()),
        f"{row['requests_per_s']:.1f}",
        joined("first_ms", ".0f", "p50", "p95", "p99"),
        joined("gap_ms", ".1f", "p50", "p99"),
        f"{row['tokens_per_s']:.0f}" if row["tokens_per_s"] else "-",
        f"{row['audio_s_per_s']:.1f}" if row["audio_s_per_s"] else "-",
        joined("rtf", ".3f", "p50", "p95"),
    )
