"""`mstar top`: live view of a running server in the terminal: models, failing workers, processes and ops.

All values come from `/ready` and `/metrics`. It is read-only.
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
"""Number of samples that rates and quantiles cover."""
ONCE_SAMPLE_S = 5.0
"""Seconds between the two samples of `--once`. The server polls its processes every two seconds."""
HTTP_TIMEOUT_S = 5.0
LONG_BATCH_S = 10.0
"""Seconds after which a running batch is shown."""
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
    "mstar_process_resident_memory_bytes": "memory",
}
"""Columns of the process table, by metric. Metrics that matter only in the search for a leak are left out."""

Labels = tuple[tuple[str, str], ...]


def add_top(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Show live statistics of a running server: models, processes and ops."
    top = commands.add_parser("top", help=text, description=text)
    top.add_argument(
        "--url", default="http://127.0.0.1:8000", help="URL of the server (default http://127.0.0.1:8000)."
    )
    top.add_argument("--key", default="", help="API key.")
    top.add_argument("--once", action="store_true", help="Print the tables once and exit.")
    top.set_defaults(run=_top)


def _top(options: argparse.Namespace) -> None:
    from rich.console import Console  # only this command needs it
    from rich.live import Live

    console = Console()
    history = MetricsHistory(options.url.rstrip("/"), options.key)
    history.sample()
    if options.once:
        time.sleep(ONCE_SAMPLE_S)
        history.sample()
        console.print(history.table())
        return
    try:
        with Live(history.table(), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(REFRESH_S)
                history.sample()
                live.update(history.table(), refresh=True)
    except KeyboardInterrupt:
        return


# ---------------------------------------------------------------- metrics
@dataclass(frozen=True, slots=True)
class MetricsSample:
    """All metrics at one moment."""

    taken_at: float
    phase: str
    samples: dict[str, dict[Labels, float]]
    """Values by metric name and labels."""

    def series(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        """The series of a metric, as labels and value."""
        return ((dict(labels), value) for labels, value in self.samples.get(name, {}).items())


class MetricsHistory:
    """The latest metrics samples of a server."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._samples: deque[MetricsSample] = deque(maxlen=WINDOW_SAMPLES + 1)

    def sample(self) -> None:
        """Fetch a new sample. Raises LoadError if the server does not respond."""
        ready = json.loads(self._fetch("/ready"))
        phase = ready["phase"] + (f", rolling update {ready['rollout']['state']}" if "rollout" in ready else "")
        self._samples.append(MetricsSample(time.monotonic(), phase, _parse_metrics(self._fetch("/metrics").decode())))

    def _fetch(self, path: str) -> bytes:
        try:
            with urlopen(Request(self.url + path, headers=self._headers), timeout=HTTP_TIMEOUT_S) as response:
                return response.read()
        except HTTPError as error:
            if error.code == 503:  # /ready answers 503 with a body while the server starts
                return error.read()
            fix = "pass --key" if error.code == 401 else "pass --url of a server of this version"
            raise LoadError(f"{self.url}{path} returned status {error.code}\n  fix: {fix}") from error
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise LoadError(f"no server at {self.url}: {reason}\n  fix: start one, or pass --url") from error

    @property
    def latest(self) -> MetricsSample:
        """The most recent sample."""
        return self._samples[-1]

    def rate(self, name: str, labels: Labels) -> float:
        """Increase per second of one series. As in Prometheus, the counter of a restarted process counts from zero."""
        first, last = self._samples[0], self._samples[-1]
        before, after = (sample.samples.get(name, {}).get(labels, 0.0) for sample in (first, last))
        return (after - before if after >= before else after) / max(last.taken_at - first.taken_at, 1e-9)

    def rates(self, name: str, *by: str) -> dict[tuple[str, ...], float]:
        """Increase per second of a metric, summed by some labels."""
        totals = defaultdict[tuple[str, ...], float](float)
        for labels in self.latest.samples.get(name, {}):
            by_name = dict(labels)
            totals[tuple(by_name.get(label, "") for label in by)] += self.rate(name, labels)
        return totals

    def quantile(self, name: str, labels: dict[str, str], fraction: float) -> float | None:
        """Quantile of a histogram over the samples. None: no observations."""
        counts = defaultdict[float, float](float)
        for known, _ in self.latest.series(f"{name}_bucket"):
            if all(known.get(key) == value for key, value in labels.items()):
                counts[float(known["le"])] += self.rate(f"{name}_bucket", tuple(sorted(known.items())))
        return interpolate_quantile(counts, fraction)

    def table(self) -> RenderableType:
        """All tables, for the terminal."""
        from rich.console import Group
        from rich.text import Text

        running = sum(value for _, value in self.latest.series("mstar_requests_in_progress"))
        seconds = self.latest.taken_at - self._samples[0].taken_at
        head = Text.assemble(
            ("mstar", "bold"),
            f"  {self.url}  ",
            (self.latest.phase, "green" if self.latest.phase == "ready" else "yellow"),
        )
        head.append(f"  {running:.0f} running requests  last {seconds:.0f} s")
        tables = [_models_table(self), _down_workers_table(self), _long_batches_table(self)]
        tables += [_processes_table(self), _cpu_costs_table(self), _ops_table(self)]
        return Group(head, "", *(table for table in tables if table.row_count))


