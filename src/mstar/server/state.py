"""Server state: what all endpoints of one front end share. Models, API keys, limits, metrics and the start-up phase.

`start_requests` submits requests to the runtime. Reading a request and writing its response is the work of
`HttpExchange` and `WebSocketSession`.
"""

from __future__ import annotations

import asyncio
import functools
import operator
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec

from mstar.config import HttpLimits
from mstar.errors import format_names, suggest_name
from mstar.frontend.response_stream import FrontendActor, LoopBridge, ResponseStream
from mstar.graph import ir
from mstar.plan.tables import Plans
from mstar.requests import Adapter, ChatRequest, Sampling
from mstar.server.access.api_keys import ApiKeys
from mstar.server.access.circuit_breaker import CircuitBreaker
from mstar.server.access.host_check import HostCheck
from mstar.server.access.load_shedding import LoadShedder
from mstar.server.adapters.registry import AdapterRegistry
from mstar.server.admin.live_feed import LiveFeed
from mstar.server.admin.recent_requests import RecentRequests, RequestRecord
from mstar.server.admin.traffic_feed import TrafficFeed
from mstar.server.endpoint import Endpoint
from mstar.server.errors import ApiError, api_error_from
from mstar.server.frontends.siblings import Siblings
from mstar.server.inputs.media_fetcher import MediaFetcher
from mstar.server.inputs.memory_budget import MemoryBudget
from mstar.server.inputs.text_budget import TextBudget
from mstar.server.openai.schema import MAX_NAME_CHARS
from mstar.server.realtime.backup.session_backups import SessionBackups
from mstar.server.realtime.open_sessions import OpenSessions
from mstar.server.request_context import RequestContext
from mstar.server.shutdown import Shutdown
from mstar.server.status import ModelReadiness, Phase, RolloutStatus, WorkerProcessStatus, model_readiness
from mstar.server.telemetry.history import History
from mstar.server.telemetry.logs import log_request
from mstar.server.telemetry.metrics import Metrics, MetricsObserver, ResponseMetrics, labeled
from mstar.server.tools.mcp_server import McpServers
from mstar.walk.model import Model, expand_union
from mstar.wire import messages as m
from mstar.wire.stats import DeadlineStats, MetricFamily, OpTotals

NOT_READY_RETRY_AFTER_S = 2.0
"""Retry-After, in seconds, while the server starts or drains."""
_OPENAI_SAMPLING = Sampling(temperature=1.0)
"""Default sampling parameters of a model that declares none."""
_GREEDY_SAMPLING = Sampling()
_SAMPLING_PARAMS = tuple(param.name for param in fields(Sampling))
_read_sampling_params = operator.attrgetter(*_SAMPLING_PARAMS)
"""All parameters at once. `dataclasses.replace` reads them one by one."""


