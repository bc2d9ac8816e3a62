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

from mstar.config import HttpLimits
from mstar.errors import format_names, suggest_name
from mstar.frontend.response_stream import FrontendActor, LoopBridge, ResponseStream
from mstar.plan.tables import Plans
from mstar.server.access.api_keys import ApiKeys
from mstar.server.access.circuit_breaker import CircuitBreaker
from mstar.server.admin.live_feed import LiveFeed
from mstar.server.admin.recent_requests import RecentRequests, RequestRecord
from mstar.server.errors import ApiError, api_error_from
from mstar.server.inputs.media_fetcher import MediaFetcher
from mstar.server.openai.schema import MAX_NAME_CHARS
from mstar.server.telemetry.logs import log_request
from mstar.server.telemetry.metrics import Metrics, MetricsObserver, ResponseMetrics
from mstar.walk.model import Model, expand_union
from mstar.wire import messages as m
from mstar.wire.stats import DeadlineStats, OpTotals

if TYPE_CHECKING:
    from mstar.server.http_exchange import HttpExchange, RequestContext

NOT_READY_RETRY_AFTER_S = 2.0
"""After how many seconds to come again while the server starts or ends."""


@dataclass(frozen=True, slots=True)
class EndpointSchema:
    """What goes in and out at a surface, for those who read its description."""

    body: type[BaseModel] | None = None
    files: Mapping[str, bool] = field(default_factory=dict[str, bool])
    """Names of files beside it, for which it is a form, and whether they are needed."""
    query_params: tuple[str, ...] = ()
    """Names of what may stand behind the path."""
    response_media_types: tuple[str, ...] = ("application/json",)
    """What types an answer may have."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route: a method, a path, who answers, and what a model's route must take to be served there."""

    method: str
    path: str
    handler: Callable[[HttpExchange], Awaitable[Response]]
    request_type: type | None = None
    max_body_bytes: int = 32 << 20
    """How large a body may be."""
    schema: EndpointSchema = EndpointSchema()
    is_public: bool = False
    """Whether it needs no key."""
    best_effort: bool = False
    """Whether nothing is promised there, unless a client wants it to be."""
    best_effort_marker: bytes = b""
    """What stands in a body that says that nothing need be promised for it, if a body can say so."""


@dataclass(frozen=True, slots=True)
class Phase:
    """How far a server is: starting, ready or draining."""

    name: str
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class WorkerProcessStatus:
    """How the process of a worker is."""

    state: str
    """up, starting, down or stopped."""
    component: str = ""
    """Which component it loads."""
    done: int = 0
    """How many it has loaded."""
    total: int = 0
    host: str = ""
    """Where it runs, if there are several hosts."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under the name that clients give."""

    name: str
    model: Model
    request_type: Any
    """What its route takes, as it is annotated; Any if it is not, None if it has no route of its own."""
    created_at: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def from_model(cls, name: str, model: Model) -> ServedModel:
        """A model, with what its route says."""
        return cls(name, model, model.request_type())

    @property
    def accepted_types(self) -> tuple[Any, ...]:
        """The types of request that its route takes."""
        return expand_union(self.request_type)

    def optional_method(self, name: str) -> Any:
        """A method by which a model may say more of itself, if it has it."""
        return getattr(self.model, name, None) if hasattr(type(self.model), name) else None  # a miss takes long there


