"""Speed of our pi0.5 reference, `tests/models/pi05/pi05_published.py`, relative to the published code in lerobot.

lerobot is on PyPI, but requires Python 3.12 and an older transformers, so it cannot be a dependency here. Its network
can run: it is one module with three helpers. This script imports those four files unchanged from an unpacked wheel,
replaces the modules that only configure and train, and loads the same weights on both sides. An argument that newer
versions of transformers do not have is dropped:

    pip install --no-deps --ignore-requires-python --target FOLDER lerobot==0.6.1
    python -m bench.multimodal.pi05_lerobot FOLDER

It fails if the actions differ. It is no claim: it shows whether the baseline of `bench pi05` is slower than the code
that it stands for.

Workload: that of `bench.multimodal.pi05`.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

from bench.claims import Row, print_table
from bench.in_process import one_thread, time_wall_and_cpu
from bench.multimodal import pi05

REPLACED = ("configs", "policies.pretrained", "policies.rtc.modeling_rtc", "policies.pi05.configuration_pi05")
"""Modules of lerobot that inference does not use."""


def import_lerobot(folder: Path) -> Any:
    """Import lerobot's module of pi0.5 from an unpacked wheel."""
    for name in ("lerobot", "lerobot.utils", "lerobot.policies", "lerobot.policies.common", "lerobot.policies.pi05"):
        package = types.ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules[name] = package
    for name in REPLACED:
        sys.modules[f"lerobot.{name}"] = MagicMock()
    sys.modules["lerobot.policies.pretrained"].PreTrainedPolicy = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules["lerobot.utils.import_utils"] = MagicMock(_transformers_available=True)
    module = importlib.import_module("lerobot.policies.pi05.modeling_pi05")
    layers = sys.modules["lerobot.policies.pi_gemma"]
    create = layers.create_causal_mask

    def create_causal_mask(**given: Any) -> Any:
        del given["cache_position"]
        return create(**given)

    layers.create_causal_mask = create_causal_mask  # pyright: ignore[reportAttributeAccessIssue]
    return module


def load_lerobot(module: Any, saved: str) -> Any:
    """lerobot's network with the sizes and weights of a saved model."""
    from safetensors.torch import load_file

    reader, expert = pi05.GEMMA, pi05.EXPERT
    sizes = {"gemma_2b": (reader["hidden_size"], reader["intermediate_size"]), "gemma_300m": expert}
    module.get_gemma_config = lambda variant: module.GemmaConfig(
        sizes[variant][0], reader["num_hidden_layers"], sizes[variant][1], 8, 1, reader["head_dim"]
    )
    whole = module.PaliGemmaForConditionalGenerationWithPiGemma

    def build(config: Any) -> Any:
        config.vision_config = type(config.vision_config)(
            **pi05.SIGLIP, projection_dim=reader["hidden_size"], vision_use_head=False
        )
        config.text_config.vocab_size = reader["vocab_size"]
        return whole(config=config)

    module.PaliGemmaForConditionalGenerationWithPiGemma = build
    config = types.SimpleNamespace(
        paligemma_variant="gemma_2b",
        action_expert_variant="gemma_300m",
        dtype="float32",
        image_resolution=(pi05.SIGLIP["image_size"],) * 2,
        freeze_vision_encoder=False,
        train_expert_only=False,
        compile_model=False,
        max_action_dim=32,
        chunk_size=pi05.ACTIONS,
        num_inference_steps=pi05.STEPS,
        min_period=4e-3,
        max_period=4.0,
        rtc_config=None,
    )
    network = module.PI05Pytorch(config).eval()
    published = load_file(Path(saved, "model.safetensors"))  # with a level that this transformers has no more
    tensors = {name.replace("vision_tower.vision_model.", "vision_tower."): one for name, one in published.items()}
    missing, unknown = network.load_state_dict(tensors, strict=False)
    if unknown or any("lm_head" not in name for name in missing):
        raise RuntimeError(f"the weights do not fit: missing {missing[:5]}, unknown {unknown[:5]}")
    return network


def lerobot_actions(module: Any, saved: str) -> Callable[[], Any]:
    """A function that computes the padded chunk of `bench pi05` with lerobot's network."""
    network, (images, tokens, noise) = load_lerobot(module, saved), pi05.model_inputs()
    views = [image[None] for image in images]
    masks = [mask[None] for mask in images.new_tensor([True, True, False]).bool()]
    words = tokens[None]
    return lambda: network.sample_actions(views, masks, words, words < pi05.WORDS, noise=noise[None])[0]


def main(folder: Path) -> None:
    """Print the durations of both, by turns, and their ratio."""
    with tempfile.TemporaryDirectory() as saving, one_thread():
        saved = pi05.save(Path(saving))
        ways = (lerobot_actions(import_lerobot(folder), saved), pi05.published(saved, is_padded=True))
        wanted, got = (way() for way in ways)
        difference = float((wanted - got).abs().max())
        if not difference < 1e-4 < float(wanted.std()):
            raise RuntimeError(f"the actions differ by {difference:.1e}")
        took = [[time_wall_and_cpu(way)[0] for way in ways] for _ in range(pi05.REPEATS)]
    print_table(
        [
            Row("a chunk, lerobot", "s", [one.wall_s for one, _ in took]),
            Row("a chunk, reimplementation", "s", [other.wall_s for _, other in took]),
            Row("  lerobot's time, times the reimplementation's", "x", [a.wall_s / b.wall_s for a, b in took]),
            Row("  the same of CPU time", "x", [a.cpu_s / b.cpu_s for a, b in took]),
        ]
    )
    print(f"largest difference of an action: {difference:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
