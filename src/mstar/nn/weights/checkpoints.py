"""Checkpoint loader: a folder in Hugging Face layout (config.json, safetensors) becomes a transformers model.

Tensors are memory-mapped from their files, and transformers assigns them: it knows how the tensors on disk become the
parameters of a model family (merged experts, tied weights, buffers that no file has). So an unchanged tensor is not
copied; only tensors that are cast or merged are, one at a time. While a model is in use its files can be replaced or
removed, but must not be overwritten in place.

Only safetensors are read: nothing is unpickled, and no code of a checkpoint is run. Quantized weights are dequantized,
one at a time, to the dtype of the model (`quantized`). The checkpoint's generation config is not read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from logging import StreamHandler
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import Module
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

from mstar.errors import LoadError, format_names
from mstar.nn.low_rank.layers import low_rank_class
from mstar.nn.weights.progress import Progress
from mstar.nn.weights.quantized.dequantized_tensors import read_dequantized
from mstar.nn.weights.quantized.methods import find_format
from mstar.nn.weights.quantized.quantized_format import QuantizedFormat
from mstar.nn.weights.sharded_files import Source, find_sources, read_sources
from mstar.nn.weights.shards import current_sharded_load

_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_DTYPES = ("float64", "float32", "bfloat16", "float16")
_CHUNK_BYTES = 1 << 24
_MAX_NAMED_TENSORS = 20
"""Maximum number of tensors in an error message: with the wrong config.json all of them mismatch."""


def read_network(
    folder: Path, dtype: str | None, progress: Progress, parts: Mapping[str, str] | None = None
) -> PreTrainedModel:
    """Load the model of a folder, in its own dtype or another. Raises LoadError if any tensor does not match.

    With `parts`, load only some modules: the keys are module names, the values the prefixes of their tensors.
    """
    config, quantized = _read_config(folder)
    kind = _architecture_class(folder, config)
    prefixes = ("",) if parts is None else tuple(parts.values())
    if quantized is not None:
        dtype = dtype or _config_dtype(config)
        tensors = _read_dequantized(folder, progress, prefixes, quantized, dtype)
    else:
        network = _read_shards(folder, kind, config, dtype, progress) if parts is None else None
        if network is not None:
            return network
        tensors = read_tensors(folder, progress, prefixes)
    return assemble(kind if parts is None else _partial_class(kind, parts), config, tensors, dtype)


def _read_dequantized(
    folder: Path, progress: Progress, prefixes: tuple[str, ...], quantized: QuantizedFormat, dtype: str
) -> dict[str, Any]:
    """The tensors of a folder with quantized weights. A rank reads all of them, and keeps its shard afterwards."""
    files: dict[Path, list[str]] = {}
    for file in _tensor_files(folder):
        with _complete_file(file), safe_open(file, framework="pt") as opened:
            files[file] = [name for name in opened.keys() if name.startswith(prefixes)]  # noqa: SIM118 - not a dict
    return read_dequantized(files, quantized, parse_dtype(dtype), progress)


def _config_dtype(config: PreTrainedConfig) -> str:
    return str(config.dtype or "float32").removeprefix("torch.")


def _read_shards(
    folder: Path, kind: type[PreTrainedModel], config: PreTrainedConfig, dtype: str | None, progress: Progress
) -> PreTrainedModel | None:
    """Load the shard that a rank keeps of a model. None if all of it must be read, to keep its shard afterwards."""
    load = current_sharded_load()
    if load is None:
        return None
    with torch.device("meta"):
        skeleton: Any = kind(config)
    shards = load.shard(skeleton)
    files: list[tuple[Path, list[Source]]] = []
    for file in _tensor_files(folder):
        with _complete_file(file):
            sources = find_sources(file, skeleton, shards)
        if sources is None:
            return None
        files.append((file, sources))
    tensors = read_sources(files, progress)

    def make(self: Any, config: Any) -> None:
        kind.__init__(self, config)
        load.shard(self)

    sharded = type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__})
    network = assemble(sharded, config, tensors, dtype)
    load.networks.append(network)
    return network


def meta_network(folder: Path) -> PreTrainedModel:
    """The model of a folder on the meta device: its shapes, without weights. Only config.json is read."""
    config, _ = _read_config(folder)
    kind = _architecture_class(folder, config)
    with torch.device("meta"):
        network: Any = kind(config)
    return network.to(parse_dtype(_config_dtype(config)))


def _partial_class(kind: type[PreTrainedModel], names: Collection[str]) -> type[PreTrainedModel]:
    """A subclass with only some of the modules. It is built on the meta device, so the other modules cost nothing."""

    def make(self: Any, config: Any) -> None:
        kind.__init__(self, config)
        _keep_only(self, "", names)

    return type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__})


def _keep_only(module: Module, path: str, names: Collection[str]) -> None:
    for name, child in list(module.named_children()):
        full_name = path + name
        if any(kept.startswith(f"{full_name}.") for kept in names):
            _keep_only(child, f"{full_name}.", names)
        elif full_name not in names:
            delattr(module, name)


def read_tensors(folder: Path, progress: Progress, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors of a folder by name, filtered by these name prefixes."""
    tensors: dict[str, Tensor] = {}
    files: list[Path] = []
    for file in _tensor_files(folder):
        with _complete_file(file), safe_open(file, framework="pt") as opened:
            names = [name for name in opened.keys() if name.startswith(prefixes)]  # noqa: SIM118 - not a dict
            tensors |= {name: opened.get_tensor(name) for name in names}
        files += [file] if names else []
    _read_ahead(files, progress)
    return tensors


