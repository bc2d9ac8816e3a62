"""Networks that look ahead, heard while their input still comes: layers that wait for what they must see first.

`make_lookahead_streaming` puts hooks on the convolutions of a network that pad themselves on both sides. Inside
`mstar.nn.audio.streaming.streaming` each gives what can no longer change, and remembers what it needs for the rest; otherwise it
does as it always did. So pieces together are the whole, and hardly anything is computed twice. A stream must begin with
more than all layers together look ahead. Residual units are those of SNAC and DAC, which cut their input to what their
convolutions leave. Other layers that look ahead are not known here: who uses it compares pieces with the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import pad

from mstar.nn.audio.streaming import current_state


def make_lookahead_streaming(network: nn.Module) -> None:
    """Make the layers of a network that look ahead able to wait."""
    inside = set[nn.Module]()
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
    """The zeros around a sound are put before and behind a module. What is between must leave zeros as they are."""
    margin = sum(int(one.padding[0]) for one in convolutions)
    for one in convolutions:
        one.padding = (0,)

    def before(_: Any, given: tuple[Tensor]) -> Tensor:
        past, (new,) = current_state(), given
        if past is None or not past.before:
            new = pad(new, (margin, 0))
        joined = new if past is None else past.join(name, new, -1, 2 * margin)
        return pad(joined, (0, margin)) if past is None or past.is_last else joined

    if margin:
        module.register_forward_pre_hook(before)


def _delay_upsampling(name: str, module: nn.ConvTranspose1d) -> None:
    """A convolution that gives several samples for one: the last of them change with what follows."""
    rate, margin, more = module.stride[0], int(module.padding[0]), module.output_padding[0]
    size = (module.kernel_size[0] - 1) // rate
    module.padding, module.output_padding = (0,), (0,)

    def before(_: Any, given: tuple[Tensor]) -> Tensor | None:
        past = current_state()
        return None if past is None else past.join(name, given[0], -1, size)

    def after(_: Any, given: tuple[Tensor], output: Tensor) -> Tensor:
        past = current_state()
        start = size * rate if past is not None and past.before else margin
        is_last = past is None or past.is_last
        return output[..., start : output.shape[-1] - margin + more if is_last else given[0].shape[-1] * rate]

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)
