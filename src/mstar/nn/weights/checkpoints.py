"""Reading a checkpoint: a folder in Hugging Face layout becomes a transformers network.

Tensors are mapped from their files, and the library puts them in place: it alone knows how the tensors on disk become
the parameters of a family (experts that are merged, weights that are tied, buffers that no file holds). So a tensor
that stays as it is is not copied, and one that is cast or merged is made anew, one after the other. While a network is
in use its files may be replaced or removed, but not overwritten.

Only safetensors are read: nothing is unpickled, and no code that comes with a checkpoint is run. Quantised weights are
refused, and what a checkpoint says about sampling is not read.
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
from mstar.nn.weights.sources import Progress

_PICKLES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_DTYPES = ("float64", "float32", "bfloat16", "float16")
_PIECE_BYTES = 1 << 24
_MAX_NAMED_TENSORS = 20
"""How many tensors an error names: with the wrong config.json it would be all of them."""


def read_network(
    folder: Path, dtype: str | None, progress: Progress, parts: Mapping[str, str] | None = None
) -> PreTrainedModel:
    """The network that a folder holds, in its own dtype or another. Raises LoadError unless all of it fits.

    With `parts` it has only these modules, of the tensors whose names in the files begin as it says for each.
    """
    config = _read_config(folder)
    kind = _architecture_class(folder, config)
    if parts is None:
        return assemble(kind, config, read_tensors(folder, progress), dtype)
    return assemble(_partial_class(kind, parts), config, read_tensors(folder, progress, tuple(parts.values())), dtype)


def _partial_class(kind: type[PreTrainedModel], names: Collection[str]) -> type[PreTrainedModel]:
    """A network of a kind that has only some of its modules. It is made without memory, so the others cost nothing."""

    def make(self: Any, config: Any) -> None:
        kind.__init__(self, config)
        _keep_only(self, "", names)

    return type(kind.__name__, (kind,), {"__init__": make, "__module__": kind.__module__})


def _keep_only(module: Module, path: str, names: Collection[str]) -> None:
    for name, child in list(module.named_children()):
        own = path + name
        if any(one.startswith(f"{own}.") for one in names):
            _keep_only(child, f"{own}.", names)
        elif own not in names:
            delattr(module, name)


def read_tensors(folder: Path, progress: Progress, prefixes: tuple[str, ...] = ("",)) -> dict[str, Tensor]:
    """The tensors that a folder holds, by their names in its files; of those, the ones whose names begin so."""
    tensors: dict[str, Tensor] = {}
    files: list[Path] = []
    for file in _tensor_files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                names = [name for name in opened.keys() if name.startswith(prefixes)]  # noqa: SIM118 - it is no dict
                tensors |= {name: opened.get_tensor(name) for name in names}
        except SafetensorError as error:
            fix = "fetch it again; a git clone without git-lfs leaves stand-ins of a few bytes"
            raise LoadError(f"{file} is no complete safetensors file: {error}\n  fix: {fix}") from error
        files += [file] if names else []
    _read_ahead(files, progress)
    return tensors


def assemble(
    kind: type[PreTrainedModel], config: PreTrainedConfig, tensors: dict[str, Tensor], dtype: str | None
) -> PreTrainedModel:
    """A network of these tensors. Raises LoadError that names those that are missing, left over or of another shape."""
    with _quiet() as said:
        try:
            loaded: Any = kind.from_pretrained(
                None,  # no folder: the library reads nothing by itself
                config=config,
                state_dict=tensors,
                dtype=parse_dtype(dtype) if dtype else "auto",
                ignore_mismatched_sizes=True,  # they are in the report, with all other faults
                output_loading_info=True,
            )
        except RuntimeError as error:
            broken = [row.split()[0] for row in said.getvalue().splitlines() if "| CONVERSION" in row]
            if not broken:
                raise
            raise _mismatch_error(kind, [f"{name} cannot be made of its parts" for name in broken]) from error
    network, report = loaded
    faults = [f"{name} is missing" for name in sorted(report["missing_keys"])]
    faults += [f"{name} has no place in it" for name in sorted(report["unexpected_keys"])]
    for name, found, wanted in sorted(report["mismatched_keys"]):
        faults.append(f"{name} is {list(found)}, not {list(wanted)}")
    if faults:
        raise _mismatch_error(kind, faults)
    return network


def _mismatch_error(kind: type[PreTrainedModel], faults: list[str]) -> LoadError:
    more = [f"and {len(faults) - _MAX_NAMED_TENSORS} more"] if len(faults) > _MAX_NAMED_TENSORS else []
    what = "\n    ".join([f"these weights do not make a {kind.__name__}:", *faults[:_MAX_NAMED_TENSORS], *more])
    return LoadError(f"{what}\n  fix: use the config.json that the weights were saved with")


@contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """No bar, which would time what takes no time, and no report, which advises to ignore what is refused here.

    Gives what the library would have written.
    """
    said = io.StringIO()
    handler = StreamHandler(said)
    bars = logging.set_tqdm_hook(lambda bar, args, options: bar(*args, **options, disable=True))
    logging.add_handler(handler)
    logging.disable_default_handler()
    try:
        yield said
    finally:
        logging.enable_default_handler()
        logging.remove_handler(handler)
        logging.set_tqdm_hook(bars)


def parse_dtype(name: str) -> torch.dtype:
    """torch's dtype of this name, of those that weights may have."""
    if name not in _DTYPES:
        raise LoadError(f"weights cannot be {name!r}\n  fix: one of {format_names(_DTYPES)}")
    return getattr(torch, name)


