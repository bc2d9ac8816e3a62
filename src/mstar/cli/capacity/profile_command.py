"""`mstar profile MODEL -o FILE`: serve recorded requests in this process, and write what every op call costs."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError, format_names

if TYPE_CHECKING:
    from mstar.plan.planned_model import PlannedModel
    from mstar.plan.profile import ModelProfile

MODEL_NAME = "model"


def add_profile(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Measure what every op of a model costs by batch size and length, for `mstar plan-capacity`."
    profile = commands.add_parser("profile", help=text, description=text)
    add = profile.add_argument
    add("model", help="A model's .py file (path.py or path.py:Class), an installed name, or a checkpoint.")
    add("--placement", type=Path, help="Placement file: devices and settings of the components (default: the CPU).")
    add("-o", "--output", type=Path, required=True, help="Profile to write, such as model.profile.json.")
    add(
        "--requests",
        type=Path,
        help='Requests to record, as JSON lines of {"kind": "chat", "text": ...} (default: ten of each accepted kind).',
    )
    add("--device-name", default="", help="Name of the device in prices (default: cpu, or that of the GPU).")
    add("--rounds", type=int, default=3, help="Rounds of measurement, whose spread is the error (default 3).")
    add("--max-concurrency", type=int, default=16, help="Maximum number of concurrent requests (default 16).")
    add("--threads", type=int, help="Compute threads per worker (default: that of the library).")
    add(
        "--estimate",
        action="append",
        default=[],
        metavar="DEVICE",
        help="Add an estimate for a device from its data sheet, such as H100-80GB. Can be repeated.",
    )
    add(
        "--size",
        action="append",
        default=[],
        metavar="COMPONENT=MODEL",
        help="Estimate a component with the size of a published model, such as lm=llama-3.1-8b. Can be repeated.",
    )
    profile.set_defaults(run=_profile)


def _profile(options: argparse.Namespace) -> None:
    from mstar.cli.capacity.profiled_requests import default_requests, read_requests
    from mstar.cli.checkpoints.target import resolve_target
    from mstar.cli.output import require_writable
    from mstar.plan.compile import plan
    from mstar.plan.planned_model import PlannedModel, load_planned_models
    from mstar.plan.profile import MEASURED, DeviceCosts
    from mstar.server.state import ServedModel
    from mstar.sim.profile.profile_recorder import CROWD_SIZES, ProfileRecorder

    require_writable(options.output)
    target = resolve_target(options.model)
    text = _read_placement_text(options.placement) if options.placement else ""
    placed = load_planned_models({MODEL_NAME: target}, {MODEL_NAME: text})[MODEL_NAME]
    served = ServedModel.from_model(options.model, placed.model)
    requests = read_requests(options.requests, served) if options.requests else default_requests(served)
    devices = load_on_devices(placed, options.threads)
    torch_devices = sorted({device for device in devices.values() if device != "cpu"})
    name = options.device_name or _device_name(torch_devices)
    places = ", ".join(f"{component} on {device}" for component, device in devices.items())
    device = DeviceCosts(
        name, MEASURED, f"{_machine()}: {places}", torch_devices[0].partition(":")[0] if torch_devices else ""
    )
    recorder = ProfileRecorder(
        PlannedModel(placed.model, plan(placed.model.graphs())),
        requests,
        rounds=options.rounds,
        crowd_sizes=[size for size in CROWD_SIZES if size <= options.max_concurrency],
        progress=Progress(),
    )
    profile = recorder.record(options.model, device)
    profile.settings = {component: dict(settings) for component, settings in placed.settings.items()}
    profile.threads = options.threads
    if not torch_devices:
        from mstar.cli.capacity.calibration import RealDeployment, calibrate
        from mstar.config import RuntimeConfig

        print("calibrating with real workers", file=sys.stderr, flush=True)
        with RealDeployment(target, text, RuntimeConfig(threads=options.threads)) as deployment:
            calibrate(profile, placed, [one.request for one in requests], deployment)
    if options.estimate:
        from mstar.cli.capacity.estimate import add_estimates

        replaced = dict(_parse_size(word) for word in options.size)
        add_estimates(profile, placed.model, options.estimate, replaced)
    profile.save(options.output)
    print(describe_profile(profile))
    print(f"wrote {options.output}")


def _parse_size(word: str) -> tuple[str, str]:
    component, equals, name = word.partition("=")
    if not equals:
        raise LoadError(f"--size: {word!r} is invalid\n  fix: use the form --size lm=llama-3.1-8b")
    return component, name


def _read_placement_text(path: Path) -> str:
    from mstar.plan.placement import read_placement

    placement = read_placement(path)
    ranks = [worker for worker, resources in placement.worker_resources.items() if resources.ranks > 1]
    if ranks:
        problem = f"{path}: {format_names(ranks)} has ranks, and a profile is recorded in one process"
        raise LoadError(f"{problem}\n  fix: remove `ranks`")
    return path.read_text()


def load_on_devices(placed: PlannedModel, threads: int | None) -> dict[str, str]:
    """Load every component in this process as its first worker would; return their devices."""
    from mstar.config import RuntimeConfig, WorkerConfig
    from mstar.wire.messages import Peer
    from mstar.worker.loading import load_components

    devices: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as directory:
        for worker in placed.plans.workers:
            if set(placed.components_at(worker)) <= devices.keys():
                continue  # a replica
            config = WorkerConfig(
                name=worker,
                incarnation=0,
                directory=directory,
                key=b"",
                peers={},
                models={},
                placements={},
                options=RuntimeConfig(threads=threads),
                conductor="",
                black_box="",
            )
            loaded = load_components({MODEL_NAME: placed}, config, Peer(worker, 0))
            devices |= {name.partition(".")[2]: device for name, device in loaded.items()}
    return devices


def _device_name(torch_devices: Sequence[str]) -> str:
    if not torch_devices:
        return "cpu"
    if not torch_devices[0].startswith("cuda"):
        return torch_devices[0]
    import torch

    return torch.cuda.get_device_name(torch_devices[0]).replace(" ", "-")


def _machine() -> str:
    """Processor and number of cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


