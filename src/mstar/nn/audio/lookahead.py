"""Streaming of networks with lookahead: non-causal convolutions delay their output until their right context arrives.

`make_lookahead_streaming` hooks the convolutions that pad on both sides. Inside `mstar.nn.audio.streaming.streaming`
each returns only the output that later inputs cannot change, and keeps the inputs that it still needs; otherwise it
works as before. So the chunks of a stream add up to the complete output, and almost nothing is computed twice.

The first chunk of a stream must be longer than the lookahead of all layers together. Residual units are supported as in
SNAC and DAC, which crop their input to the length of their convolutions. Other layers with lookahead are not detected:
the caller must compare chunked with complete output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from mstar.nn.audio.streaming import current_state


def make_lookahead_streaming(network: nn.Module) -> None:
    """Hook all layers with lookahead."""
    inside: set[nn.Module] = set()
    for name, module in network.named_modules():
        if type(module).__name__.endswith("ResidualUnit"):
            convolutions = [part for part in module.modules() if isinstance(part, nn.Conv1d)]
            inside.update(convolutions)
            _delay_convolutions(name, module, convolutions)
        elif isinstance(module, nn.Conv1d) and module not in inside:
            _delay_convolutions(name, module, [module])
        elif isinstance(module, nn.ConvTranspose1d):
            _delay_upsampling(name, module)


def _delay_convolutions(name: str, module: nn.Module, convolutions: Sequence[nn.Conv1d]) -> None:
    """Move the padding of the convolutions to the start and end of the stream. The layers between must map 0 to 0."""
    margin = sum(int(convolution.padding[0]) for convolution in convolutions)
    for convolution in convolutions:
        convolution.padding = (0,)

    def before(_: Any, inputs: tuple[Tensor]) -> Tensor:
        past, (new,) = current_state(), inputs
        if past is None or not past.before:
            new = pad(new, (margin, 0))
        joined = new if past is None else past.join(name, new, -1, 2 * margin)
        return pad(joined, (0, margin)) if past is None or past.is_last else joined

    if margin:
        module.register_forward_pre_hook(before)


def _delay_upsampling(name: str, module: nn.ConvTranspose1d) -> None:
    """Transposed convolution: hold back the last outputs of a chunk, which later inputs change."""
    rate, margin, extra = module.stride[0], int(module.padding[0]), module.output_padding[0]
    size = (module.kernel_size[0] - 1) // rate
    module.padding, module.output_padding = (0,), (0,)

    def before(_: Any, inputs: tuple[Tensor]) -> Tensor | None:
        past = current_state()
        return None if past is None else past.join(name, inputs[0], -1, size)

    def after(_: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        past = current_state()
        start = size * rate if past is not None and past.before else margin
        is_last = past is None or past.is_last
        return output[..., start : output.shape[-1] - margin + extra if is_last else inputs[0].shape[-1] * rate]

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
