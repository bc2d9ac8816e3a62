"""pi0.5 checkpoint in the layouts of openpi and lerobot: configs, networks and tensors.

A folder holds config.json and model.safetensors, and optionally PaliGemma's sentencepiece tokenizer and openpi's
norm_stats.json. config.json does not describe PaliGemma, because its size is fixed; `vision_config` and `text_config`
override it (tests do). No library is imported until a tokenizer, network or tensor is loaded.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights, ignore_progress

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_WEIGHTS = "hub:lerobot/pi05_base"
_TOKENIZER_WEIGHTS = "hub:google/paligemma-3b-pt-224"
"""Source of the shared tokenizer, for folders without one."""
_DEFAULT_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
_SIGLIP_CONFIG = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
_SIGLIP_CONFIG |= {"image_size": 224, "patch_size": 14, "vision_use_head": False}
_GEMMA_CONFIG = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8}
_GEMMA_CONFIG |= {"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 257152, "use_bidirectional_attention": True}
_PALIGEMMA_PREFIX = "paligemma_with_expert.paligemma.model."
_TIED_EMBEDDING_PREFIX = "paligemma_with_expert.paligemma.lm_head."
_EXPERT_PREFIXES = ("paligemma_with_expert.gemma_expert.model.", "action_in_proj.", "action_out_proj.", "time_mlp_")


class NamedTensors(dict[str, "Tensor"]):
    """Tensors by name. A missing tensor raises LoadError."""

    def __missing__(self, name: str) -> Tensor:
        raise LoadError(f"the weights have no tensor {name}\n  fix: use the folder of a pi0.5 model")

    def to(self, device: Any) -> NamedTensors:
        """The tensors on a device."""
        return NamedTensors({name: tensor.to(device) for name, tensor in self.items()})

    def strip_prefix(self, prefix: str) -> NamedTensors:
        """Select the tensors with this prefix, and strip it from their names."""
        return NamedTensors(
            {name.removeprefix(prefix): tensor for name, tensor in self.items() if name.startswith(prefix)}
        )


class Checkpoint:
    """Folder, or `hub:NAME`."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    @functools.cached_property
    def _folder(self) -> Path:
        return self._weights.path("*.json", "*.safetensors", "*.model")

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        file = self._folder / "config.json"
        config = json.loads(file.read_bytes()) if file.is_file() else {}
        if not {"chunk_size", "action_horizon"} & config.keys():
            raise LoadError(f"{file} does not define the chunk size\n  fix: use the folder of a pi0.5 model")
        return config

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """Number of actions of a chunk, and the size of an action inside the network."""
        names = ("chunk_size", "max_action_dim") if "chunk_size" in self.config else ("action_horizon", "action_dim")
        return self.config[names[0]], self.config[names[1]]

    @property
    def image_size(self) -> int:
        """Side of the input images in pixels."""
        return {**_SIGLIP_CONFIG, **self.config.get("vision_config", {})}["image_size"]

    @property
    def observation_names(self) -> tuple[str, Sequence[str]]:
        """Name of the robot state, and the cameras in training order."""
        features: Mapping[str, Any] = self.config.get("input_features", {})
        cameras = [name for name, feature in features.items() if feature["type"] == "VISUAL"]
        return ("observation.state", cameras) if cameras else ("state", _DEFAULT_CAMERAS)

    @functools.cached_property
    def quantiles(self) -> Mapping[str, tuple[list[float], list[float]]]:
        """1 % and 99 % quantiles of the robot's `state` and `actions`."""
        files = sorted(self._folder.rglob("norm_stats.json"))
        if len(files) > 1:
            raise LoadError(
                f"{self._folder} has {len(files)} norm_stats.json files, 1 expected\n  fix: keep the file of your robot"
            )
        if not files and any(self._folder.glob("policy_preprocessor_step_*.safetensors")):
            fix = "write their q01 and q99 to a norm_stats.json in the openpi format"
            raise LoadError(f"{self._folder} has normalization statistics in the lerobot format\n  fix: {fix}")
        stats = json.loads(files[0].read_bytes())["norm_stats"] if files else {}
        return {name: (values["q01"], values["q99"]) for name, values in stats.items()}

    @property
    def vector_sizes(self) -> Mapping[str, int]:
        """Size of an action, and of the state where it is known."""
        return {"actions": self.chunk_shape[1]} | {name: len(low) for name, (low, _) in self.quantiles.items()}

    @functools.cached_property
    def tokenizer(self) -> Any:
        """sentencepiece tokenizer of PaliGemma."""
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise LoadError(
                f"the tokenizer needs a library: {error}\n  fix: pip install 'mstar-serve[pi05]'"
            ) from error
        file = (
            next(self._folder.glob("*.model"), None) or Weights(_TOKENIZER_WEIGHTS).path("*.model") / "tokenizer.model"
        )
        return SentencePieceProcessor(model_file=str(file))

    def load_vision_encoder(self) -> Any:
        """Load the SigLIP of transformers, with the projection to embeddings as `projector`."""
        from torch.nn import Linear
        from transformers import SiglipVisionConfig, SiglipVisionModel

        from mstar.nn.weights.checkpoints import assemble

        tensors = self._tensors(
            _PALIGEMMA_PREFIX + "vision_tower.", _PALIGEMMA_PREFIX + "multi_modal_projector."
        ).strip_prefix(_PALIGEMMA_PREFIX)
        config = SiglipVisionConfig(**_SIGLIP_CONFIG | self.config.get("vision_config", {}))
        network: Any = assemble(SiglipVisionModel, config, tensors.strip_prefix("vision_tower."), None)
        projector = tensors.strip_prefix("multi_modal_projector.linear.")
        size, width = projector["weight"].T.shape
        network.projector = Linear(size, width, device="meta")
        network.projector.load_state_dict(projector, assign=True)
        return network

    def load_language_model(self) -> Any:
        """Load the Gemma of transformers that reads the prefix."""
        from transformers import GemmaConfig, GemmaModel

        from mstar.nn.weights.checkpoints import assemble

        prefix = _PALIGEMMA_PREFIX + "language_model."
        config = GemmaConfig(**_GEMMA_CONFIG | self.config.get("text_config", {}))
        published = self._tensors(prefix, _TIED_EMBEDDING_PREFIX)
        tensors = published.strip_prefix(prefix)
        if "embed_tokens.weight" not in tensors:  # a tied tensor is saved under one of its two names
            tensors["embed_tokens.weight"] = published[f"{_TIED_EMBEDDING_PREFIX}weight"]
        return assemble(GemmaModel, config, tensors, None)

    def expert_tensors(self) -> NamedTensors:
        """Load the tensors of the action expert, its layers as `layers.0.` and so on."""
        published = self._tensors(*_EXPERT_PREFIXES)
        return NamedTensors({name.removeprefix(_EXPERT_PREFIXES[0]): tensor for name, tensor in published.items()})

    def _tensors(self, *prefixes: str) -> NamedTensors:
        from mstar.nn.weights.checkpoints import read_tensors

        names = (*prefixes, *(f"model.{prefix}" for prefix in prefixes))  # openpi, lerobot
        tensors = read_tensors(self._folder, ignore_progress, names)
        return NamedTensors({name.removeprefix("model."): tensor for name, tensor in tensors.items()})
