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

from mstar.client import response_readers
from mstar.client.arrays import pack, to_array
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
from mstar.client.retry import ApiCall, ResponseHead, SendRequest

R = TypeVar("R")

MSGPACK = "application/msgpack"


class ChatParams(TypedDict, total=False):
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


class SpeechParams(TypedDict, total=False):
    """How a text is to be said."""

    voice: str
    speed: float
    instructions: str
    language: str
    seed: int
    response_format: str
    """wav, pcm, mp3, opus, aac or flac."""
    sample_rate: int


class TranscriptionParams(TypedDict, total=False):
    """How a file is to be listened to."""

    language: str
    prompt: str
    temperature: float


class ActionParams(TypedDict, total=False):
    """What else a robot tells."""

    prompt: str
    seed: int
    prev_chunk_left_over: Any
    inference_delay: int
    execution_horizon: int


class WorldParams(TypedDict, total=False):
    """What else a world begins with."""

    actions: Sequence[Any]
    prompt: str
    seed: int


# ---------------------------------------------------------------- streams
def chat(
    model: str, messages: str | Sequence[Mapping[str, Any]], params: ChatParams, resume: bool
) -> ApiCall[Text | Audio, ChatResponse]:
    """Go on with a conversation; a text is one message of the user."""
    said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    body: dict[str, Any] = {"model": model, "messages": said, "stream": True, **params}
    body["stream_options"] = {"include_usage": True}
    if "audio" in params:
        body["modalities"] = ["text", "audio"]
    ask = _http_request("POST", "/v1/chat/completions", json=body)
    return ApiCall(ask, response_readers.ChatReader, resume or _is_deterministic(params))


def speech(model: str, text: str, params: SpeechParams, resume: bool) -> ApiCall[Audio, SpeechResponse]:
    """Say a text. As events, since these tell an end from a cut, and what went wrong."""
    body = {"response_format": "wav", **params, "model": model, "input": text, "stream_format": "sse"}
    return ApiCall(
        _http_request("POST", "/v1/audio/speech", json=body),
        response_readers.SpeechReader,
        resume or _is_deterministic(params),
    )


def transcribe(
    model: str, file: bytes | str | Path, params: TranscriptionParams, resume: bool
) -> ApiCall[Text, TranscriptionResponse]:
    """Write down what is said in a file."""
    data = file if isinstance(file, bytes) else Path(file).read_bytes()
    fields = {"model": model, "stream": "true", **{name: str(value) for name, value in params.items()}}
    ask = _http_request("POST", "/v1/audio/transcriptions", data=fields, files={"file": ("sound", data)})
    return ApiCall(ask, response_readers.TranscriptionReader, resume or not params.get("temperature"))


def generate(model: str, request: Any, resume: bool) -> ApiCall[Emission, GenerateResponse]:
    """Ask a model in its own terms."""
    content = pack({"model": model, "request": request})
    ask = _http_request("POST", "/v1/generate", {"Content-Type": MSGPACK, "Accept": MSGPACK}, content=content)
    is_fixed = _is_deterministic(request) or _is_deterministic(_fields(request).get("sampling"))
    return ApiCall(ask, response_readers.EmissionReader, resume or is_fixed)


def _is_deterministic(params: Any) -> bool:
    """Whether the same comes when it is asked again."""
    fields = _fields(params)
    return fields.get("seed") is not None or fields.get("temperature") == 0


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- whole answers
def models() -> ApiCall[Any, tuple[ServedModel, ...]]:
    """What is served."""

    def read(content: Any) -> tuple[ServedModel, ...]:
        return tuple(ServedModel(one["id"], (*one["capabilities"],), (*one["endpoints"],)) for one in content["data"])

    return _json_call(_http_request("GET", "/v1/models"), read)


def ready() -> ApiCall[Any, ServerPhase]:
    """How far the server is."""
    ask = _http_request("GET", "/ready")
    read = _body_reader(lambda told: ServerPhase(told["phase"], told["done"], told["total"]))
    return ApiCall(ask, read, success_statuses=frozenset({200, 503}))


def trace(request_id: str) -> ApiCall[Any, dict[str, Any]]:
    """What a request did, and when."""
    return _json_call(_http_request("GET", f"/v1/requests/{quote(request_id, safe='')}/trace"), dict[str, Any])


def embed(model: str, texts: Sequence[str]) -> ApiCall[Any, Any]:
    """Texts as vectors: one array, with a row for each."""
    body = {"model": model, "input": list(texts), "encoding_format": "base64"}

    def read(content: Any) -> Any:
        rows = [b64decode(one["embedding"]) for one in content["data"]]
        return to_array("float32", [len(rows), len(rows[0]) // array("f").itemsize], b"".join(rows))

    return _json_call(_http_request("POST", "/v1/embeddings", json=body), read)


def act(model: str, observation: Mapping[str, Any], params: ActionParams) -> ApiCall[Any, ActionResponse]:
    """What a robot is to do. It is not asked for twice unless the first was surely not heard."""
    ask = _msgpack_request("/v1/actions", {"model": model, "observation": observation, **params})

    def read(content: Any) -> ActionResponse:
        return ActionResponse(content["actions"], content.get("rate"), content["server_timing"])

    return ApiCall(ask, _body_reader(read), is_idempotent=False)


# ---------------------------------------------------------------- worlds
def create_world(model: str, observation: Mapping[str, Any], params: WorldParams) -> ApiCall[Any, dict[str, Any]]:
    """Begin a world."""
    body = {"model": model, "observation": observation, **params}
    return ApiCall(_msgpack_request("/v1/worlds", body), _body_reader(dict[str, Any]), is_idempotent=False)


def step_world(world: str, number: int, action: Any) -> ApiCall[Any, WorldStep]:
    """One more action. Asked for again under the same number, it is done once."""
    ask = _msgpack_request(f"/v1/worlds/{world}/step", {"action": action, "step": number})
    return _json_call(ask, lambda told: WorldStep(told["step"], told["emissions"]))


def fork_world(world: str) -> ApiCall[Any, dict[str, Any]]:
    """Another world that has come to the same place."""
    return ApiCall(_http_request("POST", f"/v1/worlds/{world}/fork"), _body_reader(dict[str, Any]), is_idempotent=False)


def reset_world(world: str) -> ApiCall[Any, dict[str, Any]]:
    """Back to its beginning."""
    return _json_call(_http_request("POST", f"/v1/worlds/{world}/reset"), dict[str, Any])


def delete_world(world: str) -> ApiCall[Any, dict[str, Any]]:
    """End a world. Done twice, it is done."""
    return _json_call(_http_request("DELETE", f"/v1/worlds/{world}"), dict[str, Any])


# ---------------------------------------------------------------- parts
def _http_request(method: str, path: str, headers: Mapping[str, str] | None = None, **content: Any) -> SendRequest:
    return SendRequest(method, path, {"X-Request-Id": uuid.uuid4().hex, **(headers or {})}, content)


def _msgpack_request(path: str, body: Mapping[str, Any]) -> SendRequest:
    return _http_request("POST", path, {"Content-Type": MSGPACK}, content=pack(body))


def _body_reader(convert: Callable[[Any], R]) -> Callable[[ResponseHead], response_readers.BodyReader[R]]:
    return lambda head: response_readers.BodyReader(head, convert)


def _json_call(request: SendRequest, convert: Callable[[Any], R]) -> ApiCall[Any, R]:
    return ApiCall(request, _body_reader(convert))
