"""Robot policy endpoints: an observation in, an action chunk out (`/v1/actions`, and openpi's WebSocket protocol).

A model describes its robot by an optional method `robot_spec()`, which clients can read. If the spec has "observation",
a mapping of field names to "dtype" and "shape", every observation is validated against it: a robot whose fields do not
match gets an error instead of wrong actions. The server keeps no state between observations.
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
from mstar.server.inputs.msgpack_scan import check_msgpack_value_count
from mstar.server.robotics import openpi
from mstar.server.state import ServedModel
from mstar.server.websocket_session import WebSocketSession

MSGPACK = "application/msgpack"
MAX_CHUNK_ACTIONS = 4096
"""Maximum of `inference_delay` and `execution_horizon`, in actions."""
_FIELD_ALIASES = {"prev_chunk_left_over": "leftover", "inference_delay": "delay", "execution_horizon": "horizon"}
"""Request fields by LeRobot's names (real-time chunking) -> fields of `ActionRequest`."""


# ---------------------------------------------------------------- HTTP
async def predict_actions(exchange: HttpExchange) -> Response:
    """POST /v1/actions."""
    body = await read_body(exchange)
    served = exchange.resolve_model(str(body.pop("model", "")))
    request = parse_action_request(served, {_FIELD_ALIASES.get(name, name): value for name, value in body.items()})
    started_at = time.perf_counter()
    actions = await collect_actions(exchange.start_requests(served, request))
    timing = {"infer_ms": (time.perf_counter() - started_at) * 1e3}
    return encode_response(exchange, {"model": served.name, **actions, "server_timing": timing})


async def show_robot_spec(exchange: HttpExchange) -> Response:
    """GET /v1/actions/metadata?model=."""
    served = exchange.resolve_model(exchange.request.query_params.get("model", ""))
    return encode_response(exchange, {"model": served.name, **robot_spec_for(served)})


async def healthz(_: HttpExchange) -> Response:
    """GET /healthz, which openpi clients poll."""
    return PlainTextResponse("OK")


async def read_body(exchange: HttpExchange) -> dict[str, Any]:
    """Decode a body that is a JSON object, or a msgpack map with openpi's arrays. Raises ApiError."""
    content = await exchange.body()
    try:
        match exchange.media_type:
            case "application/json":
                check_value_count(content)
                value = msgspec.json.decode(content)
            case "application/msgpack":
                await check_msgpack_value_count(content)
                value = openpi.unpack(content)
            case other:
                message = f"unsupported content type {other!r}. fix: send application/json or {MSGPACK}"
                raise ApiError(415, "unsupported_media_type", message)
    except (ValueError, RecursionError):
        message = "the body does not match its content type. fix: send valid JSON or msgpack"
        raise ApiError(400, "invalid_body", message) from None
    if not isinstance(value, dict):
        message = f"the body is a {type(value).__name__}, not an object. fix: send an object with the fields"
        raise ApiError(422, "invalid_value", message)
    return cast("dict[str, Any]", value)


def encode_response(exchange: HttpExchange, content: Mapping[str, Any], status: int = 200) -> Response:
    """Encode a response as msgpack if the request is msgpack or accepts it, else as JSON."""
    if MSGPACK in (exchange.media_type, exchange.headers.get("accept")):
        return Response(openpi.pack(content), status, media_type=MSGPACK)
    return json_response(arrays.to_plain(content, arrays.to_base64), status)


# ---------------------------------------------------------------- WebSocket
async def serve_openpi(session: WebSocketSession) -> None:
    """WebSocket session of an openpi client. As in openpi, an error is sent as text and closes the connection."""
    served = session.resolve_default_model()
    if (hz := session.socket.query_params.get("hz")) is not None:
        session.context.slo = slo_for_rate(session.context.slo, hz)
    await session.accept()
    await session.send(openpi.pack(robot_spec_for(served)))
    count, previous_total_ms = 0, None
    while True:
        message = await session.receive()
        started_at = time.perf_counter()
        try:
            if isinstance(message, bytes):
                await check_msgpack_value_count(message)
            # openpi clients send no seed: the count makes the chunks of a session differ, and repeatable.
            request = replace(parse_action_request(served, _parse_observation(message)), seed=count)
            with session.start_requests(served, request) as stream:
                actions = await collect_actions(stream)
        except ApiError as error:
            await session.send(error.message)
            await session.close_websocket(1011, error.code)  # openpi servers use 1011 for every error
            return
        timing = {"infer_ms": (time.perf_counter() - started_at) * 1e3}
        if previous_total_ms is not None:
            timing["prev_total_ms"] = previous_total_ms
        await session.send(openpi.pack({**actions, "server_timing": timing}))
        count, previous_total_ms = count + 1, (time.perf_counter() - started_at) * 1e3


