"""What an operator may choose, what processes are told when they start, and the only place that reads the environment.

A field with a description is a setting: it has a flag and an environment variable, and a place in a manifest.
Settings are plain data: they travel to a child once, through a pipe that only it can read, because they hold the key of
the deployment. Nothing here starts a process, and nothing here changes after the start.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

ENV_PREFIX = "MSTAR_"
"""How the names of our own environment variables begin."""


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a server listens, ends, and tells what it does."""

    host: Annotated[str, Meta(description="the address to listen at")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="the port to listen at; 0 is any")] = 8000
    insecure: Annotated[
        bool, Meta(description="listen at any address without keys, use a Ray cluster without a token")
    ] = False
    cluster: Annotated[
        str,
        Meta(description="the Ray cluster whose hosts to use: auto for that of this host, or ADDRESS:PORT"),
    ] = ""
    in_process: Annotated[bool, Meta(description="run everything in one process, with no restarts")] = False
    conductors: Annotated[
        int, Meta(ge=1, description="how many conductors share the models; models that share a worker share one too")
    ] = 1
    allow_media_host: Annotated[
        tuple[str, ...],
        Meta(
            description="a host that pictures and sounds may be fetched from: name, *.name, name:port; "
            "=RANGE behind it for a private address"
        ),
    ] = ()
    drain_timeout_s: Annotated[float, Meta(ge=0, description="seconds that clients have to come to their end")] = 30.0
    log_format: Annotated[Literal["text", "json"], Meta(description="how log lines are written")] = "text"
    otlp_endpoint: Annotated[str, Meta(description="where spans go: the URL of a collector of OpenTelemetry")] = ""
    metrics_compat: Annotated[
        Literal["vllm"] | None, Meta(description="whose names /metrics has beside our own; none for nobody's")
    ] = None


class RateLimit(msgspec.Struct, frozen=True, kw_only=True):
    """What each key may ask for."""

    requests_per_second: Annotated[
        float,
        Meta(
            gt=0,
            description="how many requests a second each key may make, on average",
            extra={"flag": "rate-limit-rps"},
        ),
    ] = 1000.0
    max_concurrent: Annotated[
        int,
        Meta(
            ge=1,
            description="how many requests each key may have at once; a burst may be as large",
            extra={"flag": "rate-limit-concurrency"},
        ),
    ] = 16_384


class ApiKeyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Where keys without a name come from."""

    values: Annotated[
        tuple[str, ...], Meta(description="keys that clients need", extra={"is_secret": True, "flag": "api-key"})
    ] = ()
    file: Annotated[
        str, Meta(description="a file with a key on each line", extra={"flag": "api-key-file", "is_path": True})
    ] = ""


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may bring, and how long it may take."""

    body_timeout_s: Annotated[float, Meta(gt=0, description="seconds a client may take to send its request")] = 30.0
    request_timeout_s: Annotated[float, Meta(gt=0, description="seconds a request may take in all")] = 600.0
    header_timeout_s: Annotated[float, Meta(gt=0, description="seconds a connection may take to say what it wants")] = (
        15.0
    )
    websocket_idle_timeout_s: Annotated[
        float, Meta(gt=0, description="seconds a client of a WebSocket may be silent")
    ] = 1800.0
    max_connections: Annotated[int, Meta(ge=1, description="how many connections there may be at once")] = 16_384
    max_media_bytes: Annotated[int, Meta(ge=1, description="how large a picture or a sound may be, in bytes")] = (
        64 << 20
    )
    max_media_pixels: Annotated[int, Meta(ge=1, description="how many pixels a picture may have")] = 40_000_000
    max_media_seconds: Annotated[float, Meta(gt=0, description="how many seconds a sound may last")] = 1800.0


class SloConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is promised for which neither its client nor its key says otherwise."""

    ttft_s: Annotated[
        Annotated[float, Meta(gt=0)] | None,
        Meta(
            description="seconds until the first of an answer is there; none: soon, and nobody is refused for it",
            extra={"flag": "slo-ttft"},
        ),
    ] = None
    tokens_per_s: Annotated[
        float,
        Meta(
            ge=0,
            description="how many tokens of text a second clients read; 0: text has no clock",
            extra={"flag": "slo-tokens-per-second"},
        ),
    ] = 0.0


class RuntimeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose for a deployment."""

    max_running_requests: Annotated[
        int, Meta(ge=1, description="how many requests run at the same time, under each conductor")
    ] = 1024
    max_queued_requests: Annotated[int, Meta(ge=0, description="how many more may wait; the next one is refused")] = 256
    max_batch_size: Annotated[int, Meta(ge=1, description="how many calls share a batch at most")] = 64
    max_undelivered_outputs: Annotated[
        int, Meta(ge=1, description="how many emissions may wait for a client before its request has to wait too")
    ] = 64
    max_batched_tokens: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="how many positions one run of an op in pieces may bring; none for any number"),
    ] = 512
    threads: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        Meta(description="how many threads each worker computes with; none leaves it to the library"),
    ] = None
    conductors: int = 1
    """How many conductors share the models, at most."""
    log_format: Literal["text", "json"] = "text"
    """How each process writes its log lines."""
    failpoints: dict[str, str] = {}
    """For tests of failures: what to do at named points."""


class ProcessConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What a child of the launcher has to know."""

    name: str
    incarnation: int
    """How often this name was started before. Of a conductor, its generation."""
    directory: str
    """Where the addresses of all processes lie."""
    key: bytes
    """What every frame of this deployment is signed with."""
    peers: dict[str, int]
    """Who else of its shard is there now, by name with incarnation; the launcher and front ends too."""
    ip: str = ""
    """The address of its host, where processes of other hosts reach it; nothing on a single machine."""
    addresses: dict[str, str] = {}
    """Where those are, by name, if there are several hosts: see `wire.transport.address_book`."""
    weights_version: int = 0
    """Which edition of the weights it is to load."""
    models: dict[str, str]
    """By name, what `load_model` is given; those of its shard."""
    placements: dict[str, str]
    """By name of the model, the text of its placement file; empty for none."""
    options: RuntimeConfig

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}.{self.incarnation})"  # the key must not get into a log


class ConductorConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """For a conductor."""


class WorkerConfig(ProcessConfig, frozen=True, kw_only=True, tag=True):
    """For a worker."""

    conductor: str
    """The name of its conductor."""
    black_box: str
    """Path of the file that says what it was doing when it died."""


def runtime_directory() -> Path:
    """Where run directories are made: the user's own place for such things, or the one for temporary files."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())


def env_variables() -> dict[str, str]:
    """The environment variables that are ours, by name without the prefix."""
    return {name.removeprefix(ENV_PREFIX): value for name, value in os.environ.items() if name.startswith(ENV_PREFIX)}


def read_env_variable(name: str) -> str | None:
    """What an environment variable that an operator named holds."""
    return os.environ.get(name)
