"""`mstar top`: what a running server does, as a table that stays up to date, like `top` does for processes.

All figures come from `/ready` and `/metrics`, of which any other monitor can be made. It changes nothing there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from mstar.errors import LoadError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

REFRESH_S = 1.0
WINDOW_SAMPLES = 30
"""Over how many looks figures are taken."""
ONCE_SAMPLE_S = 5.0
"""For how long it looks before it prints one table: a server asks its processes only every two seconds."""
HTTP_TIMEOUT_S = 5.0
PROCESS_COLUMNS = {
    "mstar_process_requests": "requests",
    "mstar_queue_length": "queue",
    "mstar_streams_open": "streams",
    "mstar_ready_calls": "ready",
    "mstar_running_batches": "running",
    "mstar_states": "states",
    "mstar_exported_states": "exports",
    "mstar_early_messages": "early",
    "mstar_out_of_order_emissions": "out of order",
    "mstar_unreleased_attempts": "unreleased",
    "mstar_workers_starting": "starting",
    "mstar_workers_draining": "draining",
    "mstar_workers_stopping": "stopping",
    "mstar_frames_decoding": "decoding",
    "mstar_shm_slots": "slots",
    "mstar_shm_bytes": "slot bytes",
    "mstar_process_restarts_total": "restarts",
}
"""Columns of the process table, by metric. Metrics that matter only in the search for a leak are left out."""

Labels = tuple[tuple[str, str], ...]


def add_top(commands: Any) -> None:
    """Add the command to a parser."""
    text = "watch a running server: requests, processes and ops, as they are now"
    top = commands.add_parser("top", help=text, description=text)
    top.add_argument("--url", default="http://127.0.0.1:8000", help="the server (http://127.0.0.1:8000)")
    top.add_argument("--key", default="", help="its key, if it has keys")
    top.add_argument("--once", action="store_true", help="print one table and end")
    top.set_defaults(run=_top)


def _top(options: argparse.Namespace) -> None:
    from rich.console import Console  # only who watches needs it
    from rich.live import Live

    console = Console()
    watch = MetricsHistory(options.url.rstrip("/"), options.key)
    watch.sample()
    if options.once:
        time.sleep(ONCE_SAMPLE_S)
        watch.sample()
        console.print(watch.table())
        return
    try:
        with Live(watch.table(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_S)
                watch.sample()
                live.update(watch.table(), refresh=True)
    except KeyboardInterrupt:
        return


# ---------------------------------------------------------------- figures
@dataclass(frozen=True, slots=True)
class MetricsSample:
    """All figures of one moment."""

    taken_at: float
    phase: str
    samples: dict[str, dict[Labels, float]]
    """By name and labels."""

    def series(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """The figures of a name, each with its labels."""
        return ((dict(labels), value) for labels, value in self.samples.get(name, {}).items())


class MetricsHistory:
    """The last looks at a server."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._samples: deque[MetricsSample] = deque(maxlen=WINDOW_SAMPLES + 1)

    def sample(self) -> None:
        """Take the figures of now. Raises LoadError if there is no server."""
        phase = json.loads(self._fetch("/ready"))["phase"]
        self._samples.append(MetricsSample(time.monotonic(), phase, _parse_metrics(self._fetch("/metrics").decode())))

    def _fetch(self, path: str) -> bytes:
        try:
            with urlopen(Request(self.url + path, headers=self._headers), timeout=HTTP_TIMEOUT_S) as answer:
                return answer.read()
        except HTTPError as error:
            if error.code == 503:  # it is not ready, and says so
                return error.read()
            fix = "give --key" if error.code == 401 else "give --url of a server of this version"
            raise LoadError(f"{self.url}{path} answers {error.code}\n  fix: {fix}") from error
        except (URLError, OSError) as error:
            why = getattr(error, "reason", error)
            raise LoadError(f"no server at {self.url}: {why}\n  fix: start one, or give --url") from error

    @property
    def latest(self) -> MetricsSample:
        """The last look."""
        return self._samples[-1]

    def rate(self, name: str, labels: Labels) -> float:
        """How much a figure grows in a second."""
        first, last = self._samples[0], self._samples[-1]
        grown = last.samples.get(name, {}).get(labels, 0.0) - first.samples.get(name, {}).get(labels, 0.0)
        return grown / max(last.taken_at - first.taken_at, 1e-9)

    def rates(self, name: str, *by: str) -> dict[tuple[str, ...], float]:
        """How much a name's figures grow in a second, added up by some labels."""
        found = defaultdict[tuple[str, ...], float](float)
        for labels in self.latest.samples.get(name, {}):
            known = dict(labels)
            found[tuple(known.get(one, "") for one in by)] += self.rate(name, labels)
        return found

    def quantile(self, name: str, labels: dict[str, str], fraction: float) -> float | None:
        """Below what so large a share of a histogram's new figures lies; None if there are none."""
        counts = {
            float(known["le"].replace("+Inf", "inf")): self.rate(f"{name}_bucket", tuple(sorted(known.items())))
            for known, _ in self.latest.series(f"{name}_bucket")
            if all(known.get(key) == value for key, value in labels.items())
        }
        return interpolate_quantile(counts, fraction)

    def table(self) -> RenderableType:
        """Everything, for a terminal."""
        from rich.console import Group
        from rich.text import Text

        live = next((value for _, value in self.latest.series("mstar_requests_in_progress")), 0.0)
        seconds = self.latest.taken_at - self._samples[0].taken_at
        head = Text.assemble(
            ("mstar", "bold"),
            f"  {self.url}  ",
            (self.latest.phase, "green" if self.latest.phase == "ready" else "yellow"),
        )
        head.append(f"  {live:.0f} requests live  over the last {seconds:.0f} s")
        parts = [_models_table(self), _processes_table(self), _ops_table(self)]
        return Group(head, "", *(part for part in parts if part.row_count))


