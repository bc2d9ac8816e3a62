"""Synchronous client, for threads. It does only IO: requests, readers and retries are sans-IO modules."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

import httpx2

from mstar.client import requests
from mstar.client.errors import NotFound, StreamInterrupted
from mstar.client.realtime import RESUME_TIMEOUT_S, RealtimeConnection, SessionLog
from mstar.client.responses import (
    ActionResponse,
    Audio,
    ChatResponse,
    Emission,
    GenerateResponse,
    ImportedSession,
    ServedModel,
    ServerPhase,
    SpeechResponse,
    Text,
    TranscriptionResponse,
    WorldStep,
)
from mstar.client.retry import (
    ApiCall,
    ConnectionLost,
    Effect,
    EffectResult,
    ReadMore,
    ResponseHead,
    SendRequest,
    Sleep,
    poll_until_ready,
    request_with_retry,
)
from mstar.client.transport import READ_TIMEOUT_S, RETRY_TIMEOUT_S, http_options, not_ready_reason, to_connection_lost

E = TypeVar("E")
R = TypeVar("R")


class Stream(Generic[E, R]):
    """A streamed response. Iterate it once, or call `result`. Closing it cancels the request."""

    def __init__(
        self, http: httpx2.Client, steps: Generator[Effect | E, EffectResult, R], request_id: str = ""
    ) -> None:
        self.request_id = request_id
        """The X-Request-Id, for traces and error reports."""
        self._http = http
        self._steps = steps
        self._result: R | None = None
        self._response: httpx2.Response | None = None
        self._chunks: Iterator[bytes]

    def __iter__(self) -> Iterator[E]:
        try:
            result: EffectResult = None
            while True:
                effect = self._steps.send(result)
                result = None
                match effect:
                    case SendRequest():
                        result = self._send(effect)
                    case ReadMore():
                        result = self._read()
                    case Sleep():
                        time.sleep(effect.seconds)
                    case event:
                        yield event
        except StopIteration as end:
            self._result = self._result if end.value is None else end.value
        finally:
            self.close()

    def result(self) -> R:
        """Read to the end and return the complete result."""
        for _ in self:
            pass
        if self._result is None:
            raise StreamInterrupted("it was closed before its end")
        return self._result

    def close(self) -> None:
        """Cancel the request."""
        self._steps.close()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._response is not None:
            self._response.close()

    def __enter__(self) -> Stream[E, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, effect: SendRequest) -> ResponseHead | ConnectionLost:
        self._disconnect()
        request = self._http.build_request(effect.method, effect.path, headers=effect.headers, **effect.content)
        try:
            response = self._response = self._http.send(request, stream=True)
        except httpx2.TransportError as error:
            return to_connection_lost(error)
        self._chunks = response.iter_bytes()
        return ResponseHead(response.status_code, response.headers)

    def _read(self) -> bytes | ConnectionLost:
        try:
            return next(self._chunks, b"")
        except httpx2.TransportError as error:
            return to_connection_lost(error)


class Client:
    """Client of one server; thread-safe."""

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._http = httpx2.Client(**http_options(url, api_key, timeout_s))
        self._retry_timeout_s = retry_timeout_s

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stream(self, call: ApiCall[E, R]) -> Stream[E, R]:
        return Stream(self._http, request_with_retry(call, self._retry_timeout_s), call.request_id)

    # ---------------------------------------------------------------- streams
    def chat(
        self,
        model: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        resume: bool = False,
        **params: Unpack[requests.ChatParams],
    ) -> Stream[Text | Audio, ChatResponse]:
        """Chat completion. A string is one user message."""
        return self._stream(requests.chat(model, messages, params, resume))

    def speech(
        self, model: str, text: str, *, resume: bool = False, **params: Unpack[requests.SpeechParams]
    ) -> Stream[Audio, SpeechResponse]:
        """Text to speech, as WAV by default."""
        return self._stream(requests.speech(model, text, params, resume))

    def transcribe(
        self,
        model: str,
        file: bytes | str | Path,
        *,
        resume: bool = False,
        **params: Unpack[requests.TranscriptionParams],
    ) -> Stream[Text, TranscriptionResponse]:
        """Transcribe an audio file."""
        return self._stream(requests.transcribe(model, file, params, resume))

    def generate(self, model: str, request: Any, *, resume: bool = False) -> Stream[Emission, GenerateResponse]:
        """Run a model with its own request type. Arrays are numpy arrays if numpy is installed."""
        return self._stream(requests.generate(model, request, resume))

    def realtime(
        self, model: str = "", *, resume_timeout_s: float = RESUME_TIMEOUT_S, **query: str
    ) -> RealtimeConnection:
        """Open a realtime session, as a context. It reconnects within `resume_timeout_s` if its connection is lost."""
        log = SessionLog(resume_timeout_s, ({"model": model} if model else {}) | query)
        headers = {"Authorization": key} if (key := self._http.headers.get("Authorization")) else {}
        return RealtimeConnection(str(self._http.base_url), headers, log)

    # ---------------------------------------------------------------- not streamed
    def embed(self, model: str, texts: Sequence[str]) -> Any:
        """Embeddings of texts: one array, with a row for each text."""
        return self._stream(requests.embed(model, texts)).result()

    def act(
        self, model: str, observation: Mapping[str, Any], **params: Unpack[requests.ActionParams]
    ) -> ActionResponse:
        """Actions of a robot for an observation."""
        return self._stream(requests.act(model, observation, params)).result()

    def world(self, model: str, observation: Mapping[str, Any], **params: Unpack[requests.WorldParams]) -> World:
        """Create a world (a world-model rollout)."""
        return World(self._stream, self._stream(requests.create_world(model, observation, params)).result())

    def export_session(self, session_id: str) -> dict[str, Any]:
        """Content of a session file: a stored response or an open realtime session, to continue at another server."""
        return self._stream(requests.export_session(session_id)).result()

    def import_session(self, content: bytes | Mapping[str, Any]) -> ImportedSession:
        """Import a session file."""
        return self._stream(requests.import_session(content)).result()

    def models(self) -> tuple[ServedModel, ...]:
        """List the served models."""
        return self._stream(requests.models()).result()

    def trace(self, request_id: str) -> dict[str, Any]:
        """Trace of a request."""
        return self._stream(requests.trace(request_id)).result()

    def ready(self) -> ServerPhase:
        """Phase of the server."""
        return self._stream(requests.ready()).result()

    def wait_ready(self, timeout_s: float = 120.0) -> ServerPhase:
        """Wait until the server is ready. Raises ServerNotReady."""
        return Stream(self._http, poll_until_ready(requests.ready(), not_ready_reason, timeout_s)).result()


class World:
    """A world-model rollout: each step returns the result of an action."""

    def __init__(self, stream: Callable[[ApiCall[Any, Any]], Stream[Any, Any]], created: Mapping[str, Any]) -> None:
        self.id: str = created["id"]
        self.steps: int = created["steps"]
        """Number of executed actions."""
        self._stream = stream

    def step(self, action: Any) -> WorldStep:
        """Execute an action. Idempotent, so it is retried."""
        result: WorldStep = self._stream(requests.step_world(self.id, self.steps, action)).result()
        self.steps = result.step + 1
        return result

    def fork(self) -> World:
        """Copy the world with its current state."""
        return World(self._stream, self._stream(requests.fork_world(self.id)).result())

    def reset(self) -> None:
        """Reset to the initial state."""
        self.steps = self._stream(requests.reset_world(self.id)).result()["steps"]

    def close(self) -> None:
        """Delete the world."""
        with suppress(NotFound):  # it has expired, or the response to a first delete was lost
            self._stream(requests.delete_world(self.id)).result()

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
