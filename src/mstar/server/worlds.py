"""Worlds: a client imagines step by step what its actions lead to, and can go back, or try two ways from one place.

A world is kept as its lineage: what it began with, and every action since. A model whose route goes on with its client
(`self.more()`) is told each further action, and keeps its states; any other is asked for all actions again, and shows
what the last of them led to. Both are the same to the last bit, and so is a fork, a world that goes back, or one whose
request has ended: it begins again with its lineage. A world ends when it is deleted, or when nobody has moved in it for
a while; whoever has noted its actions can begin it again with them.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from mstar.asks import Imagining
from mstar.server.actions import read_map, refuse_infinite, written
from mstar.server.door import Served
from mstar.server.live import Live
from mstar.server.reading import request_of
from mstar.server.refusals import Refusal
from mstar.server.shelf import Shelf, tenant_of
from mstar.server.visit import Visit

STEPS = 512
"""So many actions a world may have."""
LARGEST = 16 << 20
"""So many bytes may be sent to a world, its beginning included."""
WORLDS = 64
"""So many worlds a tenant may have at once."""
IDLE_S = 900.0
"""After so many seconds without a step a world ends."""


@dataclass(eq=False, slots=True)
class World:
    """One world of one client."""

    name: str
    served: Served
    lineage: Imagining
    size: int
    """How many bytes were sent to it."""
    last: dict[str, Any] | None = None
    """What the last step showed, for a client that did not hear it."""
    live: Live | None = None
    """The request that goes on with it, if the model's route does."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    def rest(self) -> None:
        """Let go of what the model keeps for it."""
        if self.live is not None:
            self.live.close()
            self.live = None

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it."""
        return {"id": self.name, "object": "world", "model": self.served.name, "steps": len(self.lineage.actions)}


# ---------------------------------------------------------------- routes
async def create(visit: Visit) -> Response:
    """POST /v1/worlds."""
    told = await read_map(visit)
    served = visit.find(str(told.pop("model", "")))
    lineage: Imagining = request_of(replace(served, request=Imagining), told)
    _refuse_too_long(len(lineage.actions))
    for name, value in (*lineage.observation.items(), *(("actions", action) for action in lineage.actions)):
        refuse_infinite(name, value)
    return _kept(visit, served, lineage, await _size(visit))


async def show(visit: Visit) -> Response:
    """GET /v1/worlds/{world}."""
    return written(visit, _world(visit).content)


async def step(visit: Visit) -> Response:
    """POST /v1/worlds/{world}/step: one more action."""
    told = await read_map(visit)
    world = _world(visit)
    async with world.turn:
        number, done = told.get("step"), len(world.lineage.actions)
        if number == done - 1 and world.last is not None:
            return written(visit, world.last)  # it was done, and the answer was lost
        if number not in (None, done):
            what = f"step: the next one is {done}, and this is {number!r}"
            raise Refusal(409, "wrong_step", what, param="step")
        _refuse_too_long(done + 1)
        size = await _size(visit, world.size)
        lineage = _with(world, told.get("action"))
        shown = await _imagine(visit, world, lineage)
        world.last = {"id": world.name, "object": "world.step", "step": done, "emissions": shown}
        world.lineage, world.size = lineage, size
    _shelf(visit).renew(world.name)
    return written(visit, world.last)


async def fork(visit: Visit) -> Response:
    """POST /v1/worlds/{world}/fork: another world that has come to the same place."""
    world = _world(visit)
    return _kept(visit, world.served, world.lineage, world.size)


async def reset(visit: Visit) -> Response:
    """POST /v1/worlds/{world}/reset: back to its beginning."""
    world = _world(visit)
    async with world.turn:
        world.lineage, world.last = replace(world.lineage, actions=()), None
        world.rest()
    return written(visit, world.content)


async def close(visit: Visit) -> Response:
    """DELETE /v1/worlds/{world}."""
    name = visit.request.path_params["world"]
    _shelf(visit).take(tenant_of(visit), name)
    return written(visit, {"id": name, "object": "world.deleted", "deleted": True})


# ---------------------------------------------------------------- behind them
def _shelf(visit: Visit) -> Shelf[World]:
    state = visit.request.app.state
    if not hasattr(state, "worlds"):
        state.worlds = Shelf[World]("world", WORLDS, IDLE_S, World.rest)
    return state.worlds


def _world(visit: Visit) -> World:
    return _shelf(visit).find(tenant_of(visit), visit.request.path_params["world"])


def _kept(visit: Visit, served: Served, lineage: Imagining, size: int) -> Response:
    world = _shelf(visit).put(tenant_of(visit), lambda name: World(name, served, lineage, size))
    return written(visit, world.content, 201)


async def _size(visit: Visit, before: int = 0) -> int:
    """How many bytes a world has with what is sent now."""
    size = before + len(await visit.body())
    if size > LARGEST:
        raise Refusal(413, "too_large", f"{size} bytes were sent to this world, and {LARGEST} may be")
    return size


def _refuse_too_long(steps: int) -> None:
    if steps > STEPS:
        what = f"a world has at most {STEPS} steps; begin another from what is seen now"
        raise Refusal(422, "too_many_steps", what, param="action")


def _with(world: World, action: Any) -> Imagining:
    """A world's lineage with one more action."""
    read: Imagining = request_of(replace(world.served, request=Imagining), {"observation": {}, "actions": [action]})
    if read.actions[0] is None:
        raise Refusal(422, "invalid_value", "action: it is missing", param="action")
    refuse_infinite("action", read.actions[0])
    return replace(world.lineage, actions=(*world.lineage.actions, read.actions[0]))


async def _imagine(visit: Visit, world: World, lineage: Imagining) -> dict[str, Any]:
    """What the last action leads to, by kind of emission."""
    last = len(lineage.actions) - 1
    shown: dict[str, Any] = {}
    if world.live is None or world.live.is_over:
        world.live = visit.door.open(world.served, lineage, by=visit.passage, goes_on=True)
    else:
        world.live.say(lineage.actions[-1])
    try:
        async for news in world.live.turn():
            if news.index == last:
                shown[news.kind] = news.value
    except (Refusal, asyncio.CancelledError):
        world.rest()  # it may be between two steps
        raise
    if not shown:
        world.rest()
        raise Refusal(500, "model_error", f"the model showed nothing for the action of step {last}")
    return shown
