"""Memory plan (`mstar plan MODEL --device-memory SIZE`): what a model needs on devices of this size, without weights.

For each component: parameters, weight bytes, KV bytes per token, and the KV pages, positions and requests that fit in
the rest of the share (`memory`). The rest is divided as by a worker (`mstar.nn.device_memory`), except that the
activations of the profile run are not known before the model is loaded.

Sizes come from the published configuration of a model (`mstar.nn.published_sizes`), or from the config.json of a
causal language model. Without a placement, all components share one device. A placement that does not fit is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mstar.cli.checkpoints import transformers_folder
from mstar.cli.checkpoints.target import checkpoint_source
from mstar.cli.config import format_table
from mstar.errors import LoadError, format_names
from mstar.nn.memory_limits import DEFAULT_SHARE, MIN_POSITIONS, format_bytes
from mstar.nn.network_size import NetworkSize, read_network_size
from mstar.nn.published_sizes import PUBLISHED, find_published
from mstar.nn.weights.sources import Weights
from mstar.plan.placement import LOCAL_WORKER, Placement, Resources

PAGE_SIZE = 16
"""Positions of a KV cache page."""
REQUEST_POSITIONS = 4096
"""Positions of a request in the table."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_HEADER = ("component", "parameters", "dtype", "weights", "KV per token", "pages", "positions")


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """Share of a component in the memory of a device."""

    name: str
    size: NetworkSize
    pages: int | None
    """KV cache pages that fit, or as much memory without pages; None without a KV cache."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """What the components of a worker need on its device."""

    worker: str
    device: str
    limit: int
    """Bytes that the worker can use."""
    components: Sequence[ComponentPlan]

    @property
    def weight_bytes(self) -> int:
        """Weights of all components."""
        return sum(component.size.weight_bytes for component in self.components)

    @property
    def needed(self) -> int:
        """Bytes without which it does not start: weights, and the smallest KV caches."""
        return self.weight_bytes + sum(MIN_POSITIONS * component.size.position_bytes for component in self.components)


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 80GB, 24GiB or 500000. Raises ValueError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if match is None or match[2].upper() not in _UNITS or not float(match[1]):
        raise ValueError(f"{text!r} is not a size: write for example 80GB or 24GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def find_sizes(target: str) -> Mapping[str, NetworkSize]:
    """Sizes of the components of a model: a published one, or a causal language model by its config.json.

    The argument is a name, a folder, a config.json or a Hub id, of which config.json is fetched. Raises LoadError.
    """
    path = Path(target).expanduser()
    folder = path.parent if path.name == "config.json" else path
    is_folder = (folder / "config.json").is_file()
    if not is_folder and (published := find_published(target)) is not None:
        return published.components
    source = str(folder) if is_folder else checkpoint_source(target)
    if source is not None and (is_folder or source.startswith("hub:")):
        folder = Weights(source).path("config.json")
        if transformers_folder.recognize(folder) == "causal-lm":
            return {"lm": read_network_size(folder)}
    fix = f"pass one of {format_names(PUBLISHED)}, or the folder of a causal language model with config.json"
    raise LoadError(f"the sizes of {target} are not known without its weights\n  fix: {fix}")


def plan_devices(
    sizes: Mapping[str, NetworkSize], device_bytes: int, placement: Placement | None
) -> tuple[DevicePlan, ...]:
    """Plan of each worker with a device; of one device without a placement."""
    if placement is None:
        return (_plan_device(LOCAL_WORKER, Resources(device="device"), sizes, device_bytes),)
    if unplaced := [name for name in sizes if not _workers(placement, name)]:
        raise LoadError(f'the placement has no rule for {format_names(unplaced)}\n  fix: {unplaced[0]} = "a worker"')
    settings = placement.component_settings
    sizes = {name: size.with_settings(settings.get(name, {})) for name, size in sizes.items()}
    plans: list[DevicePlan] = []
    for worker in placement.workers():
        resources = placement.worker_resources.get(worker, Resources())
        own = {name: size for name, size in sizes.items() if worker in _workers(placement, name)}
        if resources.device and own:
            plans.append(_plan_device(worker, resources, own, device_bytes))
    return tuple(plans)


def _workers(placement: Placement, component: str) -> set[str]:
    """Workers that load a component: those of any rule for it or for one of its ops."""
    entries = (placement.place, *placement.walks.values())
    rules = [rule for one in entries for key, rule in one.items() if key.partition(".")[0] == component]
    return {worker for rule in rules for worker in rule.workers}


def _plan_device(worker: str, resources: Resources, sizes: Mapping[str, NetworkSize], device_bytes: int) -> DevicePlan:
    limit = int((DEFAULT_SHARE if resources.memory is None else resources.memory) * device_bytes)
    left = limit - sum(size.weight_bytes for size in sizes.values())
    caches = sum(size.kv is not None for size in sizes.values())
    part = max(0, left) // caches if caches else 0
    components = [
        ComponentPlan(name, size, part // (size.position_bytes * PAGE_SIZE) if size.kv else None)
        for name, size in sizes.items()
    ]
    return DevicePlan(worker, resources.device, limit, components)


def require_fit(plans: Iterable[DevicePlan]) -> None:
    """Raise LoadError with figures if a worker needs more than it can use."""
    problems = [
        f"{_place(plan)}: {format_bytes(plan.needed)} are needed for {', '.join(one.name for one in plan.components)} "
        f"(weights {format_bytes(plan.weight_bytes)}), and {format_bytes(plan.limit)} can be used"
        for plan in plans
        if plan.needed > plan.limit
    ]
    if problems:
        fix = "use a larger device or share (`memory`), or place components on other workers"
        raise LoadError("\n".join([*problems, f"  fix: {fix}"]))


def describe_devices(plans: Sequence[DevicePlan]) -> str:
    """The plans as tables."""
    lines: list[str] = []
    for plan in plans:
        lines.append(f"{_place(plan)}: {format_bytes(plan.limit)} can be used")
        rows = [(*_HEADER, f"requests of {REQUEST_POSITIONS:,} positions")]
        rows += [_row(component) for component in plan.components]
        lines += [f"  {line}" for line in format_table(rows)]
        rest = plan.limit - plan.weight_bytes
        lines.append(f"  weights {format_bytes(plan.weight_bytes)}, rest {format_bytes(rest)}, less activations\n")
    return "\n".join(lines)


def _place(plan: DevicePlan) -> str:
    return plan.device if plan.worker == LOCAL_WORKER else f"{plan.worker} on {plan.device}"


def _row(component: ComponentPlan) -> tuple[str, ...]:
    size = component.size
    count = f"{size.parameters / 1e9:.2f} B" if size.parameters >= 1e9 else f"{size.parameters / 1e6:.4g} M"
    own = (component.name, count, size.dtype, format_bytes(size.weight_bytes))
    if component.pages is None:
        return (*own, "-", "-", "-", "-")
    positions = component.pages * PAGE_SIZE
    pages = f"{component.pages:,}" if size.kv is not None and size.kv.is_paged else "-"
    figures = (pages, f"{positions:,}", f"{positions // REQUEST_POSITIONS:,}")
    return (*own, format_bytes(size.position_bytes), *figures)
