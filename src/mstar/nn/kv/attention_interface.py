"""Paged attention as an attention implementation of transformers, and as a custom op for graph capture.

Importing this module imports transformers. transformers passes the queries, keys and values of every layer to the
function registered here; `mstar.nn.kv.paged_attention` computes the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from mstar.errors import LoadError, format_names
from mstar.nn.kv.paged_attention import DIRECT_CALLS, PAGED_ATTENTION, attend_general, attend_running

_UNSUPPORTED = ("position_bias",)
"""Attention arguments of some models that would change the result if they were ignored."""
_FIX = "use a model of another family"

_attend_op = torch.library.custom_op("mstar::attend", attend_running, mutates_args=())


@_attend_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, layer: int, scaling: float, window: int) -> Tensor:  # noqa: ARG001
    return query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))


DIRECT_CALLS[torch.ops.mstar.attend.default] = attend_running

_attend_general_op = torch.library.custom_op("mstar::attend_general", attend_general, mutates_args=())


@_attend_general_op.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_rule: Any) -> Tensor:  # noqa: ARG001
    return query.new_empty((1, query.shape[2], query.shape[1], value.shape[3]))


DIRECT_CALLS[torch.ops.mstar.attend_general.default] = attend_general


def paged_attention_forward(  # noqa: PLR0913, PLR0917 - the signature of transformers
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001 - the batch has its own mask
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention function in the interface of transformers. `s_aux` are attention sinks."""
    if unsupported := [name for name in _UNSUPPORTED if others.get(name) is not None]:
        raise LoadError(
            f"paged attention does not support {format_names(unsupported)} of {type(module).__name__}\n  fix: {_FIX}"
        )
    is_exporting = torch.compiler.is_exporting()
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    rule = module.layer_idx, scale, sliding_window or 0
    if softcap is None and s_aux is None:
        run = torch.ops.mstar.attend if is_exporting else attend_running
        return run(query, key, value, *rule), None
    run_general = torch.ops.mstar.attend_general if is_exporting else attend_general
    return run_general(query, key, value, *rule, softcap or 0.0, s_aux), None


AttentionInterface.register(PAGED_ATTENTION, paged_attention_forward)
AttentionMaskInterface.register(PAGED_ATTENTION, lambda *_args, **_kwargs: None)  # the batch has its own mask
