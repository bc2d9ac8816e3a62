"""Robots: what they see comes in, a chunk of actions goes out. Over HTTP, and over WebSocket as openpi's clients speak.

A model may say what its robot is like with a method `robot_spec()`: a mapping for clients. If that names the fields of an
observation under "observation", each with "dtype" and "shape", then what comes is held against it: a robot that sends
a field under another name must hear of it, and not move. Nothing is kept between two observations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any, cast

import msgspec
from starlette.responses import PlainTextResponse, Response

from mstar.frontend.response_stream import Deliver, ResponseStream
from mstar.requests import ActionRequest
from mstar.server import arrays
from mstar.server.access.slo import slo_for_rate
from mstar.server.errors import ApiError
from mstar.server.generic.request_parsing import parse_request
from mstar.server.http_exchange import HttpExchange, check_value_count, json_response
from mstar.server.robotics import openpi
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

MSGPACK = "application/msgpack"
MAX_CHUNK_ACTIONS = 4096
"""How many actions a chunk may have, and a delay may be."""
_FIELD_ALIASES = {"prev_chunk_left_over": "leftover", "inference_delay": "delay", "execution_horizon": "horizon"}
"""What robots call the fields of `Acting`."""


# ---------------------------------------------------------------- over HTTP
async def predict_actions(exchange: HttpExchange) -> Response:
    """POST /v1/actions."""
    told = await read_body(exchange)
    served = exchange.resolve_model(str(told.pop("model", "")))
    ask = parse_action_request(served, {_FIELD_ALIASES.get(name, name): value for name, value in told.items()})
    begun = time.perf_counter()
    actions = await collect_actions(exchange.start_requests(served, ask))
    timing = {"infer_ms": (time.perf_counter() - begun) * 1e3}
    return encode_response(exchange, {"model": served.name, **actions, "server_timing": timing})


async def show_robot_spec(exchange: HttpExchange) -> Response:
    """GET /v1/actions/metadata?model=."""
    served = exchange.resolve_model(exchange.request.query_params.get("model", ""))
    return encode_response(exchange, {"model": served.name, **robot_spec_for(served)})


async def healthz(_: HttpExchange) -> Response:
    """GET /healthz, which clients of openpi ask for."""
    return PlainTextResponse("OK")


async def read_body(exchange: HttpExchange) -> dict[str, Any]:
    """The body, which is a map in JSON, or in msgpack as openpi writes it."""
    content = await exchange.body()
    try:
        match exchange.media_type:
            case "application/json":
                check_value_count(content)
                value = msgspec.json.decode(content)
            case "application/msgpack":
                value = openpi.unpack(content)
            case other:
                what = f"the content type is {other!r}; application/json or {MSGPACK} is needed"
                raise ApiError(415, "unsupported_media_type", what)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid_body", "the body cannot be decoded") from None
    if not isinstance(value, dict):
        raise ApiError(422, "invalid_value", "the body must be an object")
    return cast("dict[str, Any]", value)


def encode_response(exchange: HttpExchange, content: Mapping[str, Any], status: int = 200) -> Response:
    """An answer in the language of the question."""
    if MSGPACK in (exchange.media_type, exchange.request.headers.get("accept")):
        return Response(openpi.pack(content), status, media_type=MSGPACK)
    return json_response(arrays.to_plain(content, arrays.to_base64), status)


# ---------------------------------------------------------------- over WebSocket
async def serve_openpi(session: WebSocketSession) -> None:
    """The whole of a call as openpi's clients hold it: an error is a text, and then the call is over."""
    served = session.resolve_default_model()
    if (hz := session.socket.query_params.get("hz")) is not None:
        session.context.slo = slo_for_rate(session.context.slo, hz)
    await session.accept()
    await session.send(openpi.pack(robot_spec_for(served)))
    count, total = 0, None
    while True:
        heard = await session.receive()
        begun = time.perf_counter()
        try:
            ask = replace(
                parse_action_request(served, _parse_observation(heard)), seed=count
            )  # these clients bring none
            with session.start_requests(served, ask) as live:
                actions = await collect_actions(live)
        except ApiError as refusal:
            await session.send(refusal.message)
            await session.close_websocket(1011, refusal.code)  # whatever it was: so do openpi's own servers
            return
        timing = {"infer_ms": (time.perf_counter() - begun) * 1e3}
        if total is not None:
            timing["prev_total_ms"] = total
        await session.send(openpi.pack({**actions, "server_timing": timing}))
        count, total = count + 1, (time.perf_counter() - begun) * 1e3


