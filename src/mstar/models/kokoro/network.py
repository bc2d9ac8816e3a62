"""Kokoro networks: the modules of the package `kokoro`, with the tensors of a checkpoint.

Imports torch, so it is imported inside ops only. The package's own text processing and download code is not imported,
because it needs spaCy and eSpeak. Random numbers come from a generator per request.
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
from mstar.nn.one_thread import one_thread

_INSTALL_FIX = "pip install attrs && pip install --no-deps kokoro==0.9.4"
OPTIONAL_TENSORS = (".norm.weight", ".norm.bias", "pooler.weight", "pooler.bias", "position_ids")
"""Tensors that a file can lack: they are unused, or ones and zeros."""


def load_parts(checkpoint: Checkpoint, *names: str) -> Any:
    """Load parts as attributes of one module. Raises LoadError unless all tensors match."""
    loaded = nn.Module()
    for name in names:
        part = build_part(name, checkpoint.config)
        tensors = checkpoint.part_tensors(name)
        mismatch = part.load_state_dict(tensors, strict=False)
        unmatched = [key for key in mismatch.missing_keys if not key.endswith(OPTIONAL_TENSORS)]
        unmatched += [key for key in mismatch.unexpected_keys if not key.endswith(OPTIONAL_TENSORS)]
        if unmatched:
            what = f"missing or unexpected tensors of Kokoro's {name}: {format_names(unmatched[:20])}"
            raise LoadError(f"{what}\n  fix: use the config.json that the weights were saved with")
        for module in part.modules():
            if hasattr(module, "weight_g"):
                remove_weight_norm(module)  # fold it, instead of computing it in each forward pass
        loaded.add_module(name, part)
    return loaded.eval().requires_grad_(requires_grad=False)


def build_part(name: str, config: Mapping[str, Any]) -> nn.Module:
    """Build a part with random weights from a config."""
    modules, istftnet = _import_networks()
    sizes, hidden, style, depth = config["plbert"], config["hidden_dim"], config["style_dim"], config["n_layer"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it uses the deprecated weight_norm, and dropout in LSTMs with one layer
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
    """Import the network modules without the package's __init__, which imports everything else."""
    try:
        with _without_package_init("kokoro"):
            from kokoro import istftnet, modules
    except ImportError as error:
        raise LoadError(f"Kokoro needs a library: {error}\n  fix: {_INSTALL_FIX}") from error
    return modules, istftnet


@contextmanager
def _without_package_init(name: str) -> Iterator[None]:
    """Allow importing submodules without running the package's __init__. A later import of the package runs it."""
    if name in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError(f"No module named {name!r}")
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = list(spec.submodule_search_locations)
    try:
        yield
    finally:
        del sys.modules[name]


class SeededRandom(TorchFunctionMode):
    """Makes a network draw its random numbers from a generator with this seed, separate for each request.

    The generator is on the host, so that the numbers are the same on every device.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pass the generator to random functions, and call everything else unchanged."""
        kwargs = kwargs or {}
        if func is torch.rand:
            device = kwargs.pop("device", "cpu")
            return func(*args, **kwargs, generator=self._generator).to(device)
        if func is torch.randn_like:
            return torch.empty_like(args[0], device="cpu").normal_(generator=self._generator).to(args[0].device)
        return func(*args, **kwargs)


@torch.inference_mode()
@one_thread()  # sums in a fixed order: rounding of the pitch is audible in later samples
def predict_frames(parts: Any, tokens: Tensor, style: Tensor, speed: float) -> tuple[Tensor, ...]:
    """Predict the frames of a phrase [tokens] in a style [128]: features, pitch, energy, and frames per token."""
    tokens, style = tokens[None], style[None]
    lengths = torch.tensor([tokens.shape[1]])  # recurrent layers read it on the host
    mask = torch.zeros(tokens.shape, dtype=torch.bool, device=tokens.device)
    encoded = parts.bert_encoder(parts.bert(tokens, attention_mask=(~mask).int())).transpose(1, 2)
    hidden = parts.predictor.text_encoder(encoded, style, lengths, mask)
    seconds = parts.predictor.duration_proj(parts.predictor.lstm(hidden)[0]).sigmoid().sum(-1)[0] / speed
    durations = seconds.round().clamp(min=1).long()
    pitch, energy = parts.predictor.F0Ntrain(hidden[0].repeat_interleave(durations, 0).T[None], style)
    features = parts.text_encoder(tokens, lengths, mask)[0].repeat_interleave(durations, 1)
    return features, pitch[0], energy[0], durations


@torch.inference_mode()
def decode_audio(parts: Any, features: Tensor, pitch: Tensor, energy: Tensor, style: Tensor, seed: int) -> Tensor:
    """Synthesize frames in a style [128], 600 samples per frame."""
    with SeededRandom(seed):
        return parts.decoder(features[None], pitch[None], energy[None], style[None])[0, 0]
