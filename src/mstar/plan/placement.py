"""Placement file: assigns ops to workers, and resources to workers.

    [place]
    lm = "gpu0"                       # a component
    "lm.prefill" = "gpu1"             # one of its ops
    snac = ["gpu1", "gpu2"]           # replicas: each request uses one of them
    vae = { workers = ["gpu2", "gpu3"], min_replicas = 0 }   # autoscaled from 0 to 2 replicas

    [walks.draw]                      # for one walk only
    lm = { workers = ["gpu0", "gpu1", "gpu2"], spread = true }   # states of one request go to different workers

    [workers.gpu0]
    device = "cuda:0"                 # torch device of its components; the CPU if it is left out
    memory = 0.85                     # share of the device's memory that the worker can use
    cpus = 4                          # resources, in a cluster of several hosts
    gpus = 1
    resources = { infiniband = 1 }    # custom resources
    host = "10.0.0.2"                 # pin to this host
    python = "/opt/vllm/bin/python"   # its interpreter; by default that of the launcher
    ranks = 2                         # processes, each with a GPU of its own, that compute its large networks together

    [components.lm]
    dtype = "bfloat16"                # dtype of the weights, and of the KV cache without kv_cache_dtype
    quantization = "int8"             # of the weights, on CPUs
    attention_backend = "torch"       # torch, triton or flashinfer; by default the device decides
    kv_cache_dtype = "fp8"            # fp8, bfloat16, float16 or float32; by default that of the weights
    engine = "vllm"                   # run by vLLM, in a worker whose interpreter has it
    vllm_args = "--enforce-eager"     # arguments of `vllm serve`
    speculative_tokens = "8"          # speculative decoding with drafts of up to 8 tokens, on CPUs
    experts = "cpu"                   # its experts are computed by a process of their own, on this device

    [components.lm.adapters]
    sql = "/adapters/sql"             # LoRA adapter: its name, and its folder in the PEFT layout

    [components.index]
    memory_budget_mb = "64"           # memory of the lists of an index

The most specific rule wins: walk before model, op before component. Every op must have a rule; an unknown name is an
error that suggests the closest known name.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from mstar.errors import PlacementError, Problem, format_names, suggest_name
from mstar.graph import ir

COMPONENT_SETTINGS: dict[str, tuple[str, ...] | None] = {
    "dtype": ("float32", "bfloat16", "float16", "float64"),
    "quantization": ("int8",),
    "attention_backend": ("torch", "triton", "flashinfer"),
    "kv_cache_dtype": ("fp8", "bfloat16", "float16", "float32"),
    "engine": ("vllm",),
    "vllm_args": None,
    "memory_budget_mb": None,
    "experts": None,
    "speculative_tokens": None,
}
"""Settings of a component and their values; None for any text. Which of them a component supports is checked when it is
loaded."""
LOCAL_WORKER = "local"
"""Name of the only worker of a model without a placement."""


@dataclass(frozen=True, slots=True)
class WorkerSet:
    """Candidate workers, of which a request uses one. Spread states differ in `spread_index`."""

    workers: tuple[str, ...]
    spread_index: int = 0


@dataclass(frozen=True, slots=True)
class PlacementRule:
    """One rule of a placement."""

    workers: tuple[str, ...]
    spread: bool = False
    min_replicas: int | None = None
    """Minimum running workers; None for all of them (no autoscaling)."""


@dataclass(frozen=True, slots=True)
class Resources:
    """Resources that a worker reserves on a host, and the device that it uses there."""

    cpus: float = 1.0
    gpus: float = 0.0
    custom: Mapping[str, float] = field(default_factory=dict[str, float])
    host: str = ""
    """IP address of the required host; empty for any host."""
    device: str = ""
    """The torch device of its components; empty for the CPU."""
    memory: float | None = None
    """Share of the device's memory that the worker can use; None for the default."""
    python: str = ""
    """Path of its Python interpreter; empty for that of the launcher."""
    ranks: int = 1
    """Processes that compute its components together."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Rules by "component" or "component.op", for all walks and per walk; resources of workers, component settings."""

    place: Mapping[str, PlacementRule] = field(default_factory=dict[str, PlacementRule])
    walks: Mapping[str, Mapping[str, PlacementRule]] = field(default_factory=dict[str, Mapping[str, PlacementRule]])

    worker_resources: Mapping[str, Resources] = field(default_factory=dict[str, Resources])
    component_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    adapters: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """Folders of LoRA adapters, by component and name."""

    def rule(self, walk: str, component: str, op: str) -> PlacementRule | None:
        """Most specific rule for an op in a walk."""
        for entries in (self.walks.get(walk, {}), self.place):
            for key in (f"{component}.{op}", component):
                if key in entries:
                    return entries[key]
        return None if self.place or self.walks else PlacementRule((LOCAL_WORKER,))

    def worker_set(self, walk: str, call: ir.Call, spread_index: int) -> WorkerSet:
        """Candidate workers of a call. `spread_index` numbers the states of the request."""
        entry = self.rule(walk, call.component, call.op)
        assert entry is not None, "check() has passed"
        return WorkerSet(entry.workers, spread_index % len(entry.workers) if entry.spread else 0)

    def any_worker_set(self) -> WorkerSet:
        """Worker set of a walk without calls."""
        return WorkerSet(self.workers()[:1])

    def workers(self) -> tuple[str, ...]:
        """Every worker of the placement, in order of first mention."""
        entries = self.rules()
        return tuple(dict.fromkeys(worker for entry in entries for worker in entry.workers)) or (LOCAL_WORKER,)

    def initial_workers(self) -> tuple[str, ...]:
        """Workers to start at launch: the minimum replicas of each rule."""
        entries = self.rules()
        return tuple(dict.fromkeys(worker for entry in entries for worker in entry.workers[: entry.min_replicas])) or (
            () if entries else (LOCAL_WORKER,)
        )

    def replica_groups(self) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Workers and minimum replicas of each rule."""
        entries = self.rules() or [PlacementRule((LOCAL_WORKER,))]
        minimums = (len(entry.workers) if entry.min_replicas is None else entry.min_replicas for entry in entries)
        return tuple(dict.fromkeys(zip((entry.workers for entry in entries), minimums, strict=True)))

    def rules(self) -> list[PlacementRule]:
        """All rules, general ones first."""
        return [*self.place.values(), *(entry for walk in self.walks.values() for entry in walk.values())]

    def check(self, graphs: Mapping[str, ir.Walk], site: str = "placement") -> None:
        """Raise PlacementError unless every rule names a known op and every op has a rule."""
        calls = {name: _calls(graph) for name, graph in graphs.items()}
        problems: list[Problem] = []
        for walk in self.walks:
            if walk not in graphs:
                what = f"[walks.{walk}] names no walk{suggest_name(walk, graphs)}"
                problems.append(Problem(site, what, f"use one of {format_names(graphs)}"))
        all_calls = {call for walk_calls in calls.values() for call in walk_calls}
        problems += _unknown_keys(self.place, all_calls, site, "[place]")
        components = sorted({component for component, _ in all_calls})
        for name in {**self.component_settings, **self.adapters}:
            if name not in components:
                what = f"[components.{name}] names no component{suggest_name(name, components)}"
                problems.append(Problem(site, what, f"use one of {format_names(components)}"))
        for walk, entries in self.walks.items():
            problems += _unknown_keys(entries, calls.get(walk, all_calls), site, f"[walks.{walk}]")
        for walk, walk_calls in calls.items():
            for component, op in sorted(walk_calls):
                if self.rule(walk, component, op) is None:
                    what = f"no rule places {component}.{op} of walk `{walk}`"
                    problems.append(Problem(site, what, f'[place]\n{component} = "a worker"'))
        if problems:
            raise PlacementError("placement", problems)


def _calls(graph: ir.Walk) -> set[tuple[str, str]]:
    return {(node.component, node.op) for node in ir.flat(graph.body) if isinstance(node, ir.Call)}


def _unknown_keys(
    rules: Mapping[str, PlacementRule], calls: set[tuple[str, str]], site: str, where: str
) -> list[Problem]:
    known = sorted({component for component, _ in calls} | {f"{component}.{op}" for component, op in calls})
    return [
        Problem(
            site, f"{where} names `{key}`, which no walk calls{suggest_name(key, known)}", f"use {format_names(known)}"
        )
        for key in rules
        if key not in known
    ]


def read_placement(path: Path) -> Placement:
    """Read a placement file. Raises PlacementError with every problem in it."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:  # missing, not TOML, or not text
        raise PlacementError(
            str(path), [Problem(str(path), f"cannot be read: {error}", "see docs/placement.md")]
        ) from error
    return parse_placement(table, str(path))


