"""`/v1/realtime`: opens, imports, resumes or takes over a session, and serves it over the WebSocket of its client.

| query | what happens |
|---|---|
| without `session_id` | a new session |
| `session_id` of an imported one | it continues |
| `session_id` of an open one of this front end | its connection is replaced (see `event_outbox`) |
| `session_id` of another server or front end | it is taken over, from its server or from a copy (see `backup`) |
"""

from __future__ import annotations

import asyncio
import functools
from contextlib import ExitStack, suppress

from mstar.server.errors import ApiError
from mstar.server.realtime.backup.session_backup import SessionBackup
from mstar.server.realtime.backup.session_copy import SessionCopy
from mstar.server.realtime.backup.session_state import StateEncoder, handled_messages, restore_config, restore_state
from mstar.server.realtime.config import (
    AudioInputConfig,
    SessionConfig,
    SessionSettings,
    TranscriptionAudioConfig,
    TranscriptionConfig,
    TranscriptionSettings,
)
from mstar.server.realtime.conversation import new_id
from mstar.server.realtime.event_outbox import MAX_RESUME_TIMEOUT_S
from mstar.server.realtime.imported_sessions import ImportedSession, imported_sessions
from mstar.server.realtime.input_transcription import find_transcription_model
from mstar.server.realtime.open_sessions import OpenSession, session_not_found
from mstar.server.realtime.saved_session import SavedSession, restore_session, save_session
from mstar.server.realtime.saved_session import restore_config as restore_saved_config
from mstar.server.realtime.session import RealtimeSession
from mstar.server.robotics.ttl_store import TtlStore
from mstar.server.shutdown import RETRY_AFTER_S, SESSION_MOVED, session_moved
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

END_TIMEOUT_S = 0.3
"""Seconds to wait for the last events of a response when the session ends with an error."""
SAVE_TIMEOUT_S = 1.0
"""Seconds to wait for the end of a response when the session is exported: its `response.done` is not quite its end."""


async def serve_realtime(websocket: WebSocketSession) -> None:
    """WS /v1/realtime: serves a session until its client leaves or is idle."""
    params, tenant = websocket.socket.query_params, websocket.context.tenant_name
    if not (session_id := params.get("session_id")):
        served, config = _initial_config(websocket)
        await _serve(websocket, served, config)
        return
    if (opened := websocket.state.realtime_sessions.find(tenant, session_id)) is not None:
        await opened.connection.resume(websocket.socket, params.get("last_event_id", ""))
        return
    store = imported_sessions(websocket.socket.app, websocket.state.id_mark)
    imported = next((one for one in store.items_of(tenant) if one.session_id == session_id), None)
    if imported is not None:
        served = imported.served_model
        config = restore_saved_config(imported.saved, session_id, served.name)
        await _serve(websocket, served, config, imported=(imported, store))
        return
    copy = await _take_over(websocket, tenant, session_id)
    config = restore_config(copy)
    await _serve(websocket, websocket.resolve_model(config.model), config, copy=copy)


async def _serve(
    websocket: WebSocketSession,
    served: ServedModel,
    config: SessionConfig,
    *,
    imported: tuple[ImportedSession, TtlStore[ImportedSession]] | None = None,
    copy: SessionCopy | None = None,
) -> None:
    """Serve a new session, one of a file, or one of another server."""
    tenant, sessions = websocket.context.tenant_name, websocket.state.realtime_sessions
    with sessions.count(tenant), ExitStack() as stack:
        session = RealtimeSession(websocket, served, config)
        stack.callback(session.close)
        backup = _keep(websocket, session, copy)
        if backup is not None:
            stack.enter_context(backup)
        if imported is not None:
            (one, store) = imported
            restore_session(one.saved, session.conversation, session.seeds)
            store.remove(tenant, one.session_id)
        save = functools.partial(_save, session)
        opened = OpenSession(served.name, session.outbox, save, backup and backup.hand_over)
        stack.enter_context(sessions.register(tenant, config.session_id, opened))
        if copy is None:
            await websocket.accept()
            await session.send("session.created", session=session.config.content)
        else:
            await session.outbox.take_over(copy.events, websocket.socket.query_params.get("last_event_id", ""))
        await _run(websocket, session)