def _parse_observation(data: str | bytes) -> dict[str, Any]:
    """Decode openpi's observation: one flat msgpack map that includes the prompt. Raises ApiError."""
    try:
        value = openpi.unpack(data) if isinstance(data, bytes) else None
    except arrays.BadArray as error:
        raise ApiError(400, "invalid_body", str(error)) from None
    if not isinstance(value, dict):
        message = "the observation is not a msgpack map. fix: send a binary message with a msgpack map"
        raise ApiError(400, "invalid_body", message)
    observation = cast("dict[str, Any]", value)
    return {"prompt": observation.pop("prompt", ""), "observation": observation}


# ---------------------------------------------------------------- HTTP and WebSocket
def robot_spec_for(served: ServedModel) -> Mapping[str, Any]:
    """The model's `robot_spec()`, empty if it has none."""
    robot_spec = served.optional_method("robot_spec")
    return robot_spec() if robot_spec is not None else {}


def parse_action_request(served: ServedModel, fields: Mapping[str, Any]) -> ActionRequest:
    """Parse and validate the request for the model's route. Raises ApiError."""
    request: ActionRequest = parse_request(replace(served, request_type=ActionRequest), dict(fields))
    if not (0 <= request.delay <= MAX_CHUNK_ACTIONS and 0 <= request.horizon <= MAX_CHUNK_ACTIONS):
        message = (
            f"inference_delay is {request.delay} and execution_horizon {request.horizon}. "
            f"fix: send values from 0 to {MAX_CHUNK_ACTIONS}"
        )
        raise ApiError(422, "invalid_value", message, param="inference_delay")
    spec = robot_spec_for(served).get("observation")
    if spec is not None:
        _validate_observation(spec, request.observation)
    for name, value in (*request.observation.items(), ("prev_chunk_left_over", request.leftover)):
        check_finite(name, value)
    return request


def _validate_observation(spec: Mapping[str, Any], observation: Mapping[str, Any]) -> None:
    missing, unknown = sorted(spec.keys() - observation.keys()), sorted(observation.keys() - spec.keys())
    if missing or unknown:
        message = f"observation: missing fields {missing}, unknown fields {unknown}. fix: send exactly {sorted(spec)}"
        raise ApiError(422, "invalid_observation", message, param="observation")
    for name, field in spec.items():
        value = observation[name]
        actual = f"{value.dtype.name}{list(value.shape)}" if arrays.is_array(value) else type(value).__name__
        expected = f"{field['dtype']}{list(field['shape'])}"
        if actual != expected:
            message = f"observation: `{name}` is {actual}. fix: send {expected}"
            raise ApiError(422, "invalid_observation", message, param=f"observation.{name}")


def check_finite(name: str, value: Any) -> None:
    """Raise ApiError if a float array has a NaN or an infinity."""
    if not _is_finite(value):
        message = f"`{name}` is not finite: it has a NaN or an infinity. fix: check the sensor that it comes from"
        raise ApiError(422, "invalid_value", message, param=name)


def _is_finite(value: Any) -> bool:
    is_float = arrays.is_array(value) and "float" in str(value.dtype)
    return not is_float or 0 in value.shape or bool(abs(value).max() < inf)


async def collect_actions(stream: ResponseStream) -> dict[str, Any]:
    """Wait for the last action chunk; return it with its `rate` in actions per second. Raises ApiError."""
    last: Deliver | None = None
    async for event in stream:
        if isinstance(event, Deliver) and event.kind == "Action":
            last = event
    if last is None:
        raise ApiError(500, "model_error", "the model produced no action")
    if not _is_finite(last.value):
        raise ApiError(500, "model_error", "the model produced an action that is not finite; it is not returned")
    return {"actions": last.value, **dict(last.clock)}