def parse_placement(table: Mapping[str, Any], site: str = "placement") -> Placement:
    """Build a placement from parsed TOML."""
    parser = _PlacementParser(site)
    parser.keys(table, ("place", "walks", "workers", "components"), "the file")
    place = parser.rules(table.get("place", {}), "[place]")
    walks = {
        name: parser.rules(entries, f"[walks.{name}]")
        for name, entries in parser.table(table.get("walks", {}), "[walks]").items()
    }
    resources = {
        name: parser.resources(fields, f"[workers.{name}]")
        for name, fields in parser.table(table.get("workers", {}), "[workers]").items()
    }
    settings: dict[str, dict[str, str]] = {}
    adapters: dict[str, dict[str, str]] = {}
    for name, value in parser.table(table.get("components", {}), "[components]").items():
        fields = dict(parser.table(value, f"[components.{name}]"))
        if folders := parser.adapters(fields.pop("adapters", {}), f"[components.{name}.adapters]"):
            adapters[name] = folders
        settings[name] = parser.component_settings(fields, f"[components.{name}]")
    placement = Placement(place, walks, resources, settings, adapters)
    for name in resources:
        if name not in placement.workers():
            known = placement.workers()
            parser.add_problem(
                f"[workers.{name}] is no worker{suggest_name(name, known)}", f"use one of {format_names(known)}"
            )
    if parser.problems:
        raise PlacementError("placement", parser.problems)
    return placement