@contextmanager
def _complete_file(file: Path) -> Iterator[None]:
    try:
        yield
    except SafetensorError as error:
        fix = "download it again; a git clone without git-lfs has only pointer files of a few bytes"
        raise LoadError(f"{file} is not a complete safetensors file: {error}\n  fix: {fix}") from error


def assemble(
    kind: type[PreTrainedModel], config: PreTrainedConfig, tensors: Mapping[str, Any], dtype: str | None
) -> PreTrainedModel:
    """Build a model from these tensors. Raises LoadError with the missing, unexpected and mismatched ones.

    With a dtype, a value can be anything that gives its tensor when it is indexed with `...`.
    """
    with _captured_log() as log:
        try:
            loaded: Any = kind.from_pretrained(
                None,  # no folder: transformers reads no files itself
                config=config,
                state_dict=tensors,
                dtype=parse_dtype(dtype) if dtype else "auto",
                ignore_mismatched_sizes=True,  # they are reported below, with all other mismatches
                output_loading_info=True,
            )
        except RuntimeError as error:
            failed = [row.split()[0] for row in log.getvalue().splitlines() if "| CONVERSION" in row]
            if not failed:
                raise
            raise _mismatch_error(kind, [f"{name} cannot be converted from its parts" for name in failed]) from error
    network, report = loaded
    mismatches = [f"{name} is missing" for name in sorted(report["missing_keys"])]
    mismatches += [f"{name} is unexpected" for name in sorted(report["unexpected_keys"])]
    for name, actual, expected in sorted(report["mismatched_keys"]):
        mismatches.append(f"{name} is {list(actual)}, not {list(expected)}")
    if mismatches:
        raise _mismatch_error(kind, mismatches)
    return network


def _mismatch_error(kind: type[PreTrainedModel], mismatches: list[str]) -> LoadError:
    hidden = len(mismatches) - _MAX_NAMED_TENSORS
    more = [f"and {hidden} more"] if hidden > 0 else []
    problem = "\n    ".join([f"the weights do not match {kind.__name__}:", *mismatches[:_MAX_NAMED_TENSORS], *more])
    return LoadError(f"{problem}\n  fix: use the config.json that the weights were saved with")


