"""Tiny Kokoro with random weights in the layout of `scripts/fetch-kokoro`, and the library's own model.

The library fixes most sizes of its decoder; the others are small, so that a frame has forty samples.
"""

import importlib.util
import json
import sys
import types
import warnings
from pathlib import Path

import hibari
import torch
from loguru import logger
from safetensors.torch import load_file, save_file

from mstar.models.kokoro.network import build_part

HOP = 40
PARTS = ("bert", "bert_encoder", "predictor", "text_encoder", "decoder")
CONFIG = {
    "istftnet": {
        "upsample_kernel_sizes": [4, 4],
        "upsample_rates": [2, 2],
        "gen_istft_hop_size": 5,
        "gen_istft_n_fft": 20,
        "resblock_dilation_sizes": [[1, 3, 5]],
        "resblock_kernel_sizes": [3],
        "upsample_initial_channel": 512,
    },
    "dropout": 0.2,
    "hidden_dim": 512,
    "max_dur": 4,
    "n_layer": 1,
    "n_mels": 80,
    "n_token": 178,
    "style_dim": 128,
    "text_encoder_kernel_size": 5,
    "plbert": {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": 512,
        "num_hidden_layers": 2,
        "dropout": 0.1,
    },
    "vocab": json.loads((Path(hibari.__file__).parent / "assets" / "vocab.json").read_text()),
}


def save(folder):
    """Draw weights in which every layer has an effect, and two different voices."""
    torch.manual_seed(3)
    tensors = {}
    for part in PARTS:
        tensors |= {f"{part}.{name}": tensor for name, tensor in build_part(part, CONFIG).state_dict().items()}
    for name, tensor in tensors.items():
        if name.endswith("weight_g"):
            tensor.uniform_(0.5, 1.5).mul_(0.1 if "conv_post" in name else 1)
        elif name.startswith("predictor.F0_proj"):
            tensor.mul_(200)  # high enough that some frames are voiced
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors, folder / "model.safetensors")
    save_file({name: torch.randn(510, 256) for name in ("af_heart", "am_adam")}, folder / "voices.safetensors")
    return str(folder)


def published(folder):
    """Return the tensors as in the published file: a dict per part."""
    whole = load_file(Path(folder) / "model.safetensors")
    names = {part: [name for name in whole if name.startswith(f"{part}.")] for part in PARTS}
    return {
        part: {f"module.{name.removeprefix(f'{part}.')}": whole[name] for name in own} for part, own in names.items()
    }


def library(folder, monkeypatch):
    """Return the library's own model of these tensors, without its phonemizer."""
    package = types.ModuleType("kokoro")
    package.__path__ = importlib.util.find_spec("kokoro").submodule_search_locations
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "kokoro", package)
        from kokoro.model import KModel

    config = json.loads((Path(folder) / "config.json").read_text())
    monkeypatch.setattr(torch, "load", lambda *_, **__: published(folder))
    logger.disable("kokoro.model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in load_parts
        return KModel("tiny", config, "kokoro-v1_0.pth").eval()
