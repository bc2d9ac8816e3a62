"""A client of a running server, for Python: `Client` for threads, `AsyncClient` for asyncio.

Both do the same: what is asked and what an answer means is in `calls` and `readers`, when to ask again in `errand`,
and neither knows of IO. Nothing of the server, the runtime or a network is imported.
"""

from mstar.client.answers import (
    Action,
    Array,
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
    ToolCall,
)
from mstar.client.awaiting import AsyncClient, AsyncStream, AsyncWorld
from mstar.client.blocking import Client, Stream, World
from mstar.client.errors import (
    BadRequest,
    Busy,
    ClientError,
    Cut,
    Diverged,
    NotAllowed,
    NotFound,
    NotReady,
    Refused,
    ServerFailed,
    Unreachable,
)

__all__ = [
    "Action",
    "Array",
    "AsyncClient",
    "AsyncStream",
    "AsyncWorld",
    "Audio",
    "BadRequest",
    "Busy",
    "Client",
    "ClientError",
    "Cut",
    "Diverged",
    "Emission",
    "Generated",
    "Heard",
    "NotAllowed",
    "NotFound",
    "NotReady",
    "Phase",
    "Refused",
    "Reply",
    "ServedModel",
    "ServerFailed",
    "Spoken",
    "Step",
    "Stream",
    "Text",
    "ToolCall",
    "Unreachable",
    "World",
]
