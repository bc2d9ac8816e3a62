"""The door: what every surface of a front end shares. Which models are served, who may come in, how far the start is.

`open` is how a surface has something served. It reads no request and writes no answer: that is a `Visit`'s.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel
from starlette.responses import Response

from mstar.config import Limits
from mstar.errors import listed, nearest
from mstar.plan.tables import Plans
from mstar.server.fetch import Fetcher
from mstar.server.keys import Keys
from mstar.server.latch import Latch
from mstar.server.live import Bridge, FrontEnd, Live
from mstar.server.logs import request_ended
from mstar.server.meters import Follower, Meters, Tally
from mstar.server.refusals import Refusal
from mstar.server.schema import LONGEST_NAME
from mstar.server.timeline import Entry, Timelines
from mstar.server.watching import Watch
from mstar.walk.model import Model, kinds_of
from mstar.wire import messages as m
from mstar.wire.figures import KindCount, OpCount

if TYPE_CHECKING:
    from mstar.server.visit import Passage, Visit

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
    is_batch: bool = False
    """Whether nothing is promised there, unless a client wants it to be."""
    patient: bytes = b""
    """What stands in a body that says that nothing need be promised for it, if a body can say so."""


@dataclass(frozen=True, slots=True)
class Phase:
    """How far a server is: starting, ready or draining."""

    name: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class Condition:
    """How the process of a worker is."""

    state: str
    """up, starting, gone or resting."""
    part: str = ""
    """Which component it loads."""
    done: int = 0
    """How many it has loaded."""
    total: int = 0
    host: str = ""
    """Where it runs, if there are several hosts."""


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

    def own(self, name: str) -> Any:
        """A method by which a model may say more of itself, if it has it."""
        return getattr(self.model, name, None) if hasattr(type(self.model), name) else None  # a miss takes long there


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
        self.latch = Latch()
        self.ops: dict[str, list[OpCount]] = {}
        """What ops came to, by worker, when it was last asked."""
        self.kinds: dict[str, list[KindCount]] = {}
        """What emissions came to, by worker."""
        self.phase = Phase("starting")
        self.visits = 0
        """How many requests are under way."""
        self.meters.live.set_function(lambda: self.visits)
        self.surfaces: Sequence[Surface] = ()
        self.bridge: Bridge | None = None
        self.peers: Callable[[], Sequence[m.Peer]] = tuple
        self.conditions: Callable[[], Mapping[str, Condition]] = dict
        """How the processes of workers are."""
        self.plans: Mapping[str, Plans] = {}
        """What runs where, by model."""
        self.watch = Watch()

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

    def early_refusal(self, surface: Surface, by: Passage) -> Refusal | None:
        """What to tell a request before it is read, if none of the models that it may ask for would take it on now."""
        told = [self.latch.refusal(by.tenant, one.name, by.pace) for one in self._offered.get(surface.path, ())]
        return told[0] if told and all(told) else None

    def ended(self, entry: Entry, bytes_in: int, bytes_out: int) -> None:
        """A request of a client has ended."""
        passage = entry.passage
        self.timelines.end(entry)
        request_ended(entry, bytes_in, bytes_out)
        self.meters.requests.labels(passage.surface, str(passage.status)).inc()
        if passage.code:
            self.meters.refusals.labels(passage.code).inc()
        self.meters.seconds.labels(passage.surface).observe(entry.seconds)

    @functools.cached_property
    def _offered(self) -> dict[str, list[Served]]:
        """The models at each surface that asks something of them."""
        paths = {one.path: one.ask for one in self.surfaces if one.method == "POST" and one.ask is not None}
        return {path: [one for one in self.served.values() if ask in one.takes] for path, ask in paths.items()}

    def open(self, served: Served, *asks: Any, by: Passage, goes_on: bool = False) -> Live:
        """Have requests served, one for each ask, as is promised to whose they are. Whoever opens it closes it."""
        if self.bridge is None or self.phase.name != "ready":
            what = f"the server is {self.phase.name}"
            raise Refusal(503, "not_ready", what, retry_after=STARTING_S)
        refused = self.latch.enter(by.tenant, served.name, by.pace)
        front = self.bridge.front
        patience = self.limits.patience_s
        submits = [
            m.Submit(front.new_rid(), served.name, m.Value(ask), by.tenant, patience, pace=by.pace) for ask in asks
        ]
        live = Live(self.bridge, submits, goes_on=goes_on)
        entry = self.timelines.opened(served.name, by.tenant, live.rids)
        tallies = {rid: Tally(self.meters, served.name, ask) for rid, ask in zip(live.rids, asks, strict=True)}
        live.follower = Follower(tallies, entry, refused)
        return live
