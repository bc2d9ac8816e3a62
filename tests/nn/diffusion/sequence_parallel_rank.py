"""One rank that computes a part of the positions of small diffusion transformers, and prints what it saw as JSON.

python -m tests.nn.diffusion.sequence_parallel_rank ADDRESS RANK RANKS
"""

from __future__ import annotations

import copy
import json
import sys
from typing import Any

import torch
from diffusers import LTXVideoTransformer3DModel, SD3Transformer2DModel, WanTransformer3DModel

from mstar.nn.diffusion.sequence_parallel import split_sequence
from mstar.nn.ranks import join_group

HEADS = 4


def sd3(**sizes: Any) -> SD3Transformer2DModel:
    """A small SD3.5, with a second attention in one layer."""
    return SD3Transformer2DModel(
        num_layers=3,
        attention_head_dim=8,
        num_attention_heads=HEADS,
        sample_size=16,
        in_channels=4,
        out_channels=4,
        joint_attention_dim=16,
        caption_projection_dim=8 * HEADS,
        pooled_projection_dim=12,
        dual_attention_layers=(1,),
        qk_norm="rms_norm",
        **sizes,
    )


def wan() -> WanTransformer3DModel:
    """A small Wan."""
    sizes = {"num_layers": 2, "attention_head_dim": 12, "num_attention_heads": HEADS, "ffn_dim": 32}
    return WanTransformer3DModel(**sizes, in_channels=4, out_channels=4, text_dim=16, freq_dim=16)


def ltx() -> LTXVideoTransformer3DModel:
    """A small LTX-Video."""
    sizes = {"num_layers": 2, "attention_head_dim": 8, "num_attention_heads": HEADS, "cross_attention_dim": 8 * HEADS}
    return LTXVideoTransformer3DModel(**sizes, in_channels=4, out_channels=4, caption_channels=16)


def cases() -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]:
    """Networks and their inputs. The positions of some are odd, or as many as those of the text."""
    torch.manual_seed(0)
    image, text, times = torch.randn(2, 4, 10, 6), torch.randn(2, 7, 16), torch.tensor([900.0, 300.0])
    pooled, video = torch.randn(2, 12), torch.randn(2, 4, 3, 10, 6)
    tokens, mask = torch.randn(2, 45, 4), torch.ones(2, 7).tril(4)
    return {
        "sd3": (sd3(), (image, text, pooled, times)),
        "wan": (wan(), (video, times, text)),
        "wan, a time per position": (wan(), (video, times[:, None].repeat(1, 45), text)),
        "wan, equal lengths": (wan(), (video[:, :, :1, :4], times, text[:, :3])),
        "ltx": (ltx(), (tokens, text, times, mask, 3, 5, 3)),
        "ltx, a time per position": (ltx(), (tokens, text, times[:, None].repeat(1, 45), mask, 3, 5, 3)),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    address, number, count = sys.argv[1:]
    seen: dict[str, Any] = {}
    with join_group(address, int(number), int(count), timeout_s=60) as rank, torch.inference_mode():
        for name, (network, inputs) in cases().items():
            network.eval()
            for weight in network.parameters():
                weight.data.normal_(std=0.2)
            whole, part, lengths = network(*inputs).sample, copy.deepcopy(network), []
            split_sequence(part, rank)
            for block in part.blocks if hasattr(part, "blocks") else part.transformer_blocks:
                module = block.ffn if hasattr(block, "ffn") else block.ff
                module.register_forward_pre_hook(lambda _, given, lengths=lengths: lengths.append(given[0].shape[1]))
            difference = float((part(*inputs).sample - whole).abs().max() / whole.abs().max())
            seen[name] = {"lengths": lengths, "difference": difference}
    json.dump(seen, sys.stdout)