class ServerState:
    """What the surfaces of one front end share. It lets nobody in until `begin`."""

    def __init__(
        self, models: Mapping[str, Model], keys: ApiKeys | None = None, limits: HttpLimits | None = None
    ) -> None:
        self.served_models = {name: ServedModel.from_model(name, model) for name, model in models.items()}
        self.keys = keys or ApiKeys()
        self.limits = limits or HttpLimits()
        self.fetcher = MediaFetcher()
        """Of files that clients only name; it fetches nothing unless it is replaced."""
        self.metrics = Metrics()
        self.recent_requests = RecentRequests()
        self.circuit_breaker = CircuitBreaker()
        self.op_stats: dict[str, list[OpTotals]] = {}
        """What ops came to, by worker, when it was last asked."""
        self.deadline_stats: dict[str, list[DeadlineStats]] = {}
        """What emissions came to, by worker."""
        self.phase = Phase("starting")
        self.active_requests = 0
        """How many requests are under way."""
        self.metrics.requests_in_progress.set_function(lambda: self.active_requests)
        self.endpoints: Sequence[Endpoint] = ()
        self.bridge: LoopBridge | None = None
        self.peers: Callable[[], Sequence[m.Peer]] = tuple
        self.process_statuses: Callable[[], Mapping[str, WorkerProcessStatus]] = dict
        """How the processes of workers are."""
        self.plans: Mapping[str, Plans] = {}
        """What runs where, by model."""
        self.live_feed = LiveFeed()

    def load_detokenizers(self) -> None:
        """Load what spelling needs, so that the first client does not wait for it."""
        for served in self.served_models.values():
            with suppress(NotImplementedError):
                served.model.detokenize(())

    def start_accepting(
        self, frontend: FrontendActor, peers: Callable[[], Sequence[m.Peer]], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Everything is there: let clients in. `peers` tells which other processes have figures to give."""
        self.bridge = LoopBridge(frontend, loop, api_error_from)
        self.peers = peers
        self.phase = Phase("ready", self.phase.total, self.phase.total)

    def drain(self) -> None:
        """Let nobody in any more."""
        self.phase = Phase("draining")

    def resolve_model(self, name: str, endpoint: Endpoint) -> ServedModel:
        """The model that a client named, if it is served there."""
        served = self.served_models.get(name)
        if served is None:
            name = name[:MAX_NAME_CHARS]  # finding what is near takes its time
            what = f"no model is called `{name}`{suggest_name(name, self.served_models)}; there are {format_names(self.served_models)}"
            raise ApiError(404, "model_not_found", what, param="model")
        if endpoint.request_type is not None and endpoint.request_type not in served.accepted_types:
            paths = [*(offered.path for offered in self.endpoints_of(served)), "/v1/generate"]
            what = f"the model `{name}` is not served at {endpoint.path}; it is served at {format_names(paths)}"
            raise ApiError(404, "endpoint_not_supported", what, param="model")
        return served

    def endpoints_of(self, served: ServedModel) -> list[Endpoint]:
        """Where a model is served."""
        return [
            one for one in self.endpoints if one.request_type is not None and one.request_type in served.accepted_types
        ]

    def early_rejection(self, endpoint: Endpoint, context: RequestContext) -> ApiError | None:
        """What to tell a request before it is read, if none of the models that it may ask for would take it on now."""
        told = [
            self.circuit_breaker.rejection(context.tenant_name, one.name, context.slo)
            for one in self._models_by_path.get(endpoint.path, ())
        ]
        return told[0] if told and all(told) else None

    def record_request_end(self, entry: RequestRecord, bytes_in: int, bytes_out: int) -> None:
        """A request of a client has ended."""
        passage = entry.context
        self.recent_requests.end(entry)
        log_request(entry, bytes_in, bytes_out)
        self.metrics.requests.labels(passage.endpoint, str(passage.status)).inc()
        if passage.code:
            self.metrics.request_errors.labels(passage.code).inc()
        self.metrics.request_duration.labels(passage.endpoint).observe(entry.seconds)

    @functools.cached_property
    def _models_by_path(self) -> dict[str, list[ServedModel]]:
        """The models at each surface that asks something of them."""
        paths = {
            one.path: one.request_type
            for one in self.endpoints
            if one.method == "POST" and one.request_type is not None
        }
        return {
            path: [one for one in self.served_models.values() if ask in one.accepted_types]
            for path, ask in paths.items()
        }

    def start_requests(
        self, served: ServedModel, *requests: Any, context: RequestContext, multi_turn: bool = False
    ) -> ResponseStream:
        """Have requests served, one for each ask, as is promised to whose they are. Whoever opens it closes it."""
        if self.bridge is None or self.phase.name != "ready":
            what = f"the server is {self.phase.name}"
            raise ApiError(503, "not_ready", what, retry_after=NOT_READY_RETRY_AFTER_S)
        refused = self.circuit_breaker.admit(context.tenant_name, served.name, context.slo)
        front = self.bridge.frontend
        patience = self.limits.request_timeout_s
        submits = [
            m.Submit(front.new_rid(), served.name, m.Value(ask), context.tenant_name, patience, slo=context.slo)
            for ask in requests
        ]
        live = ResponseStream(self.bridge, submits, multi_turn=multi_turn)
        entry = self.recent_requests.attach(served.name, context.tenant_name, live.rids)
        tallies = {
            rid: ResponseMetrics(self.metrics, served.name, ask) for rid, ask in zip(live.rids, requests, strict=True)
        }
        live.observer = MetricsObserver(tallies, entry, refused)
        return live
