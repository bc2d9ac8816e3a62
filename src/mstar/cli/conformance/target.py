"""Conformance target: one model of a running server, its clients, and how a check runs."""

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
"""Seconds to wait for one check."""


class CheckFailed(Exception):
    """A response violates the protocol of its endpoint."""


class ReportedError(Exception):
    """An error that the server reports in an event or body, without a client exception."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def require(condition: Any, problem: str) -> None:
    """Raise CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(problem)


@dataclass(frozen=True, slots=True)
class Check:
    """One check of an endpoint. `run` returns a note for the table, or raises."""

    endpoint: str
    """Path of the endpoint. Empty: independent of the model."""
    call: str
    run: Callable[[ConformanceTarget], str]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    endpoint: str
    call: str
    result: str
    """ok, failed or not served."""
    ms: float
    note: str


class ConformanceTarget:
    """One model of a server, with the clients that test it."""

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
        """The named model, or every served model. Raises LoadError."""
        with Client(url, key, retry_timeout_s=1.0) as client:
            served = {info.id: info.endpoints for info in client.models()}
        if model and model not in served:
            raise LoadError(
                f"the server has no model `{model}`\n  fix: pass --model with one of {format_names(served)}"
            )
        for name in [model] if model else served:
            yield cls(url, key, name, served[name], openpi_python)

    def openai_client(self, key: str) -> OpenAI:
        """The official OpenAI client, without retries."""
        base, sockets = f"{self.url}/v1", f"{self.socket_url}/v1"
        return OpenAI(base_url=base, websocket_base_url=sockets, api_key=key, max_retries=0, timeout=CALL_TIMEOUT_S)

    @property
    def socket_url(self) -> str:
        """URL of the server for WebSockets."""
        return f"ws{self.url.removeprefix('http')}"

    def close(self) -> None:
        """Close the clients."""
        self.http.close()
        self.openai.close()

    # ---------------------------------------------------------------- checks
    def run_check(self, check: Check) -> CheckResult:
        """Run one check with a timeout."""
        started_at = time.perf_counter()
        outcome = _run_with_timeout(CALL_TIMEOUT_S, lambda: check.run(self))
        ms = (time.perf_counter() - started_at) * 1000
        if isinstance(outcome, str):
            return CheckResult(check.endpoint, check.call, "ok", ms, outcome)
        code, message = _error_code(outcome)
        is_unsupported = code == "endpoint_not_supported" or code.startswith(("unsupported", "missing_extra"))
        return CheckResult(check.endpoint, check.call, "not served" if is_unsupported else "failed", ms, message)

    def run_unsupported(self, check: Check) -> CheckResult:
        """Run a check of an unsupported endpoint: the error must name the endpoints that the model supports."""
        row = self.run_check(check)
        if row.result != "ok" and any(f"`{path}`" in row.note for path in self.endpoints):
            return CheckResult(check.endpoint, "any", "not served", row.ms, row.note)
        return CheckResult(
            check.endpoint, "any", "failed", row.ms, f"unsupported endpoint without a proper error: {row.note}"
        )


def _run_with_timeout(seconds: float, work: Callable[[], str]) -> str | Exception:
    """Result of some work, its exception, or a TimeoutError."""
    outcomes: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcomes.put(work())
        except Exception as error:  # noqa: BLE001 - any exception is a result
            outcomes.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        return outcomes.get(timeout=seconds)
    except queue.Empty:
        return TimeoutError(f"no response after {seconds:g} s")


def _error_code(error: Exception) -> tuple[str, str]:
    """Error code of the server, or an empty string, and the message."""
    if isinstance(error, ReportedError):
        return error.code, str(error)
    if isinstance(error, APIError) and isinstance(error.body, Mapping):
        return str(error.body.get("code")), str(error.body.get("message"))
    if isinstance(error, InvalidStatus):
        body = json.loads(error.response.body or b"{}").get("error", {})
        return str(body.get("code")), str(body.get("message") or error)
    return "", f"{type(error).__name__}: {error}"