def interpolate_quantile(counts: dict[float, float], fraction: float) -> float | None:
    """Quantile from cumulative bucket counts, by linear interpolation within a bucket."""
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

    metrics = defaultdict[str, dict[Labels, float]](dict)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            metrics[sample.name][tuple(sorted(sample.labels.items()))] = sample.value
    return metrics


# ---------------------------------------------------------------- tables
def _table(title: str, left: int, *columns: str) -> Table:
    """An empty table whose first `left` columns are left-aligned text, and the others right-aligned numbers."""
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold cyan", box=box.SIMPLE_HEAD, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", no_wrap=True)
    return table


def _models_table(history: MetricsHistory) -> Table:
    table = _table("models", 1, "model", "requests/s", "TTFT p50", "TTFT p99", "emissions/s")
    emitted = history.rates("mstar_emissions_total", "model", "kind")
    for (model,), rate in sorted(history.rates("mstar_time_to_first_output_seconds_count", "model").items()):
        p50, p99 = (history.quantile("mstar_time_to_first_output_seconds", {"model": model}, p) for p in (0.5, 0.99))
        kinds = ", ".join(
            f"{each:.0f} {kind}" for (owner, kind), each in sorted(emitted.items()) if owner == model and each
        )
        table.add_row(model, f"{rate:.1f}", _format_seconds(p50), _format_seconds(p99), kinds or "–")
    return table


def _down_workers_table(history: MetricsHistory) -> Table:
    """Workers that are needed and not up."""

    def by_worker(name: str) -> dict[str, float]:
        return {labels["worker"]: value for labels, value in history.latest.series(name)}

    table = _table("workers that are down", 2, "worker", "state", "failed attempts", "next attempt")
    attempts, next_starts = by_worker("mstar_worker_failed_starts"), by_worker("mstar_worker_next_start_seconds")
    for worker, is_up in sorted(by_worker("mstar_worker_up").items()):
        failed, next_s = attempts.get(worker, 0.0), next_starts.get(worker, 0.0)
        if not is_up:
            state, next_start = (
                ("restarting", f"in {next_s:.0f} s" if next_s else "now") if failed else ("starting", "–")
            )
            table.add_row(worker, state, f"{failed:.0f}", next_start)
    return table


