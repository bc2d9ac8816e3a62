"""Tiny V-JEPA 2 and V-JEPA 2-AC checkpoints in the published layouts, and requests for them."""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import VJEPA2Config, VJEPA2Model

from mstar.models.vjepa2.checkpoint import Sizes
from mstar.models.vjepa2.network import Encoder, Predictor
from mstar.models.vjepa2.vjepa2 import ClipEmbeddingRequest
from mstar.requests import ActionRequest, RolloutRequest, VideoInput

GOLDEN = Path(__file__).parents[1] / "golden" / "vjepa2_ac"
SIZES = {
    "crop_size": 64,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "mlp_ratio": 4,
    "layer_norm_eps": 1e-5,
    "pred_hidden_size": 96,
    "pred_num_hidden_layers": 4,
    "pred_num_attention_heads": 4,
}
"""Sizes of the golden weights."""


def save_ac(folder, **other):
    """Save the golden weights as safetensors, with a config of their sizes or of others."""
    folder.mkdir(exist_ok=True)
    shutil.copyfile(GOLDEN / "weights.safetensors", folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SIZES | other))
    return str(folder)


def save_random(folder, **config):
    """Save random weights with the published names and these sizes, and return the folder and the tensors."""
    sizes = Sizes.from_config(SIZES | config)
    torch.manual_seed(3)
    tensors = {
        f"{part}.{name}": one
        for part, network in (("encoder", Encoder(sizes)), ("predictor", Predictor(sizes)))
        for name, one in network.state_dict().items()
    }
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SIZES | config))
    return str(folder), tensors


def save_clips(folder):
    """Save a random V-JEPA 2 with transformers. Mask tokens are drawn too, because they are initialized to zero."""
    sizes = {"pred_num_hidden_layers": 2, "crop_size": 48, "pred_num_mask_tokens": 3}
    torch.manual_seed(4)
    network = VJEPA2Model(VJEPA2Config(**SIZES | sizes)).eval()
    with torch.no_grad():
        for name, one in network.named_parameters():
            one.normal_(1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2)
    network.save_pretrained(folder)
    return str(folder), network


def picture(seed, height=64, width=64):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def pose(seed):
    return np.random.default_rng(seed).uniform(-0.5, 0.5, 7).astype(np.float32)


def rollout_request(seed, steps, plans=0):
    """Actions of one plan, or of parallel plans."""
    shape = (plans, 7) if plans else (7,)
    actions = np.random.default_rng(seed).normal(0, 0.1, (steps, *shape)).astype(np.float32)
    return RolloutRequest({"image": picture(seed), "pose": pose(seed)}, tuple(actions))


def acting(seed, horizon, candidates, rounds, **more):
    seen = {"image": picture(seed), "pose": pose(seed), "goal": picture(seed + 100)}
    return ActionRequest(seen | {"candidates": candidates, "rounds": rounds} | more, seed=seed, horizon=horizon)


def watching(seed, frames, shown=(), hidden=()):
    pixels = np.random.default_rng(seed).integers(0, 256, (frames, 54, 54, 3), np.uint8)
    return ClipEmbeddingRequest(VideoInput(pixels, 8.0), shown, hidden)
