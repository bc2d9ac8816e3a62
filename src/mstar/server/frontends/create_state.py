"""Create the server state of a front end from its settings.

The process that is the only front end and front ends that are processes of their own use the same code.
"""

from __future__ import annotations

from collections.abc import Mapping

from mstar.config import HttpLimits, McpServerConfig, RuntimeConfig, ServerConfig
from mstar.errors import LoadError
from mstar.media.decoder_pool import DecoderPool, MediaLimits
from mstar.nn.lm.adapters.peft_folder import open_adapter
from mstar.plan.planned_model import PlannedModel
from mstar.server.access.api_keys import ApiKeys
from mstar.server.access.host_check import HostCheck, is_loopback
from mstar.server.inputs.media_fetcher import AllowedHost, MediaFetcher
from mstar.server.realtime.backup.session_backups import SessionBackups, read_backup_key
from mstar.server.state import ServerState
from mstar.server.tools.mcp_server import McpServers
from mstar.transfer.arena import DEFAULT_CAPACITY_BYTES


def create_state(
    models: Mapping[str, PlannedModel],
    keys: ApiKeys,
    server: ServerConfig,
    limits: HttpLimits,
    runtime: RuntimeConfig,
    mcp_servers: Mapping[str, McpServerConfig],
) -> ServerState:
    """The state of a front end. Raises LoadError if a setting is invalid."""
    DecoderPool.limits = MediaLimits(limits.max_media_bytes, limits.max_media_pixels, limits.max_media_seconds)
    state = ServerState({name: planned.model for name, planned in models.items()}, keys, limits)
    state.plans = {name: planned.plans for name, planned in models.items()}
    for name, planned in models.items():
        for adapters in planned.adapters.values():
            for adapter, folder in adapters.items():
                state.adapters.add(name, open_adapter(adapter, folder))
    state.is_twin = runtime.twin is not None
    state.metrics.is_twin.set(state.is_twin)
    state.expose_errors, state.captures_text = server.expose_errors, server.capture_text
    if server.cluster:  # segments of shared memory do not reach other hosts
        state.memory_budget.limit_requests(DEFAULT_CAPACITY_BYTES // 2)
    state.load_shedder.limit = server.conductors * (runtime.max_running_requests + runtime.max_queued_requests)
    state.fetcher = MediaFetcher(map(AllowedHost.parse, server.allow_media_host))
    state.metrics.register_compat_names(server.metrics_compat)
    state.mcp_servers = McpServers(mcp_servers)
    if server.session_backup:
        key = read_backup_key(server.session_backup_key_file)
        state.session_backups = backups = SessionBackups(
            server.session_backup, key, state.memory_budget, state.realtime_sessions
        )
        state.metrics.realtime_backups.set_function(lambda: backups.connections.stored)
    return state


def check_hosts(state: ServerState, server: ServerConfig, port: int) -> None:
    """Check the Host header of requests at a loopback address with this port."""
    if is_loopback(server.host):
        state.host_check = HostCheck(server.host, port, server.allow_host)


def start_otlp_export(state: ServerState, url: str) -> None:
    """Export the spans of requests to an OpenTelemetry collector. Raises LoadError."""
    if not url.startswith(("http://", "https://")):
        raise LoadError(
            f"the OTLP endpoint {url} is not an HTTP URL\n  fix: pass the collector's URL, such as http://127.0.0.1:4318"
        )
    try:
        from mstar.server.telemetry.otlp_exporter import OtlpExporter
    except ModuleNotFoundError as error:
        raise LoadError(f"`{error.name}` is not installed\n  fix: pip install 'mstar-serve[otel]'") from error
    OtlpExporter(state, url)
