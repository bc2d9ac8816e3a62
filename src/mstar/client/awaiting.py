"""A client for asyncio. It moves bytes and waits; what is asked, read and asked again is decided elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

import httpx2

from mstar.client import calls
from mstar.client.answers import (
    Action,
    Audio,
    Emission,
    Generated,
    Heard,
    Phase,
    Reply,
    ServedModel,
    Spoken,
    Step,
    Text,
)
from mstar.client.errand import Act, Answered, Ask, Call, Lost, More, Pause, Told, errand, until_ready
from mstar.client.errors import Cut, NotFound
from mstar.client.transport import PATIENCE_S, TIMEOUT_S, lost, settings, trouble_of

E = TypeVar("E")
R = TypeVar("R")


class AsyncStream(Generic[E, R]):
    """An answer as it comes. Iterate it once, or ask for its result. Whoever leaves it ends the request."""

    def __init__(self, http: httpx2.AsyncClient, going: Generator[Act | E, Told, R], request_id: str = "") -> None:
        self.request_id = request_id
        """Under which the server knows it."""
        self._http = http
        self._going = going
        self._result: R | None = None
        self._response: httpx2.Response | None = None
        self._bytes: AsyncIterator[bytes]

    async def __aiter__(self) -> AsyncIterator[E]:
        try:
            told: Told = None
            while True:
                act = self._going.send(told)
                told = None
                match act:
                    case Ask():
                        told = await self._ask(act)
                    case More():
                        told = await self._more()
                    case Pause():
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
            raise Cut("it was left before its end")
        return self._result

    async def close(self) -> None:
        """Want no more of it."""
        self._going.close()
        await self._disconnect()

    async def _disconnect(self) -> None:
        if self._response is not None:
            await self._response.aclose()

    async def __aenter__(self) -> AsyncStream[E, R]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _ask(self, ask: Ask) -> Answered | Lost:
        await self._disconnect()
        request = self._http.build_request(ask.method, ask.path, headers=ask.headers, **ask.content)
        try:
            response = self._response = await self._http.send(request, stream=True)
        except httpx2.TransportError as error:
            return lost(error)
        self._bytes = response.aiter_bytes()
        return Answered(response.status_code, response.headers)

    async def _more(self) -> bytes | Lost:
        try:
            return await anext(self._bytes, b"")
        except httpx2.TransportError as error:
            return lost(error)


class AsyncClient:
    """A client of one server; any number of tasks of one loop may use it."""

    def __init__(
        self, url: str, key: str = "", *, patience_s: float = PATIENCE_S, timeout_s: float = TIMEOUT_S
    ) -> None:
        self._http = httpx2.AsyncClient(**settings(url, key, timeout_s))
        self._patience_s = patience_s

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _stream(self, call: Call[E, R]) -> AsyncStream[E, R]:
        return AsyncStream(self._http, errand(call, self._patience_s), call.request_id)

    # ---------------------------------------------------------------- streams
    def chat(
        self,
        model: str,
        messages: str | Sequence[Mapping[str, Any]],
        *,
        resume: bool = False,
        **wishes: Unpack[calls.ChatWishes],
    ) -> AsyncStream[Text | Audio, Reply]:
        """Go on with a conversation; a text is one message of the user."""
        return self._stream(calls.chat(model, messages, wishes, resume))

    def speech(
        self, model: str, text: str, *, resume: bool = False, **wishes: Unpack[calls.SpeechWishes]
    ) -> AsyncStream[Audio, Spoken]:
        """Say a text; as WAV, if no other format is wished for."""
        return self._stream(calls.speech(model, text, wishes, resume))

    def transcribe(
        self, model: str, file: bytes | str | Path, *, resume: bool = False, **wishes: Unpack[calls.HearingWishes]
    ) -> AsyncStream[Text, Heard]:
        """Write down what is said in a file."""
        return self._stream(calls.transcribe(model, file, wishes, resume))

    def generate(self, model: str, request: Any, *, resume: bool = False) -> AsyncStream[Emission, Generated]:
        """Ask a model in its own terms. Arrays are numpy's, where that is installed."""
        return self._stream(calls.generate(model, request, resume))

    # ---------------------------------------------------------------- whole answers
    async def embed(self, model: str, texts: Sequence[str]) -> Any:
        """Texts as vectors: one array, with a row for each."""
        return await self._stream(calls.embed(model, texts)).result()

    async def act(self, model: str, observation: Mapping[str, Any], **wishes: Unpack[calls.ActionWishes]) -> Action:
        """What a robot is to do, given what it sees."""
        return await self._stream(calls.act(model, observation, wishes)).result()

    async def world(
        self, model: str, observation: Mapping[str, Any], **wishes: Unpack[calls.WorldWishes]
    ) -> AsyncWorld:
        """Begin a world."""
        return AsyncWorld(self._stream, await self._stream(calls.begin(model, observation, wishes)).result())

    async def models(self) -> tuple[ServedModel, ...]:
        """What is served."""
        return await self._stream(calls.models()).result()

    async def trace(self, request_id: str) -> dict[str, Any]:
        """What a request did, and when."""
        return await self._stream(calls.trace(request_id)).result()

    async def ready(self) -> Phase:
        """How far the server is."""
        return await self._stream(calls.ready()).result()

    async def wait_ready(self, within_s: float = 120.0) -> Phase:
        """Wait until the server is ready. Raises NotReady."""
        return await AsyncStream(self._http, until_ready(calls.ready(), trouble_of, within_s)).result()


class AsyncWorld:
    """A world: each step shows what an action leads to."""

    def __init__(self, stream: Callable[[Call[Any, Any]], AsyncStream[Any, Any]], told: Mapping[str, Any]) -> None:
        self.id: str = told["id"]
        self.steps: int = told["steps"]
        """How many actions it has had."""
        self._stream = stream

    async def step(self, action: Any) -> Step:
        """Do something in it."""
        shown: Step = await self._stream(calls.step(self.id, self.steps, action)).result()
        self.steps = shown.step + 1
        return shown

    async def fork(self) -> AsyncWorld:
        """Another world that has come to the same place."""
        return AsyncWorld(self._stream, await self._stream(calls.fork(self.id)).result())

    async def reset(self) -> None:
        """Go back to its beginning."""
        self.steps = (await self._stream(calls.reset(self.id)).result())["steps"]

    async def close(self) -> None:
        """End it."""
        with suppress(NotFound):  # it has ended by itself, or the answer was lost
            await self._stream(calls.close(self.id)).result()

    async def __aenter__(self) -> AsyncWorld:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
