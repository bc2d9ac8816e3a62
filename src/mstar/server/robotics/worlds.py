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

from mstar.frontend.response_stream import ResponseStream
from mstar.requests import RolloutRequest
from mstar.server.errors import ApiError
from mstar.server.generic.request_parsing import parse_request
from mstar.server.http_exchange import HttpExchange
from mstar.server.robotics.actions import check_finite, encode_response, read_body
from mstar.server.robotics.ttl_store import TtlStore, tenant_name
from mstar.server.state import ServedModel

MAX_STEPS = 512
"""So many actions a world may have."""
MAX_WORLD_BYTES = 16 << 20
"""So many bytes may be sent to a world, its beginning included."""
MAX_WORLDS_PER_TENANT = 64
"""So many worlds a tenant may have at once."""
IDLE_TIMEOUT_S = 900.0
"""After so many seconds without a step a world ends."""


@dataclass(eq=False, slots=True)
class World:
    """One world of one client."""

    world_id: str
    served_model: ServedModel
    lineage: RolloutRequest
    size_bytes: int
    """How many bytes were sent to it."""
    last_step: dict[str, Any] | None = None
    """What the last step showed, for a client that did not hear it."""
    stream: ResponseStream | None = None
    """The request that goes on with it, if the model's route does."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def release(self) -> None:
        """Let go of what the model keeps for it."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    @property
    def content(self) -> dict[str, Any]:
        """It as clients see it."""
        return {
            "id": self.world_id,
            "object": "world",
            "model": self.served_model.name,
            "steps": len(self.lineage.actions),
        }


# ---------------------------------------------------------------- routes
async def create(exchange: HttpExchange) -> Response:
    """POST /v1/worlds."""
    told = await read_body(exchange)
    served = exchange.resolve_model(str(told.pop("model", "")))
    lineage: RolloutRequest = parse_request(replace(served, request_type=RolloutRequest), told)
    _check_step_count(len(lineage.actions))
    for name, value in (*lineage.observation.items(), *(("actions", action) for action in lineage.actions)):
        check_finite(name, value)
    return _create_world(exchange, served, lineage, await _total_bytes(exchange))


async def retrieve(exchange: HttpExchange) -> Response:
    """GET /v1/worlds/{world}."""
    return encode_response(exchange, _world(exchange).content)


async def step(exchange: HttpExchange) -> Response:
    """POST /v1/worlds/{world}/step: one more action."""
    told = await read_body(exchange)
    world = _world(exchange)
    async with world.lock:
        number, done = told.get("step"), len(world.lineage.actions)
        if number == done - 1 and world.last_step is not None:
            return encode_response(exchange, world.last_step)  # it was done, and the answer was lost
        if number not in (None, done):
            what = f"step: the next one is {done}, and this is {number!r}"
            raise ApiError(409, "wrong_step", what, param="step")
        _check_step_count(done + 1)
        size = await _total_bytes(exchange, world.size_bytes)
        lineage = _append_action(world, told.get("action"))
        shown = await _rollout_step(exchange, world, lineage)
        world.last_step = {"id": world.world_id, "object": "world.step", "step": done, "emissions": shown}
        world.lineage, world.size_bytes = lineage, size
    _store(exchange).touch(world.world_id)
    return encode_response(exchange, world.last_step)


async def fork(exchange: HttpExchange) -> Response:
    """POST /v1/worlds/{world}/fork: another world that has come to the same place."""
    world = _world(exchange)
    return _create_world(exchange, world.served_model, world.lineage, world.size_bytes)


async def reset(exchange: HttpExchange) -> Response:
    """POST /v1/worlds/{world}/reset: back to its beginning."""
    world = _world(exchange)
    async with world.lock:
        world.lineage, world.last_step = replace(world.lineage, actions=()), None
        world.release()
    return encode_response(exchange, world.content)


async def close(exchange: HttpExchange) -> Response:
    """DELETE /v1/worlds/{world}."""
    name = exchange.request.path_params["world"]
    _store(exchange).remove(tenant_name(exchange), name)
    return encode_response(exchange, {"id": name, "object": "world.deleted", "deleted": True})


# ---------------------------------------------------------------- behind them
def _store(exchange: HttpExchange) -> TtlStore[World]:
    state = exchange.request.app.state
    if not hasattr(state, "worlds"):
        state.worlds = TtlStore[World]("world", MAX_WORLDS_PER_TENANT, IDLE_TIMEOUT_S, World.release)
    return state.worlds


def _world(exchange: HttpExchange) -> World:
    return _store(exchange).find(tenant_name(exchange), exchange.request.path_params["world"])


def _create_world(exchange: HttpExchange, served_model: ServedModel, lineage: RolloutRequest, size: int) -> Response:
    world = _store(exchange).put(tenant_name(exchange), lambda name: World(name, served_model, lineage, size))
    return encode_response(exchange, world.content, 201)


async def _total_bytes(exchange: HttpExchange, before: int = 0) -> int:
    """How many bytes a world has with what is sent now."""
    size = before + len(await exchange.body())
    if size > MAX_WORLD_BYTES:
        raise ApiError(413, "too_large", f"{size} bytes were sent to this world, and {MAX_WORLD_BYTES} may be")
    return size


def _check_step_count(steps: int) -> None:
    if steps > MAX_STEPS:
        what = f"a world has at most {MAX_STEPS} steps; begin another from what is seen now"
        raise ApiError(422, "too_many_steps", what, param="action")


def _append_action(world: World, action: Any) -> RolloutRequest:
    """A world's lineage with one more action."""
    read: RolloutRequest = parse_request(
        replace(world.served_model, request_type=RolloutRequest), {"observation": {}, "actions": [action]}
    )
    if read.actions[0] is None:
        raise ApiError(422, "invalid_value", "action: it is missing", param="action")
    check_finite("action", read.actions[0])
    return replace(world.lineage, actions=(*world.lineage.actions, read.actions[0]))


async def _rollout_step(exchange: HttpExchange, world: World, lineage: RolloutRequest) -> dict[str, Any]:
    """What the last action leads to, by kind of emission."""
    last = len(lineage.actions) - 1
    shown: dict[str, Any] = {}
    if world.stream is None or world.stream.is_finished:
        world.stream = exchange.state.start_requests(
            world.served_model, lineage, context=exchange.context, multi_turn=True
        )
    else:
        world.stream.send_input(lineage.actions[-1])
    try:
        async for news in world.stream.turn():
            if news.index == last:
                shown[news.kind] = news.value
    except (ApiError, asyncio.CancelledError):
        world.release()  # it may be between two steps
        raise
    if not shown:
        world.release()
        raise ApiError(500, "model_error", f"the model showed nothing for the action of step {last}")
    return shown
