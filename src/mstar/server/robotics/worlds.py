"""World-model rollouts (`/v1/worlds`): a client steps a simulated world by actions, and can fork or reset it.

A world is its lineage: the initial observation and every action since. Each step runs in one of two ways:

1. A multi-turn route (`self.next_input()`) keeps its states and gets only the new action.
2. Any other route gets the whole lineage again; the outputs of the last action are returned.

Both are bit-identical, and so are forks, resets and worlds whose request has ended: these replay the lineage. A world
ends when it is deleted or idle for too long; a client that recorded the actions can recreate it from them.
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
"""Maximum actions of one world."""
MAX_WORLD_BYTES = 16 << 20
"""Maximum request bytes of one world, including its initial observation."""
MAX_WORLDS_PER_TENANT = 64
"""Maximum worlds of one tenant."""
IDLE_TIMEOUT_S = 900.0
"""Seconds without a step before a world is deleted."""


@dataclass(eq=False, slots=True)
class World:
    """One world: its lineage and the open request that holds its states, if any."""

    world_id: str
    served_model: ServedModel
    lineage: RolloutRequest
    size_bytes: int
    """Request bytes received for it so far."""
    last_step: dict[str, Any] | None = None
    """Response of the last step, repeated when a client retries the step (idempotent)."""
    stream: ResponseStream | None = None
    """Open request; it stays open only if the model's route is multi-turn."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    def release(self) -> None:
        """Close the open request, which frees the model's states. Idempotent."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    @property
    def content(self) -> dict[str, Any]:
        """The `world` object of responses."""
        return {
            "id": self.world_id,
            "object": "world",
            "model": self.served_model.name,
            "steps": len(self.lineage.actions),
        }


# ---------------------------------------------------------------- endpoints
async def create(exchange: HttpExchange) -> Response:
    """POST /v1/worlds."""
    body = await read_body(exchange)
    served = exchange.resolve_model(str(body.pop("model", "")))
    lineage: RolloutRequest = parse_request(replace(served, request_type=RolloutRequest), body)
    _check_step_count(len(lineage.actions))
    for name, value in (*lineage.observation.items(), *(("actions", action) for action in lineage.actions)):
        check_finite(name, value)
    return _create_world(exchange, served, lineage, await _total_bytes(exchange))


async def retrieve(exchange: HttpExchange) -> Response:
    """GET /v1/worlds/{world}."""
    return encode_response(exchange, _world(exchange).content)


async def step(exchange: HttpExchange) -> Response:
    """POST /v1/worlds/{world}/step: apply one action. Idempotent if the client sends the step number."""
    body = await read_body(exchange)
    world = _world(exchange)
    async with world.lock:
        number, next_step = body.get("step"), len(world.lineage.actions)
        if number == next_step - 1 and world.last_step is not None:
            return encode_response(exchange, world.last_step)  # a retry: the response was lost
        if number not in (None, next_step):
            message = f"step: {str(number)[:64]!r} is not the next step. fix: send {next_step} or omit it"
            raise ApiError(409, "wrong_step", message, param="step")
        _check_step_count(next_step + 1)
        size = await _total_bytes(exchange, world.size_bytes)
        lineage = _append_action(world, body.get("action"))
        emissions = await _rollout_step(exchange, world, lineage)
        world.last_step = {"id": world.world_id, "object": "world.step", "step": next_step, "emissions": emissions}
        world.lineage, world.size_bytes = lineage, size
    _store(exchange).touch(world.world_id)
    return encode_response(exchange, world.last_step)


async def fork(exchange: HttpExchange) -> Response:
    """POST /v1/worlds/{world}/fork: a new world with the same lineage."""
    world = _world(exchange)
    return _create_world(exchange, world.served_model, world.lineage, world.size_bytes)


async def reset(exchange: HttpExchange) -> Response:
    """POST /v1/worlds/{world}/reset: back to the initial observation."""
    world = _world(exchange)
    async with world.lock:
        world.lineage, world.last_step = replace(world.lineage, actions=()), None
        world.release()
    return encode_response(exchange, world.content)


async def close(exchange: HttpExchange) -> Response:
    """DELETE /v1/worlds/{world}."""
    world_id = exchange.request.path_params["world"]
    _store(exchange).remove(tenant_name(exchange), world_id)
    return encode_response(exchange, {"id": world_id, "object": "world.deleted", "deleted": True})


# ---------------------------------------------------------------- implementation
def _store(exchange: HttpExchange) -> TtlStore[World]:
    state = exchange.request.app.state
    if not hasattr(state, "worlds"):
        mark = exchange.state.id_mark
        state.worlds = TtlStore[World]("world", MAX_WORLDS_PER_TENANT, IDLE_TIMEOUT_S, World.release, mark)
    return state.worlds


def _world(exchange: HttpExchange) -> World:
    return _store(exchange).find(tenant_name(exchange), exchange.request.path_params["world"])


def _create_world(exchange: HttpExchange, served_model: ServedModel, lineage: RolloutRequest, size: int) -> Response:
    world = _store(exchange).put(tenant_name(exchange), lambda world_id: World(world_id, served_model, lineage, size))
    return encode_response(exchange, world.content, 201)


async def _total_bytes(exchange: HttpExchange, before: int = 0) -> int:
    """Request bytes of a world including this request. Raises ApiError."""
    size = before + len(await exchange.body())
    if size > MAX_WORLD_BYTES:
        message = f"{size} bytes sent to this world, the limit is {MAX_WORLD_BYTES}. fix: create a new world"
        raise ApiError(413, "too_large", message)
    return size


def _check_step_count(steps: int) -> None:
    if steps > MAX_STEPS:
        message = f"limit of {MAX_STEPS} steps reached. fix: create a new world from the current observation"
        raise ApiError(422, "too_many_steps", message, param="action")


def _append_action(world: World, action: Any) -> RolloutRequest:
    """The world's lineage with one more action. Raises ApiError."""
    request: RolloutRequest = parse_request(
        replace(world.served_model, request_type=RolloutRequest), {"observation": {}, "actions": [action]}
    )
    (parsed,) = request.actions
    if parsed is None:
        raise ApiError(422, "invalid_value", "action: missing. fix: send the action of this step", param="action")
    check_finite("action", parsed)
    return replace(world.lineage, actions=(*world.lineage.actions, parsed))


async def _rollout_step(exchange: HttpExchange, world: World, lineage: RolloutRequest) -> dict[str, Any]:
    """Run the last action of a lineage; return its emissions by kind. Raises ApiError."""
    last = len(lineage.actions) - 1
    emissions: dict[str, Any] = {}
    if world.stream is None or world.stream.is_finished:
        world.stream = exchange.state.start_requests(
            world.served_model, lineage, context=exchange.context, multi_turn=True
        )
    else:
        world.stream.send_input(lineage.actions[-1])
    try:
        async for event in world.stream.turn():
            if event.index == last:
                emissions[event.kind] = event.value
    except (ApiError, asyncio.CancelledError):
        world.release()  # the model's states can be between two steps
        raise
    if not emissions:
        world.release()
        raise ApiError(500, "model_error", f"the model produced no output for the action of step {last}")
    return emissions
