"""The networks of Kokoro: those of the package `kokoro`, with the tensors of a checkpoint.

Needs torch, and is imported where an op runs. The package also turns text into phonemes and fetches weights; that is
not imported, because it wants spaCy and eSpeak. Random numbers are drawn as the package draws them, from a generator
that whoever runs a network gives.

    pip install attrs && pip install --no-deps kokoro==0.9.4
"""

from __future__ import annotations

import importlib.util
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import remove_weight_norm
from torch.overrides import TorchFunctionMode
from transformers import AlbertConfig

from mstar.errors import LoadError, format_names
from mstar.models.kokoro.checkpoint import Checkpoint

_INSTALL_FIX = "pip install attrs && pip install --no-deps kokoro==0.9.4"
OPTIONAL_TENSORS = (".norm.weight", ".norm.bias", "pooler.weight", "pooler.bias", "position_ids")
"""Tensors that files may lack: nothing depends on them, or they are ones and zeros."""


def load_parts(checkpoint: Checkpoint, *names: str) -> Any:
    """These parts of a model as attributes of one module, ready to run. Raises LoadError unless all tensors fit."""
    whole = nn.Module()
    for name in names:
        part = build_part(name, checkpoint.config)
        tensors = checkpoint.part_tensors(name)
        found = part.load_state_dict(tensors, strict=False)
        faults = [one for one in found.missing_keys if not one.endswith(OPTIONAL_TENSORS)]
        faults += [one for one in found.unexpected_keys if not one.endswith(OPTIONAL_TENSORS)]
        if faults:
            what = f"these tensors do not make Kokoro's {name}: {format_names(faults[:20])} are missing or left over"
            raise LoadError(f"{what}\n  fix: use the config.json that the weights were saved with")
        for module in part.modules():
            if hasattr(module, "weight_g"):
                remove_weight_norm(module)  # which would be computed anew at each run
        whole.add_module(name, part)
    return whole.eval().requires_grad_(requires_grad=False)


def build_part(name: str, config: Mapping[str, Any]) -> nn.Module:
    """A part with random weights, of the sizes that a config.json says."""
    modules, istftnet = _import_networks()
    sizes, hidden, style, depth = config["plbert"], config["hidden_dim"], config["style_dim"], config["n_layer"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still uses weight_norm, and drops out between layers where there is one
        match name:
            case "bert":
                return modules.CustomAlbert(AlbertConfig(vocab_size=config["n_token"], **sizes))
            case "bert_encoder":
                return nn.Linear(sizes["hidden_size"], hidden)
            case "predictor":
                return modules.ProsodyPredictor(style, hidden, depth, config["max_dur"], config["dropout"])
            case "text_encoder":
                return modules.TextEncoder(hidden, config["text_encoder_kernel_size"], depth, config["n_token"])
            case _:
                return istftnet.Decoder(hidden, style, config["n_mels"], **config["istftnet"])


def _import_networks() -> tuple[Any, Any]:
    """The package's modules that hold networks, without running the package's own file, which imports all others."""
    try:
        with _without_package_init("kokoro"):
            from kokoro import istftnet, modules
    except ImportError as error:
        raise LoadError(f"this voice needs a library: {error}\n  fix: {_INSTALL_FIX}") from error
    return modules, istftnet


@contextmanager
def _without_package_init(name: str) -> Iterator[None]:
    """Inside it, modules of a package can be imported by themselves. Who imports the package later gets all of it."""
    if name in sys.modules:
        yield
        return
    found = importlib.util.find_spec(name)
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError(f"there is no {name}")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = list(found.submodule_search_locations)
    try:
        yield
    finally:
        del sys.modules[name]


class SeededRandom(TorchFunctionMode):
    """Inside it, what a network draws is drawn from this generator: two requests do not share one."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Whatever is called, with the generator if it draws."""
        kwargs = kwargs or {}
        if func is torch.rand:
            kwargs = kwargs | {"generator": self._generator}
        elif func is torch.randn_like:
            return torch.empty_like(args[0]).normal_(generator=self._generator)
        return func(*args, **kwargs)


@contextmanager
def _one_thread() -> Iterator[None]:
    """So that numbers are added in one order, whoever runs it: the last bit of a pitch is heard in what follows."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.inference_mode()
@_one_thread()
def predict_frames(parts: Any, tokens: Tensor, style: Tensor, speed: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is heard in each frame of a phrase [tokens] in a style [128]: sounds, pitch and strength."""
    tokens, style = tokens[None], style[None]
    lengths, mask = torch.tensor([tokens.shape[1]]), torch.zeros(tokens.shape, dtype=torch.bool)
    read = parts.bert_encoder(parts.bert(tokens, attention_mask=(~mask).int())).transpose(1, 2)
    felt = parts.predictor.text_encoder(read, style, lengths, mask)
    lasting = parts.predictor.duration_proj(parts.predictor.lstm(felt)[0]).sigmoid().sum(-1)[0] / speed
    durations = lasting.round().clamp(min=1).long()
    pitch, strength = parts.predictor.F0Ntrain(felt[0].repeat_interleave(durations, 0).T[None], style)
    sounds = parts.text_encoder(tokens, lengths, mask)[0].repeat_interleave(durations, 1)
    return sounds, pitch[0], strength[0]


@torch.inference_mode()
def decode_audio(parts: Any, features: Tensor, pitch: Tensor, energy: Tensor, style: Tensor, seed: int) -> Tensor:
    """The sound of frames in a style [128], six hundred samples of each."""
    with SeededRandom(seed):
        return parts.decoder(features[None], pitch[None], energy[None], style[None])[0, 0]
