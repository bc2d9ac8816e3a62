"""Twin: a model that is served without weights, for tests of what is around it (`mstar twin`).

A component gets ready with `Component.prepare_twin` instead of `prepare`. This module has what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TWIN_TEXT = "This text is synthetic. It was written by a twin, which has no weights."
"""Text that twins of models that write or transcribe repeat, so that it is not taken for that of the model."""
TWIN_TONE_HZ = 440.0
"""Frequency of the tone that twins of models with audio play."""
OpBody = Callable[..., Any]
"""Takes the component and the arguments of a batch, as the body of an op does."""


@dataclass(frozen=True, slots=True)
class TwinSizes:
    """Sizes of synthetic outputs."""

    output_tokens: int = 64
    """Tokens of an answer, unless the request allows fewer."""
    kv_tokens: int | None = None
    """Tokens that the KV cache of a component holds; None for the number that the component sets."""
    dims: Mapping[str, int] = field(default_factory=dict[str, int])
    """Sizes of named dimensions of outputs, by "component.op.DIMENSION", and integer results by "component.op"."""
