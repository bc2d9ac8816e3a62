"""Configuration: operator settings, the configuration of child processes, and all access to environment variables.

A field with a description is a setting: it has a command-line flag, an environment variable and a manifest key.
A `ProcessConfig` is sent to a child once, through a pipe that only it can read, because it contains the deployment key.
Nothing here changes after the start.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ENV_PREFIX = "MSTAR_"
"""Prefix of mstar's environment variables."""
TELEMETRY_OFF = {
    "ORT_DISABLE_TELEMETRY": "1",  # ONNX Runtime: on by default, sends to Microsoft
    "HF_HUB_DISABLE_TELEMETRY": "1",  # huggingface_hub and transformers
    "HF_XET_TELEMETRY_ENABLED": "0",  # hf_xet, which downloads for huggingface_hub
    "DISABLE_TELEMETRY": "1",  # diffusers
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray, if this process starts a cluster
    "DO_NOT_TRACK": "1",  # libraries that follow the convention
}
"""Environment variables that turn off the telemetry of dependencies."""
VLLM_VARIABLES = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # its engine core runs in the process that loads it
    "VLLM_USE_V2_MODEL_RUNNER": "0",  # which has no logits processors
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other workers use the same cores
    "VLLM_LOGGING_LEVEL": "WARNING",
}
"""Environment variables that vLLM reads when it is imported (`mstar.nn.lm.vllm.vllm_engine`)."""


LogLevel = Literal["debug", "info", "warning", "error"]


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Listening address, shutdown, logging and telemetry of a server."""

    host: Annotated[str, Meta(description="IP address or host name to listen on.")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="TCP port to listen on; 0 picks a free port.")] = 8000
    probe_port: Annotated[
        Annotated[int, Meta(ge=0, le=65_535)] | None,
        Meta(
            description="TCP port for /health and /ready without an API key, which answers even if the event loop is "
            "busy; 0 picks a free port, none: no such port."
        ),
    ] = None
    allow_host: Annotated[
        tuple[str, ...],
        Meta(
            description="Additional Host header that a server without API keys accepts on a loopback address: "
            "name or name:port."
        ),
    ] = ()
    insecure: Annotated[
        bool,
        Meta(description="Allow a public address without API keys, and a Ray cluster without token authentication."),
    ] = False
    cluster: Annotated[
        str,
        Meta(description="Ray cluster to run on: auto for the one of this host, or ADDRESS:PORT."),
    ] = ""
    in_process: Annotated[bool, Meta(description="Run everything in one process, without restarts after a crash.")] = (
        False
    )
    conductors: Annotated[
        int,
        Meta(ge=1, description="Number of conductors that share the models; models with a common worker share one."),
    ] = 1
    frontends: Annotated[
        int,
        Meta(
            ge=1,
            le=99,
            description="Number of front-end processes that share the port; 1: the front end is in the process of the "
            "launcher.",
        ),
    ] = 1
    session_backup: Annotated[
        tuple[str, ...],
        Meta(
            description="URL of another server that keeps copies of the resumable realtime sessions of this one, and "
            "continues them without it; the first that can be reached is used."
        ),
    ] = ()
    session_backup_key_file: Annotated[
        str,
        Meta(description="File with the key that all servers of --session-backup share.", extra={"is_path": True}),
    ] = ""
    allow_media_host: Annotated[
        tuple[str, ...],
        Meta(
            description="Host from which media URLs can be fetched: name, *.name or name:port; "
            "append =RANGE to allow a private address range."
        ),
    ] = ()
    drain_timeout_s: Annotated[float, Meta(ge=0, description="Seconds to wait for running requests at shutdown.")] = (
        30.0
    )
    log_format: Annotated[Literal["text", "json"], Meta(description="Format of log lines.")] = "text"
    expose_errors: Annotated[
        bool | None,
        Meta(
            description="Send clients the message of an exception, not only its type; "
            "none: on a loopback address without API keys."
        ),
    ] = None
    capture_text: Annotated[
        bool,
        Meta(
            description="Keep prompts and responses of the last requests in memory, for the studio: "
            "at most 64 requests of each key, 32 KiB of each text."
        ),
    ] = False
    log_level: Annotated[LogLevel, Meta(description="Minimum level of log lines of all processes.")] = "info"
    otlp_endpoint: Annotated[
        str, Meta(description="URL of the OpenTelemetry collector (OTLP) for spans; empty exports none.")
    ] = ""
    metrics_compat: Annotated[
        Literal["vllm"] | None,
        Meta(description="Also export metrics under vLLM's names; none exports mstar's names only."),
    ] = None


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Rate limit of each API key."""

    requests_per_second: Annotated[
        float,
        Meta(
            gt=0,
            description="Maximum average requests per second of each API key (token bucket).",
            extra={"flag": "rate-limit-rps"},
        ),
    ] = 1000.0
    max_concurrent: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum concurrent requests of each API key; also the burst size of its token bucket.",
            extra={"flag": "rate-limit-concurrency"},
        ),
    ] = 16_384


class ApiKeyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """API keys without a tenant."""

    values: Annotated[
        tuple[str, ...],
        Meta(description="API keys that clients must send.", extra={"is_secret": True, "flag": "api-key"}),
    ] = ()
    file: Annotated[
        str, Meta(description="File with one API key per line.", extra={"flag": "api-key-file", "is_path": True})
    ] = ""
    operator_file: Annotated[
        str,
        Meta(
            description="File with one operator key per line; these can also load and unload models and see all "
            "requests.",
            extra={"flag": "operator-key-file", "is_path": True},
        ),
    ] = ""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on connections and inputs of clients."""

    body_timeout_s: Annotated[float, Meta(gt=0, description="Seconds to wait for the body of a request.")] = 30.0
    request_timeout_s: Annotated[float, Meta(gt=0, description="Maximum seconds of a request, queueing included.")] = (
        600.0
    )
    header_timeout_s: Annotated[float, Meta(gt=0, description="Seconds to wait for the headers of a request.")] = 15.0
    write_timeout_s: Annotated[
        float,
        Meta(
            gt=0,
            description="Seconds in which a client must read something of a response that waits for it, "
            "before the response is cut off.",
        ),
    ] = 60.0
    websocket_idle_timeout_s: Annotated[
        float, Meta(gt=0, description="Seconds without a message before a WebSocket is closed.")
    ] = 1800.0
    max_connections: Annotated[int, Meta(ge=1, description="Maximum number of open connections.")] = 16_384
    max_input_memory_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum bytes of bodies and decoded media of all requests together; "
            "further ones get status 429. 0: an eighth of the machine's memory.",
        ),
    ] = 0
    max_realtime_sessions: Annotated[
        int, Meta(ge=1, description="Maximum number of realtime sessions of each API key.")
    ] = 64
    max_tool_rounds: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum number of times that a model calls tools of MCP servers in one request; "
            "then it answers without them.",
        ),
    ] = 8
    max_media_bytes: Annotated[int, Meta(ge=1, description="Maximum size of a media input in bytes.")] = 64 << 20
    max_media_pixels: Annotated[int, Meta(ge=1, description="Maximum number of pixels of an image.")] = 40_000_000
    max_media_seconds: Annotated[float, Meta(gt=0, description="Maximum duration of an audio input in seconds.")] = (
        1800.0
    )


class SloConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Default latency objective, for requests whose client and API key set none."""

    ttft_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="Default target for the time to first output (TTFT) in seconds; none: best effort.",
            extra={"flag": "slo-ttft"},
        ),
    ] = None
    tokens_per_s: Annotated[
        float,
        Meta(
            ge=0,
            description="Default reading rate of clients in text tokens per second; 0: text has no deadlines.",
            extra={"flag": "slo-tokens-per-second"},
        ),
    ] = 0.0


class OpSeconds(msgspec.Struct, frozen=True, kw_only=True):
    """Time of an op in a twin."""

    batch_s: float
    """Seconds of a batch."""
    position_s: float = 0.0
    """Seconds of each position in addition."""


class TwinConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A twin: the deployment without weights. Its ops last as long as they were measured or set to."""

    profiles: dict[str, bytes] = {}
    """Content of the profile file, by model."""
    device: str = ""
    """Device of the profiles; empty for the first one."""
    op_seconds: dict[str, OpSeconds] = {}
    """Times by "component.op". They override those of profiles."""
    time_scale: float = 1.0
    """Factor of all times."""
    output_tokens: int = 64
    """Tokens of an answer, unless the request allows fewer."""
    kv_tokens: int | None = None
    """Tokens that each KV cache holds; None for the number that the component sets."""
    sizes: dict[str, int] = {}
    """Sizes of synthetic outputs: `mstar.walk.twin.TwinSizes.dims`."""


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Runtime settings of a deployment."""

    max_running_requests: Annotated[
        int, Meta(ge=1, description="Maximum number of running requests per conductor.")
    ] = 1024
    max_queued_requests: Annotated[
        int,
        Meta(
            ge=0,
            description="Maximum number of queued requests per conductor; further ones get status 429, "
            "unless their tenant has less than an equal share of the queue.",
        ),
    ] = 256
    max_batch_size: Annotated[int, Meta(ge=1, description="Maximum number of calls in a batch.")] = 64
    max_undelivered_outputs: Annotated[
        int,
        Meta(
            ge=1,
            description="Maximum outputs a client can lag behind before its request is paused (backpressure).",
        ),
    ] = 64
    max_batched_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Maximum tokens per batch of a chunked op (chunked prefill); none: no limit."),
    ] = 512
    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="Number of compute threads per worker; none: the default of the library."),
    ] = None
    conductors: int = 1
    """Maximum number of conductors that share the models."""
    log_format: Literal["text", "json"] = "text"
    """Format of log lines of each process."""
    log_level: LogLevel = "info"
    """Minimum level of log lines of each process."""
    twin: TwinConfig | None = None
    """Set if the deployment is a twin: no worker loads weights."""
    failpoints: dict[str, str] = {}
    """Fault injection for tests: action by failpoint, see `mstar.failpoints`."""


class McpServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server whose tools the server calls for models: a command (stdio) or a URL (streamable HTTP)."""

    command: tuple[str, ...] = ()
    """Program with its arguments. Each front end runs one such process."""
    directory: str = "."
    """Working directory of the program."""
    url: str = ""
    allowed_tools: Annotated[tuple[str, ...], Meta(min_length=1)]
    """Names of the tools that requests can use. No other tool is shown to a model or called."""
    call_timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    """Maximum seconds of a call."""


class FrontendSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of front ends that are processes of their own."""

    server: ServerConfig
    """With the port that is in use, also if the configured one is 0."""
    limits: HttpLimits
    """Limits of one front end: its share of those that protect the machine."""
    mcp_servers: dict[str, McpServerConfig] = {}
    """MCP servers by label."""


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Configuration of a child process."""

    name: str
    incarnation: int
    """Number of earlier starts of this name; for a conductor, its generation."""
    directory: str
    """Run directory with the Unix sockets of all processes."""
    key: bytes
    """Deployment key: authenticates every frame."""
    peers: dict[str, int]
    """Running peers of its shard, by name with incarnation, and the launcher and front ends."""
    ip: str = ""
    """IP address of its host for other hosts; empty on a single machine."""
    addresses: dict[str, str] = {}
    """Addresses of the peers, by name, if there are several hosts: see `wire.transport.address_book`."""
    weights_version: int = 0
    """Version of the weights to load."""
    models: dict[str, str]
    """Models of its shard: the argument of `load_model`, by name."""
    placements: dict[str, str]
    """Text of the placement file, by model; empty for none."""
    options: RuntimeConfig

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}.{self.incarnation})"  # keep the key out of logs


class ConductorConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """Configuration of a conductor."""

    up_workers: tuple[str, ...] = ()
    """Names of those of the peers that are workers and were up under an earlier conductor."""


class WorkerConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """Configuration of a worker."""

    conductor: str
    """Name of its conductor."""
    black_box: str
    """Path of its black box, which records the running batch for crash analysis."""
    cuda_device: str = ""
    """Name of its GPU for operators, as `cuda:1`, if its process sees no other one; the process calls it `cuda:0`. With
    several ranks, the names of their GPUs."""


class RankConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """Configuration of a rank of a worker, except rank 0, which starts it."""

    worker: WorkerConfig
    rank: int
    ranks: int
    address: str
    """Where the ranks meet."""
    channel: int
    """Descriptor of the channel to rank 0."""


class ExpertsConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """Configuration of the process that computes the experts of a component, which its worker starts."""

    component: str
    """The component, as "model.component"."""
    device: str
    """Torch device of the experts."""
    channel: int
    """Descriptor of the channel to the worker."""


class FrontendConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """Configuration of a front end that is a process of its own."""

    number: int
    """Its number, from 1."""
    conductors: dict[str, str]
    """Name of the conductor of each model."""
    settings: FrontendSettings


def runtime_directory() -> Path:
    """Parent of run directories: XDG_RUNTIME_DIR, or the directory for temporary files."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


def env_variables() -> dict[str, str]:
    """mstar's environment variables, by name without the prefix."""
    return {name.removeprefix(ENV_PREFIX): value for name, value in os.environ.items() if name.startswith(ENV_PREFIX)}


def disable_telemetry() -> None:
    """Turn off the telemetry of dependencies in this process and its children. Call it before a model is loaded."""
    os.environ.update(TELEMETRY_OFF)


def configure_vllm() -> None:
    """Set the variables of vLLM in this process. Call it before a model is loaded."""
    os.environ.update(VLLM_VARIABLES)


def use_loopback() -> None:
    """Have ranks, which are on one host, connect over its loopback interface. Call it before they meet."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def extend_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of this process with other values of some variables, for a child process."""
    return {**os.environ, **variables}


def read_env_variable(name: str) -> str | None:
    """Value of an environment variable that an operator named; None if unset."""
    return os.environ.get(name)
