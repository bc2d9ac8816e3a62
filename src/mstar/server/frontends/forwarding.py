"""ASGI middleware of one of several front ends: forwards requests for objects that another one has.

The owner authenticates, limits, counts and logs such a request, as if the client were connected to it.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from mstar.server.errors import ApiError
from mstar.server.frontends.siblings import Siblings
from mstar.server.frontends.websocket_forwarding import forward_websocket
from mstar.server.http_exchange import json_response
from mstar.server.state import ServerState


class ForwardingMiddleware:
    """Forwards a request to the front end that the id in its path names, or passes it on."""

    def __init__(self, app: ASGIApp, state: ServerState, siblings: Siblings) -> None:
        self._app = app
        self._state = state
        self._siblings = siblings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        owner = self._siblings.owner_of_request(scope)
        if owner is None:
            await self._app(scope, receive, send)
            return
        self._state.active_requests += 1
        task = self._state.shutdown.track()
        try:
            if scope["type"] == "websocket":
                await forward_websocket(self._siblings.socket_of(owner), scope, receive, send)
            else:
                await self._siblings.forward(owner, scope, receive, send)
        except ApiError as error:
            await json_response(error.content, error.status, error.headers)(scope, receive, send)
        finally:
            self._state.shutdown.untrack(task)
            self._state.active_requests -= 1
