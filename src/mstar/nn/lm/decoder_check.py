"""Self-check of a decoder at load time: chunked prefill and batching must not change its results.

Continuous batching assumes that a request gets the same result in chunks and beside other requests as in one forward
alone. A network breaks it if a layer has memory that the KV cache does not hold (a recurrent state), or if it mixes all
tokens of a forward (attention that is not paged). Such a network is rejected.

1. 12 tokens in one forward are the reference.
2. The same tokens as chunks, in a batch with another request, must give the same. If not, the chunks run alone, to
   report which of the two is the cause.
3. In half precision, rounding can hide a weak dependence. So step 2 is repeated with other tokens in the other request.
   Both runs have the same shapes and hardly any rounding differences, so the limit is lower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mstar.errors import LoadError

_TOKENS = 12
CHUNKS = (8, 4)
"""Chunks of the tokens for a decoder with chunked prefill."""
FIX = "serve the checkpoint with `mstar serve PATH`, or use a family that is listed in docs/huggingface.md"

Run = Callable[[Sequence[Tensor], Sequence[Any]], Sequence[Tensor]]
"""Appends tokens to the caches of several requests; returns a result for the last positions of each, [positions, D]."""


def check_decoder(
    family: str,
    embedding: Tensor,
    run: Run,
    new_cache: Callable[[], Any],
    *,
    chunks: Sequence[int] = CHUNKS,
    fix: str = FIX,
) -> None:
    """Raise LoadError unless a decoder gives equal results at once, in these chunks, and beside another request.

    `embedding` has the vocabulary size and the precision of the network.
    """
    tokens, neighbor, other_neighbor = (
        (torch.arange(_TOKENS) * step + first) % len(embedding) for step, first in ((31, 7), (17, 50), (13, 29))
    )
    limit, same_shape_limit = _limits(embedding.dtype)

    def in_chunks(*requests: Tensor) -> Tensor:
        """Result of the last request, after the last chunk."""
        caches = [new_cache() for _ in requests]
        parts = [request.split(list(chunks)) for request in requests]
        return [run(column, caches)[-1] for column in zip(*parts, strict=True)][-1].float()

    def require(actual: Tensor, expected: Tensor, limit: float, what: str) -> None:
        difference = _difference(actual, expected)
        if not difference <= limit:
            problem = f"{family} cannot be served: {what}: relative difference {difference:.0e}, limit {limit:.0e}"
            raise LoadError(f"{problem}\n  fix: {fix}")

    try:
        together = in_chunks(neighbor, tokens)
        whole = run([tokens], [new_cache()])[0].float()[-len(together) :]
    except (LoadError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise LoadError(f"{family} cannot be served: its forward fails: {error}\n  fix: {fix}") from error
    if not _difference(together, whole) <= limit:
        sizes = " + ".join(map(str, chunks))
        require(in_chunks(tokens), whole, limit, f"{_TOKENS} tokens at once differ from {sizes} tokens")
        require(together, whole, limit, "a request in a batch differs from the same request alone")
    if same_shape_limit < limit:
        what = "a request depends on the tokens of another request in its batch"
        require(in_chunks(other_neighbor, tokens), together, same_shape_limit, what)


def check_attention_backend(family: str, embedding: Tensor, run: Run, cache: Any, reference: Any) -> None:
    """Raise LoadError unless the attention backend of a cache gives what torch's attention gives for the reference.

    A prompt and a decode step run in both. So kernels that are wrong on a device, or for the shapes of a network, are
    found when it is loaded.
    """
    tokens = (torch.arange(_TOKENS) * 31 + 7) % len(embedding)
    parts = tokens.split([_TOKENS - 1, 1])
    actual, expected = (torch.cat([run([part], [each])[0].float() for part in parts]) for each in (cache, reference))
    limit, difference = _limits(embedding.dtype)[0], _difference(actual, expected)
    if not difference <= limit:
        problem = f"the attention backend of {family} differs from torch's attention by {difference:.0e} (relative)"
        raise LoadError(f"{problem}, limit {limit:.0e}\n  fix: set attention_backend='torch'")


def _limits(dtype: torch.dtype) -> tuple[float, float]:
    """Limits of the relative difference: of results that differ by rounding, and of runs with the same shapes."""
    # Any network has norms in float32, so a float64 network is compared in float32 precision.
    eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    return eps**0.5, max(eps, torch.finfo(torch.float32).eps ** 0.5)


def _difference(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference, relative to the expected result."""
    return float((actual - expected).norm() / expected.norm().clamp(min=torch.finfo(torch.float32).tiny))
