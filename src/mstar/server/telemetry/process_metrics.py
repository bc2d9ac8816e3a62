"""Metrics of all processes of a deployment: one Prometheus metric per count, with the label `process`.

Processes report counts as `{key: number}` in a `StatsReply`. A key becomes a metric by these rules, in this order:

| key | metric | labels besides `process` |
|---|---|---|
| in `PROCESS_METRICS` | the name there | |
| `starting NAME`, `draining NAME` | `mstar_worker_starting`, `mstar_worker_draining` | worker |
| `MODEL.COMPONENT.pages`, `MODEL.COMPONENT.pages_used` | `mstar_kv_pages`, `mstar_kv_pages_used` | model, component |
| any other `MODEL.COMPONENT.KEY` | `mstar_component_stat` | model, component, stat |
| any other key | `mstar_process_stat` | stat |

`pid` becomes the label of `mstar_process_info`, `cpu_us` the counter `mstar_process_cpu_seconds_total` and `op_cpu_us`,
its part inside ops, the counter `mstar_process_op_cpu_seconds_total`; both counters have the label `role`.
`mstar_process_restarts_total` counts the restarts of each process. A process that does not answer keeps its last
values; the series of one that was stopped are removed. `admin.health` queries the processes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PROCESS_METRICS: Mapping[str, tuple[str, str]] = {
    # requests
    "requests": ("mstar_process_requests", "Requests in progress at a process"),
    "queue": ("mstar_queue_length", "Requests waiting for admission at a conductor"),
    "unreleased": ("mstar_unreleased_attempts", "Finished attempts that workers have not released yet"),
    "streams": ("mstar_streams_open", "Open response streams of a front end"),
    "out_of_order": ("mstar_out_of_order_emissions", "Emissions that a front end holds until earlier ones arrive"),
    # scheduling and state of workers
    "waiting": ("mstar_ready_calls", "Op calls that are ready to run"),
    "running": ("mstar_running_batches", "Op batches that are running"),
    "states": ("mstar_states", "States that a worker tracks"),
    "engine_states": ("mstar_engine_states", "States in the memory of the engine"),
    "exports": ("mstar_exported_states", "States that are being moved to another worker"),
    "early": ("mstar_early_messages", "Messages that arrived before their walk"),
    # workers of a conductor
    "workers": ("mstar_workers", "Workers that are up"),
    "starting": ("mstar_workers_starting", "Workers that are starting"),
    "draining": ("mstar_workers_draining", "Workers that are draining"),
    "stopping": ("mstar_workers_stopping", "Workers that are stopping"),
    # messages between processes
    "links": ("mstar_links", "Connections to other processes"),
    "unacked": ("mstar_unacked_frames", "Sent frames without an acknowledgment"),
    "decoding": ("mstar_frames_decoding", "Received frames that are being decoded"),
    "inbox": ("mstar_inbox_length", "Received messages that wait to be handled"),
    # resources of a process
    "slots": ("mstar_shm_slots", "Shared memory slots in use"),
    "slot_bytes": ("mstar_shm_bytes", "Bytes of shared memory in use"),
    "rss_bytes": ("mstar_process_resident_memory_bytes", "Resident memory in bytes"),
    "fds": ("mstar_process_open_fds", "Open file descriptors"),
    "threads": ("mstar_process_threads", "Threads"),
}
"""Metric name and help text, by count key."""
_WORKER_METRICS: Mapping[str, tuple[str, str]] = {
    "starting": ("mstar_worker_starting", "1 while a worker is starting"),
    "draining": ("mstar_worker_draining", "1 while a worker is draining"),
}
"""By the first word of the key."""
_PAGE_METRICS: Mapping[str, tuple[str, str]] = {
    "pages": ("mstar_kv_pages", "Pages of the KV cache"),
    "pages_used": ("mstar_kv_pages_used", "Pages of the KV cache in use"),
}
"""By the last part of the key."""

_USAGE_KEYS = ("pid", "cpu_us", "op_cpu_us")


class ProcessMetrics(Collector):
    """The last counts of every process, as Prometheus metrics."""

    def __init__(self) -> None:
        self._counts: dict[str, Mapping[str, int]] = {}
        self._restarts: dict[str, int] = {}
        self.roles: dict[str, str] = {}
        """Role of each process that has reported."""

    def update(self, process: str, counts: Mapping[str, int], role: str = "") -> None:
        """Set the counts and the role of a process: frontend, launcher, conductor or worker."""
        self._counts[process] = counts
        self.roles[process] = role

    def set_restarts(self, process: str, restarts: int) -> None:
        """Set how often a process was restarted."""
        self._restarts[process] = restarts

    def retain(self, processes: Container[str]) -> None:
        """Remove the series of all other processes."""
        self._counts = {name: counts for name, counts in self._counts.items() if name in processes}
        self._restarts = {name: count for name, count in self._restarts.items() if name in processes}
        self.roles = {name: role for name, role in self.roles.items() if name in processes}

    def counts(self, process: str) -> Mapping[str, int]:
        """The last counts of a process; empty before its first report."""
        return self._counts.get(process, {})

    def by_process(self, key: str) -> dict[str, int]:
        """A count of every process that reports it."""
        return {process: counts[key] for process, counts in self._counts.items() if key in counts}

    def total(self, key: str) -> int:
        """Sum of a count over all processes."""
        return sum(counts.get(key, 0) for counts in self._counts.values())

    def describe(self) -> list[Metric]:
        """Nothing: the metrics are known only once processes have reported."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics, one family per name."""
        families: dict[str, GaugeMetricFamily] = {}
        for process, counts in self._counts.items():
            for key, count in counts.items():
                if key in _USAGE_KEYS:
                    continue
                name, text, labels = _metric_for(key)
                family = families.get(name)
                if family is None:
                    family = families[name] = GaugeMetricFamily(name, text, labels=["process", *labels])
                family.add_metric([process, *labels.values()], count)
        yield from families.values()
        yield from self._usage()
        restarts = CounterMetricFamily(
            "mstar_process_restarts", "Restarts of a process since the server started", labels=["process"]
        )
        for process, count in self._restarts.items():
            restarts.add_metric([process], count)
        yield restarts

    def _usage(self) -> Iterator[Metric]:
        """Process ids and CPU times."""
        info = GaugeMetricFamily("mstar_process_info", "1 for each process", labels=["process", "pid"])
        for process, pid in self.by_process("pid").items():
            info.add_metric([process, str(pid)], 1)
        yield info
        for name, key, text in (
            ("mstar_process_cpu_seconds", "cpu_us", "User and system CPU time of a process in seconds"),
            ("mstar_process_op_cpu_seconds", "op_cpu_us", "CPU time of a worker inside ops in seconds"),
        ):
            cpu = CounterMetricFamily(name, text, labels=["process", "role"])
            for process, cpu_us in self.by_process(key).items():
                cpu.add_metric([process, self.roles[process]], cpu_us / 1e6)
            yield cpu


def _metric_for(key: str) -> tuple[str, str, dict[str, str]]:
    """Metric name, help text and labels of a count key."""
    if key in PROCESS_METRICS:
        return *PROCESS_METRICS[key], {}
    state, _, worker = key.partition(" ")
    if worker and state in _WORKER_METRICS:
        return *_WORKER_METRICS[state], {"worker": worker}
    owner, _, stat = key.rpartition(".")
    model, _, component = owner.rpartition(".")
    if not model:
        return "mstar_process_stat", "Other counts of a process", {"stat": key}
    if stat in _PAGE_METRICS:
        return *_PAGE_METRICS[stat], {"model": model, "component": component}
    labels = {"model": model, "component": component, "stat": stat}
    return "mstar_component_stat", "Other counts of a component", labels
