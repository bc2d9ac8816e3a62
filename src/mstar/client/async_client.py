"""A client for asyncio. It moves bytes and waits; what is asked, read and asked again is decided elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

import httpx2

from mstar.client import requests
from mstar.client.errors import NotFound, StreamInterrupted
from mstar.client.responses import (
    ActionResponse,
    Audio,
    ChatResponse,
    Emission,
    GenerateResponse,
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
    """An answer as it comes. Iterate it once, or ask for its result. Whoever leaves it ends the request."""

    def __init__(
        self, http: httpx2.AsyncClient, steps: Generator[Effect | E, EffectResult, R], request_id: str = ""
    ) -> None:
        self.request_id = request_id
        """Under which the server knows it."""
        self._http = http
        self._steps = steps
        self._result: R | None = None
        self._response: httpx2.Response | None = None
        self._chunks: AsyncIterator[bytes]

    async def __aiter__(self) -> AsyncIterator[E]:
        try:
            told: EffectResult = None
            while True:
                act = self._steps.send(told)
                told = None
                match act:
                    case SendRequest():
                        told = await self._send(act)
                    case ReadMore():
                        told = await self._read()
                    case Sleep():
                        await asyncio.sleep(act.seconds)
                    case event:
                        yield event
        except StopIteration as end:
            self._result = self._result if end.value is None else end.value
        finally:
            await self.close()

    async def result(self) -> R:
        """Read to the end; what it gave as a whole."""
        async for _ in self:
            pass
        if self._result is None:
            raise StreamInterrupted("it was left before its end")
        return self._result

    async def close(self) -> None:
        """Want no more of it."""
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
    """A client of one server; any number of tasks of one loop may use it."""

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
        """Go on with a conversation; a text is one message of the user."""
        return self._stream(requests.chat(model, messages, params, resume))

    def speech(
        self, model: str, text: str, *, resume: bool = False, **params: Unpack[requests.SpeechParams]
    ) -> AsyncStream[Audio, SpeechResponse]:
        """Say a text; as WAV, if no other format is wished for."""
        return self._stream(requests.speech(model, text, params, resume))

    def transcribe(
        self,
        model: str,
        file: bytes | str | Path,
        *,
        resume: bool = False,
        **params: Unpack[requests.TranscriptionParams],
    ) -> AsyncStream[Text, TranscriptionResponse]:
        """Write down what is said in a file."""
        return self._stream(requests.transcribe(model, file, params, resume))

    def generate(self, model: str, request: Any, *, resume: bool = False) -> AsyncStream[Emission, GenerateResponse]:
        """Ask a model in its own terms. Arrays are numpy's, where that is installed."""
        return self._stream(requests.generate(model, request, resume))

    # ---------------------------------------------------------------- whole answers
    async def embed(self, model: str, texts: Sequence[str]) -> Any:
        """Texts as vectors: one array, with a row for each."""
        return await self._stream(requests.embed(model, texts)).result()

    async def act(
        self, model: str, observation: Mapping[str, Any], **params: Unpack[requests.ActionParams]
    ) -> ActionResponse:
        """What a robot is to do, given what it sees."""
        return await self._stream(requests.act(model, observation, params)).result()

    async def world(
        self, model: str, observation: Mapping[str, Any], **params: Unpack[requests.WorldParams]
    ) -> AsyncWorld:
        """Begin a world."""
        return AsyncWorld(self._stream, await self._stream(requests.create_world(model, observation, params)).result())

    async def models(self) -> tuple[ServedModel, ...]:
        """What is served."""
        return await self._stream(requests.models()).result()

    async def trace(self, request_id: str) -> dict[str, Any]:
        """What a request did, and when."""
        return await self._stream(requests.trace(request_id)).result()

    async def ready(self) -> ServerPhase:
        """How far the server is."""
        return await self._stream(requests.ready()).result()

    async def wait_ready(self, timeout_s: float = 120.0) -> ServerPhase:
        """Wait until the server is ready. Raises NotReady."""
        return await AsyncStream(self._http, poll_until_ready(requests.ready(), not_ready_reason, timeout_s)).result()


class AsyncWorld:
    """A world: each step shows what an action leads to."""

    def __init__(
        self, stream: Callable[[ApiCall[Any, Any]], AsyncStream[Any, Any]], created: Mapping[str, Any]
    ) -> None:
        self.id: str = created["id"]
        self.steps: int = created["steps"]
        """How many actions it has had."""
        self._stream = stream

    async def step(self, action: Any) -> WorldStep:
        """Do something in it."""
        shown: WorldStep = await self._stream(requests.step_world(self.id, self.steps, action)).result()
        self.steps = shown.step + 1
        return shown

    async def fork(self) -> AsyncWorld:
        """Another world that has come to the same place."""
        return AsyncWorld(self._stream, await self._stream(requests.fork_world(self.id)).result())

    async def reset(self) -> None:
        """Go back to its beginning."""
        self.steps = (await self._stream(requests.reset_world(self.id)).result())["steps"]

    async def close(self) -> None:
        """End it."""
        with suppress(NotFound):  # it has ended by itself, or the answer was lost
            await self._stream(requests.delete_world(self.id)).result()

    async def __aenter__(self) -> AsyncWorld:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
