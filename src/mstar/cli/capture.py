"""`mstar capture`: record the traffic of a running server to a trace file, without the contents of requests.

The server publishes every request that ends (`GET /v1/traffic`). Several front ends have a stream each: the command
connects until it has one of all of them. The file can be replayed with the recorded times:

| against | command |
|---|---|
| a server or a twin | `mstar bench serve URL --trace FILE` |
| the capacity simulation | `mstar plan-capacity PROFILE --traffic FILE` |

The format is described in `mstar.cli.bench.arrivals`.
"""

from __future__ import annotations

import argparse
import json
import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mstar.errors import LoadError, MstarError, format_count

DEFAULT_MAX_BYTES = 100_000_000
MAX_CONNECTIONS_PER_FRONTEND = 20
"""Connections to try until each front end has one: the kernel distributes them at random."""
POLL_S = 0.2
"""Seconds between two looks at the clock."""
CONNECT_TIMEOUT_S = 60.0
"""Seconds without any byte before a stream counts as lost. The server sends a comment four times as often."""


def add_capture(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Record the traffic of a running server to a file, for replay with `bench serve --trace` and planning."
    capture = commands.add_parser("capture", help=text, description=text)
    add = capture.add_argument
    add("url", help="URL of the server: http://host:port.")
    add("-o", "--output", type=Path, required=True, help="Trace file to write, with a JSON object per request.")
    add("--key", default="", help="Operator key.")
    add("--seconds", type=float, default=inf, help="Seconds to record (default: until interrupted).")
    add("--requests", type=int, help="Number of requests after which it ends.")
    add(
        "--max-bytes",
        type=int,
        default=DEFAULT_MAX_BYTES,
        help="Size of the file at which it ends (default 100,000,000).",
    )
    add(
        "--contents",
        action="store_true",
        help="Record the texts of requests too, up to 32 KiB each. The server must run with --capture-text.",
    )
    capture.set_defaults(run=_capture)


def _capture(options: argparse.Namespace) -> None:
    try:
        options.output.touch(mode=0o600)  # who sends what, and when, is private
        with options.output.open("w") as file:
            recording = _record(options, file)
    except OSError as error:
        problem = f"{options.output}: cannot be written: {error.strerror}"
        raise LoadError(f"{problem}\n  fix: choose another path") from error
    kinds = ", ".join(f"{count} {kind}" for kind, count in recording.kinds.items()) or "no request"
    print(f"recorded {kinds} in {recording.seconds:.0f} s to {options.output}")
    if recording.lost:
        print(f"lost {format_count(recording.lost, 'request')}: this command or its disk was too slow")


@dataclass
class _Recording:
    """What was written."""

    kinds: Counter[str] = field(default_factory=Counter[str])
    lost: int = 0
    seconds: float = 0.0


def _record(options: argparse.Namespace, file: IO[str]) -> _Recording:
    recording, written = _Recording(), 0
    events = _connect(options)
    started_at, start_time = time.time(), time.monotonic()
    print(f"recording {options.url} to {options.output}; stop with ^C", flush=True)
    try:
        while (left := options.seconds - (time.monotonic() - start_time)) > 0:
            try:
                name, data = events.get(timeout=min(left, POLL_S))
            except queue.Empty:
                continue
            if name == "end":
                raise MstarError(f"the stream of {options.url} ended: {data}\n  fix: check that the server runs")
            if name == "lost":
                recording.lost += data["requests"]
            if name != "request":
                continue
            line = json.dumps(data | {"at": round(data["at"] - started_at, 6)}) + "\n"
            if written + len(line) > options.max_bytes:
                print(f"the file has its maximum size of {options.max_bytes:,} bytes")
                break
            if data["at"] >= started_at:  # it can have arrived before
                file.write(line)
                written += len(line)
                recording.kinds[data["kind"]] += 1
            if options.requests is not None and recording.kinds.total() >= options.requests:
                break
    except KeyboardInterrupt:
        pass
    recording.seconds = time.monotonic() - start_time
    return recording


# ---------------------------------------------------------------- streams
_Event = tuple[str, Any]


def _connect(options: argparse.Namespace) -> queue.SimpleQueue[_Event]:
    """A queue with the events of all front ends. Raises LoadError."""
    events = queue.SimpleQueue[_Event]()
    connected, wanted, tries = set[str](), 1, 0
    while len(connected) < wanted and tries < MAX_CONNECTIONS_PER_FRONTEND * wanted:
        tries += 1
        response = _open(options)
        stream = _read_events(response)
        name, start = next(stream, ("", {}))
        if name != "start":
            raise LoadError(f"{options.url} has no stream of traffic\n  fix: check the URL; it needs an mstar server")
        wanted = start["frontends"]
        if start["frontend"] in connected:
            response.close()
            continue
        connected.add(start["frontend"])
        threading.Thread(target=_forward, args=(stream, events), daemon=True).start()
    if len(connected) < wanted:
        problem = f"{len(connected)} of {wanted} front ends answered"
        raise LoadError(f"{problem}\n  fix: start the command again; connections are distributed at random")
    return events


def _open(options: argparse.Namespace) -> Any:
    url = f"{options.url.rstrip('/')}/v1/traffic" + ("?contents=true" if options.contents else "")
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    if not url.startswith(("http://", "https://")):
        raise LoadError(f"{options.url} is not an HTTP URL\n  fix: use the form http://host:port")
    try:
        return urlopen(Request(url, headers=headers), timeout=CONNECT_TIMEOUT_S)
    except HTTPError as error:
        message = json.loads(error.read() or b"{}").get("error", {}).get("message", str(error))
        raise LoadError(message.replace("; fix: ", "\n  fix: ")) from error
    except (URLError, OSError) as error:
        raise LoadError(
            f"no server at {options.url}: {error}\n  fix: check the URL, and that the server runs"
        ) from error


def _read_events(response: Any) -> Iterator[_Event]:
    """Name and data of each server-sent event."""
    name = ""
    for raw in response:
        head, _, content = raw.decode().rstrip("\n").partition(": ")
        if head == "event":
            name = content
        elif head == "data":
            yield name, json.loads(content)


def _forward(stream: Iterator[_Event], events: queue.SimpleQueue[_Event]) -> None:
    try:
        for event in stream:
            events.put(event)
    except OSError as error:
        events.put(("end", str(error)))
        return
    events.put(("end", "the server closed it"))
