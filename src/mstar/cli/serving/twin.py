"""`mstar twin`: serve a deployment without weights, to test clients, gateways and autoscalers without a GPU.

Everything is that of `mstar serve`: server, front ends, conductors, workers, scheduling, placement. Only the ops are
replaced (`mstar.engine.twin`): they last as long as a profile or a flag says and return synthetic outputs. A placement
is used without its devices and the settings of networks. Tokenizers and other small files of a model are still needed.
"""

from __future__ import annotations

import argparse
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.cli.config import add_target, resolve_config
from mstar.errors import LoadError, format_names

if TYPE_CHECKING:
    from mstar.cli.config import ServeConfig
    from mstar.config import OpSeconds, TwinConfig

_WORKER_KEYS = ("cpus", "resources", "host")
"""What a twin keeps of a worker in a placement. Devices, ranks and interpreters are those of networks."""


def add_twin(commands: Any) -> None:
    """Add the command to a parser."""
    text = "Serve models without weights, to test clients, gateways and autoscalers. All settings are those of `serve`."
    twin = commands.add_parser("twin", help=text, description=text)
    add_target(twin, is_needed=True)
    add = twin.add_argument
    add(
        "--profile",
        action="append",
        default=[],
        metavar="[NAME=]FILE",
        help="Profile of a model (`mstar profile`), from which its ops have their times. NAME is that of the model.",
    )
    add("--device", default="", help="Device of the profile whose times are used (default: its first one).")
    add(
        "--op-seconds",
        action="append",
        default=[],
        metavar="OP=S[+S]",
        help="Time of an op: seconds of a batch, and of each position in addition: lm.next_token=0.01+0.0001.",
    )
    add(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help="Size of a dimension of an output (component.op.DIMENSION), or integer result (component.op).",
    )
    add("--time-scale", type=_positive, default=1.0, help="Factor of all times (default 1).")
    add(
        "--output-tokens",
        type=_count,
        default=64,
        help="Tokens of an answer, if the request allows as many (default 64).",
    )
    add("--kv-tokens", type=_count, help="Tokens that each KV cache holds (default: that of the component).")
    twin.set_defaults(run=_serve_twin, reload=False)


def _positive(text: str) -> float:
    if not 0 < float(text) < float("inf"):
        raise ValueError
    return float(text)


def _count(text: str) -> int:
    return int(text) if _positive(text) else 0


def _serve_twin(options: argparse.Namespace) -> None:
    from mstar.cli.serving.serve import serve_until_signal

    profiles = {name: path for name, _, path in (each.rpartition("=") for each in options.profile)}
    if options.target.endswith(".json"):  # a profile names its model
        profiles[""], options.target = options.target, _read_profile(options.target).model
    serve_until_signal(options, lambda options: to_twin(resolve_config(options), options, profiles))


def to_twin(config: ServeConfig, options: argparse.Namespace, profiles: dict[str, str]) -> ServeConfig:
    """The configuration of the twin of a server. Raises LoadError."""
    from mstar.config import TwinConfig

    twin = TwinConfig(
        profiles={
            name: Path(path).read_bytes() for name, path in _find_profiles(config, profiles, options.device).items()
        },
        device=options.device,
        op_seconds=dict(map(_parse_op_seconds, options.op_seconds)),
        time_scale=options.time_scale,
        output_tokens=options.output_tokens,
        kv_tokens=options.kv_tokens,
        sizes=dict(map(_parse_size, options.size)),
    )
    _check_names(config, twin)
    placements = {name: without_devices(text) for name, text in config.placements.items()}
    return replace(config, placements=placements, twin=twin)


def _read_profile(path: str) -> Any:
    from mstar.plan.profile import ModelProfile

    return ModelProfile.load(Path(path))


def _find_profiles(config: ServeConfig, profiles: dict[str, str], device: str) -> dict[str, str]:
    """Profile file by model. One without a name is that of the only model. Raises LoadError."""
    paths: dict[str, str] = {}
    for name, path in profiles.items():
        model = name or next(iter(config.models))
        if model not in config.models or (not name and len(config.models) > 1):
            names = format_names(config.models)
            raise LoadError(f"--profile {path}: which model?\n  fix: write NAME={path} with one of {names}")
        profile = _read_profile(path)
        if device:
            profile.device(device)
        paths[model] = path
    return paths


def _parse_op_seconds(text: str) -> tuple[str, OpSeconds]:
    from mstar.config import OpSeconds

    op, _, times = text.partition("=")
    batch, _, position = times.partition("+")
    try:
        seconds = OpSeconds(batch_s=float(batch), position_s=float(position or 0))
    except ValueError:
        raise LoadError(f"--op-seconds {text} is invalid\n  fix: use the form lm.next_token=0.01+0.0001") from None
    if min(seconds.batch_s, seconds.position_s) < 0:
        raise LoadError(f"--op-seconds {text} is negative\n  fix: use 0 or more seconds")
    return op, seconds


def _parse_size(text: str) -> tuple[str, int]:
    name, _, size = text.partition("=")
    if not size.isdecimal():
        raise LoadError(f"--size {text} is invalid\n  fix: use the form tts.synthesize.S=24000")
    return name, int(size)


def _check_names(config: ServeConfig, twin: TwinConfig) -> None:
    """Raise LoadError for the name of an op that no served model has."""
    from mstar.walk.load import load_model

    models = [load_model(target) for target in config.models.values()]
    ops = {
        f"{name}.{op}" for model in models for name, component in model.components().items() for op in component.ops()
    }
    named = (*twin.op_seconds, *(".".join(size.split(".")[:2]) for size in twin.sizes))
    if unknown := [name for name in named if name not in ops]:
        raise LoadError(f"no op is called {format_names(unknown)}\n  fix: use {format_names(sorted(ops))}")


# ---------------------------------------------------------------- placement
def without_devices(text: str) -> str:
    """A placement without the devices, ranks and interpreters of workers and the settings of networks."""
    table = tomllib.loads(text)
    workers = {
        name: {key: value for key, value in fields.items() if key in _WORKER_KEYS}
        for name, fields in table.get("workers", {}).items()
    }
    adapters = {
        name: {"adapters": fields["adapters"]}
        for name, fields in table.get("components", {}).items()
        if "adapters" in fields
    }
    return _to_text({**table, "workers": workers, "components": adapters})


def _to_text(table: dict[str, Any]) -> str:
    from mstar.cli.serving.manifest import to_toml

    return "".join(f"{to_toml(name)} = {to_toml(value)}\n" for name, value in table.items() if value)