def _read_config(folder: Path) -> PreTrainedConfig:
    file = folder / "config.json"
    if not file.is_file():
        raise LoadError(f"{file} is missing\n  fix: give a folder that transformers' save_pretrained wrote")
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, StrictDataclassError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        fix = "give a folder that transformers' save_pretrained wrote, of a model that transformers has itself"
        raise LoadError(f"{file} is not understood: {reason}\n  fix: {fix}") from error
    if getattr(config, "quantization_config", None):
        raise LoadError(
            f"{folder} holds quantised weights, which are not read\n  fix: use the weights they were made of"
        )
    return config


def _architecture_class(folder: Path, config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that the checkpoint was saved from: another one would lack some of its tensors or invent some."""
    names = config.architectures or []
    kind = getattr(transformers, names[0], None) if names else None
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise LoadError(
            f"{folder / 'config.json'} names {format_names(names)} as its architecture, which transformers does not have\n"
            f'  fix: write one that it has, as in "architectures": ["LlamaForCausalLM"]'
        )
    return kind


def _tensor_files(folder: Path) -> list[Path]:
    stem = "diffusion_pytorch_model" if any(folder.glob("diffusion_pytorch_model*.safetensors*")) else "model"
    single, index = folder / f"{stem}.safetensors", folder / f"{stem}.safetensors.index.json"
    if single.is_file():
        return [single]
    if index.is_file():
        try:
            files = [folder / name for name in sorted(set(json.loads(index.read_bytes())["weight_map"].values()))]
        except (ValueError, KeyError) as error:
            raise LoadError(f"{index} is no complete index of tensors\n  fix: fetch it again") from error
        if missing := [file.name for file in files if not file.is_file()]:
            raise LoadError(f"{folder} lacks {format_names(missing)}, which its index names\n  fix: fetch them again")
        return files
    if pickles := sorted(file.name for file in folder.iterdir() if file.suffix in _PICKLES):
        raise LoadError(
            f"{folder} holds {format_names(pickles)} and no safetensors; unpickling would run whatever code is in there\n"
            f"  fix: where you trust them, load them with transformers and write them again with save_pretrained"
        )
    raise LoadError(f"{folder} holds neither {single.name} nor {index.name}\n  fix: give the folder that does")


def _read_ahead(files: Sequence[Path], progress: Progress) -> None:
    """Read files once from end to end, so that progress is told and the first request does not wait for the disk."""
    done, total = 0, sum(file.stat().st_size for file in files)
    piece = bytearray(_PIECE_BYTES)
    for file in files:
        with file.open("rb", buffering=0) as stream:
            while count := stream.readinto(piece):
                done += count
                progress(done, total)
