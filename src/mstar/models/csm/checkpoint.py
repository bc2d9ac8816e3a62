"""CSM checkpoint in the Hugging Face layout, as `save_pretrained` writes it: config, tokenizer, and tensors by part.

No library is imported until the config or tensors are loaded.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import TYPE_CHECKING, Any

from mstar.errors import LoadError
from mstar.nn.weights.sources import Weights, ignore_progress, print_progress

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import CsmConfig

_SUPPORTED_OPTIONS = {"model_type": "csm", "tie_codebooks_embeddings": True}
_SUPPORTED_DEPTH_OPTIONS = {"hidden_act": "silu", "attention_bias": False, "mlp_bias": False}


class Checkpoint:
    """Folder with config.json, safetensors and tokenizer.json."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    @functools.cached_property
    def config(self) -> CsmConfig:
        """config.json. Raises LoadError for options that are not supported."""
        from transformers import CsmConfig

        file = self.weights.path("*.json") / "config.json"
        if not file.is_file():
            raise LoadError(f"{file} is missing\n  fix: use the folder of a CSM model, as save_pretrained writes it")
        settings = json.loads(file.read_bytes())
        depth_settings = settings.get("depth_decoder_config") or {}
        for own, expected in ((settings, _SUPPORTED_OPTIONS), (depth_settings, _SUPPORTED_DEPTH_OPTIONS)):
            for name, value in expected.items():
                if own.get(name, value) != value:
                    problem = f"{file} has {name} {own[name]}, expected {value}"
                    raise LoadError(f"{problem}\n  fix: use a model with {value}, such as sesame/csm-1b")
        return CsmConfig.from_dict(settings)

    @property
    def code_count(self) -> int:
        """Codes per codebook of the codec. The networks can write a few more, which the codec cannot decode."""
        codec: Any = self.config.codec_config
        return codec.codebook_size

    @property
    def end_code(self) -> int:
        """Code of the frame that ends the speech."""
        config: Any = self.config
        return config.codebook_eos_token_id

    def tensors(self, *prefixes: str) -> dict[str, Tensor]:
        """Load the tensors with these prefixes."""
        from mstar.nn.weights.checkpoints import read_tensors

        report = print_progress if sys.stderr.isatty() else ignore_progress
        return read_tensors(self.weights.path(), report, prefixes)

    def load_codec(self) -> Any:
        """Load the decoder of Mimi, without its encoder."""
        from transformers import MimiConfig, MimiModel

        from mstar.nn.weights.checkpoints import assemble

        codec: Any = self.config.codec_config
        prefix = "codec_model."
        parts = [f"{prefix}{part}." for part in ("decoder", "decoder_transformer", "quantizer", "upsample")]
        tensors = {name.removeprefix(prefix): tensor for name, tensor in self.tensors(*parts).items()}
        return assemble(MimiModel, MimiConfig(**codec.to_dict() | {"encoder_config": None}), tensors, None)
