"""What can be asked of a server: each call as its request, and who reads its answer. It sends nothing.

A call may be asked again in the midst of its stream if the same comes then: it has a seed, its temperature is 0, or
the caller says so.
"""

from __future__ import annotations

import uuid
from array import array
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast
from urllib.parse import quote

from mstar.client import readers
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
from mstar.client.arrays import made, pack
from mstar.client.errand import Answered, Ask, Call

R = TypeVar("R")

MSGPACK = "application/msgpack"


class ChatWishes(TypedDict, total=False):
    """How an answer of a chat is wanted."""

    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    stop: str | Sequence[str]
    presence_penalty: float
    frequency_penalty: float
    response_format: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    audio: Mapping[str, str]
    """{"voice": ..., "format": "wav"}: it is to be spoken too."""


class SpeechWishes(TypedDict, total=False):
    """How a text is to be said."""

    voice: str
    speed: float
    instructions: str
    language: str
    seed: int
    response_format: str
    """wav, pcm, mp3, opus, aac or flac."""
    sample_rate: int


class HearingWishes(TypedDict, total=False):
    """How a file is to be listened to."""

    language: str
    prompt: str
    temperature: float


class ActionWishes(TypedDict, total=False):
    """What else a robot tells."""

    prompt: str
    seed: int
    prev_chunk_left_over: Any
    inference_delay: int
    execution_horizon: int


class WorldWishes(TypedDict, total=False):
    """What else a world begins with."""

    actions: Sequence[Any]
    prompt: str
    seed: int


# ---------------------------------------------------------------- streams
def chat(
    model: str, messages: str | Sequence[Mapping[str, Any]], wishes: ChatWishes, resume: bool
) -> Call[Text | Audio, Reply]:
    """Go on with a conversation; a text is one message of the user."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    body: dict[str, Any] = {"model": model, "messages": said, "stream": True, **wishes}
    body["stream_options"] = {"include_usage": True}
    if "audio" in wishes:
        body["modalities"] = ["text", "audio"]
    ask = _ask("POST", "/v1/chat/completions", json=body)
    return Call(ask, readers.ChatReader, resume or _is_fixed(wishes))


def speech(model: str, text: str, wishes: SpeechWishes, resume: bool) -> Call[Audio, Spoken]:
    """Say a text. As events, since these tell an end from a cut, and what went wrong."""
    body = {"response_format": "wav", **wishes, "model": model, "input": text, "stream_format": "sse"}
    return Call(_ask("POST", "/v1/audio/speech", json=body), readers.SpeechReader, resume or _is_fixed(wishes))


def transcribe(model: str, file: bytes | str | Path, wishes: HearingWishes, resume: bool) -> Call[Text, Heard]:
    """Write down what is said in a file."""
    data = file if isinstance(file, bytes) else Path(file).read_bytes()
    fields = {"model": model, "stream": "true", **{name: str(value) for name, value in wishes.items()}}
    ask = _ask("POST", "/v1/audio/transcriptions", data=fields, files={"file": ("sound", data)})
    return Call(ask, readers.HearingReader, resume or not wishes.get("temperature"))


def generate(model: str, request: Any, resume: bool) -> Call[Emission, Generated]:
    """Ask a model in its own terms."""
    content = pack({"model": model, "request": request})
    ask = _ask("POST", "/v1/generate", {"Content-Type": MSGPACK, "Accept": MSGPACK}, content=content)
    is_fixed = _is_fixed(request) or _is_fixed(_fields(request).get("sampling"))
    return Call(ask, readers.EmissionReader, resume or is_fixed)


def _is_fixed(wishes: Any) -> bool:
    """Whether the same comes when it is asked again."""
    fields = _fields(wishes)
    return fields.get("seed") is not None or fields.get("temperature") == 0


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- whole answers
def models() -> Call[Any, tuple[ServedModel, ...]]:
    """What is served."""

    def read(content: Any) -> tuple[ServedModel, ...]:
        return tuple(ServedModel(one["id"], (*one["capabilities"],), (*one["surfaces"],)) for one in content["data"])

    return _whole(_ask("GET", "/v1/models"), read)


def ready() -> Call[Any, Phase]:
    """How far the server is."""
    ask = _ask("GET", "/ready")
    read = _reader(lambda told: Phase(told["phase"], told["done"], told["total"]))
    return Call(ask, read, answers=frozenset({200, 503}))


def trace(request_id: str) -> Call[Any, dict[str, Any]]:
    """What a request did, and when."""
    return _whole(_ask("GET", f"/v1/requests/{quote(request_id, safe='')}/trace"), dict[str, Any])


def embed(model: str, texts: Sequence[str]) -> Call[Any, Any]:
    """Texts as vectors: one array, with a row for each."""
    body = {"model": model, "input": list(texts), "encoding_format": "base64"}

    def read(content: Any) -> Any:
        rows = [b64decode(one["embedding"]) for one in content["data"]]
        return made("float32", [len(rows), len(rows[0]) // array("f").itemsize], b"".join(rows))

    return _whole(_ask("POST", "/v1/embeddings", json=body), read)


def act(model: str, observation: Mapping[str, Any], wishes: ActionWishes) -> Call[Any, Action]:
    """What a robot is to do. It is not asked for twice unless the first was surely not heard."""
    ask = _packed("/v1/actions", {"model": model, "observation": observation, **wishes})

    def read(content: Any) -> Action:
        return Action(content["actions"], content.get("rate"), content["server_timing"])

    return Call(ask, _reader(read), is_harmless=False)


# ---------------------------------------------------------------- worlds
def begin(model: str, observation: Mapping[str, Any], wishes: WorldWishes) -> Call[Any, dict[str, Any]]:
    """Begin a world."""
    body = {"model": model, "observation": observation, **wishes}
    return Call(_packed("/v1/worlds", body), _reader(dict[str, Any]), is_harmless=False)


def step(world: str, number: int, action: Any) -> Call[Any, Step]:
    """One more action. Asked for again under the same number, it is done once."""
    ask = _packed(f"/v1/worlds/{world}/step", {"action": action, "step": number})
    return _whole(ask, lambda told: Step(told["step"], told["emissions"]))


def fork(world: str) -> Call[Any, dict[str, Any]]:
    """Another world that has come to the same place."""
    return Call(_ask("POST", f"/v1/worlds/{world}/fork"), _reader(dict[str, Any]), is_harmless=False)


def reset(world: str) -> Call[Any, dict[str, Any]]:
    """Back to its beginning."""
    return _whole(_ask("POST", f"/v1/worlds/{world}/reset"), dict[str, Any])


def close(world: str) -> Call[Any, dict[str, Any]]:
    """End a world. Done twice, it is done."""
    return _whole(_ask("DELETE", f"/v1/worlds/{world}"), dict[str, Any])


# ---------------------------------------------------------------- parts
def _ask(method: str, path: str, headers: Mapping[str, str] | None = None, **content: Any) -> Ask:
    return Ask(method, path, {"X-Request-Id": uuid.uuid4().hex, **(headers or {})}, content)


def _packed(path: str, body: Mapping[str, Any]) -> Ask:
    return _ask("POST", path, {"Content-Type": MSGPACK}, content=pack(body))


def _reader(made: Callable[[Any], R]) -> Callable[[Answered], readers.Whole[R]]:
    return lambda head: readers.Whole(head, made)


def _whole(ask: Ask, made: Callable[[Any], R]) -> Call[Any, R]:
    return Call(ask, _reader(made))
