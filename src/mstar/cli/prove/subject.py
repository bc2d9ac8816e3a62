"""Subject: the model that is proven, the requests for it, and the outcomes that all runs must have."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

from mstar.cli.prove.refuted import Refuted, refuting
from mstar.errors import LoadError
from mstar.graph import ir
from mstar.walk.load import load_model
from mstar.walk.model import Model, Outcome

NAME = "model"
"""Name under which the subject is deployed."""
_REQUESTS_FIX = "define `requests()` beside the model, which returns a list of two or more different requests"


class Subject:
    """A loaded model with its requests.

    The module of the model can have `requests()`, which returns requests, and `reference(request)`, which returns the
    values of the emissions that the original library gives for a request. Without `requests()` the warmup requests of
    the model are used.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.model: Model = load_model(target)
        self.graphs = self.model.graphs()
        module = sys.modules[type(self.model).__module__]
        self.reference: Callable[[Any], Any] | None = getattr(module, "reference", None)
        own: Callable[[], Any] | None = getattr(module, "requests", None)
        self.source = "requests()" if own is not None else "warmup_requests()"
        with refuting(self.source, _REQUESTS_FIX):
            self.requests: Sequence[Any] = list((own or self.model.warmup_requests)())
        if not self.requests:
            raise LoadError(f"{target}: there are no requests to prove it with\n  fix: {_REQUESTS_FIX}")

    @functools.cached_property
    def expected(self) -> list[Outcome]:
        """Outcome of each request, from a run in this process."""
        return [self.run(request) for request in self.requests]

    def run(self, request: Any) -> Outcome:
        """Run a request in this process."""
        with refuting(f"request {self.requests.index(request)} failed", "run it with `mstar run`, and mend the op"):
            return self.model.run(request)

    @property
    def components(self) -> list[str]:
        """Components that its walks call."""
        return sorted({call.component for call in self._calls})

    @property
    def has_side_effects(self) -> bool:
        """Whether an op must not run twice."""
        ops = {name: component.ops() for name, component in self.model.components().items()}
        return any(not ops[call.component][call.op].idempotent for call in self._calls)

    @property
    def _calls(self) -> list[ir.Call]:
        nodes = (node for graph in self.graphs.values() for node in ir.flat(graph.body))
        return [node for node in nodes if isinstance(node, ir.Call)]

    def require_emissions(self) -> None:
        """Refute a model without output."""
        if not any(outcome.emissions or outcome.result is not None for outcome in self.expected):
            raise Refuted("no request has any output", "yield emissions in a walk, or return a value from the route")
