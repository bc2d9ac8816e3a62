"""A client of a running server, for Python: `Client` for threads, `AsyncClient` for asyncio.

Both do the same: what is asked and what an answer means is in `calls` and `readers`, when to ask again in `errand`,
and neither knows of IO. Nothing of the server, the runtime or a network is imported.
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
    StreamDiverged,
    StreamInterrupted,
)
from mstar.client.responses import (
    ActionResponse,
    Array,
    Audio,
    ChatResponse,
    Emission,
    GenerateResponse,
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
    "NotFound",
    "ServedModel",
    "ServerBusy",
    "ServerError",
    "ServerNotReady",
    "ServerPhase",
    "ServerUnreachable",
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
