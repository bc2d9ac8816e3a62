"""The door: what every surface of a front end shares. Which models are served, who may come in, how far the start is.

`open` is how a surface has something served. It reads no request and writes no answer: that is a `Visit`'s.
"""

from __future__ import annotations

import asyncio
import time
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import UnionType
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from mstar.errors import LoadError, listed, nearest
from mstar.server.keys import Keys
from mstar.server.live import Bridge, Deliver, FrontEnd, Live
from mstar.server.meters import Meters
from mstar.server.refusals import Refusal
from mstar.walk.model import Model
from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.server.visit import Visit

STARTING_S = 2.0
"""After how many seconds to come again while the server starts or ends."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One route: a method, a path, who answers, and what a model's route must take to be served there."""

    method: str
    path: str
    handle: Callable[[Visit], Awaitable[Response]]
    ask: type | None = None
    body_bytes: int = 32 << 20
    """How large a body may be."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a front end waits for, in seconds."""

    body_s: float = 30.0
    """How long a client may take to send its request."""
    patience_s: float = 600.0
    """How long a request may take in all."""


@dataclass(frozen=True, slots=True)
class Phase:
    """How far a server is: starting, ready or draining."""

    name: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """A model under the name that clients give."""

    name: str
    model: Model
    request: Any
    """What its route takes, as it is annotated; Any if it is not, None if it has no route of its own."""
    since: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def of(cls, name: str, model: Model) -> Served:
        """A model, with what its route says."""
        route = type(model).route
        if route is Model.route:
            return cls(name, model, None)
        try:
            hints = typing.get_type_hints(route, include_extras=True)
        except NameError as error:
            what = f"the route of `{name}` is annotated with what is not there when it runs: {error}"
            raise LoadError(f"{what}\n  fix: import it outside of TYPE_CHECKING") from error
        hints.pop("return", None)
        return cls(name, model, next(iter(hints.values()), Any))

    @property
    def takes(self) -> tuple[Any, ...]:
        """The types of request that its route takes."""
        is_union = isinstance(self.request, UnionType) or typing.get_origin(self.request) is typing.Union
        return typing.get_args(self.request) if is_union else (self.request,)


class Door:
    """What the surfaces of one front end share. It lets nobody in until `begin`."""

    def __init__(self, models: Mapping[str, Model], keys: Keys | None = None, limits: Limits | None = None) -> None:
        self.served = {name: Served.of(name, model) for name, model in models.items()}
        self.keys = keys or Keys()
        self.limits = limits or Limits()
        self.meters = Meters()
        self.phase = Phase("starting")
        self.visits = 0
        """How many requests are under way."""
        self.meters.live.set_function(lambda: self.visits)
        self.surfaces: Sequence[Surface] = ()
        self.bridge: Bridge | None = None
        self.peers: Callable[[], Sequence[m.Peer]] = tuple

    def prepare(self) -> None:
        """Load what spelling needs, so that the first client does not wait for it."""
        for served in self.served.values():
            with suppress(NotImplementedError):
                served.model.spell(())

    def begin(self, front: FrontEnd, peers: Callable[[], Sequence[m.Peer]], loop: asyncio.AbstractEventLoop) -> None:
        """Everything is there: let clients in. `peers` tells which other processes have figures to give."""
        self.bridge = Bridge(front, loop)
        self.peers = peers
        self.phase = Phase("ready", self.phase.total, self.phase.total)

    def drain(self) -> None:
        """Let nobody in any more."""
        self.phase = Phase("draining")

    def find(self, name: str, surface: Surface) -> Served:
        """The model that a client named, if it is served there."""
        served = self.served.get(name)
        if served is None:
            what = f"no model is called `{name}`{nearest(name, self.served)}; there are {listed(self.served)}"
            raise Refusal(404, "model_not_found", what, param="model")
        if surface.ask is not None and surface.ask not in served.takes:
            paths = [offered.path for offered in self.offers(served)]
            what = f"the model `{name}` is not served at {surface.path}; it is served at {listed(paths)}"
            raise Refusal(404, "surface_not_served", what, param="model")
        return served

    def offers(self, served: Served) -> list[Surface]:
        """Where a model is served."""
        return [one for one in self.surfaces if one.ask is not None and one.ask in served.takes]

    def open(self, served: Served, *asks: Any, tenant: str = "") -> Live:
        """Have requests served, one for each ask. Whoever opens it closes it."""
        if self.bridge is None or self.phase.name != "ready":
            what = f"the server is {self.phase.name}"
            raise Refusal(503, "not_ready", what, retry_after=STARTING_S)
        front, begun = self.bridge.front, time.monotonic()
        submits = [m.Submit(front.new_rid(), served.name, m.Value(ask), tenant, self.limits.patience_s) for ask in asks]
        live = Live(self.bridge, submits)
        is_first = True

        def delivered(news: Deliver) -> None:
            nonlocal is_first
            if is_first:
                self.meters.first.labels(served.name).observe(time.monotonic() - begun)
                is_first = False
            self.meters.emissions.labels(served.name, news.kind).inc()

        live.on_delivery = delivered
        return live