@functools.lru_cache(maxsize=64)
def _output_kinds(model: Model) -> frozenset[str]:
    nodes = (node for graph in model.graphs().values() for node in ir.flat(graph.body))
    return frozenset(node.kind for node in nodes if isinstance(node, ir.Emit))


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model under its public name."""

    name: str
    model: Model
    request_type: Any
    """Annotated request type of its route. Any if it has no annotation, None if the model has no route."""
    created_at: int = field(default_factory=lambda: int(time.time()))
    adapter: Adapter | None = None
    """LoRA adapter of its requests. With one, its name is `MODEL:ADAPTER`."""

    @classmethod
    def from_model(cls, name: str, model: Model) -> ServedModel:
        """Serve a model under a name."""
        return cls(name, model, model.request_type())

    def with_adapter(self, adapter: Adapter) -> ServedModel:
        """The same model with a LoRA adapter."""
        return replace(self, name=f"{self.name}:{adapter.name}", adapter=adapter)

    @property
    def base_name(self) -> str:
        """Name of the model that runs: without its adapter."""
        return self.name if self.adapter is None else self.name.removesuffix(f":{self.adapter.name}")

    @property
    def accepted_types(self) -> tuple[Any, ...]:
        """Request types that its route accepts; with an adapter those that carry it."""
        types = expand_union(self.request_type)
        return types if self.adapter is None else tuple(one for one in types if one is ChatRequest)

    def is_served_at(self, endpoint: Endpoint) -> bool:
        """Whether it accepts the request type of an endpoint, and has the method that the endpoint needs."""
        return endpoint.request_type in self.accepted_types and (
            not endpoint.required_hook or hasattr(type(self.model), endpoint.required_hook)
        )

    def optional_method(self, name: str) -> Any:
        """An optional hook of the model, or None if the model does not define it."""
        # hasattr on the class first: a missing attribute of a model instance is slow to look up.
        return getattr(self.model, name, None) if hasattr(type(self.model), name) else None

    @property
    def output_kinds(self) -> frozenset[str]:
        """Kinds of the emissions of its walks."""
        return _output_kinds(self.model)

    def sampling(self, random_seed: Callable[[], int] = lambda: secrets.randbits(62), **params: Any) -> Sampling:
        """Sampling parameters of a request. Those that are None have the model's defaults (`default_sampling`).

        Temperature 0 is greedy decoding: the model's penalties do not apply. Without a seed, stochastic sampling gets a
        random one.
        """
        default_sampling = self.optional_method("default_sampling")
        defaults = None if default_sampling is None else default_sampling()
        if params.get("temperature") == 0:
            defaults = _GREEDY_SAMPLING
        defaults = defaults or _OPENAI_SAMPLING
        changes = {name: value for name, value in params.items() if value is not None}
        if self.adapter is not None:
            changes["adapter"] = self.adapter
        if "seed" not in changes and changes.get("temperature", defaults.temperature):
            changes["seed"] = random_seed()
        return Sampling(**(dict(zip(_SAMPLING_PARAMS, _read_sampling_params(defaults), strict=True)) | changes))


class ServerState:
    """Shared state of one front end. It rejects all requests until `start_accepting`."""

    expose_errors: bool | None = None
    """Whether clients get the messages of exceptions; None: on a loopback address without keys."""
    is_twin = False
    """Whether the models have no weights: all outputs are synthetic."""
    captures_text = False
    """Whether prompts and responses of recent requests are kept."""
    siblings: Siblings | None = None
    """The other front ends; None if this is the only one."""
    session_backups: SessionBackups | None = None
    """Other servers that have copies of the sessions of this one; None if there are none."""
    warmup_calls: Counter[tuple[str, str, str]] | None = None
    """Op calls of warm-up requests, by worker, model and walk; None before the server is ready."""

    def __init__(
        self, models: Mapping[str, Model], keys: ApiKeys | None = None, limits: HttpLimits | None = None
    ) -> None:
        self.served_models = {name: ServedModel.from_model(name, model) for name, model in models.items()}
        self.keys, self.adapters = keys or ApiKeys(), AdapterRegistry()
        self.limits = limits or HttpLimits()
        self.max_connections = self.limits.max_connections
        """Maximum number of open connections; `HttpServer` lowers it to what the process can open."""
        self.host_check: HostCheck | None = None
        """Set for a loopback address; used while requests need no key."""
        self.fetcher = MediaFetcher()
        """Downloads media URLs. This default has an empty allow-list: it fetches nothing."""
        self.text_budget, self.mcp_servers = TextBudget(), McpServers()
        # Keys can be configured while the server runs.
        self.memory_budget = MemoryBudget(self.limits.max_input_memory_bytes, is_shared=lambda: self.keys.is_required)
        self.metrics = Metrics()
        self.recent_requests, self.traffic = RecentRequests(), TrafficFeed()
        self.circuit_breaker, self.load_shedder = CircuitBreaker(), LoadShedder()
        self.op_stats: dict[str, list[OpTotals]] = {}
        """Last op statistics, by worker."""
        self.deadline_stats: dict[str, list[DeadlineStats]] = {}
        """Last deadline statistics, by worker."""
        # The start-up phase, and when the event loop last ran.
        self.phase, self.loop_ticked_at = Phase("starting"), time.monotonic()
        self.realtime_sessions = OpenSessions(self.limits.max_realtime_sessions)
        self.realtime_sessions.export(self.metrics.realtime_sessions)
        self.shutdown = Shutdown()
        self.active_requests = 0
        """Requests and WebSockets in progress that count against rate limits."""
        self.metrics.requests_in_progress.set_function(lambda: self.active_requests)
        self.metrics.input_memory.set_function(lambda: self.memory_budget.held_bytes)
        self.endpoints: Sequence[Endpoint] = ()
        self.bridge: LoopBridge | None = None
        """Set by `start_accepting`."""
        self.peers: Callable[[], Sequence[m.Peer]] = tuple
        """Returns the other processes that have statistics."""
        self.process_statuses: Callable[[], Mapping[str, WorkerProcessStatus]] = dict
        """Returns the status of each worker process."""
        self.is_conductor_up: Callable[[str], bool] = lambda _: True
        """Returns whether the conductor of a model is up."""
        self.rollout: Callable[[], RolloutStatus] = RolloutStatus
        """Returns the status of rolling updates."""
        self.plans: Mapping[str, Plans] = {}
        """Plans by model name."""
        self.live_feed, self.history = (
            LiveFeed(self),
            History(self.metrics, self.op_stats, self.deadline_stats, others=self._sibling_metrics),
        )

    def _sibling_metrics(self) -> list[MetricFamily]:
        """Last sampled metrics of the other front ends."""
        sampled = {} if self.siblings is None else self.siblings.sampled
        return [family for families in sampled.values() for family in families]

    @property
    def id_mark(self) -> str:
        """Part of the ids of objects that names this front end; empty if it is the only one."""
        return "" if self.siblings is None else self.siblings.mark

    @property
    def exposes_errors(self) -> bool:
        """Whether clients get the messages of exceptions. Keys can be configured while the server runs."""
        if self.expose_errors is None:
            return self.host_check is not None and not self.keys.is_required
        return self.expose_errors

    def load_detokenizers(self) -> None:
        """Load all tokenizers now, so that the first request does not wait for them."""
        for served in self.served_models.values():
            with suppress(NotImplementedError):
                served.model.detokenize(())
            if (max_text_bytes := served.optional_method("max_text_bytes")) is not None:
                max_text_bytes()

    def start_accepting(
        self, frontend: FrontendActor, peers: Callable[[], Sequence[m.Peer]], loop: asyncio.AbstractEventLoop
    ) -> None:
        """Become ready: accept requests from now on."""
        self.bridge = LoopBridge(frontend, loop, api_error_from)
        self.peers = peers
        self.phase = Phase("ready", self.phase.total, self.phase.total)

    def drain(self) -> None:
        """Reject new requests from now on; running ones continue."""
        self.phase = Phase("draining")

    async def end_requests(self) -> None:
        """End all requests and WebSockets with an error: the drain is over."""
        responses = self.bridge.open_streams if self.bridge is not None else ()
        await self.shutdown.end_all(responses, lambda: self.active_requests > 0)

    def model_readiness(self) -> dict[str, ModelReadiness]:
        """Readiness of each model. Before the server has started, no model is ready."""
        if self.bridge is None:
            return dict.fromkeys(self.served_models, ModelReadiness("loading", {}))
        statuses = self.process_statuses()
        return {
            name: model_readiness(self.plans[name], statuses, is_conductor_up=self.is_conductor_up(name))
            for name in self.served_models
        }

    def find_model(self, name: str) -> ServedModel | None:
        """The model with this public name, which can be that of a model and its adapter."""
        if (served := self.served_models.get(name)) is not None:
            return served
        base, _, adapter_name = name.rpartition(":")
        adapter = self.adapters.get(base, adapter_name)
        return None if adapter is None else self.served_models[base].with_adapter(adapter)

    def resolve_model(self, name: str, endpoint: Endpoint) -> ServedModel:
        """The model with this public name. Raises ApiError if it does not exist or is not served at the endpoint."""
        served = self.find_model(name)
        if served is None:
            name = name[:MAX_NAME_CHARS]  # suggest_name is slow for long names
            base = name.rpartition(":")[0]
            known = [*self.served_models, *(f"{base}:{one}" for one in self.adapters.of_model(base))]
            message = f"no model is called `{name}`{suggest_name(name, known)}; there are {format_names(known)}"
            if base in self.served_models:
                message += ". fix: name one of them, or load the adapter with POST /v1/adapters"
            raise ApiError(404, "model_not_found", message, param="model")
        if endpoint.request_type is not None and not served.is_served_at(endpoint):
            paths = [*(offered.path for offered in self.endpoints_of(served)), "/v1/generate"]
            message = f"the model `{name}` is not served at {endpoint.path}; it is served at {format_names(paths)}"
            raise ApiError(404, "endpoint_not_supported", message, param="model")
        return served

    def endpoints_of(self, served: ServedModel) -> list[Endpoint]:
        """Endpoints at which a model is served."""
        return [
            endpoint
            for endpoint in self.endpoints
            if endpoint.request_type is not None and served.is_served_at(endpoint)
        ]

    def early_rejection(self, endpoint: Endpoint, context: RequestContext) -> ApiError | None:
        """The error for a request with an unread body, if the circuit is open for every model of the endpoint."""
        rejections = [
            self.circuit_breaker.rejection(context.tenant_name, served.name, context.slo)
            for served in self._models_by_path.get(endpoint.path, ())
        ]
        return rejections[0] if rejections and all(rejections) else None

    def record_request_end(self, record: RequestRecord) -> None:
        """Log and count a request that has ended."""
        context = record.context
        self.recent_requests.end(record)
        self.traffic.end(record)
        log_request(record)
        labeled(self.metrics.requests, context.endpoint, str(context.status)).inc()
        if context.code:
            self.metrics.request_errors.labels(context.code).inc()
        labeled(self.metrics.request_duration, context.endpoint).observe(record.seconds)

    @functools.cached_property
    def _models_by_path(self) -> dict[str, list[ServedModel]]:
        """Models served at each POST endpoint that has a request type."""
        return {
            endpoint.path: [served for served in self.served_models.values() if served.is_served_at(endpoint)]
            for endpoint in self.endpoints
            if endpoint.method == "POST" and endpoint.request_type is not None
        }

    def start_requests(
        self,
        served: ServedModel,
        *requests: Any,
        context: RequestContext,
        multi_turn: bool = False,
        remaining_s: float | None = None,
    ) -> ResponseStream:
        """Submit requests to the runtime with the SLO of the context. The caller must close the stream.

        `remaining_s` is set for requests that continue another one: its seconds until its time limit. They are accepted
        while the server drains.
        """
        if self.bridge is None or (self.phase.name != "ready" and remaining_s is None):
            message = f"the server is {self.phase.name}; fix: retry after {NOT_READY_RETRY_AFTER_S:g} s"
            raise ApiError(503, "not_ready", message, retry_after=NOT_READY_RETRY_AFTER_S)
        for request in requests:
            _require_adapter(served, request)
        name = served.base_name
        on_rejected = self.circuit_breaker.admit(context.tenant_name, name, context.slo)
        frontend = self.bridge.frontend
        timeout_s = self.limits.request_timeout_s if remaining_s is None else remaining_s
        for request in requests:
            self.text_budget.check(served.model, request)
        submits = [
            m.Submit(frontend.new_rid(), name, m.Value(request), context.tenant_name, timeout_s, slo=context.slo)
            for request in requests
        ]
        is_long = any(self.text_budget.is_long(served.model, request) for request in requests)
        prepare = functools.partial(self._tokenize, served, context) if is_long else None
        stream = ResponseStream(self.bridge, submits, multi_turn=multi_turn, prepare=prepare)
        record = self.recent_requests.attach(name, context.tenant_name, stream.rids)
        if self.traffic.is_active and record is not None:
            self.traffic.begin(record, requests)
        if self.captures_text and record is not None:
            self.recent_requests.text_capture.begin(record, context.tenant_name, requests)
        metrics_by_rid = {
            rid: ResponseMetrics(self.metrics, name, request)
            for rid, request in zip(stream.rids, requests, strict=True)
        }
        stream.to_error = functools.partial(api_error_from, request_id=context.id, expose=self.exposes_errors)
        stream.observer = MetricsObserver(metrics_by_rid, record, on_rejected)
        return stream

    async def _tokenize(self, served: ServedModel, context: RequestContext, submit: m.Submit) -> m.Submit:
        request = await self.text_budget.tokenize(served.model, submit.request.content, context.tenant_name)
        return msgspec.structs.replace(submit, request=m.Value(request))


def _require_adapter(served: ServedModel, request: Any) -> None:
    """Raise ApiError unless a request has the adapter of its model. Clients name it in `model` only."""
    sampling = getattr(request, "sampling", None)
    if (sampling.adapter if isinstance(sampling, Sampling) else None) != served.adapter:
        message = "the adapter of a request is part of its model name. fix: set `model` to MODEL:ADAPTER"
        raise ApiError(400, "invalid_value", message, param="model")