class Progress:
    """Prints the progress of the recording to standard error, at most every two seconds."""

    INTERVAL_S = 2.0

    def __init__(self) -> None:
        self._started_at = self._printed_at = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        """Report that `done` of `total` servings have ended."""
        now = time.monotonic()
        if done < total and now - self._printed_at < self.INTERVAL_S:
            return
        self._printed_at = now
        left = (now - self._started_at) / done * (total - done)
        print(f"profiled {done} of {total} servings, about {left:.0f} s left", file=sys.stderr, flush=True)


def describe_profile(profile: ModelProfile) -> str:
    """Costs of each op on each device, as tables."""
    from mstar.cli.config import format_table

    lines: list[str] = []
    for device in profile.devices:
        mark = " (ESTIMATE from published figures, not measured)" if device.is_estimate else ""
        lines.append(f"{device.device}{mark}: {device.machine}")
        rows = [("op", "calls", "ms alone", "rounds", "ms per call by batch size")]
        for op in device.ops:
            if not op.mean_s:
                continue
            sizes = [f"{batch.size}: {_ms(op.mean_s * batch.ratio / batch.size)}" for batch in op.batches]
            error = f"{100 * (op.low - 1):+.0f} % {100 * (op.high - 1):+.0f} %"
            rows.append((op.op, str(op.count), _ms(op.mean_s), error, "  ".join(_thinned(sizes))))
        lines += [f"  {line}" for line in format_table(rows)]
        if device.note:
            lines.append(f"  {device.note}")
    return "\n".join(lines)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g}"


def _thinned(sizes: Sequence[str]) -> Sequence[str]:
    """At most six entries."""
    step = max(1, -(-len(sizes) // 6))
    return sizes[::step]
