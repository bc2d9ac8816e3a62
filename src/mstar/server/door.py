"""The door: what every surface of a front end shares. Which models are served, who may come in, how far the start is.

`open` is how a surface has something served. It reads no request and writes no answer: that is a `Visit`'s.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.responses import Response

from mstar.config import Limits
from mstar.errors import listed, nearest
from mstar.server.fetch import Fetcher
from mstar.server.keys import Keys
from mstar.server.live import Bridge, FrontEnd, Live
from mstar.server.meters import Follower, Meters, Tally
from mstar.server.refusals import Refusal
from mstar.server.schema import LONGEST_NAME
from mstar.server.timeline import Timelines
from mstar.walk.model import Model, kinds_of
from mstar.wire import messages as m

if TYPE_CHECKING:
    from mstar.server.visit import Visit

STARTING_S = 2.0
"""After how many seconds to come again while the server starts or ends."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What goes in and out at a surface, for those who read its description."""

    body: type[BaseModel] | None = None
    files: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Names of files beside it, for which it is a form, and whether they are needed."""
    query: tuple[str, ...] = ()
    """Names of what may stand behind the path."""
    answers: tuple[str, ...] = ("application/json",)
    """What types an answer may have."""


@dataclass(frozen=True, slots=True)
class Surface:
    """One route: a method, a path, who answers, and what a model's route must take to be served there."""

    method: str
    path: str
    handle: Callable[[Visit], Awaitable[Response]]
    ask: type | None = None
    body_bytes: int = 32 << 20
    """How large a body may be."""
    terms: Terms = Terms()
    is_open: bool = False
    """Whether it needs no key."""


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
        return cls(name, model, model.request_type())

    @property
    def takes(self) -> tuple[Any, ...]:
        """The types of request that its route takes."""
        return kinds_of(self.request)


class Door:
    """What the surfaces of one front end share. It lets nobody in until `begin`."""

    def __init__(self, models: Mapping[str, Model], keys: Keys | None = None, limits: Limits | None = None) -> None:
        self.served = {name: Served.of(name, model) for name, model in models.items()}
        self.keys = keys or Keys()
        self.limits = limits or Limits()
        self.fetcher = Fetcher()
        """Of files that clients only name; it fetches nothing unless it is replaced."""
        self.meters = Meters()
        self.timelines = Timelines()
        self.ops: dict[str, list[m.OpCount]] = {}
        """What ops came to, by worker, when it was last asked."""
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
            name = name[:LONGEST_NAME]  # finding what is near takes its time
            what = f"no model is called `{name}`{nearest(name, self.served)}; there are {listed(self.served)}"
            raise Refusal(404, "model_not_found", what, param="model")
        if surface.ask is not None and surface.ask not in served.takes:
            paths = [*(offered.path for offered in self.offers(served)), "/v1/generate"]
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
        front = self.bridge.front
        submits = [m.Submit(front.new_rid(), served.name, m.Value(ask), tenant, self.limits.patience_s) for ask in asks]
        live = Live(self.bridge, submits)
        entry = self.timelines.opened(served.name, tenant, live.rids)
        tallies = {rid: Tally(self.meters, served.name, ask) for rid, ask in zip(live.rids, asks, strict=True)}
        live.follower = Follower(tallies, entry)
        return live
