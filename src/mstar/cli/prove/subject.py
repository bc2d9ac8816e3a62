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
        return [self.run(number) for number in range(len(self.requests))]

    def run(self, number: int, model: Model | None = None) -> Outcome:
        """Run a request in this process, with another instance of the model if one is given."""
        with refuting(f"request {number} failed", "mend the op that raises it: `mstar run` shows its traceback"):
            return (model or self.model).run(self.requests[number])

    def new_model(self) -> Model:
        """Another instance of the model, which has loaded nothing."""
        weights = self.target.partition("@")[2]
        return type(self.model)(**({"weights": weights} if weights else {}))

    @functools.cached_property
    def components_by_walk(self) -> dict[str, list[str]]:
        """Components that each walk calls."""
        return {name: sorted({call.component for call in _calls(graph)}) for name, graph in self.graphs.items()}

    @property
    def components(self) -> list[str]:
        """Components that any walk calls."""
        return sorted({name for own in self.components_by_walk.values() for name in own})

    @property
    def has_side_effects(self) -> bool:
        """Whether an op must not run twice."""
        ops = {name: component.ops() for name, component in self.model.components().items()}
        calls = [call for graph in self.graphs.values() for call in _calls(graph)]
        return any(not ops[call.component][call.op].idempotent for call in calls)

    def require_emissions(self) -> None:
        """Refute a model without output."""
        if not any(outcome.emissions or outcome.result is not None for outcome in self.expected):
            raise Refuted("no request has any output", "yield emissions in a walk, or return a value from the route")


def _calls(graph: ir.Walk) -> list[ir.Call]:
    return [node for node in ir.flat(graph.body) if isinstance(node, ir.Call)]