def _parse_observation(message: str | bytes) -> dict[str, Any]:
    """An observation as openpi has it: one flat map, with the task among it."""
    try:
        seen = openpi.unpack(message) if isinstance(message, bytes) else None
    except arrays.BadArray as error:
        raise ApiError(400, "invalid_body", str(error)) from None
    if not isinstance(seen, dict):
        raise ApiError(400, "invalid_body", "an observation is a map in msgpack")
    observation = cast("dict[str, Any]", seen)
    return {"prompt": observation.pop("prompt", ""), "observation": observation}


# ---------------------------------------------------------------- both
def robot_spec_for(served: ServedModel) -> Mapping[str, Any]:
    """What a model says of its robot."""
    tell = served.optional_method("robot_spec")
    return tell() if tell is not None else {}


def parse_action_request(served: ServedModel, fields: Mapping[str, Any]) -> ActionRequest:
    """What a model is asked for. Raises Refusal."""
    ask: ActionRequest = parse_request(replace(served, request_type=ActionRequest), dict(fields))
    if not (0 <= ask.delay <= MAX_CHUNK_ACTIONS and 0 <= ask.horizon <= MAX_CHUNK_ACTIONS):
        what = f"inference_delay and execution_horizon are from 0 to {MAX_CHUNK_ACTIONS}, and are {ask.delay} and {ask.horizon}"
        raise ApiError(422, "invalid_value", what, param="inference_delay")
    declared = robot_spec_for(served).get("observation")
    if declared is not None:
        _validate_observation(declared, ask.observation)
    for name, value in (*ask.observation.items(), ("prev_chunk_left_over", ask.leftover)):
        check_finite(name, value)
    return ask


def _validate_observation(declared: Mapping[str, Any], observation: Mapping[str, Any]) -> None:
    missing, unknown = sorted(declared.keys() - observation.keys()), sorted(observation.keys() - declared.keys())
    if missing or unknown:
        what = f"the observation lacks {missing} and has {unknown}, which nobody reads; it needs {sorted(declared)}"
        raise ApiError(422, "invalid_observation", what, param="observation")
    for name, wanted in declared.items():
        value = observation[name]
        shown = f"{value.dtype.name}{list(value.shape)}" if arrays.is_array(value) else type(value).__name__
        needed = f"{wanted['dtype']}{list(wanted['shape'])}"
        if shown != needed:
            what = f"`{name}` is {shown}, and {needed} is needed"
            raise ApiError(422, "invalid_observation", what, param=f"observation.{name}")


def check_finite(name: str, value: Any) -> None:
    """Refuse an array in which something is not a number, or not finite."""
    if not _is_finite(value):
        raise ApiError(422, "invalid_value", f"`{name}` is not finite everywhere", param=name)


def _is_finite(value: Any) -> bool:
    is_float = arrays.is_array(value) and "float" in str(value.dtype)
    return not is_float or 0 in value.shape or bool(abs(value).max() < inf)


async def collect_actions(stream: ResponseStream) -> dict[str, Any]:
    """The actions of a request, and how many of them there are in a second."""
    last: Deliver | None = None
    async for news in stream:
        if isinstance(news, Deliver) and news.kind == "Action":
            last = news
    if last is None:
        raise ApiError(500, "model_error", "the model gave no action")
    if not _is_finite(last.value):
        raise ApiError(500, "model_error", "the model gave an action that is not finite")
    return {"actions": last.value, **dict(last.clock)}
