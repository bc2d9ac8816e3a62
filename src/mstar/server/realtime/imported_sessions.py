"""Imported realtime sessions that no client has connected to yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette

from mstar.server.inputs.memory_budget import Reservation
from mstar.server.realtime.saved_session import SavedSession
from mstar.server.robotics.ttl_store import TtlStore
from mstar.server.state import ServedModel

IMPORT_TTL_S = 900.0
"""Seconds in which a client must connect."""
MAX_IMPORTED = 16
"""Maximum number of sessions of one tenant that wait for clients."""


@dataclass(frozen=True, slots=True, eq=False)
class ImportedSession:
    """A session that waits for its client."""

    session_id: str
    served_model: ServedModel
    saved: SavedSession
    memory: Reservation | None
    """Memory of its file."""

    def release(self) -> None:
        """Release the memory."""
        if self.memory is not None:
            self.memory.close()


def imported_sessions(app: Starlette, id_mark: str) -> TtlStore[ImportedSession]:
    """The store of a server."""
    state: Any = app.state
    if not hasattr(state, "imported_sessions"):
        state.imported_sessions = TtlStore[ImportedSession](
            "sess", MAX_IMPORTED, IMPORT_TTL_S, ImportedSession.release, id_mark
        )
    return state.imported_sessions
