"""Choice of the function that draws tokens on a device: a Triton kernel for CUDA, otherwise torch's operations."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from mstar.nn.lm.random_numbers import draw_key
from mstar.nn.lm.token_draws import draw_arrays, draw_batch
from mstar.nn.staging import to_device
from mstar.requests import Sampling

log = logging.getLogger(__name__)

DrawBatch = Callable[[Tensor, Sequence[Sampling] | None, Sequence[Tensor]], Tensor]
"""Draws one token for each row of scores; `mstar.nn.lm.token_draws.draw_batch` is one."""
_CHECK_PARAMS = (
    Sampling(),
    Sampling(temperature=1.0),
    Sampling(temperature=0.7, top_k=20),
    Sampling(temperature=1.0, top_p=0.8),
    Sampling(temperature=1.2, top_k=50, top_p=0.9, min_p=0.05),
)
_CHECK_SIZE = 5000


@functools.cache
def choose_draws(device: torch.device) -> DrawBatch:
    """The function for a device. A kernel must draw what torch draws there, else torch's operations are used."""
    if device.type != "cuda" or find_spec("triton") is None:
        return draw_batch
    return checked_kernel(device)


def checked_kernel(device: torch.device) -> DrawBatch:
    """The Triton kernel if it draws on this device what torch draws there, else torch's operations, with a warning."""
    try:
        from mstar.nn.triton import token_draws

        generator = torch.Generator().manual_seed(0)
        scores = (torch.randn(len(_CHECK_PARAMS), _CHECK_SIZE, generator=generator) * 4).to(device)
        keys = [draw_key(0, row) for row in range(len(_CHECK_PARAMS))]
        arrays = to_device(draw_arrays(_CHECK_SIZE, _CHECK_PARAMS, keys), device)
        if torch.equal(*(draw(scores, _CHECK_PARAMS, arrays) for draw in (token_draws.draw_batch, draw_batch))):
            return token_draws.draw_batch
        problem = "it draws other tokens"
    except Exception as error:  # noqa: BLE001 - a compiler and a driver can fail in any way
        problem = f"{type(error).__name__}: {error}"
    log.warning("tokens are drawn by torch on %s instead of a Triton kernel, which is slower: %s", device, problem)
    return draw_batch