def interpolate_quantile(counts: dict[float, float], fraction: float) -> float | None:
    """Below what such a share lies, by the counts below some bounds. In between it is taken to be even."""
    total = counts.get(inf, 0.0)
    if total <= 0:
        return None
    below, low = 0.0, 0.0
    for bound, count in sorted(counts.items()):
        if count >= total * fraction:
            if bound == inf:
                return low
            return low + (bound - low) * (total * fraction - below) / (count - below)
        below, low = count, bound
    return low


def _parse_metrics(text: str) -> dict[str, dict[Labels, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    found = defaultdict[str, dict[Labels, float]](dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return found


# ---------------------------------------------------------------- tables
def _table(title: str, left: int, *columns: str) -> Table:
    """A table of which so many columns are words, and the others numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold cyan", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", no_wrap=True)
    return table


def _models_table(watch: MetricsHistory) -> Table:
    table = _table("models", 1, "model", "requests/s", "first p50", "first p99", "emissions/s")
    emitted = watch.rates("mstar_emissions_total", "model", "kind")
    for (model,), rate in sorted(watch.rates("mstar_time_to_first_output_seconds_count", "model").items()):
        middle, late = (watch.quantile("mstar_time_to_first_output_seconds", {"model": model}, p) for p in (0.5, 0.99))
        kinds = ", ".join(f"{each:.0f} {kind}" for (of, kind), each in sorted(emitted.items()) if of == model and each)
        table.add_row(model, f"{rate:.1f}", _format_seconds(middle), _format_seconds(late), kinds or "–")
    return table


def _processes_table(watch: MetricsHistory) -> Table:
    def by_process(metric: str) -> dict[str, float]:
        sums = defaultdict[str, float](float)
        for labels, value in watch.latest.series(metric):
            sums[labels["process"]] += value
        return sums

    columns = {title: by_process(metric) for metric, title in PROCESS_COLUMNS.items()}
    used, pages = by_process("mstar_kv_pages_used"), by_process("mstar_kv_pages")
    shown = {title: values for title, values in columns.items() if any(values.values())}
    table = _table("processes", 1, "process", *(["pages"] if pages else []), *shown)
    for process in sorted({process for values in (*columns.values(), pages) for process in values}):
        row = [f"{used[process]:.0f}/{pages[process]:.0f}" if pages[process] else "–"] if pages else []
        cells = (f"{values[process]:.0f}" if process in values else "–" for values in shown.values())
        table.add_row(process, *row, *cells)
    return table


def _ops_table(watch: MetricsHistory) -> Table:
    table = _table("ops", 3, "model", "op", "worker", "calls/s", "batch", "busy", "wait")
    by = ("model", "component", "op", "worker")
    calls, batches, busy, wait = (
        watch.rates(f"mstar_op_{what}_total", *by) for what in ("calls", "batches", "seconds", "wait_seconds")
    )
    ran = {key: rate for key, rate in calls.items() if rate}
    for key, rate in sorted(ran.items(), key=lambda one: -busy.get(one[0], 0.0)):
        model, component, op, worker = key
        batch = f"{rate / batches[key]:.1f}" if batches.get(key) else "–"
        late = _format_seconds(wait.get(key, 0.0) / rate)
        table.add_row(model, f"{component}.{op}", worker, f"{rate:.1f}", batch, f"{busy.get(key, 0.0):.0%}", late)
    return table


def _format_seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"