async def _take_over(websocket: WebSocketSession, tenant: str, session_id: str) -> SessionCopy:
    """The session of another server. Raises ApiError."""
    state = websocket.state
    if state.phase.name != "ready":  # the balancer has not noticed yet; the client tries again
        raise ApiError(
            503, "not_ready", f"the server is {state.phase.name}; fix: connect again", retry_after=RETRY_AFTER_S
        )
    backups = state.session_backups
    if backups is None:
        raise session_not_found(session_id)
    last_event_id = websocket.socket.query_params.get("last_event_id", "")
    copy, unanswered = await backups.take_over((tenant, session_id), last_event_id)
    if unanswered and (copy is None or not copy.has_event(last_event_id)):
        message = f"{unanswered} servers that can have {session_id[:64]!r} do not answer; fix: connect again"
        raise ApiError(503, "session_unreachable", message, retry_after=RETRY_AFTER_S)
    if copy is None:
        raise session_not_found(session_id)
    state.metrics.realtime_takeovers.inc()
    return copy


def _keep(websocket: WebSocketSession, session: RealtimeSession, copy: SessionCopy | None) -> SessionBackup | None:
    """Make the session resumable if its client says so, with a backup if the server has one. Raises ApiError."""
    timeout_s = _parse_resume_timeout(websocket.socket.query_params.get("resume_timeout_s", "0"))
    if copy is not None:
        timeout_s = copy.resume_timeout_s
        restore_state(session, copy)
        websocket.received_messages = handled_messages(copy)
    elif timeout_s:
        session.outbox.keep()
    websocket.resume_timeout_s = timeout_s
    backups = websocket.state.session_backups
    if not timeout_s or backups is None or session.config.is_transcription:
        return None
    key = websocket.context.tenant_name, session.config.session_id
    copy = copy or SessionCopy(key, timeout_s)
    make_update = StateEncoder(session).make_update

    def on_taken() -> None:
        websocket.state.realtime_sessions.remove(*key, session.outbox)  # it can come back before this one has ended
        websocket.interrupt(session_moved())

    backup = SessionBackup(backups.connections, copy, make_update, session.outbox.on_stored, on_taken)
    session.outbox.back_up(backup)
    websocket.can_move = lambda: backup.is_stored
    return backup


async def _run(websocket: WebSocketSession, session: RealtimeSession) -> None:
    """Handle the events of the client until an error ends the session."""
    # A drain waits for a client that has lost its connection: it comes back for the rest of its events.
    websocket.is_busy = lambda: _is_busy(session) or not websocket.is_attached
    try:
        while True:
            message = await websocket.receive()
            async with session.outbox:
                await session.dispatch(message)
                session.handled_messages += 1
    except ApiError as error:  # idle for too long, or the server shuts down
        if error.code != SESSION_MOVED:
            await _end_response(session, END_TIMEOUT_S)
            await session.send("error", error=error.content["error"] | {"event_id": None})
        raise


def _initial_config(websocket: WebSocketSession) -> tuple[ServedModel, SessionConfig]:
    """Model and settings of a new session; with `?intent=transcription` a transcription model. Raises ApiError."""
    params, mark = websocket.socket.query_params, f"sess_{websocket.state.id_mark}".rstrip("_")
    if params.get("intent") != "transcription":
        can_move = websocket.state.session_backups is not None and "resume_timeout_s" in params
        served = websocket.resolve_default_model()
        # Without the mark of a front end, one that has not the session takes it over instead of forwarding.
        return served, SessionConfig(new_id("sess" if can_move else mark), served.name, SessionSettings())
    served, session_id = find_transcription_model(websocket, params.get("model", "")), new_id(mark)
    transcription = AudioInputConfig(transcription=TranscriptionConfig(model=served.name))
    settings = TranscriptionSettings(audio=TranscriptionAudioConfig(input=transcription))
    return served, SessionConfig(session_id, served.name, settings)


def _parse_resume_timeout(text: str) -> float:
    """The parameter `resume_timeout_s`. Raises ApiError."""
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) <= MAX_RESUME_TIMEOUT_S:
            return seconds
    message = f"resume_timeout_s: {text[:64]!r} is not valid. fix: send seconds from 0 to {MAX_RESUME_TIMEOUT_S:g}"
    raise ApiError(400, "invalid_value", message, param="resume_timeout_s")


async def _save(session: RealtimeSession) -> SavedSession:
    """The session for a file, once a response that ends has ended. Raises ApiError."""
    await _end_response(session, SAVE_TIMEOUT_S)
    if _is_busy(session):
        message = "a response or transcription is in progress. fix: export the session after it is done"
        raise ApiError(409, "session_busy", message)
    return save_session(session.config, session.conversation, session.seeds)


def _is_busy(session: RealtimeSession) -> bool:
    """Whether a response or a transcription is in progress."""
    response = session.response
    return session.transcriber.is_busy or (response is not None and not response.is_done)


async def _end_response(session: RealtimeSession, timeout_s: float) -> None:
    """Wait a moment for the end of a response."""
    if session.response is not None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await session.response.wait_done()
