"""The random numbers of mstar in `generate` of transformers, so that equal parameters and seeds give equal tokens."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from unittest.mock import patch

import torch

from mstar.nn.lm.random_numbers import arrival_times, draw_key


@contextmanager
def counter_based_draws(seed: int, first: int = 0) -> Iterator[None]:
    """Let torch.multinomial draw with the numbers of a request with this seed, from its draw `first` on."""
    draws = count(first)

    def multinomial(probs: torch.Tensor, *, num_samples: int, **_: Any) -> torch.Tensor:
        assert (len(probs), num_samples) == (1, 1)
        times = arrival_times(torch.tensor(draw_key(seed, next(draws))), torch.arange(probs.shape[1]))
        return (probs / times.to(probs.dtype)).argmax(-1, keepdim=True)

    with patch.object(torch, "multinomial", multinomial):
        yield
