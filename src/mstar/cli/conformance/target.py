"""A running server with one of its models, and what becomes of a call to it."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from openai import APIError, OpenAI
from websockets.exceptions import InvalidStatus

from mstar.client import Client
from mstar.errors import LoadError, format_names

CALL_TIMEOUT_S = 180.0
"""How long one call may take."""


class CheckFailed(Exception):
    """An answer is not what its surface promises."""


class ReportedError(Exception):
    """The server says what is wrong, in an event or in a way that no library raises."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def require(condition: Any, what: str) -> None:
    """Something must be so."""
    if not condition:
        raise CheckFailed(what)


@dataclass(frozen=True, slots=True)
class Check:
    """One call that people make: where, what it is called, and what is done and looked at. It gives a note."""

    endpoint: str
    """A path; empty for what is the same for all models."""
    call: str
    run: Callable[[ConformanceTarget], str]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What became of a call."""

    endpoint: str
    call: str
    result: str
    """ok, failed or not served."""
    ms: float
    note: str


class ConformanceTarget:
    """One model of a server, with the clients that it is tried with."""

    def __init__(self, url: str, key: str, model: str, endpoints: tuple[str, ...], openpi_python: Path | None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self.key = key
        self.model = model
        self.endpoints = endpoints
        self.openpi_python = openpi_python
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx2.Client(base_url=self.url, headers=self.headers, timeout=CALL_TIMEOUT_S)
        self.openai = self.openai_client(key or "none")

    @classmethod
    def find_targets(
        cls, url: str, key: str, model: str | None, openpi_python: Path | None
    ) -> Iterator[ConformanceTarget]:
        """The model of this name, or each that is served."""
        with Client(url, key, retry_timeout_s=1.0) as client:
            served = {one.id: one.endpoints for one in client.models()}
        if model and model not in served:
            raise LoadError(f"no model is called `{model}`\n  fix: --model with one of {format_names(served)}")
        for name in [model] if model else served:
            yield cls(url, key, name, served[name], openpi_python)

    def openai_client(self, key: str) -> OpenAI:
        """The official client."""
        base, sockets = f"{self.url}/v1", f"{self.socket_url}/v1"
        return OpenAI(base_url=base, websocket_base_url=sockets, api_key=key, max_retries=0, timeout=CALL_TIMEOUT_S)

    @property
    def socket_url(self) -> str:
        """Its address for WebSockets."""
        return f"ws{self.url.removeprefix('http')}"

    def close(self) -> None:
        """Close all connections."""
        self.http.close()
        self.openai.close()

    # ---------------------------------------------------------------- calls
    def run_check(self, check: Check) -> CheckResult:
        """Make a call."""
        begun = time.perf_counter()
        came = _run_with_timeout(CALL_TIMEOUT_S, lambda: check.run(self))
        ms = (time.perf_counter() - begun) * 1000
        if isinstance(came, str):
            return CheckResult(check.endpoint, check.call, "ok", ms, came)
        code, message = _error_code(came)
        unserved = code == "endpoint_not_supported" or code.startswith(("unsupported", "no_encoder"))
        return CheckResult(check.endpoint, check.call, "not served" if unserved else "failed", ms, message)

    def run_unsupported(self, check: Check) -> CheckResult:
        """Make a call that the model does not offer: it must say so, and where it is served."""
        row = self.run_check(check)
        if row.result != "ok" and any(f"`{path}`" in row.note for path in self.endpoints):
            return CheckResult(check.endpoint, "any", "not served", row.ms, row.note)
        return CheckResult(
            check.endpoint, "any", "failed", row.ms, f"it is not offered, and says nothing of it: {row.note}"
        )


def _run_with_timeout(seconds: float, work: Callable[[], str]) -> str | Exception:
    """What some work gives, or what it raises, or that it took too long."""
    done: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(work())
        except Exception as error:  # noqa: BLE001 - whatever a library raises is what we want to know
            done.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return done.get(timeout=seconds)
    except queue.Empty:
        return TimeoutError(f"there is no end after {seconds:g} s")


def _error_code(error: Exception) -> tuple[str, str]:
    """The code that the server gave, if it did, and what went wrong."""
    if isinstance(error, ReportedError):
        return error.code, str(error)
    if isinstance(error, APIError) and isinstance(error.body, Mapping):
        return str(error.body.get("code")), str(error.body.get("message"))
    if isinstance(error, InvalidStatus):
        told = json.loads(error.response.body or b"{}").get("error", {})
        return str(told.get("code")), str(told.get("message") or error)
    return "", f"{type(error).__name__}: {error}"
