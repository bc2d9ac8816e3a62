"""Tiny pi0.5 of the golden data in the published layout.

`golden/pi05` holds its random weights and the float32 outputs of lerobot, which equal those of openpi.
"""

from __future__ import annotations

import functools
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "pi05"
CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
SIGLIP = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
SIGLIP |= {"image_size": 32, "patch_size": 8}
GEMMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "head_dim": 16, "vocab_size": 512}
OPENPI = {
    "action_dim": 32,
    "action_horizon": 10,
    "paligemma_variant": "gemma_2b",
    "action_expert_variant": "gemma_300m",
}
TINY = {**OPENPI, "vision_config": SIGLIP, "text_config": GEMMA}
"""config.json of openpi, with the sizes of a smaller model."""


@functools.cache
def weights() -> dict[str, Tensor]:
    """Load the tensors by their published names."""
    return load_file(GOLDEN / "weights.safetensors")


@functools.cache
def words() -> bytes:
    """Train a sentencepiece tokenizer with few words."""
    from sentencepiece import SentencePieceTrainer

    made, sentences = (
        io.BytesIO(),
        ["Task: pick up the cup, State: 12 255 0 99 128;\nAction: ", "fold a shirt 3 4 5 6 7"],
    )
    how: dict[str, Any] = {"vocab_size": 320, "byte_fallback": True, "hard_vocab_limit": False, "minloglevel": 2}
    how |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False}
    SentencePieceTrainer.train(sentence_iterator=iter(sentences * 4), model_writer=made, num_threads=1, **how)
    return made.getvalue()


def save(folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> str:
    """Save a folder in the openpi layout."""
    save_file(weights() if tensors is None else tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TINY | config))
    (folder / "paligemma_tokenizer.model").write_bytes(words())
    return str(folder)


def observation(seed: int, cameras: int = 3, numbers: int = 5) -> dict[str, Any]:
    """An observation of a robot."""
    drawn = np.random.default_rng(seed)
    seen: dict[str, Any] = {name: drawn.integers(0, 255, (24, 40, 3), np.uint8) for name in CAMERAS[:cameras]}
    return {**seen, "state": drawn.uniform(-1, 1, numbers).astype(np.float32)}


# ---------------------------------------------------------------- lerobot outputs
def golden() -> dict[str, tuple[dict[str, Any], np.ndarray]]:
    """Return the requests of `Replayed` with different cameras, prompts and steps, and their actions."""
    golden, expected = load_file(GOLDEN / "cases.safetensors"), dict[str, tuple[dict[str, Any], np.ndarray]]()
    for name, steps in (("b1", 10), ("b3", 10), ("b1_steps5", 5)):
        keys = ("images", "image_masks", "tokens", "token_mask", "noise", "actions")
        for row, given in enumerate(zip(*(golden[f"{name}.{key}"] for key in keys), strict=True)):
            images, is_there, tokens, is_token, noise, actions = given
            nothing = noise * 0
            case = {"views": images[is_there], "tokens": tokens[is_token], "noise": noise, "steps": steps}
            expected[f"{name} {row}"] = case | {"left": nothing, "trust": nothing[:, 0]}, actions.numpy()
    return expected
