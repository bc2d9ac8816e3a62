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
        await take_sample(state)
        await asyncio.sleep(SAMPLE_INTERVAL_S)


async def take_sample(state: ServerState) -> None:
    """Add a sample of all processes."""
    siblings = state.siblings
    if siblings is None:
        await query_all_stats(state)
        state.history.sample(state.active_requests)
        return
    sampled = await query_all_stats(state, SAMPLED_SERIES)
    if sampled.keys() - siblings.sampled.keys():
        state.history.restart()  # what they have counted before is no growth
    siblings.sampled |= sampled
    state.history.sample(state.active_requests + siblings.active_requests)
