"""Streaming of causal networks: layers keep a state between chunks, as in the streaming codecs Mimi and EnCodec.

`make_streaming` hooks the layers with left context: causal convolutions, LSTMs, rotary positions, and attention with a
sliding window. Inside `streaming`, each layer prepends its state to its input; otherwise it works as before. Layers
with lookahead are in `mstar.nn.audio.lookahead`. Other layers with left context are not detected: the caller must
compare chunked with complete output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from mstar.errors import LoadError, MstarError

_STREAMING_ATTENTION = "mstar_streaming"
"""Name of this attention implementation in transformers."""
_UNMASKED_ATTENTION = "mstar_streaming_unmasked"
"""Name of the same without masks of transformers."""


class StreamingState:
    """Streaming state of all layers for a batch of streams, before and after a forward.

    `is_last` marks the last chunk of the streams, so that layers with lookahead return all their output.
    """

    def __init__(self, memories: Sequence[Mapping[str, Tensor]], *, is_last: bool = False) -> None:
        self.is_last = is_last
        self.before = {name: torch.stack([memory[name] for memory in memories]) for name in memories[0]}
        """Empty for new streams, which are not batched with others."""
        self.after: dict[str, Tensor] = {}

    def join(self, name: str, new: Tensor, axis: int, size: int) -> Tensor:
        """Prepend the state of a layer to its input, and keep the last `size` positions of both as its new state.

        A short first chunk is padded with zeros in the state, so that all streams have states of equal size.
        """
        joined = torch.cat([self.before[name], new], axis) if self.before else new
        count = min(size, joined.shape[axis])
        shape = [*joined.shape]
        shape[axis] = size
        kept = self.after[name] = joined.new_zeros(shape)
        kept.narrow(axis, size - count, count).copy_(joined.narrow(axis, joined.shape[axis] - count, count))
        return joined

    def memory(self, row: int) -> dict[str, Tensor]:
        """State of one stream after the forward."""
        return {name: kept[row].clone() for name, kept in self.after.items()}


_current: ContextVar[StreamingState | None] = ContextVar("_current", default=None)
"""State of the running forward."""


@contextmanager
def streaming(state: StreamingState) -> Iterator[None]:
    """Run forwards of streaming networks with this state."""
    token = _current.set(state)
    try:
        yield
    finally:
        _current.reset(token)


def current_state() -> StreamingState | None:
    """The state of the running forward, or None."""
    return _current.get()


def make_streaming(network: nn.Module) -> None:
    """Hook all layers with left context."""
    for name, module in network.named_modules():
        conv = getattr(module, "conv", None)
        if isinstance(conv, nn.Conv1d | nn.ConvTranspose1d):
            _stream_convolution(name, module, conv)
        elif isinstance(module, nn.LSTM):
            _stream_lstm(name, module)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            _stream_positions(name, module)
    if hasattr(network, "set_attn_implementation"):
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(_STREAMING_ATTENTION, _streaming_attention_forward)
        AttentionInterface.register(_UNMASKED_ATTENTION, _streaming_attention_forward)
        AttentionMaskInterface.register(_STREAMING_ATTENTION, sdpa_mask)
        network.set_attn_implementation(_STREAMING_ATTENTION)  # pyright: ignore[reportCallIssue]
        _skip_masks(network)


def _skip_masks(network: nn.Module) -> None:
    """Make no masks inside `streaming`, where attention has its own: to make one, transformers waits for the device."""
    owned: list[Any] = [module.config for module in network.modules() if hasattr(module, "config")]
    streaming_configs = [one for one in owned if getattr(one, "_attn_implementation", "") == _STREAMING_ATTENTION]
    configs = {id(config): config for config in streaming_configs}.values()  # modules share them

    def select(name: str) -> None:
        for config in configs:
            config._attn_implementation = name

    network.register_forward_pre_hook(lambda *_: select(_UNMASKED_ATTENTION) if _current.get() is not None else None)
    network.register_forward_hook(lambda *_: select(_STREAMING_ATTENTION), always_call=True)


def _stream_convolution(name: str, module: nn.Module, conv: nn.Conv1d | nn.ConvTranspose1d) -> None:
    """Causal convolution inside a module that pads it. The outputs for the prepended state are cut off."""
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    is_up = isinstance(conv, nn.ConvTranspose1d)
    size, rate = ((kernel - 1) // stride, stride) if is_up else ((kernel - 1) * conv.dilation[0], 1)
    pad_mode = getattr(module, "pad_mode", "constant")

    def before(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if (past := _current.get()) is None:
            return None
        if not past.before and pad_mode != "constant" and inputs[0].shape[-1] <= size:
            counts = f"{inputs[0].shape[-1]} frames, minimum {size + 1}"
            problem = f"the first chunk is too short for {name} with {pad_mode} padding: {counts}"
            raise MstarError(f"{problem}\n  fix: windows(..., first={size + 1})")
        return past.join(name, inputs[0], -1, size), *inputs[1:]

    def after(_: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if (past := _current.get()) is None or not past.before:
            return None
        new = (inputs[0].shape[-1] - size) * rate
        return output[..., output.shape[-1] - new :]

    if size:
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)


def _stream_lstm(name: str, lstm: nn.LSTM) -> None:
    names = (f"{name}.hidden", f"{name}.cell")

    def before(_: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if (past := _current.get()) is None or not past.before:
            return None
        return inputs[0], tuple(past.before[name].transpose(0, 1).contiguous() for name in names)

    def after(_: Any, __: Any, output: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
        if (past := _current.get()) is not None:
            past.after |= {name: state.transpose(0, 1) for name, state in zip(names, output[1], strict=True)}

    lstm.register_forward_pre_hook(before)
    lstm.register_forward_hook(after)


def _stream_positions(name: str, rotary: nn.Module) -> None:
    def before(_: Any, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        if (past := _current.get()) is None:
            return None
        hidden, positions = inputs
        positions = positions.expand(len(hidden), -1) + (past.before[name][:, None] if past.before else 0)
        past.after[name] = positions[:, -1] + 1
        return hidden, positions

    rotary.register_forward_pre_hook(before)


def _streaming_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """Causal sliding window attention in the interface of transformers."""
    if (past := _current.get()) is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    window = others.get("sliding_window")
    if window is None:
        problem = f"{type(module).__name__} has no sliding window, so its streaming state would grow without limit"
        raise LoadError(f"{problem}\n  fix: decode it in windows")
    name, new = f"attention {module.layer_idx}", query.shape[2]
    is_valid = torch.ones_like(key[:, 0, :, 0], dtype=torch.bool)
    key = past.join(f"{name} key", key, 2, window - 1)
    value = past.join(f"{name} value", value, 2, window - 1)
    is_valid = past.join(f"{name} is valid", is_valid, 1, window - 1)
    positions = torch.arange(key.shape[2], device=key.device)
    own = positions[-new:, None]
    mask = (positions <= own) & (positions > own - window) & is_valid[:, None, None]
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=others.get("scaling"), enable_gqa=True
    )
    return attended.transpose(1, 2), None