class _PlacementParser:
    def __init__(self, site: str) -> None:
        self.site = site
        self.problems: list[Problem] = []

    def add_problem(self, what: str, fix: str) -> None:
        self.problems.append(Problem(self.site, what, fix))

    def keys(self, table: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
        for key in table:
            if key not in known:
                self.add_problem(
                    f"{where} has the unknown key `{key}`{suggest_name(key, known)}", f"use {format_names(known)}"
                )

    def table(self, value: Any, where: str) -> Mapping[str, Any]:
        if isinstance(value, Mapping):
            return cast("Mapping[str, Any]", value)
        self.add_problem(f"{where} is {value!r}, not a table", f'{where}\nlm = "gpu0"')
        return {}

    def rules(self, value: Any, where: str) -> dict[str, PlacementRule]:
        return {key: self.rule(line, f"{where} {key}") for key, line in self.table(value, where).items()}

    def rule(self, line: Any, where: str) -> PlacementRule:
        workers, spread, min_replicas = line, False, None
        if isinstance(line, Mapping):
            fields = cast("Mapping[str, Any]", line)
            if fields and not {"workers", "spread", "min_replicas"} & fields.keys():
                fix = f'write the key in quotes: "{where.rpartition(" ")[2]}.{next(iter(fields))}" = ...'
                self.add_problem(f"{where} is a table of {format_names(fields)}: a key with a dot makes one", fix)
                return PlacementRule((LOCAL_WORKER,))
            self.keys(fields, ("workers", "spread", "min_replicas"), where)
            workers, spread = fields.get("workers", []), fields.get("spread", False)
            min_replicas = fields.get("min_replicas")
        names = cast("list[Any]", [workers] if isinstance(workers, str) else workers)
        if not isinstance(cast("object", names), list) or not names or not all(isinstance(n, str) and n for n in names):
            self.add_problem(
                f"{where} = {line!r} names no workers", 'write "gpu0", ["gpu0", "gpu1"], or { workers = [...] }'
            )
            return PlacementRule((LOCAL_WORKER,))
        if len(set(names)) < len(names):
            self.add_problem(f"{where} names a worker twice: {names}", "name each worker once")
        if not isinstance(spread, bool):
            self.add_problem(f"{where}: spread = {spread!r}", "spread = true or spread = false")
        if min_replicas is not None and not (type(min_replicas) is int and 0 <= min_replicas <= len(names)):
            self.add_problem(f"{where}: min_replicas = {min_replicas!r}", f"set an integer from 0 to {len(names)}")
            min_replicas = None
        return PlacementRule(tuple(names), bool(spread), min_replicas)

    def component_settings(self, value: Any, where: str) -> dict[str, str]:
        fields = self.table(value, where)
        self.keys(fields, (*COMPONENT_SETTINGS, "adapters"), where)
        for key, known in COMPONENT_SETTINGS.items():
            if key not in fields:
                continue
            if known is None:
                if not isinstance(fields[key], str):
                    self.add_problem(f"{where}: {key} = {fields[key]!r}", f'write a text: {key} = "..."')
            elif fields[key] not in known:
                self.add_problem(f"{where}: {key} = {fields[key]!r}", f"use one of {format_names(known)}")
        if "vllm_args" in fields and "engine" not in fields:
            self.add_problem(f"{where}: vllm_args without an engine", 'add engine = "vllm"')
        return dict(fields)

    def adapters(self, value: Any, where: str) -> dict[str, str]:
        folders = self.table(value, where)
        for name, folder in folders.items():
            if not isinstance(folder, str) or not folder:
                self.add_problem(f"{where}: {name} = {folder!r}", f'write the folder of the adapter: {name} = "..."')
        return dict(folders)

    def resources(self, value: Any, where: str) -> Resources:
        fields = self.table(value, where)
        self.keys(fields, ("device", "memory", "cpus", "gpus", "resources", "host", "python", "ranks"), where)
        amounts = {"cpus": fields.get("cpus", 1.0), "gpus": fields.get("gpus", 0.0)}
        resources = self.table(fields.get("resources", {}), f"{where} resources")
        for name, amount in (*amounts.items(), *resources.items()):
            if isinstance(amount, bool) or not isinstance(amount, int | float) or amount < 0:
                self.add_problem(f"{where}: {name} = {amount!r}", f"{name} = 1")
                return Resources()
        host = fields.get("host", "")
        if not isinstance(host, str):
            self.add_problem(f"{where}: host = {host!r}", 'write an IP address: host = "10.0.0.2"')
            return Resources()
        device = fields.get("device", "")
        if not isinstance(device, str) or not re.fullmatch(r"([a-z]+(:\d+)?)?", device):
            self.add_problem(f"{where}: device = {device!r}", 'write a torch device: device = "cuda:0"')
            return Resources()
        memory = fields.get("memory")
        if memory is not None and (
            isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 < memory <= 1
        ):
            self.add_problem(f"{where}: memory = {memory!r}", "set the share of the device from 0 to 1: memory = 0.85")
            return Resources()
        if memory is not None and not device:
            self.add_problem(f"{where}: memory = {memory!r} without a device", 'add one, for example device = "cuda:0"')
            return Resources()
        python = fields.get("python", "")
        if not isinstance(python, str):
            self.add_problem(f"{where}: python = {python!r}", 'write a path: python = "/opt/vllm/bin/python"')
            return Resources()
        ranks = fields.get("ranks", 1)
        if type(ranks) is not int or ranks < 1:
            self.add_problem(f"{where}: ranks = {ranks!r}", "write the number of processes: ranks = 2")
            return Resources()
        cpus, gpus = float(amounts["cpus"]), float(amounts["gpus"])
        return Resources(cpus, gpus, dict(resources), host, device, memory, python, ranks)
