"""Paged cross-attention as an attention implementation of transformers, and as a custom op for graph capture.

Importing this module imports transformers. `mstar.nn.kv.cross_attention` computes the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from mstar.nn.kv import attention_interface
from mstar.nn.kv.cross_attention import CROSS_ATTENTION, collected_cross_kv, cross_attend
from mstar.nn.kv.paged_attention import DIRECT_CALLS

_cross_attend_op = torch.library.custom_op("mstar::cross_attend", cross_attend, mutates_args=())
DIRECT_CALLS[torch.ops.mstar.cross_attend.default] = cross_attend


@_cross_attend_op.register_fake
def _(query: Tensor, layer: int, scaling: float) -> Tensor:  # noqa: ARG001
    return query.new_empty((1, query.shape[2], query.shape[1], query.shape[3]))


def cross_attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function in the interface of transformers. Cross-attention is the one that is not causal."""
    if (collected := collected_cross_kv()) is not None:
        if not module.is_causal:
            collected[module.layer_idx] = key, value
        return query.transpose(1, 2), None
    if module.is_causal:
        window = module.config.sliding_window  # set by EncoderDecoder; transformers does not pass it
        return attention_interface.paged_attention_forward(
            module, query, key, value, attention_mask, scaling, window, **others
        )
    run = torch.ops.mstar.cross_attend if torch.compiler.is_exporting() else cross_attend
    return run(query, module.layer_idx, query.shape[-1] ** -0.5 if scaling is None else scaling), None


AttentionInterface.register(CROSS_ATTENTION, cross_attention_forward)
AttentionMaskInterface.register(CROSS_ATTENTION, lambda *_args, **_kwargs: None)  # the batch has its own mask
