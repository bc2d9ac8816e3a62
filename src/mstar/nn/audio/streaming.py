"""Networks that go on where they stopped: causal layers that remember the last of what they were given.

`make_streaming` puts hooks on the layers of a network that look back: convolutions that pad themselves on the left, LSTMs,
rotary positions, and transformers' attention with a sliding window. Inside `streaming`, each sees what it remembers
before what it is given; otherwise it does as it always did. Layers that also look ahead are made to wait by
`mstar.nn.audio.lookahead`. Whether these are all the layers of a network that look back, this module cannot know: who uses it
compares pieces with the whole.
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
"""The name of our attention among transformers' implementations."""


class StreamingState:
    """What the layers of a network remember of several streams, stacked: before a forward, and after it.

    `is_last` says that nothing follows this forward, so that layers which look ahead need not wait for it.
    """

    def __init__(self, memories: Sequence[Mapping[str, Tensor]], *, is_last: bool = False) -> None:
        self.is_last = is_last
        self.before = {name: torch.stack([memory[name] for memory in memories]) for name in memories[0]}
        """Empty where streams begin; they do not share a forward with others."""
        self.after: dict[str, Tensor] = {}

    def join(self, name: str, new: Tensor, axis: int, size: int) -> Tensor:
        """What a layer is given, behind what it remembers; it will remember the last `size` of both.

        What a short beginning lacks is remembered as zeros, so that all streams remember equally much.
        """
        joined = torch.cat([self.before[name], new], axis) if self.before else new
        count = min(size, joined.shape[axis])
        shape = [*joined.shape]
        shape[axis] = size
        kept = self.after[name] = joined.new_zeros(shape)
        kept.narrow(axis, size - count, count).copy_(joined.narrow(axis, joined.shape[axis] - count, count))
        return joined

    def memory(self, row: int) -> dict[str, Tensor]:
        """What is remembered of one stream after the forward."""
        return {name: kept[row].clone() for name, kept in self.after.items()}


_current: ContextVar[StreamingState | None] = ContextVar("_current", default=None)
"""The streams whose next part is being computed."""


@contextmanager
def streaming(state: StreamingState) -> Iterator[None]:
    """Inside it, a network that was made to `make_streaming` goes on with these streams."""
    token = _current.set(state)
    try:
        yield
    finally:
        _current.reset(token)


def current_state() -> StreamingState | None:
    """The streams that a network goes on with at this moment."""
    return _current.get()


def make_streaming(network: nn.Module) -> None:
    """Make the layers of a network that look back able to remember."""
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
        AttentionMaskInterface.register(_STREAMING_ATTENTION, sdpa_mask)
        network.set_attn_implementation(_STREAMING_ATTENTION)  # pyright: ignore[reportCallIssue]


def _stream_convolution(name: str, module: nn.Module, conv: nn.Conv1d | nn.ConvTranspose1d) -> None:
    """A convolution inside a module that pads it. What it gives for its memory it gave before; that is cut off."""
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    is_up = isinstance(conv, nn.ConvTranspose1d)
    size, rate = ((kernel - 1) // stride, stride) if is_up else ((kernel - 1) * conv.dilation[0], 1)
    pads_by = getattr(module, "pad_mode", "constant")

    def before(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if (past := _current.get()) is None:
            return None
        if not past.before and pads_by != "constant" and given[0].shape[-1] <= size:
            what = f"{name} pads by {pads_by}, so it must begin with more than {size} frames, not {given[0].shape[-1]}"
            raise MstarError(f"{what}\n  fix: windows(..., first={size + 1})")
        return past.join(name, given[0], -1, size), *given[1:]

    def after(_: Any, given: tuple[Any, ...], output: Tensor) -> Tensor | None:
        if (past := _current.get()) is None or not past.before:
            return None
        new = (given[0].shape[-1] - size) * rate
        return output[..., output.shape[-1] - new :]

    if size:
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)


def _stream_lstm(name: str, lstm: nn.LSTM) -> None:
    names = (f"{name}.hidden", f"{name}.cell")

    def before(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if (past := _current.get()) is None or not past.before:
            return None
        return given[0], tuple(past.before[name].transpose(0, 1).contiguous() for name in names)

    def after(_: Any, __: Any, output: tuple[Tensor, tuple[Tensor, Tensor]]) -> None:
        if (past := _current.get()) is not None:
            past.after |= {name: state.transpose(0, 1) for name, state in zip(names, output[1], strict=True)}

    lstm.register_forward_pre_hook(before)
    lstm.register_forward_hook(after)


def _stream_positions(name: str, rotary: nn.Module) -> None:
    def before(_: Any, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor] | None:
        if (past := _current.get()) is None:
            return None
        hidden, positions = given
        positions = positions.expand(len(hidden), -1) + (past.before[name][:, None] if past.before else 0)
        past.after[name] = positions[:, -1] + 1
        return hidden, positions

    rotary.register_forward_pre_hook(before)


def _streaming_attention_forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **others: Any
) -> tuple[Tensor, None]:
    """transformers' attention function: a position sees itself and those before it, as far as its window reaches."""
    if (past := _current.get()) is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, **others)
    window = others.get("sliding_window")
    if window is None:
        what = f"{type(module).__name__} attends to everything before, so a stream would be remembered for ever"
        raise LoadError(f"{what}\n  fix: decode it in windows")
    name, new = f"attention {module.layer_idx}", query.shape[2]
    is_there = torch.ones_like(key[:, 0, :, 0], dtype=torch.bool)
    key = past.join(f"{name} key", key, 2, window - 1)
    value = past.join(f"{name} value", value, 2, window - 1)
    is_there = past.join(f"{name} is there", is_there, 1, window - 1)
    seen = torch.arange(key.shape[2], device=key.device)
    own = seen[-new:, None]
    mask = (seen <= own) & (seen > own - window) & is_there[:, None, None]
    attended = scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=others.get("scaling"), enable_gqa=True
    )
    return attended.transpose(1, 2), None
