"""Published sizes: configurations of published models with their sources, and the sizes of their components.

`mstar plan NAME --device-memory SIZE` reads the sizes, so that it needs neither weights nor torch. The test of this
module builds every network from its configuration and compares.

The files of the Hub could not be read when this was written: configurations and numbers of parameters are those that
public sources quote. A number of parameters that is exactly the published one confirms a configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from mstar.nn.network_size import KVSize, NetworkSize


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A published model. Components have the names of the installed model that serves it."""

    source: str
    """Where the configuration is published."""
    served_by: str
    """Name of the installed model."""
    published: int | Mapping[str, str]
    """Published number of parameters of the whole model. Where there are rounded figures only, those, in billions, by
    component."""
    components: Mapping[str, NetworkSize]
    config: Mapping[str, Any]
    """Values of the published configuration, by part."""
    unused: int = 0
    """Published parameters that no component loads."""

    @property
    def parameters(self) -> int:
        """Parameters of all components."""
        return sum(size.parameters for size in self.components.values())


def find_published(name: str) -> PublishedModel | None:
    """The published model of this name, Hub id or installed model; None if there is none."""
    plain = name.rpartition("/")[2].lower().removesuffix("-instruct")
    return PUBLISHED.get(plain) or next((model for model in PUBLISHED.values() if model.served_by == name), None)


def _decoder(parameters: int, layers: int, heads: int, size: int) -> NetworkSize:
    return NetworkSize(parameters, "bfloat16", KVSize(layers, heads, size, size, "bfloat16"))


def _unpaged(parameters: int, layers: int, heads: int, size: int) -> NetworkSize:
    return NetworkSize(parameters, "float32", KVSize(layers, heads, size, size, "float32", is_paged=False))


_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
}
_MROPE = {"mrope_section": [24, 20, 20], "interleaved": True, "rope_type": "default", "rope_theta": 1000000}
_OMNI = {
    "thinker_config": {
        "audio_config": {
            "d_model": 1280,
            "encoder_layers": 32,
            "encoder_attention_heads": 20,
            "encoder_ffn_dim": 5120,
            "downsample_hidden_size": 480,
            "num_mel_bins": 128,
            "output_dim": 2048,
        },
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "num_position_embeddings": 2304,
            "out_hidden_size": 2048,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "deepstack_visual_indexes": [8, 16, 24],
        },
        "text_config": {
            "vocab_size": 152064,
            "hidden_size": 2048,
            "intermediate_size": 768,
            "moe_intermediate_size": 768,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "max_position_embeddings": 65536,
            "rope_parameters": {**_MROPE, "mrope_interleaved": True},
            "tie_word_embeddings": False,
        },
        "tie_word_embeddings": False,
    },
    "talker_config": {
        "accept_hidden_layer": 24,
        "num_code_groups": 16,
        "thinker_hidden_size": 2048,
        "spatial_merge_size": 2,
        "text_config": {
            "vocab_size": 3072,
            "hidden_size": 1024,
            "intermediate_size": 2048,
            "moe_intermediate_size": 384,
            "shared_expert_intermediate_size": 768,
            "num_hidden_layers": 20,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "num_experts": 128,
            "num_experts_per_tok": 6,
            "max_position_embeddings": 65536,
            "rope_parameters": _MROPE,
        },
        "code_predictor_config": {
            "vocab_size": 2048,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 5,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "num_code_groups": 16,
            "rms_norm_eps": 1e-06,
        },
    },
    "code2wav_config": {
        "codebook_size": 2048,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "num_quantizers": 16,
        "decoder_dim": 1536,
        "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2],
        "sliding_window": 72,
    },
}
_BAGEL = {
    "llm_config.json": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
    },
    "vit_config.json": {
        "hidden_size": 1152,
        "image_size": 980,
        "intermediate_size": 4304,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
    },
    "sizes": {"latent_channels": 16, "latent_block": 2, "latent_side": 64, "vit_side": 70},
    "vae": {"block_out_channels": [128, 256, 512, 512], "layers_per_block": 2, "latent_channels": 16},
}
_PI05 = {
    "vision_config": {
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
    },
    "text_config": {
        "vocab_size": 257152,
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_hidden_layers": 18,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "head_dim": 256,
    },
    "action_expert": {"width": 1024, "mlp_dim": 4096},
}
_VJEPA2_AC = {
    "crop_size": 256,
    "patch_size": 16,
    "tubelet_size": 2,
    "hidden_size": 1408,
    "num_hidden_layers": 40,
    "num_attention_heads": 22,
    "mlp_ratio": 48 / 11,
    "pred_hidden_size": 1024,
    "pred_num_hidden_layers": 24,
    "pred_num_attention_heads": 16,
    "pred_mlp_ratio": 4.0,
}

PUBLISHED: Mapping[str, PublishedModel] = MappingProxyType(
    {
        "llama-3.1-8b": PublishedModel(
            "hub:meta-llama/Llama-3.1-8B config.json",
            "causal-lm",
            8_030_261_248,
            {"lm": _decoder(8_030_261_248, 32, 8, 128)},
            _LLAMA,
        ),
        "qwen3-30b-a3b": PublishedModel(
            "hub:Qwen/Qwen3-30B-A3B config.json",
            "causal-lm",
            30_532_122_624,
            {"lm": _decoder(30_532_122_624, 48, 4, 128)},
            _QWEN3_MOE,
        ),
        "qwen3-omni-30b-a3b": PublishedModel(
            "hub:Qwen/Qwen3-Omni-30B-A3B-Instruct config.json",
            "qwen3-omni",
            35_259_818_545,
            {
                "thinker": _decoder(30_532_646_912, 48, 4, 128),
                "audio_encoder": NetworkSize(647_927_168, "bfloat16"),
                "vision_encoder": NetworkSize(538_631_408, "bfloat16"),
                "talker": _decoder(3_183_026_176, 20, 2, 128),
                "predictor": NetworkSize(141_570_304, "bfloat16"),
                "vocoder": NetworkSize(216_016_577, "bfloat16"),
            },
            _OMNI,
        ),
        "bagel-7b-mot": PublishedModel(
            "hub:ByteDance-Seed/BAGEL-7B-MoT llm_config.json, vit_config.json and tensor shapes",
            "bagel",
            {"lm": "14"},  # "7B active parameters (14B total)"
            {
                "lm": _decoder(14_170_164_800, 28, 4, 128),
                "vision_encoder": NetworkSize(437_095_328, "bfloat16"),
                "vae": NetworkSize(83_819_683, "float32"),
            },
            _BAGEL,
        ),
        "pi0.5": PublishedModel(
            "hub:lerobot/pi05_base, openpi gemma_2b, gemma_300m and SigLIP So400m/14",
            "pi05",
            3_616_757_520,
            {
                "vision_encoder": NetworkSize(414_803_696, "float32"),
                "policy": _unpaged(2_938_630_176, 18, 1, 256),
            },
            _PI05,
            unused=257_152 * 1_024,  # output head of the action expert
        ),
        "vjepa2-ac-vitg": PublishedModel(
            "github.com/facebookresearch/vjepa2 configs/train/vitg16/droid-256px-8f.yaml",
            "vjepa2-ac",
            {"encoder": "1", "predictor": "0.3"},  # arXiv 2506.09985
            {
                "encoder": NetworkSize(1_012_173_952, "float32"),
                "predictor": _unpaged(305_213_824, 24, 16, 64),
            },
            _VJEPA2_AC,
        ),
    }
)
"""Published models by name."""
