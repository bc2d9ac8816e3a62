"""Python client of a running server: `Client` for threads, `AsyncClient` for asyncio.

Both share the sans-IO parts: `requests` builds requests, `response_readers` parses responses, and `retry` decides about
retries with exponential backoff and stream resumption. The client imports no part of the server or the runtime.
"""

from mstar.client.async_client import AsyncClient, AsyncStream, AsyncWorld
from mstar.client.errors import (
    ApiError,
    AuthenticationError,
    BadRequest,
    ClientError,
    NotFound,
    ServerBusy,
    ServerError,
    ServerNotReady,
    ServerUnreachable,
    SessionEnded,
    StreamDiverged,
    StreamInterrupted,
)
from mstar.client.realtime import AsyncRealtimeConnection, RealtimeConnection
from mstar.client.responses import (
    ActionResponse,
    Array,
    Audio,
    ChatResponse,
    Emission,
    GenerateResponse,
    ImportedSession,
    ServedModel,
    ServerPhase,
    SpeechResponse,
    Text,
    ToolCall,
    TranscriptionResponse,
    WorldStep,
)
from mstar.client.sync_client import Client, Stream, World

__all__ = [
    "ActionResponse",
    "ApiError",
    "Array",
    "AsyncClient",
    "AsyncRealtimeConnection",
    "AsyncStream",
    "AsyncWorld",
    "Audio",
    "AuthenticationError",
    "BadRequest",
    "ChatResponse",
    "Client",
    "ClientError",
    "Emission",
    "GenerateResponse",
    "ImportedSession",
    "NotFound",
    "RealtimeConnection",
    "ServedModel",
    "ServerBusy",
    "ServerError",
    "ServerNotReady",
    "ServerPhase",
    "ServerUnreachable",
    "SessionEnded",
    "SpeechResponse",
    "Stream",
    "StreamDiverged",
    "StreamInterrupted",
    "Text",
    "ToolCall",
    "TranscriptionResponse",
    "World",
    "WorldStep",
]
