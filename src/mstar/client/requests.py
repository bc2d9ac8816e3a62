"""Request builders: each API call as an HTTP request with the reader of its response. They send nothing.

An interrupted stream can be resumed if a retry produces the same data: it has a seed, its temperature is 0, or the
caller passes `resume=True`.
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
    ImportedSession,
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
    """Optional parameters of a chat request."""

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
    """{"voice": ..., "format": "wav"}: also generate audio."""


class SpeechParams(TypedDict, total=False):
    """Optional parameters of a speech request."""

    voice: str
    speed: float
    instructions: str
    language: str
    seed: int
    response_format: str
    """wav, pcm, mp3, opus, aac or flac."""
    sample_rate: int


class TranscriptionParams(TypedDict, total=False):
    """Optional parameters of a transcription request."""

    language: str
    prompt: str
    temperature: float


class ActionParams(TypedDict, total=False):
    """Optional parameters of an action request."""

    prompt: str
    seed: int
    prev_chunk_left_over: Any
    inference_delay: int
    execution_horizon: int


class WorldParams(TypedDict, total=False):
    """Optional parameters of a new world."""

    actions: Sequence[Any]
    prompt: str
    seed: int


# ---------------------------------------------------------------- streams
def chat(
    model: str, messages: str | Sequence[Mapping[str, Any]], params: ChatParams, resume: bool
) -> ApiCall[Text | Audio, ChatResponse]:
    """Chat completion. A string is one user message."""
    turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
    body: dict[str, Any] = {"model": model, "messages": turns, "stream": True, **params}
    body["stream_options"] = {"include_usage": True}
    if "audio" in params:
        body["modalities"] = ["text", "audio"]
    request = _http_request("POST", "/v1/chat/completions", json=body)
    return ApiCall(request, response_readers.ChatReader, resume or _is_deterministic(params))


def speech(model: str, text: str, params: SpeechParams, resume: bool) -> ApiCall[Audio, SpeechResponse]:
    """Text to speech. Streamed as SSE, which tells the end from an interruption and carries errors."""
    body = {"response_format": "wav", **params, "model": model, "input": text, "stream_format": "sse"}
    return ApiCall(
        _http_request("POST", "/v1/audio/speech", json=body),
        response_readers.SpeechReader,
        resume or _is_deterministic(params),
    )


def transcribe(
    model: str, file: bytes | str | Path, params: TranscriptionParams, resume: bool
) -> ApiCall[Text, TranscriptionResponse]:
    """Transcribe an audio file."""
    data = file if isinstance(file, bytes) else Path(file).read_bytes()
    fields = {"model": model, "stream": "true", **{name: str(value) for name, value in params.items()}}
    request = _http_request("POST", "/v1/audio/transcriptions", data=fields, files={"file": ("audio", data)})
    return ApiCall(request, response_readers.TranscriptionReader, resume or not params.get("temperature"))


def generate(model: str, request: Any, resume: bool) -> ApiCall[Emission, GenerateResponse]:
    """Run a model with its own request type."""
    content = pack({"model": model, "request": request})
    request = _http_request("POST", "/v1/generate", {"Content-Type": MSGPACK, "Accept": MSGPACK}, content=content)
    is_deterministic = _is_deterministic(request) or _is_deterministic(_fields(request).get("sampling"))
    return ApiCall(request, response_readers.EmissionReader, resume or is_deterministic)


def _is_deterministic(params: Any) -> bool:
    """Whether a retry produces the same data."""
    fields = _fields(params)
    return fields.get("seed") is not None or fields.get("temperature") == 0


def _fields(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- not streamed
def models() -> ApiCall[Any, tuple[ServedModel, ...]]:
    """List the served models."""

    def read(content: Any) -> tuple[ServedModel, ...]:
        return tuple(
            ServedModel(model["id"], (*model["capabilities"],), (*model["endpoints"],)) for model in content["data"]
        )

    return _json_call(_http_request("GET", "/v1/models"), read)


def ready() -> ApiCall[Any, ServerPhase]:
    """Phase of the server."""
    request = _http_request("GET", "/ready")
    read = _body_reader(lambda body: ServerPhase(body["phase"], body["done"], body["total"]))
    return ApiCall(request, read, success_statuses=frozenset({200, 503}))


def trace(request_id: str) -> ApiCall[Any, dict[str, Any]]:
    """Trace of a request."""
    return _json_call(_http_request("GET", f"/v1/requests/{quote(request_id, safe='')}/trace"), dict[str, Any])


def export_session(session_id: str) -> ApiCall[Any, dict[str, Any]]:
    """Content of a session file."""
    return _json_call(_http_request("GET", f"/v1/sessions/{quote(session_id, safe='')}"), dict[str, Any])


def import_session(content: bytes | Mapping[str, Any]) -> ApiCall[Any, ImportedSession]:
    """Import a session file. Not idempotent: each call creates a session."""
    body = {"content": content} if isinstance(content, bytes) else {"json": content}
    request = _http_request("POST", "/v1/sessions", {"Content-Type": "application/json"}, **body)
    read = _body_reader(lambda body: ImportedSession(body["id"], body["kind"], body["model"]))
    return ApiCall(request, read, is_idempotent=False)


def embed(model: str, texts: Sequence[str]) -> ApiCall[Any, Any]:
    """Embeddings of texts: one array, with a row for each text."""
    body = {"model": model, "input": list(texts), "encoding_format": "base64"}

    def read(content: Any) -> Any:
        rows = [b64decode(item["embedding"]) for item in content["data"]]
        return to_array("float32", [len(rows), len(rows[0]) // array("f").itemsize], b"".join(rows))

    return _json_call(_http_request("POST", "/v1/embeddings", json=body), read)


def act(model: str, observation: Mapping[str, Any], params: ActionParams) -> ApiCall[Any, ActionResponse]:
    """Actions of a robot. Not idempotent: retried only if the server surely did not get the request."""
    request = _msgpack_request("/v1/actions", {"model": model, "observation": observation, **params})

    def read(content: Any) -> ActionResponse:
        return ActionResponse(content["actions"], content.get("rate"), content["server_timing"])

    return ApiCall(request, _body_reader(read), is_idempotent=False)


# ---------------------------------------------------------------- worlds
def create_world(model: str, observation: Mapping[str, Any], params: WorldParams) -> ApiCall[Any, dict[str, Any]]:
    """Create a world. Not idempotent."""
    body = {"model": model, "observation": observation, **params}
    return ApiCall(_msgpack_request("/v1/worlds", body), _body_reader(dict[str, Any]), is_idempotent=False)


def step_world(world: str, number: int, action: Any) -> ApiCall[Any, WorldStep]:
    """Execute one action in a world. Idempotent: the server executes a step number once."""
    request = _msgpack_request(f"/v1/worlds/{world}/step", {"action": action, "step": number})
    return _json_call(request, lambda body: WorldStep(body["step"], body["emissions"]))


def fork_world(world: str) -> ApiCall[Any, dict[str, Any]]:
    """Copy a world with its current state. Not idempotent."""
    return ApiCall(_http_request("POST", f"/v1/worlds/{world}/fork"), _body_reader(dict[str, Any]), is_idempotent=False)


def reset_world(world: str) -> ApiCall[Any, dict[str, Any]]:
    """Reset a world to its initial state."""
    return _json_call(_http_request("POST", f"/v1/worlds/{world}/reset"), dict[str, Any])


def delete_world(world: str) -> ApiCall[Any, dict[str, Any]]:
    """Delete a world. Idempotent."""
    return _json_call(_http_request("DELETE", f"/v1/worlds/{world}"), dict[str, Any])


# ---------------------------------------------------------------- helpers
def _http_request(method: str, path: str, headers: Mapping[str, str] | None = None, **content: Any) -> SendRequest:
    return SendRequest(method, path, {"X-Request-Id": uuid.uuid4().hex, **(headers or {})}, content)


def _msgpack_request(path: str, body: Mapping[str, Any]) -> SendRequest:
    return _http_request("POST", path, {"Content-Type": MSGPACK}, content=pack(body))


def _body_reader(convert: Callable[[Any], R]) -> Callable[[ResponseHead], response_readers.BodyReader[R]]:
    return lambda head: response_readers.BodyReader(head, convert)


def _json_call(request: SendRequest, convert: Callable[[Any], R]) -> ApiCall[Any, R]:
    return ApiCall(request, _body_reader(convert))
