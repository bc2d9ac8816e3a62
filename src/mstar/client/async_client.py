"""Asynchronous client, for asyncio. It does only IO: requests, readers and retries are sans-IO modules."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

import httpx2

from mstar.client import requests
from mstar.client.errors import NotFound, StreamInterrupted
from mstar.client.realtime import RESUME_TIMEOUT_S, AsyncRealtimeConnection, SessionLog
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


class AsyncStream(Generic[E, R]):
    """A streamed response. Iterate it once, or call `result`. Closing it cancels the request."""

    def __init__(
        self, http: httpx2.AsyncClient, steps: Generator[Effect | E, EffectResult, R], request_id: str = ""
    ) -> None:
        self.request_id = request_id
        """The X-Request-Id, for traces and error reports."""
        self._http = http
        self._steps = steps
        self._result: R | None = None
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes]

    async def __aiter__(self) -> AsyncIterator[E]:
        try:
            result: EffectResult = None
            while True:
                effect = self._steps.send(result)
                result = None
                match effect:
                    case SendRequest():
                        result = await self._send(effect)
                    case ReadMore():
                        result = await self._read()
                    case Sleep():
                        await asyncio.sleep(effect.seconds)
                    case event:
                        yield event
        except StopIteration as end:
            self._result = self._result if end.value is None else end.value
        finally:
            await self.close()

    async def result(self) -> R:
        """Read to the end and return the complete result."""
        async for _ in self:
            pass
        if self._result is None:
            raise StreamInterrupted("it was closed before its end")
        return self._result

    async def close(self) -> None:
        """Cancel the request."""
        self._steps.close()
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._response is not None:
            await self._response.aclose()

    async def __aenter__(self) -> AsyncStream[E, R]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _send(self, effect: SendRequest) -> ResponseHead | ConnectionLost:
        await self._disconnect()
        request = self._http.build_request(effect.method, effect.path, headers=effect.headers, **effect.content)
        try:
            response = self._response = await self._http.send(request, stream=True)
        except httpx2.TransportError as error:
            return to_connection_lost(error)
        self._chunks = response.aiter_bytes()
        return ResponseHead(response.status_code, response.headers)

    async def _read(self) -> bytes | ConnectionLost:
        try:
            return await anext(self._chunks, b"")
        except httpx2.TransportError as error:
            return to_connection_lost(error)


class AsyncClient:
    """Client of one server, for any number of tasks of one event loop."""

    def __init__(
        self,
        url: str,
        api_key: str = "",
        *,
        retry_timeout_s: float = RETRY_TIMEOUT_S,
        timeout_s: float = READ_TIMEOUT_S,
    ) -> None:
        self._http = httpx2.AsyncClient(**http_options(url, api_key, timeout_s))
        self._retry_timeout_s = retry_timeout_s

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stream(self, call: ApiCall[E, R]) -> AsyncStream[E, R]:
        return AsyncStream(self._http, request_with_retry(call, self._retry_timeout_s), call.request_id)

    # ---------------------------------------------------------------- streams
    def chat(
        self,
        model: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        resume: bool = False,
        **params: Unpack[requests.ChatParams],
    ) -> AsyncStream[Text | Audio, ChatResponse]:
        """Chat completion. A string is one user message."""
        return self._stream(requests.chat(model, messages, params, resume))

    def speech(
        self, model: str, text: str, *, resume: bool = False, **params: Unpack[requests.SpeechParams]
    ) -> AsyncStream[Audio, SpeechResponse]:
        """Text to speech, as WAV by default."""
        return self._stream(requests.speech(model, text, params, resume))

    def transcribe(
        self,
        model: str,
        file: bytes | str | Path,
        *,
        resume: bool = False,
        **params: Unpack[requests.TranscriptionParams],
    ) -> AsyncStream[Text, TranscriptionResponse]:
        """Transcribe an audio file."""
        return self._stream(requests.transcribe(model, file, params, resume))

    def generate(self, model: str, request: Any, *, resume: bool = False) -> AsyncStream[Emission, GenerateResponse]:
        """Run a model with its own request type. Arrays are numpy arrays if numpy is installed."""
        return self._stream(requests.generate(model, request, resume))

    def realtime(
        self, model: str = "", *, resume_timeout_s: float = RESUME_TIMEOUT_S, **query: str
    ) -> AsyncRealtimeConnection:
        """Open a realtime session, as a context. It reconnects within `resume_timeout_s` if its connection is lost."""
        log = SessionLog(resume_timeout_s, ({"model": model} if model else {}) | query)
        headers = {"Authorization": key} if (key := self._http.headers.get("Authorization")) else {}
        return AsyncRealtimeConnection(str(self._http.base_url), headers, log)

    # ---------------------------------------------------------------- not streamed
    async def embed(self, model: str, texts: Sequence[str]) -> Any:
        """Embeddings of texts: one array, with a row for each text."""
        return await self._stream(requests.embed(model, texts)).result()

    async def act(
        self, model: str, observation: Mapping[str, Any], **params: Unpack[requests.ActionParams]
    ) -> ActionResponse:
        """Actions of a robot for an observation."""
        return await self._stream(requests.act(model, observation, params)).result()

    async def world(
        self, model: str, observation: Mapping[str, Any], **params: Unpack[requests.WorldParams]
    ) -> AsyncWorld:
        """Create a world (a world-model rollout)."""
        return AsyncWorld(self._stream, await self._stream(requests.create_world(model, observation, params)).result())

    async def export_session(self, session_id: str) -> dict[str, Any]:
        """Content of a session file: a stored response or an open realtime session, to continue at another server."""
        return await self._stream(requests.export_session(session_id)).result()

    async def import_session(self, content: bytes | Mapping[str, Any]) -> ImportedSession:
        """Import a session file."""
        return await self._stream(requests.import_session(content)).result()

    async def models(self) -> tuple[ServedModel, ...]:
        """List the served models."""
        return await self._stream(requests.models()).result()

    async def trace(self, request_id: str) -> dict[str, Any]:
        """Trace of a request."""
        return await self._stream(requests.trace(request_id)).result()

    async def ready(self) -> ServerPhase:
        """Phase of the server."""
        return await self._stream(requests.ready()).result()

    async def wait_ready(self, timeout_s: float = 120.0) -> ServerPhase:
        """Wait until the server is ready. Raises ServerNotReady."""
        return await AsyncStream(self._http, poll_until_ready(requests.ready(), not_ready_reason, timeout_s)).result()


class AsyncWorld:
    """A world-model rollout: each step returns the result of an action."""

    def __init__(
        self, stream: Callable[[ApiCall[Any, Any]], AsyncStream[Any, Any]], created: Mapping[str, Any]
    ) -> None:
        self.id: str = created["id"]
        self.steps: int = created["steps"]
        """Number of executed actions."""
        self._stream = stream

    async def step(self, action: Any) -> WorldStep:
        """Execute an action. Idempotent, so it is retried."""
        result: WorldStep = await self._stream(requests.step_world(self.id, self.steps, action)).result()
        self.steps = result.step + 1
        return result

    async def fork(self) -> AsyncWorld:
        """Copy the world with its current state."""
        return AsyncWorld(self._stream, await self._stream(requests.fork_world(self.id)).result())

    async def reset(self) -> None:
        """Reset to the initial state."""
        self.steps = (await self._stream(requests.reset_world(self.id)).result())["steps"]

    async def close(self) -> None:
        """Delete the world."""
        with suppress(NotFound):  # it has expired, or the response to a first delete was lost
            await self._stream(requests.delete_world(self.id)).result()

    async def __aenter__(self) -> AsyncWorld:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
