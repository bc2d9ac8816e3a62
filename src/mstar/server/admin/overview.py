"""GET /v1/overview: figures of the whole server over the last hour, for the first page of the studio.

They are sums over all clients and models and name none of them, as /metrics does.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict

from starlette.responses import Response

from mstar.server.admin.health import query_all_stats
from mstar.server.http_exchange import HttpExchange, json_response
from mstar.server.state import ServerState
from mstar.server.telemetry.history import SAMPLE_INTERVAL_S, SAMPLED_SERIES


async def overview(exchange: HttpExchange) -> Response:
    """GET /v1/overview: one list of samples for each figure, oldest first, and the CPU costs of the processes."""
    history = exchange.state.history
    costs = [asdict(one) for one in history.process_costs.costs()]
    return json_response({"interval_s": SAMPLE_INTERVAL_S, "samples": history.columns(), "processes": costs})


async def sample_history(state: ServerState) -> None:
    """Add a sample every `SAMPLE_INTERVAL_S` seconds."""
    while True:
        siblings = state.siblings
        sampled = await query_all_stats(state, () if siblings is None else SAMPLED_SERIES)
        running = state.active_requests
        if siblings is not None:
            siblings.sampled |= sampled
            running += siblings.active_requests
        state.history.sample(running)
        await asyncio.sleep(SAMPLE_INTERVAL_S)
