"""GET /v1/overview: figures of the whole server over the last hour, for the first page of the studio.

They are sums over all clients and models and name none of them, as /metrics does.
"""

from __future__ import annotations

import asyncio

from starlette.responses import Response

from mstar.server.admin.health import query_all_stats
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import ServerState
from mstar.server.telemetry.history import SAMPLE_INTERVAL_S, SAMPLED_METRICS


async def overview(exchange: HttpExchange) -> Response:
    """GET /v1/overview: one list of samples for each figure, oldest first."""
    return json_response({"interval_s": SAMPLE_INTERVAL_S, "samples": exchange.state.history.columns()})


async def sample_history(state: ServerState) -> None:
    """Add a sample every `SAMPLE_INTERVAL_S` seconds."""
    while True:
        await query_all_stats(state, SAMPLED_METRICS)
        others = 0 if state.siblings is None else state.siblings.active_requests
        state.history.sample(state.active_requests + others)
        await asyncio.sleep(SAMPLE_INTERVAL_S)