def _long_batches_table(history: MetricsHistory) -> Table:
    """Ops whose current batch has run for long: they are stuck, or slow."""
    table = _table("long batches", 3, "model", "op", "worker", "running for")
    for labels, seconds in history.latest.series("mstar_op_running_seconds"):
        if seconds >= LONG_BATCH_S:
            table.add_row(
                labels["model"], f"{labels['component']}.{labels['op']}", labels["worker"], f"{seconds:.0f} s"
            )
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
    pids = {labels["process"]: labels["pid"] for labels, _ in watch.latest.series("mstar_process_info")}
    cpu = {process: rate for (process,), rate in watch.rates("mstar_process_cpu_seconds_total", "process").items()}
    devices = _devices_by_worker(watch)
    titles = [*(["devices"] if devices else [])]
    titles += [*(["pid"] if pids else []), *(["CPU"] if cpu else []), *(["pages"] if pages else []), *shown]
    table = _table("processes", 2 if devices else 1, "process", *titles)
    for process in sorted({process for values in (*columns.values(), pages) for process in values}):
        row = [devices.get(process, "–")] if devices else []
        row += [pids.get(process, "–")] if pids else []
        row += [f"{cpu[process]:.0%}" if process in cpu else "–"] if cpu else []
        row += [f"{used[process]:.0f}/{pages[process]:.0f}" if pages[process] else "–"] if pages else []
        cells = (_format_cell(title, values[process]) if process in values else "–" for title, values in shown.items())
        table.add_row(process, *row, *cells)
    return table


def _cpu_costs_table(history: MetricsHistory) -> Table:
    """CPU time of each process for a generated token and for a request, as on the overview page of the studio."""
    table = _table("CPU cost", 2, "process", "role", "cores", "in ops", "per token", "per request")
    tokens, requests = (history.rates(name)[()] for name in ("mstar_generation_tokens_total", "mstar_responses_total"))
    in_ops = history.rates("mstar_process_op_cpu_seconds_total", "process")
    for (process, role), cores in sorted(history.rates("mstar_process_cpu_seconds_total", "process", "role").items()):
        if requests or tokens:
            share = f"{min(1.0, in_ops[process,] / cores):.0%}" if (process,) in in_ops and cores else "–"
            costs = (_format_cpu_s(cores / count if count else None) for count in (tokens, requests))
            table.add_row(process, role, f"{cores:.2f}", share, *costs)
    return table


def _devices_by_worker(watch: MetricsHistory) -> dict[str, str]:
    """Devices that each worker has loaded components on, without repetitions."""
    devices = defaultdict[str, set[str]](set)
    for labels, _ in watch.latest.series("mstar_component_info"):
        devices[labels["worker"]].add(labels["device"])
    return {worker: ", ".join(sorted(names)) for worker, names in devices.items()}


def _format_cell(title: str, value: float) -> str:
    return f"{value / 2**20:.0f} MiB" if title == "memory" else f"{value:.0f}"


def _ops_table(history: MetricsHistory) -> Table:
    table = _table("ops", 3, "model", "op", "worker", "calls/s", "batch size", "utilization", "queue wait")
    by = ("model", "component", "op", "worker")
    calls, batches, busy, wait = (
        history.rates(f"mstar_op_{name}_total", *by) for name in ("calls", "batches", "seconds", "wait_seconds")
    )
    active = {key: rate for key, rate in calls.items() if rate}
    for key, rate in sorted(active.items(), key=lambda item: -busy.get(item[0], 0.0)):
        model, component, op, worker = key
        batch = f"{rate / batches[key]:.1f}" if batches.get(key) else "–"
        mean_wait = _format_seconds(wait.get(key, 0.0) / rate)
        utilization = f"{busy.get(key, 0.0):.0%}"
        table.add_row(model, f"{component}.{op}", worker, f"{rate:.1f}", batch, utilization, mean_wait)
    return table


def _format_seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _format_cpu_s(value: float | None) -> str:
    if value is None or value >= 1:
        return _format_seconds(value)
    return f"{value * 1e3:.3g} ms" if value >= 0.001 else f"{value * 1e6:.0f} µs"
