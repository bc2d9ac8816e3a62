"""Models are unloaded and loaded: what an operator asks at `/v1/models/{model}/unload` and `/load`.

Whether a model can rest, and when its workers end, its conductor decides: see `conductor.rests`. Nobody is waited for
here: the answer tells how the model is now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.responses import Response

from mstar.server.door import STARTING_S, Door
from mstar.server.refusals import Refusal
from mstar.server.visit import Visit, answered
from mstar.wire import messages as m

ANSWER_S = 2.0
"""How long a conductor may take to answer."""


async def unload(visit: Visit) -> Response:
    """POST /v1/models/{model}/unload: have its workers ended once nobody uses them. The next request loads it again."""
    return await _told(visit, m.Rest)


async def load(visit: Visit) -> Response:
    """POST /v1/models/{model}/load: have its workers started, if it rests."""
    return await _told(visit, m.Wake)


async def _told(visit: Visit, kind: type[m.Rest] | type[m.Wake]) -> Response:
    name = visit.find(visit.request.path_params["model"]).name
    if visit.door.phase.name != "ready":
        raise Refusal(503, "not_ready", f"the server is {visit.door.phase.name}", retry_after=STARTING_S)
    standing = await _ask(visit.door, name, lambda ticket: kind(ticket, name))
    if standing is None:
        raise Refusal(503, "not_ready", "its conductor is being started again", retry_after=STARTING_S)
    if standing.why:
        raise Refusal(409, "not_elastic", f"the model `{name}` cannot be unloaded: {standing.why}", param="model")
    return answered({"model": name, "state": standing.states[name]})


async def states(door: Door) -> dict[str, str]:
    """How each model is: up, loading or resting. All are loading while nobody knows."""
    found = dict.fromkeys(door.served, "loading")
    if door.bridge is not None:
        conductors = {peer: model for model, peer in door.bridge.front.conductors.items()}
        for standing in await asyncio.gather(*(_ask(door, model, m.TakeStanding) for model in conductors.values())):
            found |= {} if standing is None else standing.states
    return found


async def _ask(door: Door, model: str, worded: Callable[[int], m.Message]) -> m.Standing | None:
    """Ask the conductor of a model."""
    if door.bridge is None:
        return None
    front = door.bridge.front
    try:
        asked = asyncio.wrap_future(front.take_standing(front.conductors[model], worded))
        return await asyncio.wait_for(asyncio.shield(asked), ANSWER_S)  # it may still answer
    except TimeoutError:
        return None
