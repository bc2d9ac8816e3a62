"""The files of a pi0.5 model as openpi and lerobot write them: what they say, and the networks and tensors in them.

A folder holds config.json and model.safetensors; beside them may lie PaliGemma's words (a sentencepiece file) and
openpi's norm_stats.json. config.json does not say how large PaliGemma is, for it is the same in all; where it is not,
a `vision_config` and a `text_config` say it. No library is loaded until words, a network or tensors are asked for.
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

DEFAULT_WEIGHTS, _TOKENIZER_WEIGHTS = "hub:lerobot/pi05_base", "hub:google/paligemma-3b-pt-224"
"""A model, and where the words are that all of them share, if a folder has none."""
_DEFAULT_CAMERAS = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
_SIGLIP_CONFIG = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16}
_SIGLIP_CONFIG |= {"image_size": 224, "patch_size": 14, "vision_use_head": False}
_GEMMA_CONFIG = {"hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8}
_GEMMA_CONFIG |= {"num_key_value_heads": 1, "head_dim": 256, "vocab_size": 257152, "use_bidirectional_attention": True}
_PALIGEMMA_PREFIX, _TIED_EMBEDDING_PREFIX = (
    "paligemma_with_expert.paligemma.model.",
    "paligemma_with_expert.paligemma.lm_head.",
)
_EXPERT_PREFIXES = ("paligemma_with_expert.gemma_expert.model.", "action_in_proj.", "action_out_proj.", "time_mlp_")


class NamedTensors(dict[str, "Tensor"]):
    """Tensors by name; one that is missing is an error that names it."""

    def __missing__(self, name: str) -> Tensor:
        raise LoadError(f"the weights lack the tensor {name}\n  fix: give the folder of a pi0.5 model")

    def strip_prefix(self, prefix: str) -> NamedTensors:
        """Those whose names begin so, by the rest of their names."""
        return NamedTensors({name.removeprefix(prefix): one for name, one in self.items() if name.startswith(prefix)})


class Checkpoint:
    """A folder, or `hub:` and a name."""

    def __init__(self, weights: str) -> None:
        self._weights = Weights(weights)

    @functools.cached_property
    def _folder(self) -> Path:
        return self._weights.path("*.json", "*.safetensors", "*.model")

    @functools.cached_property
    def config(self) -> Mapping[str, Any]:
        """What config.json says."""
        file = self._folder / "config.json"
        config = json.loads(file.read_bytes()) if file.is_file() else {}
        if not {"chunk_size", "action_horizon"} & config.keys():
            raise LoadError(f"{file} does not say how long a chunk is\n  fix: give the folder of a pi0.5 model")
        return config

    @property
    def chunk_shape(self) -> tuple[int, int]:
        """How many actions it gives, and how many numbers each has inside of the network."""
        names = ("chunk_size", "max_action_dim") if "chunk_size" in self.config else ("action_horizon", "action_dim")
        return self.config[names[0]], self.config[names[1]]

    @property
    def image_size(self) -> int:
        """How wide and high its pictures are."""
        return {**_SIGLIP_CONFIG, **self.config.get("vision_config", {})}["image_size"]

    @property
    def observation_names(self) -> tuple[str, Sequence[str]]:
        """How a robot calls its pose, and its cameras in the order in which the model was trained with them."""
        features: Mapping[str, Any] = self.config.get("input_features", {})
        cameras = [name for name, one in features.items() if one["type"] == "VISUAL"]
        return ("observation.state", cameras) if cameras else ("state", _DEFAULT_CAMERAS)

    @functools.cached_property
    def quantiles(self) -> Mapping[str, tuple[list[float], list[float]]]:
        """Between which numbers 98 in 100 are, of a robot's `state` and of its `actions`."""
        files = sorted(self._folder.rglob("norm_stats.json"))
        if len(files) > 1:
            raise LoadError(f"{self._folder} has {len(files)} norm_stats.json\n  fix: leave that of your robot")
        if not files and any(self._folder.glob("policy_preprocessor_step_*.safetensors")):
            fix = "write its q01 and q99 to a norm_stats.json, as openpi has it"
            raise LoadError(f"{self._folder} has scales as lerobot saves them\n  fix: {fix}")
        told = json.loads(files[0].read_bytes())["norm_stats"] if files else {}
        return {name: (one["q01"], one["q99"]) for name, one in told.items()}

    @property
    def vector_sizes(self) -> Mapping[str, int]:
        """How many numbers one of the robot's `actions` has, and its `state` where that is known."""
        return {"actions": self.chunk_shape[1]} | {name: len(low) for name, (low, _) in self.quantiles.items()}

    @functools.cached_property
    def tokenizer(self) -> Any:
        """Text to tokens."""
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise LoadError(f"words need a library: {error}\n  fix: pip install sentencepiece") from error
        file = (
            next(self._folder.glob("*.model"), None) or Weights(_TOKENIZER_WEIGHTS).path("*.model") / "tokenizer.model"
        )
        return SentencePieceProcessor(model_file=str(file))

    def load_vision_encoder(self) -> Any:
        """transformers' SigLIP, with what makes embeddings of its patches as `projector`."""
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
        """transformers' Gemma, which reads what is seen and the task."""
        from transformers import GemmaConfig, GemmaModel

        from mstar.nn.weights.checkpoints import assemble

        reads, config = (
            _PALIGEMMA_PREFIX + "language_model.",
            GemmaConfig(**_GEMMA_CONFIG | self.config.get("text_config", {})),
        )
        tensors = self._tensors(reads, _TIED_EMBEDDING_PREFIX)
        own = tensors.strip_prefix(reads)
        if "embed_tokens.weight" not in own:  # of a tensor that has two names, a file has one
            own["embed_tokens.weight"] = tensors[f"{_TIED_EMBEDDING_PREFIX}weight"]
        return assemble(GemmaModel, config, own, None)

    def expert_tensors(self) -> NamedTensors:
        """The tensors of the action expert, those of its layers as `layers.0.` and so on."""
        return NamedTensors(
            {name.removeprefix(_EXPERT_PREFIXES[0]): one for name, one in self._tensors(*_EXPERT_PREFIXES).items()}
        )

    def _tensors(self, *prefixes: str) -> NamedTensors:
        from mstar.nn.weights.checkpoints import read_tensors

        both = (*prefixes, *(f"model.{prefix}" for prefix in prefixes))  # as openpi has them, and lerobot
        read = read_tensors(self._folder, ignore_progress, both)
        return NamedTensors({name.removeprefix("model."): one for name, one in read.items()})
