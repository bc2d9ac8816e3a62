"""States: memory that a request keeps inside a component, handled as a value.

This module says what a state is to an author. What is in one is the component's business: a toy keeps a list, the
engine keeps pages. Nothing here knows where a state lives.
"""

from __future__ import annotations

import copy
from typing import Self


class State:
    """Memory made by a component, extended and read by its ops, forked, moved and freed by the runtime."""

    def fork(self) -> Self:
        """A state that starts as a copy of this one and goes its own way."""
        return copy.deepcopy(self)


class KV(State):
    """The attention cache of one request in one component."""