@contextmanager
def _captured_log() -> Iterator[io.StringIO]:
    """Capture the log of transformers and disable its progress bar.

    The bar would time what takes no time, and the log advises to ignore mismatches that are errors here.
    """
    log = io.StringIO()
    handler = StreamHandler(log)
    bars = logging.set_tqdm_hook(lambda bar, args, options: bar(*args, **options, disable=True))
    logging.add_handler(handler)
    logging.disable_default_handler()
    try:
        yield log
    finally:
        logging.enable_default_handler()
        logging.remove_handler(handler)
        logging.set_tqdm_hook(bars)


def parse_dtype(name: str) -> torch.dtype:
    """The torch dtype of this name. Only float dtypes are allowed for weights."""
    if name not in _DTYPES:
        raise LoadError(f"unsupported dtype {name!r} for weights\n  fix: use one of {format_names(_DTYPES)}")
    return getattr(torch, name)


def _read_config(folder: Path) -> tuple[PreTrainedConfig, QuantizedFormat | None]:
    """The configuration of a network with plain weights, and the format of the weights if they are quantized."""
    file = folder / "config.json"
    if not file.is_file():
        raise LoadError(f"{file} is missing\n  fix: pass a folder written by save_pretrained of transformers")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        fix = "pass a folder written by save_pretrained, of an architecture that is part of transformers"
        raise LoadError(f"{file} is not supported: {reason}\n  fix: {fix}") from error
    described = getattr(config, "quantization_config", None)
    if not described:
        return config, None
    vars(config).pop("quantization_config")  # transformers would quantize the layers
    return config, find_format(described, str(file))


def _architecture_class(folder: Path, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that the checkpoint was saved from. Any other class would have missing or unexpected tensors.

    `mstar compress` writes the ranks of compressed layers to the configuration.
    """
    names = config.architectures or []
    kind = getattr(transformers, names[0], None) if names else None
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise LoadError(
            f"{folder / 'config.json'}: transformers has no architecture {format_names(names)}\n"
            f'  fix: set one that it has, for example "architectures": ["LlamaForCausalLM"]'
        )
    low_rank = getattr(config, "low_rank", None)
    return kind if low_rank is None else low_rank_class(kind, low_rank, str(folder / "config.json"))


def _tensor_files(folder: Path) -> list[Path]:
    stem = _tensor_file_stem(folder)
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
        except (ValueError, KeyError) as error:
            raise LoadError(f"{index} is not a complete index of tensors\n  fix: download it again") from error
        if missing := [file.name for file in files if not file.is_file()]:
            raise LoadError(f"{folder}: {format_names(missing)} missing, listed in the index\n  fix: download again")
        return files
    if pickles := sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES):
        raise LoadError(
            f"{folder} has {format_names(pickles)} but no safetensors; unpickling can run arbitrary code\n"
            f"  fix: if you trust the files, load them with transformers and save them with save_pretrained"
        )
    raise LoadError(f"{folder} has neither {single.name} nor {index.name}\n  fix: pass the folder of a checkpoint")


def _read_ahead(files: Sequence[Path], progress: Progress) -> None:
    """Read the files once into the page cache, to report progress and so that the first request does not wait."""
    done, total = 0, sum(file.stat().st_size for file in files)
    chunk = bytearray(_CHUNK_BYTES)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(chunk):
                done += count
                progress(done, total)


def _tensor_file_stem(folder: Path) -> str:
    """Names of the tensor files up to their suffix. `transformers_weights` of config.json names them in a folder that
    also has the tensors of other software."""
    file = folder / "config.json"
    try:
        named = json.loads(file.read_bytes()).get("transformers_weights")
    except (OSError, ValueError, AttributeError):
        named = None  # absent or damaged: who reads the config reports it
    if not isinstance(named, str):
        return "diffusion_pytorch_model" if any(folder.glob("diffusion_pytorch_model*.safetensors*")) else "model"
    if Path(named).name != named:
        problem = f"{file} has transformers_weights {named!r}, which is not the name of a file in this folder"
        raise LoadError(f"{problem}\n  fix: put the tensors into the folder, and name them there")
    return named.partition(".safetensors")[0]
